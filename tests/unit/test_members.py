"""Everything that has an entry for each member of a run names it by what the member is."""

import numpy as np
import pytest

from hotloop.members import Members, agents, is_member_name, seeds
from hotloop.runs.statistics import together
from hotloop.spec import Spec
from hotloop.standing import Standing

AGENTS = agents(3)


def test_one_seed_is_no_crowd():
    one = Spec(seed=7).members
    assert one == seeds([7])
    assert not one.are_many
    assert str(one) == "seed 7"


def test_seeds_follow_each_other_and_wrap_around():
    assert Spec(seed=2**32 - 1, seeds=3).members.numbers == (2**32 - 1, 0, 1)
    assert str(Spec(seed=3, seeds=5).members) == "5 seeds from 3"
    assert Spec(seed=3, seeds=2).members.names == ["seed-3", "seed-4"]


@pytest.mark.parametrize(
    ("members", "by", "best", "score"), [(seeds([3, 4, 5]), "by_seed", 1, 5.0), (AGENTS, "by_agent", None, 8 / 3)]
)
def test_figures_and_the_best_are_found_under_the_members_own_name(members, by, best, score):
    """Of seeds the best one counts; of agents all of them, with their mean."""
    each = [{"episodes": 2, "return_mean": float(value), "length_mean": 1.0} for value in (1, 5, 2)]
    found = together(each, members)
    assert found[by]["return_mean"] == [1.0, 5.0, 2.0]
    standing = Standing(members)
    assert standing.take(10, each, found)
    assert standing.best_member() == best
    assert standing.best_return == score
    assert ("return_iqm" in found) == (best is not None), "agents are no sample of anything"
    again = Standing.from_facts({"evaluation": standing.evaluation, "best_return": 5.0}, members)
    assert again.best_member() == best
    other = Members("crowd", members.numbers)
    with pytest.raises(ValueError, match="the checkpoint's manifest has"):
        Standing.from_facts({"evaluation": standing.evaluation, "best_return": 5.0}, other)


@pytest.mark.parametrize("name", [*seeds([0, 2**32 - 1]).names, *AGENTS.names])
def test_members_may_have_weights_under_their_names(name):
    assert is_member_name(name)


@pytest.mark.parametrize(
    "name", ["", "seed-", "-3", "../seed-3", "seed-3/..", "Seed-3", "seed-3\n", "seed-1" + "0" * 20]
)
def test_other_names_are_none_of_a_member(name):
    assert not is_member_name(name)


def test_the_picture_names_the_members(tmp_path):
    from hotloop.runs import pictures

    class Axes:
        """Remembers what it was told."""

        def __init__(self):
            self.labels = []

        def plot(self, *args, label=None, **style):
            self.labels.append(label)

        def fill_between(self, *args, **style):
            pass

    axes = Axes()
    each = {"return_mean": np.arange(3.0).tolist()}
    row = {"env_steps": 1, "return_mean": 1.0, "return_iqm": 2.0, "return_interval": [1.0, 3.0]}
    pictures._plot_evaluations(axes, [{**row, "by_seed": each}], seeds([3, 4, 5]))
    assert any(label and "IQM of 3 seeds" in label for label in axes.labels)
    pictures._plot_evaluations(axes, [{**row, "by_agent": each}], AGENTS)
    assert any(label and "mean of 3 agents" in label for label in axes.labels)
