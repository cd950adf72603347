"""A space reads every distribution as Ray Tune defines it, and refuses the rest in one line."""

import math
import statistics

import optuna
import pytest

from hotloop.errors import SpecError
from hotloop.searching.space import DISTRIBUTIONS, parse_space

optuna.logging.set_verbosity(optuna.logging.ERROR)


class AtTheEnd:
    """A trial that draws the lowest or the highest of everything it is asked for."""

    def __init__(self, *, highest):
        self.highest, self.names = highest, []

    def suggest_float(self, name, low, high, *, step=None, log=False):
        return self.suggest_int(name, low, high)

    def suggest_int(self, name, low, high, *, step=1, log=False):
        self.names.append(name)
        return high if self.highest else low

    def suggest_categorical(self, name, choices):
        return self.suggest_int(name, choices[0], choices[-1])


def ends(distribution, arguments):
    """The lowest and the highest value of a field."""
    space = parse_space({f"x__{distribution}": arguments})
    return tuple(space.suggest(AtTheEnd(highest=highest))["x"] for highest in (False, True))


def drawn(distribution, arguments, count=300):
    """Values that Optuna itself draws, at random."""
    space = parse_space({f"a.b__{distribution}": arguments})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    return [space.suggest(study.ask())["a.b"] for _ in range(count)]


ENDS = {
    "choice": ([8, [1, 2], "x"], (8, "x")),
    "uniform": ([0.95, 0.999], (0.95, 0.999)),
    "quniform": ([0.1, 0.7, 0.2], (0.2, 0.6)),
    "loguniform": ([1e-4, 1e-2], (1e-4, 1e-2)),
    "qloguniform": ([0.05, 1, 0.1], (0.1, 1.0)),
    "randint": ([3, 9], (3, 8)),
    "qrandint": ([32, 256, 32], (32, 256)),
    "lograndint": ([1, 100], (1, 99)),
    "qlograndint": ([5, 99, 10], (10, 90)),
    "layers": ({"depth": [1, 3], "width": [32, 256]}, ([32], [256, 256, 256])),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_ends_of_a_distribution_are_those_of_its_definition(name):
    arguments, expected = ENDS[name]
    found = ends(name, arguments)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


def test_every_distribution_is_tested():
    assert set(ENDS) | {"randn", "qrandn"} == set(DISTRIBUTIONS)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_optuna_draws_values_within_the_ends_and_a_middle_one_is_one_of_them(name):
    arguments = ENDS[name][0] if name in ENDS else [0, 1, 0.5][: 3 if name == "qrandn" else 2]
    values = drawn(name, arguments)
    middle = parse_space({f"x__{name}": arguments}).middle()["x"]
    if name == "choice":
        assert all(values.count(option) > 60 for option in arguments)
        assert middle in arguments
        return
    if name == "layers":
        assert all(1 <= len(value) <= 3 for value in [*values, middle])
        assert {len(value) for value in values} == {1, 2, 3}
        values, middle, low, high = [width for value in values for width in value], middle[0], 32, 256
    elif name in ENDS:
        low, high = ENDS[name][1]
    else:
        low, high = -5, 5
    assert all(low <= value <= high for value in [*values, middle])
    assert len({type(value) for value in [*values, middle]}) == 1


@pytest.mark.parametrize(
    ("name", "arguments", "multiple"),
    [
        ("quniform", [0, 1, 0.1], 0.1),
        ("qloguniform", [0.1, 1, 0.1], 0.1),
        ("qrandint", [8, 64, 8], 8),
        ("qlograndint", [8, 64, 8], 8),
        ("qrandn", [0, 1, 0.25], 0.25),
    ],
)
def test_rounded_values_are_multiples_both_ends_included(name, arguments, multiple):
    values = set(drawn(name, arguments, 600))
    assert all(value == float(f"{round(value / multiple) * multiple:.12g}") for value in values)
    assert len(values) > 5
    if name != "qrandn":
        assert {min(values), max(values)} == set(arguments[:2])


@pytest.mark.parametrize(
    ("name", "arguments"), [("loguniform", [1e-4, 1]), ("qloguniform", [1e-4, 1, 1e-4]), ("lograndint", [1, 10_000])]
)
def test_a_logarithmic_scale_has_half_of_its_values_below_its_geometric_middle(name, arguments):
    below = sum(value < math.sqrt(arguments[0] * arguments[1]) for value in drawn(name, arguments)) / 300
    assert 0.42 < below < 0.58


def test_widths_of_layers_are_logarithmic_and_depths_uniform():
    layers = drawn("layers", {"depth": [1, 4], "width": [4, 1024]}, 400)
    widths = [width for value in layers for width in value]
    assert 0.44 < sum(width < 64 for width in widths) / len(widths) < 0.56
    assert all(70 < sum(len(value) == depth for value in layers) < 130 for depth in (1, 2, 3, 4))


@pytest.mark.parametrize("name", ["randn", "qrandn"])
def test_normal_values_have_their_mean_and_deviation(name):
    values = drawn(name, [10, 2, 0.01][: 3 if name == "qrandn" else 2], 1000)
    assert abs(statistics.mean(values) - 10) < 0.2
    assert abs(statistics.stdev(values) - 2) < 0.15


def test_nested_mappings_and_dotted_paths_are_the_same():
    nested = {
        "optimizer": {"learning_rate__loguniform": [1e-4, 1e-2]},
        "replay": {"sampling": {"alpha__uniform": [0, 1]}},
    }
    dotted = {"optimizer.learning_rate__loguniform": [1e-4, 1e-2], "replay.sampling.alpha__uniform": [0, 1]}
    assert parse_space(nested) == parse_space(dotted)
    assert list(parse_space(nested).parameters) == ["optimizer.learning_rate", "replay.sampling.alpha"]


def test_each_draw_has_a_name_of_its_own():
    space = parse_space({"a__layers": {"depth": [1, 2], "width": [8, 16]}, "b__randn": [0, 1], "c__choice": [1]})
    trial = AtTheEnd(highest=True)
    trial.suggest_float = lambda name, low, high, log=False: trial.names.append(name) or 0.5
    space.suggest(trial)
    assert trial.names == ["a.depth", "a.width_1", "a.width_2", "b", "c"]


def test_a_trial_given_the_same_draws_has_the_same_values():
    arguments = {name: ENDS[name][0] if name in ENDS else [0, 1, 0.5] for name in DISTRIBUTIONS if name != "randn"}
    space = parse_space({f"{name}__{name}": given for name, given in arguments.items()})
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3)).ask()
    values = space.suggest(trial)
    assert space.suggest(optuna.trial.FixedTrial(trial.params)) == values


