"""Figures of several seeds together."""

from hotloop.members import seeds
from hotloop.runs.statistics import together


def test_a_figure_that_one_seed_does_not_have_is_left_out():
    one = {"episodes": 4, "return_mean": 1.0, "return_std": 0.0, "length_mean": 2.0, "score_mean": 5.0}
    other = {name: value for name, value in one.items() if name != "score_mean"}
    for order in ([one, other], [other, one]):
        summary = together(order, seeds(range(len(order))))
        assert summary["return_mean"] == 1.0
        assert not any(name.startswith("score") for name in [*summary, *summary["by_seed"]])


def test_episodes_cut_or_endless_in_some_seeds_are_counted_over_all() -> None:
    plain = {"episodes": 4, "return_mean": 1.0}
    each = [plain, {**plain, "endless": 3}, {**plain, "endless": 2, "cut": 1}]
    summary = together(each, seeds(range(3)))
    assert (summary["endless"], summary["cut"]) == (5, 1)
    assert summary["by_seed"]["endless"] == [0, 3, 2]
    assert "cut" not in together([plain, plain], seeds([0, 1]))
