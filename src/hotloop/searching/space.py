"""A space to search: which fields of a spec are drawn, and from what distribution. Knows neither Optuna nor specs.

Distributions have the names and the meaning of Ray Tune's: `randint` and `lograndint` exclude their upper bound, all
others include it. Rounding to multiples of `q` draws from those within the bounds.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

from hotloop.errors import SpecError
from hotloop.registry import nearest

MARK = "__"
"""Stands between a path and the name of its distribution."""
TAIL = 1e-6
"""Share of a normal distribution that is left out at each end: beyond 4.75 standard deviations."""


class Trial(Protocol):
    """What draws numbers: the part of Optuna's trials that a space asks for."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number between the bounds, both included."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """A whole number between the bounds, both included."""

    def suggest_categorical(self, name: str, choices: Sequence[int]) -> int:
        """One of the choices."""


class Distribution(Protocol):
    """What a field is drawn from."""

    def suggest(self, trial: Trial, name: str) -> object:
        """Have a trial draw a value; what it draws has this name, or names that begin with it and a dot."""

    def middle(self) -> object:
        """A value that may well be drawn."""


@dataclass(frozen=True)
class Choice:
    """One of several values of any kind, each as likely."""

    options: tuple[object, ...]

    def suggest(self, trial: Trial, name: str) -> object:
        """Draw the place of the value, as values may be lists."""
        return self.options[trial.suggest_categorical(name, range(len(self.options)))]

    def middle(self) -> object:
        """The first one."""
        return self.options[0]


@dataclass(frozen=True)
class Number:
    """A number within bounds, on a linear or a logarithmic scale, rounded to multiples of `q` if there is one."""

    low: float
    high: float
    q: float | None = None
    log: bool = False

    def suggest(self, trial: Trial, name: str) -> float:
        """Draw it; on a logarithmic scale it is rounded afterwards."""
        if self.q is None:
            return trial.suggest_float(name, self.low, self.high, log=self.log)
        if not self.log:
            first, last = round(self.low / self.q), round(self.high / self.q)
            return _multiple(trial.suggest_int(name, first, last), self.q)
        return self._rounded(trial.suggest_float(name, self.low, self.high, log=True))

    def middle(self) -> float:
        """The middle of the scale."""
        middle = math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2
        return self._rounded(middle)

    def _rounded(self, value: float) -> float:
        return value if self.q is None else _multiple(round(value / self.q), self.q)


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds, both included, on a linear or a logarithmic scale, in multiples of `q`."""

    low: int
    high: int
    q: int = 1
    log: bool = False

    def suggest(self, trial: Trial, name: str) -> int:
        """Draw it; on a logarithmic scale it is rounded afterwards."""
        if not self.log:
            return trial.suggest_int(name, self.low, self.high, step=self.q)
        return self._rounded(trial.suggest_int(name, self.low, self.high, log=True))

    def middle(self) -> int:
        """The middle of the scale."""
        return self._rounded(math.sqrt(self.low * self.high) if self.log else (self.low + self.high) / 2)

    def _rounded(self, value: float) -> int:
        return round(value / self.q) * self.q


@dataclass(frozen=True)
class Normal:
    """A normally distributed number, rounded to multiples of `q` if there is one."""

    mean: float
    sd: float
    q: float | None = None

    def suggest(self, trial: Trial, name: str) -> float:
        """Draw the share of the distribution that lies below it."""
        return self._rounded(NormalDist(self.mean, self.sd).inv_cdf(trial.suggest_float(name, TAIL, 1 - TAIL)))

    def middle(self) -> float:
        """The mean."""
        return self._rounded(self.mean)

    def _rounded(self, value: float) -> float:
        return value if self.q is None else _multiple(round(value / self.q), self.q)


@dataclass(frozen=True)
class Layers:
    """Widths of layers: as many as `depth` says, each drawn from `width`."""

    depth: Whole
    width: Whole

    def suggest(self, trial: Trial, name: str) -> list[int]:
        """Draw how many, then each one's width."""
        depth = self.depth.suggest(trial, f"{name}.depth")
        return [self.width.suggest(trial, f"{name}.width_{layer}") for layer in range(1, depth + 1)]

    def middle(self) -> list[int]:
        """The middle number of layers of the middle width."""
        return [self.width.middle()] * self.depth.middle()


