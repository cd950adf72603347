"""What tuning may change leaves what is learned as it is: as many env and gradient steps, and returns alike."""

import pytest
from scipy.stats import mannwhitneyu

import hotloop
from hotloop.doctor.tuning import MAY_CHANGE

BASE = {
    "env.id": "CartPole-v1",
    "env.num_envs": 4,
    "env.vectorization": "sync",
    "pipeline": "sync",
    "updates_per_step": 0.5,
    "replay.start": 500,
    "exploration.epsilon": {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 4_000},
    "evaluation": {"every": 8_000, "episodes": 20},
    "stop.steps": 8_000,
}
SEEDS = range(6)
SURE = 0.01
"""Chance below which two sets of returns would differ as much if nothing but the seeds did."""
TUNED = (
    {"pipeline": "concurrent"},
    {"pipeline": "processes", "actors.count": 2},
    {"env.vectorization": "async"},
    {"engine": "torch", "torch.mode": "eager"},
    {"threads": 2},
)


def trained(changes):
    return [hotloop.train({}, out=None, **{**BASE, **changes, "seed": seed}) for seed in SEEDS]


@pytest.fixture(scope="module")
def as_it_was():
    return trained({})


@pytest.mark.heavy
@pytest.mark.parametrize("changes", TUNED, ids=str)
def test_settings_that_tuning_may_change_learn_the_same(as_it_was, changes):
    assert set(changes) <= set(MAY_CHANGE)
    runs = trained(changes)
    assert {run.env_steps for run in runs} == {run.env_steps for run in as_it_was}
    assert all(abs(run.updates - as_it_was[0].updates) <= 4 for run in runs), "but for what a parcel was late"
    returns, before = ([run.return_mean for run in each] for each in (runs, as_it_was))
    assert mannwhitneyu(returns, before).pvalue > SURE


@pytest.mark.heavy
def test_such_a_comparison_notices_what_learns_differently(as_it_was):
    hardly = [run.return_mean for run in trained({"updates_per_step": 0.0078125})]
    before = [run.return_mean for run in as_it_was]
    assert mannwhitneyu(hardly, before).pvalue < SURE
