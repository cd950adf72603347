"""In a run with actors one stage that is made free is not done, all others are; the same of a team in this process."""

import time
from collections import Counter
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from plain_envs import Masked

from counted_calls import counted
from hotloop.assembly import Assembly, Own
from hotloop.doctor.examination import examine
from hotloop.doctor.free_in_processes import SLOWER, FreeInProcesses, WithActors
from hotloop.doctor.free_team import FreeTeam
from hotloop.doctor.look_at_processes import recording_of
from hotloop.doctor.recorded_env import RECORDED, RecordedEnv, record
from hotloop.envs.host import open_envs
from hotloop.envs.own import OwnEnvId
from hotloop.pipelines.host_team import HostTeam
from hotloop.pipelines.process_run import ProcessRun
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

SMALL = {
    "evaluation.every": 0,
    "network.torso.hidden": [16],
    "replay.capacity": 2_000,
    "replay.start": 64,
    "replay.batch_size": 8,
    "env.num_envs": 2,
    "updates_per_step": 0.5,
}
BLOCKS = 40


class Counting(Masked):
    """All instances count their steps together."""

    observation_space = gym.spaces.Dict({"seen": gym.spaces.Box(-1, 1, (3,)), "kind": gym.spaces.Discrete(4)})
    steps_of_all = 0

    def shown(self):
        return {"seen": np.full(3, self.steps / 10, np.float32), "kind": self.steps % 4}

    def step(self, action):
        Counting.steps_of_all += 1
        return super().step(action)


def test_of_a_run_with_actors_one_stage_is_not_done_and_all_others_are(monkeypatch):
    changes = {"pipeline": "processes", "env.action_mask": True, "actors.here": True}
    spec = load_spec({}, {**SMALL, **changes, "env.observe": ["seen"], "actors.steps_per_parcel": 4})
    with Assembly(spec, Own(env=Counting)) as assembly:
        run = begun(assembly)
        warm_up(run, assembly.spec)
        assert isinstance(run, ProcessRun)
        calls = Counter()
        for stage, owner, name in (
            ("insert", run.learner.replay, "take_in"),
            ("sample", run.learner.replay, "sample"),
            ("update", run.learner, "update"),
            ("publish", run.supply, "send_weights"),
        ):
            counted(monkeypatch, calls, stage, owner, name)
        free = FreeInProcesses(run, assembly.pipeline, partial(RecordedEnv, recording_of(assembly)))
        counted(monkeypatch, calls, "publish", free._others, "send_weights")
        monkeypatch.setattr("hotloop.pipelines.supply.PUBLISH_SECONDS", 0.0)
        assert free.prepare(1_000)
        assert set(free.stages) == {"step", "insert", "sample", "update", "publish"}
        everything = {*free.stages}
        for stage in free.stages:
            assert done(run, calls) == everything, "as it is"
            with free.stages[stage]():
                assert done(run, calls) == everything - {stage}
        size = run.learner.replay.size
        free.fill(seconds=0.5)
        assert run.learner.replay.size > size
        before = WithActors(run).seconds()
        with free.ways[SLOWER]():
            run.advance(BLOCKS)
        after = WithActors(run).seconds()
        assert after["work of learner"] - before["work of learner"] >= BLOCKS * free.delay > 0
        assert after["step"] > before["step"]


def done(run: ProcessRun, calls: Counter) -> set[str]:
    """Stages that are done while blocks are run."""
    calls.clear()
    steps, env_steps = Counting.steps_of_all, run.env_steps
    run.advance(BLOCKS)
    assert run.env_steps > env_steps
    return {*calls} | ({"step"} if Counting.steps_of_all > steps else set())


def test_a_recorded_env_shows_again_what_the_other_did():
    envs = open_envs(OwnEnvId("counting", Counting), 1, {})
    envs.mask_actions("counting")
    try:
        recording = record(envs, 0, ("x",))
    finally:
        envs.close()
    assert len(recording.steps) == 7 < RECORDED
    env = RecordedEnv(recording, any_option=1)
    for _ in range(2):
        obs, info = env.reset()
        assert obs["seen"].tolist() == [0.0, 0.0, 0.0]
        assert info["action_mask"].tolist() == [False, True, True]
        for number in range(1, 8):
            obs, reward, terminated, truncated, info = env.step(0)
            assert env.observation_space.contains(obs)
            assert obs["seen"][0] == pytest.approx(number / 10)
            assert obs["kind"].tolist() == [int(number % 4 == kind) for kind in range(4)], "as a network sees it"
            assert info["action_mask"].tolist() == [number % 3 != action for action in range(3)]
            assert (reward, terminated, truncated, info["x"]) == (1.0, number == 7, False, 0.0)


@pytest.mark.heavy
def test_of_a_team_here_one_stage_is_not_done_and_all_others_are(monkeypatch):
    spec = load_spec({}, {**SMALL, "env.id": "treasure", "engine": "torch", "torch.mode": "eager", "replay.n_step": 2})
    with Assembly(spec) as assembly:
        team = begun(assembly)
        warm_up(team, assembly.spec)
        assert isinstance(team, HostTeam)
        calls = Counter()
        counted(monkeypatch, calls, "step", team.envs, "step")
        counted(monkeypatch, calls, "update", team.runs[0].engine, "update_all")
        for run in team.runs:
            counted(monkeypatch, calls, "select", run.actor.explorer, "q_values")
            counted(monkeypatch, calls, "insert", run.learner.replay, "insert")
            counted(monkeypatch, calls, "sample", run.learner.replay, "sample")
            counted(monkeypatch, calls, "update", run.learner, "update")
        free = FreeTeam(team)
        with free.prepared():
            team.advance(2)
        assert free.is_prepared
        for stage in free.stages:
            calls.clear()
            team.advance(2)
            assert set(calls) == set(free.stages), "as it is"
            with free.stages[stage]():
                team.advance(1)  # in which it may record
                calls.clear()
                before = team.env_steps
                team.advance(2 * RECORDED)
                assert set(calls) == set(free.stages) - {stage}
                assert team.env_steps > before


class Sleeping(Counting):
    """A step takes long."""

    def step(self, action):
        time.sleep(5e-3)
        return super().step(action)


@pytest.mark.heavy
def test_envs_that_sleep_in_processes_are_the_verdict_as_the_learner_waits():
    spec = load_spec({}, {**SMALL, "pipeline": "processes", "env.observe": ["seen"], "env.action_mask": True})
    seen = examine(spec, Own(env=Sleeping), 6.0, Silent())
    step, update = seen.stages["step"], seen.stages["update"]
    assert not step.is_beside
    assert update.is_beside
    assert step.seconds > 2e-3, "of an env step, of two actors at most"
    assert step.predicted > 1.5
    assert step.measured.value > 1.5
    assert any("the learner waits" in said for said in step.evidence)
