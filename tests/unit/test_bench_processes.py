"""What `bench processes` measures is what it says: the same work, at rest between turns, and envs that are envs."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hotloop.assembly import Assembly
from hotloop.bench.processes import Case, Target, refuse_other_work, refuse_restless, rows_of
from hotloop.bench.processes_envs import WorkingEnv, fall, work_of
from hotloop.pipelines.process_run import ProcessRun
from hotloop.runs.metrics import Metrics
from hotloop.spec.reading import load_spec
from hotloop.trainer_process import Figures, Turns
from hotloop.trial import begun

pytestmark = pytest.mark.less_optimised


def figures(**changes: Any) -> Figures:
    usual: dict[str, Any] = {
        "env_steps_per_s": 100.0,
        "env_steps": 1000,
        "updates": 250,
        "samples_per_insert": 16.0,
        "learner": {"update": 0.6, "wait": 0.01},
        "actors": {},
        "weights_lag": None,
        "here_us": 10.0,
        "actors_us": 0.0,
        "cores": 1.0,
        "rest_seconds": 10.0,
        "used_at_rest": 0.01,
        "update_ms": 1.0,
    }
    return {**usual, **changes}  # type: ignore[typeddict-item]


def test_trainings_that_learn_more_per_step_are_not_compared() -> None:
    refuse_other_work("a", {"sync": [figures()], "processes": [figures(updates=251)]})
    with pytest.raises(ValueError, match="do not do the same work"):
        refuse_other_work("a", {"sync": [figures()], "processes": [figures(updates=270)]})


def test_a_training_that_works_while_others_are_measured_is_refused() -> None:
    assert refuse_restless("a", {"sync": [figures()], "processes": [figures(used_at_rest=0.02)]}) == 0.002
    with pytest.raises(ValueError, match="a/processes used"):
        refuse_restless("a", {"sync": [figures()], "processes": [figures(used_at_rest=5.0)]})


def test_a_row_says_whether_its_target_was_reached() -> None:
    found = {
        "sync": [figures(), figures()],
        "concurrent": [figures(env_steps_per_s=150.0)] * 2,
        "processes": [figures(env_steps_per_s=165.0)] * 2,
    }
    of_sync = rows_of(Case("a", "", {}, Target(1.6)), found)[2]
    assert (of_sync.ratio, of_sync.against) == (1.65, "a/sync")
    assert of_sync.note.endswith("target 1.6 x sync: reached")
    of_faster = rows_of(Case("a", "", {}, Target(1.2, is_of_faster=True)), found)[2]
    assert of_faster.note == "1.10 times as fast as concurrent; target 1.2 x the faster, concurrent: NOT reached"


def test_the_working_env_keeps_gymnasiums_rules_and_its_seeds() -> None:
    check_env(WorkingEnv(work=3), skip_render_check=True)
    one, other = WorkingEnv(work=50), WorkingEnv(work=50)
    np.testing.assert_array_equal(one.reset(seed=1)[0], other.reset(seed=1)[0])
    np.testing.assert_array_equal(one.step(np.int64(2))[0], other.step(np.int64(2))[0])


def test_balls_stay_above_the_ground() -> None:
    heights, speeds = [0.5, 0.1], [0.0, -3.0]
    fall(heights, speeds, 5_000)
    assert min(heights) >= 0
    assert work_of(0.002) > work_of(0.0002) > 0


def test_actors_rest_between_turns_and_what_they_made_ahead_is_not_counted(tmp_path: Path) -> None:
    spec = load_spec(
        {},
        {
            "env.id": "CartPole-v1",
            "env.num_envs": 4,
            "pipeline": "processes",
            "actors.count": 2,
            "updates_per_step": 0.25,
            "network.torso": {"hidden": [8]},
            "replay": {"capacity": 2_000, "start": 64, "batch_size": 8},
            "evaluation.every": 0,
            "log.every": 200,
        },
    )
    metrics = Metrics(tmp_path)
    with Assembly(spec) as assembly:
        session = begun(assembly)
        assert isinstance(session, ProcessRun)
        try:
            turns = Turns(session, assembly.spec, metrics)
            made = [status.transitions for status in session.supply.statuses()]
            assert sum(made) > session.env_steps
            time.sleep(0.2)
            assert [status.transitions for status in session.supply.statuses()] == made
            before = session.env_steps
            found = turns.take(0.3)
            assert session.env_steps - found["env_steps"] >= sum(made) > before
            assert found["samples_per_insert"] == pytest.approx(2.0, rel=0.05)
            assert sum(found["actors"].values()) == pytest.approx(1.0)
        finally:
            session.close()
    metrics.close()
    assert (tmp_path / "metrics.jsonl").stat().st_size > 0
