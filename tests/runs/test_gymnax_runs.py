"""Runs on envs of gymnax, whose states are dataclasses that only JAX knows: saved, resumed, the same bits."""

import pytest
from hotloop_process import manifest

import hotloop

SPEC = {
    "env": {"id": "gymnax:CartPole-v1", "num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 256, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
    "log": {"every": 100, "exact": True},
}


@pytest.mark.parametrize("pipeline", ["fused", "sync"])
def test_a_run_in_two_parts_ends_in_the_same_bits(pipeline, tmp_path):
    for name, parts in (("whole", [400]), ("parts", [200, 400])):
        hotloop.train(SPEC, out=tmp_path / name, **{"pipeline": pipeline, "stop.steps": parts[0]})
        for steps in parts[1:]:
            hotloop.resume(tmp_path / name, steps=steps)
    whole, parts = (manifest(tmp_path / name)["digests"] for name in ("whole", "parts"))
    if pipeline == "fused":
        assert whole == parts
    else:  # where an env on the host stands is not saved: it begins a new episode
        assert whole.keys() == parts.keys()
    assert hotloop.load(tmp_path / "whole", which="last").evaluate(2)["episodes"] == 2
