"""Several agents in processes: a recorded team shows again what the other did; one stage that is free is not done."""

from collections import Counter

import numpy as np
import pytest
from parallel_envs import AGENTS, Counting, Matching, life

from counted_calls import counted
from hotloop.assembly import Assembly, Own
from hotloop.doctor.causes import causes_of
from hotloop.doctor.examination import examine
from hotloop.doctor.free_in_processes import FreeInProcesses
from hotloop.doctor.look_at_processes import _recorded
from hotloop.doctor.recorded_team import RecordedTeam, record_team
from hotloop.envs.own import OwnEnvId
from hotloop.envs.team import open_team
from hotloop.pipelines.process_team import ProcessTeam
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec
from hotloop.trial import begun, warm_up

pytestmark = pytest.mark.less_optimised

SMALL = {
    "pipeline": "processes",
    "evaluation.every": 0,
    "network.torso.hidden": [16],
    "replay.capacity": 2_000,
    "replay.start": 64,
    "replay.batch_size": 8,
    "env.num_envs": 2,
    "updates_per_step": 0.5,
    "actors.steps_per_parcel": 4,
}
BLOCKS = 40


@pytest.mark.parametrize("number", range(5), ids=lambda number: f"lives of env {number}")
def test_a_recorded_team_shows_again_what_the_other_did(number):
    envs = open_team(OwnEnvId("counting", lambda: Counting(number)), 1, {})
    recording = record_team(envs, 0, ("x",))
    envs.close()
    lives = [life(number, 0, agent) for agent in range(3)]
    team = RecordedTeam(recording, any_option=1)
    for _ in range(2):
        obs, _ = team.reset()
        assert (
            set(obs)
            == set(team.agents)
            == {name for name, (comes, _, _) in zip(AGENTS, lives, strict=True) if not comes}
        )
        for t in range(1, len(recording.turns) + 1):
            acted = set(team.agents)
            assert acted == {name for name, (comes, goes, _) in zip(AGENTS, lives, strict=True) if comes < t <= goes}
            obs, reward, terminated, truncated, infos = team.step(dict.fromkeys(acted, 0))
            assert set(reward) == set(terminated) == set(truncated) == set(infos) == acted
            assert set(obs) == acted | set(team.agents)
            for name in acted:
                _, goes, by_end = lives[AGENTS.index(name)]
                assert obs[name][:4].tolist() == [number, 0, t, AGENTS.index(name)]
                assert reward[name] == pytest.approx(t + obs[name][4] / 8)
                assert (terminated[name], truncated[name]) == (t == goes and by_end, t == goes and not by_end)
                assert infos[name] == {"x": 0.0}
        assert team.agents == []


def test_a_long_episode_is_cut_for_all():
    envs = open_team(OwnEnvId("long", lambda: Matching(turns=10_000)), 1, {})
    recording = record_team(envs, 0, ())
    envs.close()
    team = RecordedTeam(recording)
    team.reset()
    for turn in recording.turns[:-1]:
        _, _, terminated, truncated, _ = team.step({})
        assert not any(truncated.values())
        assert terminated.get("large") is False, turn
    assert team.step({})[3] == {"large": True}
    assert team.agents == []


class Counted(Matching):
    """All instances count their steps together."""

    steps_of_all = 0

    def step(self, actions):
        Counted.steps_of_all += 1
        return super().step(actions)


def test_one_stage_is_not_done_and_all_others_are(monkeypatch):
    spec = load_spec({}, {**SMALL, "actors.here": True})
    with Assembly(spec, Own(env=Counted)) as assembly:
        team = begun(assembly)
        warm_up(team, assembly.spec)
        assert isinstance(team, ProcessTeam)
        make, around = _recorded(assembly)
        assert around(2) > 0
        free = FreeInProcesses(team, assembly.pipeline, make)
        calls = Counter()
        for run in team.runs:
            counted(monkeypatch, calls, "insert", run.learner.replay, "take_in")
            counted(monkeypatch, calls, "sample", run.learner.replay, "sample")
            counted(monkeypatch, calls, "update", run.learner, "update")
        counted(monkeypatch, calls, "update", team.runs[0].engine, "update_all")
        for supply in (team.supply, free._others):
            counted(monkeypatch, calls, "publish", supply, "send_weights")
        monkeypatch.setattr("hotloop.pipelines.supply.PUBLISH_SECONDS", 0.0)
        assert free.prepare(1_000)
        everything = {"step", "insert", "sample", "update", "publish"}
        assert set(free.stages) == everything
        for stage, change in free.stages.items():
            assert _done(team, calls) == everything, "as it is"
            with change():
                assert _done(team, calls) == everything - {stage}
        sizes = [run.learner.replay.size for run in team.runs]
        free.fill(seconds=0.5)
        assert all(run.learner.replay.size > size for run, size in zip(team.runs, sizes, strict=True))


def _done(team, calls):
    """Stages that are done while blocks are run."""
    calls.clear()
    steps, env_steps = Counted.steps_of_all, team.env_steps
    team.advance(BLOCKS)
    assert team.env_steps > env_steps
    return {*calls} | ({"step"} if Counted.steps_of_all > steps else set())


def test_of_a_device_env_steps_are_predicted_only():
    spec = load_spec({}, {**SMALL, "env.id": "treasure", "actors.here": True})
    with Assembly(spec) as assembly:
        make, around = _recorded(assembly)
    assert make is None
    assert around(2) == 0


class Slow(Matching):
    """A turn takes long, at work."""

    def step(self, actions):
        np.linalg.svd(np.ones((200, 200)))
        return super().step(actions)


@pytest.mark.heavy
def test_costly_turns_are_the_verdict():
    seen = examine(load_spec({}, {**SMALL, "actors.count": 1}), Own(env=Slow), 6.0, Silent())
    assert not seen.stages["step"].is_beside
    assert seen.stages["step"].measured.value > 1.5
    assert causes_of(seen)[0].cause == "env-step"
