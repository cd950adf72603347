"""The loop that `bench slm_lab` compares with is honest: by hand is the same learning, and all take the same steps."""

import numpy as np
import pytest

from hotloop.bench.measure import Row
from hotloop.bench.slm_lab import HOTLOOP, ORIGINAL, TUNED, by_hotloop, rows_of, spec_of
from hotloop.bench.slm_lab_loop import SlmLabLoop
from hotloop.bench.slm_lab_settings import SETTINGS, START
from hotloop.progress import Silent

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_improved_by_hand_ends_with_the_same_weights(name: str) -> None:
    settings = SETTINGS[name]._replace(hidden=(16, 8), capacity=150, target_every=40)
    loops = [SlmLabLoop(settings, is_tuned=is_tuned, seed=3) for is_tuned in (False, True)]
    before = loops[0].weights().copy()
    for loop in loops:
        loop.advance(320)
        loop.close()
    first, second = (loop.weights() for loop in loops)
    moved = np.linalg.norm(first - before)
    assert moved > 0.01
    assert np.linalg.norm(second - first) < 1e-3 * moved
    assert loops[0].gradient_steps == loops[1].gradient_steps
    assert loops[0].copies == 8


@pytest.mark.parametrize(
    "name", ["dqn_concat_lunar", pytest.param("ddqn_per_boltzmann_cartpole", marks=pytest.mark.heavy)]
)
def test_hotloop_takes_the_same_gradient_steps(name: str) -> None:
    settings = SETTINGS[name]
    _, steps = by_hotloop(name, 160, seed=0)
    vector_steps = (160 - START) // settings.num_envs
    assert steps == vector_steps * settings.updates_per_call


def test_rows_are_of_equal_work() -> None:
    rows: list[Row] = rows_of("dqn_boltzmann_acrobot", 80, 1, Silent())
    assert [row.case.partition("/")[2] for row in rows] == [ORIGINAL, TUNED, HOTLOOP, HOTLOOP]
    assert {row.columns["gradient steps"] for row in rows} == {(80 - START) // 4 * 4}
    assert all(row.value > 0 for row in rows)
    assert rows[-1].against == f"dqn_boltzmann_acrobot/{TUNED}"


def test_the_six_are_those_with_a_published_score() -> None:
    for name, settings in SETTINGS.items():
        spec = spec_of(name)
        assert spec.seeds == 4
        assert spec.target.rule == "double"
        assert (spec.replay.sampling.kind == "prioritized") == settings.has_priorities
        assert spec.stop.steps == settings.frames
        assert spec.target.every == settings.target_every