@dataclass(frozen=True)
class Space:
    """Distributions by the dotted paths of the fields they are for."""

    parameters: Mapping[str, Distribution]

    def suggest(self, trial: Trial) -> dict[str, object]:
        """Have a trial draw a value for every path."""
        return {path: distribution.suggest(trial, path) for path, distribution in self.parameters.items()}

    def middle(self) -> dict[str, object]:
        """A value for every path that may well be drawn, to see whether the fields are there."""
        return {path: distribution.middle() for path, distribution in self.parameters.items()}


def parse_space(mapping: object) -> Space:
    """Read `{path__DIST: arguments}`, with dotted paths or nested mappings; every complaint is one line."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise SpecError(f"search: got {_short(mapping)}, expected fields to search, such as {EXAMPLE}")
    parameters: dict[str, Distribution] = {}
    for path, name, arguments in _entries(mapping, ""):
        where = f"search: {path}{MARK}{name}"
        if name not in DISTRIBUTIONS:
            raise SpecError(f"{where}: unknown distribution '{name}'; {nearest(name, list(DISTRIBUTIONS))}")
        if path in parameters:
            raise SpecError(f"{where}: {path} is there twice; a field is drawn from one distribution")
        parameters[path] = DISTRIBUTIONS[name](arguments, where)
    for path in parameters:
        if outer := next((other for other in parameters if path.startswith(f"{other}.")), None):
            raise SpecError(f"search: {path} lies within {outer}, which is searched too; search one of them")
    return Space(parameters)


EXAMPLE = "{optimizer.learning_rate__loguniform: [1e-4, 1e-2]}"


def _entries(mapping: Mapping[object, object], prefix: str) -> Iterator[tuple[str, str, object]]:
    """Path, distribution and arguments of every entry, however deep."""
    for key, value in mapping.items():
        whole = f"{prefix}{key}"
        path, mark, name = whole.rpartition(MARK)
        if mark and "." not in name:
            if not all(path.split(".")):
                raise SpecError(f"search: '{whole}' has no field before {MARK}{name}; expected such as {EXAMPLE}")
            yield path, name, value
        elif isinstance(value, Mapping) and value:
            yield from _entries(value, f"{whole}.")
        else:
            raise SpecError(
                f"search: {whole} is {_short(value)}, without a distribution; expected {whole}{MARK}DIST, DIST one of "
                f"{', '.join(DISTRIBUTIONS)}"
            )


# -- arguments of each distribution -----------------------------------------------------------------------


def _choice(arguments: object, where: str) -> Choice:
    if not isinstance(arguments, list | tuple):
        raise SpecError(f"{where}: got {_short(arguments)}, expected a list of values to choose from")
    if not arguments:
        raise SpecError(f"{where}: nothing to choose from; expected a list of values")
    return Choice(tuple(arguments))


def _number(*, log: bool = False, rounds: bool = False) -> "Parser":
    def parse(arguments: object, where: str) -> Number:
        low, high, *q = _numbers(arguments, where, ("low", "high", "q") if rounds else ("low", "high"))
        _require_range(low, high, where, log=log)
        if not q:
            return Number(low, high, log=log)
        first, last = _multiples(low, high, q[0], where)
        return Number(_multiple(first, q[0]), _multiple(last, q[0]), q[0], log)

    return parse


def _whole(*, log: bool = False, rounds: bool = False) -> "Parser":
    def parse(arguments: object, where: str) -> Whole:
        low, high, *q = _whole_numbers(arguments, where, ("low", "high", "q") if rounds else ("low", "high"))
        _require_range(low, high, where, log=log)
        if not q:
            return Whole(low, high - 1, log=log)
        first, last = _multiples(low, high, q[0], where)
        return Whole(first * q[0], last * q[0], q[0], log)

    return parse


def _normal(*, rounds: bool = False) -> "Parser":
    def parse(arguments: object, where: str) -> Normal:
        mean, sd, *q = _numbers(arguments, where, ("mean", "sd", "q") if rounds else ("mean", "sd"))
        if sd <= 0:
            raise SpecError(f"{where}: the standard deviation is {sd:g}, expected a number above zero")
        if q and q[0] <= 0:
            raise SpecError(f"{where}: q is {q[0]:g}, expected a number above zero")
        return Normal(mean, sd, *q)

    return parse


def _layers(arguments: object, where: str) -> Layers:
    if not isinstance(arguments, Mapping) or set(arguments) != {"depth", "width"}:
        raise SpecError(f"{where}: got {_short(arguments)}, expected {{depth: [1, 3], width: [32, 256]}}")
    ranges = []
    for name in ("depth", "width"):
        low, high = _whole_numbers(arguments[name], f"{where}: {name}", ("low", "high"))
        if low < 1 or high < low:
            raise SpecError(f"{where}: {name} is [{low}, {high}], expected whole numbers from 1 on, the smaller first")
        ranges.append(Whole(low, high, log=name == "width"))
    return Layers(*ranges)


Parser = Callable[[object, str], Distribution]
DISTRIBUTIONS: dict[str, Parser] = {
    "choice": _choice,
    "uniform": _number(),
    "quniform": _number(rounds=True),
    "loguniform": _number(log=True),
    "qloguniform": _number(log=True, rounds=True),
    "randint": _whole(),
    "qrandint": _whole(rounds=True),
    "lograndint": _whole(log=True),
    "qlograndint": _whole(log=True, rounds=True),
    "randn": _normal(),
    "qrandn": _normal(rounds=True),
    "layers": _layers,
}


def _numbers(arguments: object, where: str, names: tuple[str, ...]) -> list[float]:
    expected = f"expected [{', '.join(names)}], all numbers"
    if not isinstance(arguments, list | tuple) or len(arguments) != len(names):
        raise SpecError(f"{where}: got {_short(arguments)}, {expected}")
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SpecError(f"{where}: {name} is {_short(value)}, {expected}")
    return [value + 0.0 for value in arguments]


def _whole_numbers(arguments: object, where: str, names: tuple[str, ...]) -> list[int]:
    values = _numbers(arguments, where, names)
    for name, value in zip(names, values, strict=True):
        if value != int(value):
            raise SpecError(f"{where}: {name} is {value:g}, expected a whole number")
    return [int(value) for value in values]


def _require_range(low: float, high: float, where: str, *, log: bool) -> None:
    if high <= low:
        what = "empty" if high == low else "reversed"
        raise SpecError(f"{where}: the range from {low:g} to {high:g} is {what}; expected [low, high], low below high")
    if log and low <= 0:
        raise SpecError(f"{where}: low is {low:g}, expected a number above zero: it is drawn on a logarithmic scale")


def _multiples(low: float, high: float, q: float, where: str) -> tuple[int, int]:
    """The first and the last multiple of q within the bounds, in units of q."""
    if q <= 0:
        raise SpecError(f"{where}: q is {q:g}, expected a number above zero")
    first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
    if last < first:
        raise SpecError(f"{where}: no multiple of q = {q:g} lies between {low:g} and {high:g}; lower q")
    return first, last


def _multiple(count: int, q: float) -> float:
    """A multiple of q without the digits that a product in binary adds: 3 × 0.1 is 0.3."""
    return float(f"{count * q:.12g}")


def _short(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
