"""A stage that is made free for a while is not done then, all others are, and afterwards the run goes on as it was."""

import re
from collections import Counter
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from plain_envs import Masked

from hotloop.assembly import Assembly, Own
from hotloop.doctor.free_on_device import BY_STAGES, FreeOnDevice
from hotloop.doctor.free_on_host import RECORDED, FreeOnHost
from hotloop.pipelines.device_session import DeviceSession
from hotloop.pipelines.host_run import HostRun
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

SMALL = {
    "evaluation.every": 0,
    "network.torso.hidden": [16],
    "replay.capacity": 2_000,
    "replay.start": 64,
    "replay.batch_size": 8,
    "env.num_envs": 4,
    "updates_per_step": 0.5,
}
BY_PRIORITY = {"replay.sampling": {"kind": "prioritized", "updates_per_draw": 1}, "replay.n_step": 3}
BLOCKS = 20


class Stacked(Masked):
    """Four frames, each a number higher than the last."""

    observation_space = gym.spaces.Box(0, 255, (4, 16, 16), np.uint8)

    def shown(self):
        frames = np.arange(self.steps, self.steps + 4, dtype=np.uint8)
        return np.broadcast_to(frames[:, None, None], (4, 16, 16)).copy()


IMAGES = {
    "network.torso": {"kind": "cnn", "layout": "CHW", "channels": [4], "kernels": [4], "strides": [4], "hidden": [8]},
    "env.action_mask": True,
    "replay.stacked_frames": 4,
    "replay.n_step": 2,
    "replay.batch_size": 512,  # whose way to the device is a stage
}
RUNS = {
    "sync": ({"pipeline": "sync", "env.id": "CartPole-v1"}, None),
    "sync, by priority": ({"pipeline": "sync", "env.id": "CartPole-v1", **BY_PRIORITY}, None),
    "concurrent, images": ({"pipeline": "concurrent", **IMAGES}, Stacked),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request) -> Iterator[HostRun]:
    changes, env = RUNS[request.param]
    with Assembly(load_spec({}, {**SMALL, **changes}), Own(env=env)) as assembly:
        session = begun(assembly)
        warm_up(session, assembly.spec)
        assert isinstance(session, HostRun)
        yield session


DONE_BY = {
    "step": lambda run: (run.pipeline.envs, "step"),
    "select": lambda run: (run.actor.explorer, "q_values"),
    "insert": lambda run: (run.learner.replay, "insert"),
    "sample": lambda run: (run.learner.replay, "sample"),
    "transfer": lambda run: (run.engine, "put"),
    "update": lambda run: (run.pipeline, "update"),
}