REFUSED = {
    "nothing": (None, ["nothing", "fields to search"]),
    "an empty mapping": ({}, ["fields to search"]),
    "a list": ([1], ["[1]", "fields to search"]),
    "an unknown distribution": ({"x__loguniforn": [1, 2]}, ["x__loguniforn", "'loguniform'"]),
    "a distribution like no other": ({"x__zipf": [1, 2]}, ["'zipf'", "known: choice"]),
    "no distribution": ({"a": {"b": 3}}, ["a.b is 3", "a.b__DIST", "loguniform"]),
    "no field": ({"__uniform": [0, 1]}, ["no field before __uniform"]),
    "a field with an empty part": ({"a..b__uniform": [0, 1]}, ["a..b__uniform", "no field"]),
    "an empty range": ({"x__uniform": [1, 1]}, ["x__uniform", "from 1 to 1 is empty"]),
    "a reversed range": ({"x__uniform": [2, 1]}, ["from 2 to 1 is reversed"]),
    "an empty range of whole numbers": ({"x__randint": [4, 4]}, ["from 4 to 4 is empty"]),
    "an empty choice": ({"x__choice": []}, ["x__choice", "nothing to choose from"]),
    "a choice that is none": ({"x__choice": 3}, ["x__choice", "got 3", "list"]),
    "text": ({"x__uniform": ["a", 2]}, ["low is 'a'", "[low, high]", "numbers"]),
    "truth": ({"x__randint": [False, 2]}, ["low is False", "numbers"]),
    "not a number": ({"x__uniform": [0, math.nan]}, ["high is nan", "numbers"]),
    "endless": ({"x__uniform": [0, math.inf]}, ["high is inf", "numbers"]),
    "too few": ({"x__qrandint": [0, 8]}, ["[0, 8]", "[low, high, q]"]),
    "too many": ({"x__uniform": [0, 1, 2]}, ["[0, 1, 2]", "[low, high]"]),
    "a number alone": ({"x__uniform": 3}, ["got 3", "[low, high]"]),
    "a fraction for a whole number": ({"x__randint": [0.5, 3]}, ["low is 0.5", "whole number"]),
    "a logarithm of zero": ({"x__loguniform": [0, 1]}, ["low is 0", "above zero", "logarithmic"]),
    "a logarithm of less": ({"x__lograndint": [-1, 9]}, ["low is -1", "above zero"]),
    "q of zero": ({"x__quniform": [0, 1, 0]}, ["q is 0", "above zero"]),
    "q below zero": ({"x__qrandint": [0, 8, -2]}, ["q is -2", "above zero"]),
    "q of a normal": ({"x__qrandn": [0, 1, 0]}, ["q is 0", "above zero"]),
    "q without a multiple": ({"x__qrandint": [5, 7, 4]}, ["no multiple of q = 4", "5 and 7"]),
    "no deviation": ({"x__randn": [0, 0]}, ["standard deviation is 0", "above zero"]),
    "layers without widths": ({"x__layers": {"depth": [1, 2]}}, ["x__layers", "depth: [1, 3], width: [32, 256]"]),
    "no layers": ({"x__layers": {"depth": [0, 2], "width": [8, 16]}}, ["depth is [0, 2]", "from 1 on"]),
    "reversed widths": ({"x__layers": {"depth": [1, 2], "width": [16, 8]}}, ["width is [16, 8]", "smaller first"]),
    "a path twice": ({"a.b__uniform": [0, 1], "a": {"b__randn": [0, 1]}}, ["a.b__randn", "a.b is there twice"]),
    "a path within a path": ({"a.b__choice": [{}], "a.b.c__uniform": [0, 1]}, ["a.b.c lies within a.b"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_space_is_refused_in_one_line_that_says_where(name):
    mapping, expected = REFUSED[name]
    with pytest.raises(SpecError) as refused:
        parse_space(mapping)
    line = str(refused.value)
    assert "\n" not in line
    assert line.startswith("search: ")
    for text in expected:
        assert text in line
