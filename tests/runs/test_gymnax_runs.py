"""Runs on envs of gymnax, whose states are dataclasses that only JAX knows: saved, resumed, the same bits."""

from hotloop_process import manifest

import hotloop

SPEC = {
    "env": {"id": "gymnax:CartPole-v1", "num_envs": 4},
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 256, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
    "log": {"every": 100, "exact": True},
}


def test_a_run_in_two_parts_ends_in_the_same_bits(tmp_path):
    for name, parts in (("whole", [400]), ("parts", [200, 400])):
        hotloop.train(SPEC, out=tmp_path / name, **{"stop.steps": parts[0]})
        for steps in parts[1:]:
            hotloop.resume(tmp_path / name, steps=steps)
    whole, parts = (manifest(tmp_path / name)["digests"] for name in ("whole", "parts"))
    assert whole == parts
    assert hotloop.load(tmp_path / "whole", which="last").evaluate(2)["episodes"] == 2


def test_they_are_stepped_from_the_host_too(tmp_path):
    run = hotloop.train(SPEC, out=tmp_path / "run", **{"pipeline": "sync", "stop.steps": 200})
    assert hotloop.resume(run, steps=300).env_steps >= 300
