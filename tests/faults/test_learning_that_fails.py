"""Learning that fails in mid-run loses no transition and no gradient step that was earned."""

from typing import Any

import pytest

from hotloop.assembly import Assembly, Substitutes
from hotloop.errors import DeviceFailed
from hotloop.pipelines.host_run import HostRun
from hotloop.spec.reading import parse_spec
from hotloop.trial import begun

SPEC: dict[str, Any] = {
    "network": {"torso": {"hidden": [4]}},
    "replay": {"capacity": 512, "start": 32, "batch_size": 4},
    "updates_per_step": 1.0,
    "env": {"id": "CartPole-v1", "num_envs": 4, "vectorization": "sync"},
}


@pytest.mark.parametrize("pipeline", ["sync", "concurrent"])
@pytest.mark.parametrize("sampling", [{"kind": "uniform"}, {"kind": "prioritized", "updates_per_draw": 2}])
def test_what_was_collected_is_stored_and_its_gradient_steps_are_still_due(pipeline: str, sampling: Any) -> None:
    calls = [0]

    def failing(update: Any) -> Any:
        def call(*inputs: Any) -> Any:
            calls[0] += 1
            if calls[0] == 8:
                raise DeviceFailed("device 1 is gone")
            return update(*inputs)

        return call

    spec = parse_spec({**SPEC, "pipeline": pipeline, "replay": {**SPEC["replay"], "sampling": sampling}})
    with Assembly(spec, substitutes=Substitutes(update=failing)) as assembly:
        run = begun(assembly)
        assert isinstance(run, HostRun)
        with pytest.raises(DeviceFailed):
            run.advance(100)
        assert run.learner.replay.size == run.env_steps, "every transition is there"
        per_block = run.block_plan.env_steps
        assert run.learner.limiter.owed == (per_block if pipeline == "sync" else 2 * per_block)
        before = run.read().updates[0]
        run.advance(3)
        assert run.read().updates[0] > before