def calls_of(run: HostRun, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """Counts what does each stage from now on."""
    calls = Counter()
    for stage, where in DONE_BY.items():
        owner, name = where(run)
        own = getattr(owner, name)

        def counted(*given, stage=stage, own=own, **named):
            calls[stage] += 1
            return own(*given, **named)

        monkeypatch.setattr(owner, name, counted)
    monkeypatch.setattr(run.learner, "update", run.pipeline.update)
    return calls


def test_one_stage_is_not_done_and_all_others_are(run, monkeypatch):
    calls, free = calls_of(run, monkeypatch), FreeOnHost(run)
    with free.prepared():
        run.advance(2)
    expected = set(DONE_BY) - (set() if run.learner.transfers_apart else {"transfer"})
    assert set(free.stages) == expected
    for stage in (*free.stages, *free.stages):
        calls.clear()
        run.advance(2)
        assert set(calls) == expected, "as it is"
        with free.stages[stage]():
            run.advance(1)  # in which it may record
            calls.clear()
            before = run.env_steps
            run.advance(BLOCKS)
            assert set(calls) == expected - {stage}
            assert run.env_steps > before


def test_recorded_steps_are_whole_episodes_to_a_replay_of_frames():
    changes, env = RUNS["concurrent, images"]
    with Assembly(load_spec({}, {**SMALL, **changes}), Own(env=env)) as assembly:
        run = begun(assembly)
        warm_up(run, assembly.spec)
        assert isinstance(run, HostRun)
        free = FreeOnHost(run)
        with free.prepared():
            run.advance(2)
        with free.stages["step"]():
            run.advance(2 * RECORDED)
        run.advance(2 * RECORDED)
        replay = run.learner.replay
        rows = replay.ring.take(np.arange(replay.ring.inserted - replay.ring.size, replay.ring.inserted))
        before, after = (replay.store.take(stored)[:, :, 0, 0].astype(int) for stored in (rows.s_tm1, rows.s_t))
    assert (np.diff(before, axis=1) == 1).all(), "frames follow each other"
    steps = after[:, 0] - before[:, 0]
    assert ((steps == 2) | (after[:, 0] >= 1)).all()
    assert set(steps) <= {1, 2}
    legal = rows.legal_t
    assert (legal.sum(axis=1) == 2).all()
    assert (~legal[np.arange(len(legal)), after[:, 0] % 3]).all(), "masks belong to what was seen"


def test_weights_stay_while_updates_are_free(run):
    free = FreeOnHost(run)
    before = run.engine.to_named(run.engine.weights(run.learner.state))
    with free.stages["update"]():
        run.advance(BLOCKS)
    after = run.engine.to_named(run.engine.weights(run.learner.state))
    assert all((before[name] == after[name]).all() for name in before)


# -- on the device ----------------------------------------------------------------------------------------

SCOPES = ("select", "step", "insert", "sample", "targets", "learn", "prioritize")
"""Stages by the names that their instructions bear."""


def instructions(program) -> Counter:
    """How many of a compiled program's belong to each stage; copies of one, which fusing makes, count once."""
    found = Counter()
    for named in set(re.findall(r'op_name="([^"]*)"', program.as_text())):
        found.update(set(SCOPES) & set(named.split("/")))
    return found


ON_DEVICE = {
    "uniform": {**SMALL, "env.id": "cartpole"},
    "by priority": {**SMALL, "env.id": "cartpole", **BY_PRIORITY},
    "memory": {
        **SMALL,
        "env.id": "cartpole",
        "network.core": {"kind": "lstm", "size": 8},
        "replay.sequence": {"length": 4, "burn_in": 2},
    },
    "agents": {**SMALL, "env.id": "treasure", "replay.n_step": 2},
    "rollouts": {
        "evaluation.every": 0,
        "network.torso.hidden": [16],
        "env.id": "cartpole",
        "env.num_envs": 4,
        "on_policy": {"steps": 4, "epochs": 2, "minibatches": 2},
    },
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.heavy] * (kind == "agents")) for kind in ON_DEVICE]
)
def test_the_compiler_leaves_out_no_other_stage(kind):
    spec = load_spec({}, {**ON_DEVICE[kind], "pipeline": "fused"})
    with Assembly(spec) as assembly:
        session = begun(assembly)
        warm_up(session, assembly.spec)
        assert isinstance(session, DeviceSession)
        free = FreeOnDevice(session)
        whole = instructions(free.program(None))
        stages = {"select", "step", "sample", "update"} | ({"insert"} if kind != "rollouts" else set())
        assert set(free.stages) == stages
        assert {"learn" if stage == "update" else stage for stage in stages} <= set(whole)
        for stage in stages:
            left, scope = instructions(free.program(stage)), {"update": "learn"}.get(stage, stage)
            assert left[scope] < 0.8 * whole[scope], f"{stage} is still there"
            without = {scope, "prioritize"} if stage == "sample" else {scope}
            for other in set(whole) - without:
                assert left[other] > 0.7 * whole[other], f"without {stage}, {other} is missing"
            goes_on_without(session, free, stage)
        session.advance(1)


def goes_on_without(session: DeviceSession, free: FreeOnDevice, stage: str) -> None:
    """Blocks are run without a stage, and gradient steps are taken unless it is that."""
    before = session.read()
    with free.stages[stage]():
        session.advance(BLOCKS)
        now = session.read()
    assert now.env_steps == before.env_steps + BLOCKS * session.spec.block_plan.env_steps
    assert (now.updates > before.updates).all() == (stage != "update")
    session.advance(1)
    assert session.read().env_steps > now.env_steps


def test_of_a_block_whose_stages_are_calls_one_is_another_program():
    with Assembly(load_spec({}, {**SMALL, **BY_PRIORITY, "env.id": "cartpole", "pipeline": "sync"})) as assembly:
        session = begun(assembly)
        warm_up(session, assembly.spec)
        assert isinstance(session, DeviceSession)
        free, own = FreeOnDevice(session), session.pipeline.runner.programs
        for stage in free.stages:
            goes_on_without(session, free, stage)
            programs = free.program(stage).__self__.runner.programs
            assert {name for name in own if programs[name] is not own[name]} == set(BY_STAGES[stage])
