"""Slices of a run as it is and changed, in turn: the ratio is that of the two, whatever the machine does meanwhile."""

import contextlib
import math
from types import SimpleNamespace

import numpy as np
import pytest

from hotloop.doctor import slices
from hotloop.doctor.slices import compare, interval_of
from hotloop.errors import SpecError
from hotloop.progress import Silent
from hotloop.spans import Spans


class Clock:
    """Time passes by what is done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Session:
    """A block takes so long, on a machine that becomes slower and slower."""

    def __init__(self, clock: Clock, seconds: float = 0.01) -> None:
        self.clock, self.seconds, self.steps, self.spans = clock, seconds, 0, Spans("update", "step")
        self.is_over = False

    def advance(self, blocks: int) -> None:
        if self.is_over:
            return
        took = blocks * self.seconds * (1 + 0.2 * self.clock.now)
        with self.spans["update"]:
            self.clock.now += took
        self.steps += 4 * blocks

    def read(self) -> SimpleNamespace:
        return SimpleNamespace(steps_of_envs=self.steps, episodes=np.array([self.steps // 40]))

    @contextlib.contextmanager
    def at(self, seconds: float):
        own, self.seconds = self.seconds, seconds
        yield
        self.seconds = own


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(slices, "time", SimpleNamespace(perf_counter=clock, monotonic=clock))
    return clock


def test_a_ratio_is_found_on_a_machine_that_becomes_slower(clock):
    session = Session(clock)
    ways = {"twice": lambda: session.at(0.005), "same": lambda: session.at(0.01), "slow": lambda: session.at(0.02)}
    found = compare(session, ways, until=math.inf, reporter=Silent())
    for name, expected in {"twice": 2.0, "same": 1.0, "slow": 0.5}.items():
        ratio = found.times_as_fast[name]
        assert ratio.value == pytest.approx(expected, rel=0.02)
        assert ratio.low <= ratio.value <= ratio.high
    assert found.rounds >= slices.FEWEST_ROUNDS
    assert set(found.stage_seconds) == {"update", "step"}
    assert found.stage_seconds["step"] == 0


def test_it_ends_in_time_with_what_it_has(clock):
    session = Session(clock)
    random = np.random.default_rng(0)
    ways = {"noisy": lambda: session.at(0.01 * float(random.uniform(0.5, 2.0)))}
    found = compare(session, ways, until=clock.now + 2.0, reporter=Silent())
    assert 1 <= found.rounds < slices.MOST_ROUNDS
    assert clock.now < 5.0


def test_a_run_that_has_ended_is_told(clock):
    session = Session(clock)
    session.is_over = True
    with pytest.raises(SpecError, match="a stop rule of the spec"):
        compare(session, {}, until=math.inf, reporter=Silent())


def test_intervals_hold_the_truth_about_nine_times_in_ten():
    random, held = np.random.default_rng(0), 0
    for _ in range(400):
        found = interval_of(list(np.exp(random.normal(math.log(1.5), 0.1, size=8))))
        held += found.low <= 1.5 <= found.high
    assert 0.85 <= held / 400 <= 0.95
    assert interval_of([2.0]) == pytest.approx((2.0, 0.0, math.inf))


class Staged(Session):
    """Two stages in turn and something between; each takes half as long where the other is free, of which a tenth is
    left then."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.free, self.spent = set[str](), {"update": 0.0, "step": 0.0, "redraw": 0.0}
        self.spans = SimpleNamespace(seconds=lambda: dict(self.spent))

    def advance(self, blocks: int) -> None:
        for _ in range(blocks):
            for name, seconds in (("update", 0.006), ("step", 0.002)):
                took = seconds * (0.1 if name in self.free else 0.5 if self.free else 1.0)
                self.spent[name] += took
                self.clock.now += took
            self.clock.now += 0.002
            self.steps += 4

    @contextlib.contextmanager
    def freed(self, *names: str):
        self.free = set(names)
        yield
        self.free = set()


def test_alone_a_stage_is_timed_while_others_are_free(clock):
    session = Staged(clock)
    ways = {name: lambda name=name: session.freed(name) for name in ("update", "step")}
    alone = {"update": lambda: session.freed("step"), "step": lambda: session.freed("update")}
    alone["between"] = lambda: session.freed("step", "update")
    found = compare(session, ways, until=math.inf, reporter=Silent(), alone=alone)
    assert found.alone == pytest.approx({"update": 0.003 / 4, "step": 0.001 / 4, "between": 0.002 / 4})
    assert found.times_as_fast["update"].value == pytest.approx(0.010 / 0.0036)
    assert found.times_as_fast["step"].value == pytest.approx(0.010 / 0.0052)
    assert found.left_over == pytest.approx({"update": 0.0006 / 4, "step": 0.0002 / 4})


def test_a_block_in_which_no_env_makes_a_step_ends_nothing(clock):
    """Vector envs that begin new episodes in a step of their own make none then."""

    class Resets(Staged):
        def advance(self, blocks: int) -> None:
            super().advance(blocks)
            if blocks == 1:
                self.steps -= 4

    session = Resets(clock)
    session.seconds = 1.0
    ways = {"step": lambda: session.freed("step")}
    found = compare(session, ways, math.inf, Silent(), 0.1, {"update": ways["step"]})
    assert found.alone["update"] > 0
