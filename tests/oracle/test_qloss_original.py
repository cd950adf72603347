"""The original of the Q-loss ladder is honest: it is what the formulas say, and its exact switches change nothing."""

import json
from dataclasses import fields, replace
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from hotloop.bench.measure import Result, Row
from hotloop.bench.qloss import NEAR, ORIGINAL, SWITCHED, deviations
from hotloop.bench.qloss_hotloop import EngineCase, EngineLearner, spec_of
from hotloop.bench.qloss_loop import Loop, Task, do, in_child
from hotloop.bench.qloss_original import (
    CLIP,
    DISCOUNT,
    LEARNING_RATE,
    POLYAK,
    RATE_EVERY,
    RATE_FACTOR,
    STEPS_ON_EACH,
    STEPS_PER_CALL,
    Algorithm,
    QLearner,
    Setting,
    Switches,
    offered,
)
from hotloop.bench.qloss_replay import ALPHA, EPSILON, FIRST_ERROR, Batch, Memory, MemoryKind, Priorities, Transition

pytestmark = pytest.mark.usefixtures("one_torch_thread")

ALGORITHMS: list[Algorithm] = ["vanilla", "dqn", "double"]
MEMORIES: list[MemoryKind] = ["replay", "prioritized"]
EXACT = [field.name for field in fields(Switches) if field.type in (bool, "bool")]
SETTING, HELD = Setting(batch_size=8), 60
SAME = 1e-4
"""Share of the farthest that a weight has moved: rounding in float32 alone stays below."""
DIFFERENT = 1e-2

Weights = dict[str, np.ndarray]


def transitions(count: int, setting: Setting = SETTING, seed: int = 0) -> list[Transition]:
    random = np.random.default_rng(seed)
    obs = random.normal(size=(count + 1, setting.obs_size)).astype(np.float32)
    return [
        Transition(
            obs[i], int(random.integers(setting.num_actions)), float(random.normal()), obs[i + 1], random.random() < 0.2
        )
        for i in range(count)
    ]


def filled(switches: Switches, algorithm: Algorithm, memory: MemoryKind) -> QLearner:
    learner = QLearner(SETTING, switches, algorithm, memory, capacity=50)
    for transition in transitions(HELD):
        learner.insert(transition)
    return learner


def train(learner: QLearner) -> QLearner:
    """Two train calls, with new transitions and a move of the target net between them, so that it is another net."""
    learner.train_call()
    learner.move_target()
    for transition in transitions(3, seed=1):
        learner.insert(transition)
    learner.train_call()
    return learner


@cache
def trained(switches: Switches, algorithm: Algorithm = "dqn", memory: MemoryKind = "replay") -> QLearner:
    return train(filled(switches, algorithm, memory))


def off_by(found: QLearner, expected: QLearner) -> float:
    """As a share of the farthest that a weight has moved."""
    start, a, b = QLearner(SETTING).weights(), found.weights(), expected.weights()
    moved = max(np.abs(b[name] - start[name]).max() for name in start)
    return float(max(np.abs(a[name] - b[name]).max() for name in start) / moved)


# -- the switches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("switch", [*EXACT, "all"])
def test_an_exact_switch_ends_with_the_originals_weights(
    switch: str, algorithm: Algorithm, memory: MemoryKind, accumulate: int
) -> None:
    original = Switches(accumulate=accumulate)
    on = dict.fromkeys(EXACT if switch == "all" else [switch], True)
    learner = trained(replace(original, **on), algorithm, memory)
    assert off_by(learner, trained(original, algorithm, memory)) < SAME
    assert learner.switches.is_exact == (accumulate == 1)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("together", [2, 4, 8])
def test_batches_that_share_an_optimiser_step_are_another_algorithm(
    together: int, algorithm: Algorithm, memory: MemoryKind
) -> None:
    mega = trained(Switches(mega_batch=together), algorithm, memory)
    accumulated = trained(Switches(accumulate=together), algorithm, memory)
    assert not mega.switches.is_exact
    assert not accumulated.switches.is_exact
    assert off_by(mega, trained(Switches(), algorithm, memory)) > DIFFERENT
    assert mega.gradient_steps == accumulated.gradient_steps == 2 * STEPS_PER_CALL / together
    assert accumulated.q_loss_calls == 2 * STEPS_PER_CALL, "as many passes over as many transitions"
    if memory == "replay":  # joined batches learn in another order of places drawn twice
        assert off_by(mega, accumulated) < SAME, "the mean of equal batches' gradients is that of one large batch"


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="is 3, expected 1, 2, 4 or 8"):
        Switches(mega_batch=3)
    with pytest.raises(ValueError, match="is 16"):
        Switches(mega_batch=8, accumulate=2)


@pytest.mark.parametrize(
    ("switch", "algorithm", "memory", "reason"),
    [
        ("targets_once", "vanilla", "replay", "follow the online net"),
        ("targets_once", "double", "replay", "follow the online net"),
        ("prefetch", "dqn", "prioritized", "priorities that learning from this one moves"),
    ],
)
def test_a_switch_that_would_change_the_result_is_refused_and_would(
    switch: str, algorithm: Algorithm, memory: MemoryKind, reason: str
) -> None:
    on = Switches(**{switch: True})
    learner, original = trained(on, algorithm, memory), trained(Switches(), algorithm, memory)
    assert list(learner.refused) == [switch]
    assert reason in learner.refused[switch]
    assert learner.switches == Switches()
    assert off_by(learner, original) == 0.0, "the original to the bit"
    forced = filled(Switches(), algorithm, memory)
    forced.switches = on
    assert off_by(train(forced), original) > DIFFERENT


def test_what_an_algorithm_needs_is_not_left_out() -> None:
    for algorithm in ("vanilla", "dqn", "double"):
        kept, refused = offered(Switches(no_duplicate_forward=True, combined_forward=True), algorithm, "replay")
        if algorithm == "double":
            assert (kept, list(refused)) == (Switches(combined_forward=True), ["no_duplicate_forward"])
        else:
            assert (kept, list(refused)) == (Switches(no_duplicate_forward=True), ["combined_forward"])
    every = Switches(**dict.fromkeys(EXACT, True), mega_batch=2)
    assert offered(replace(every, combined_forward=False), "dqn", "replay")[1] == {}


@pytest.mark.parametrize(
    ("switches", "algorithm", "online", "target"),
    [
        ({}, "dqn", 1, 2),
        ({}, "vanilla", 3, 0),
        ({}, "double", 2, 1),
        ({"combined_forward": True}, "dqn", 1, 1),
        ({"combined_forward": True}, "double", 1, 1),
        ({"no_duplicate_forward": True}, "dqn", 1, 1),
        ({"no_duplicate_forward": True}, "double", 2, 1),
        ({"no_duplicate_forward": True}, "vanilla", 2, 0),
        ({"combined_forward": True}, "vanilla", 1, 0),
        ({"targets_once": True}, "dqn", 1, 2 / STEPS_ON_EACH),
        ({"targets_once": True}, "double", 2, 1),
    ],
)
def test_forward_passes_of_a_gradient_step(
    switches: dict[str, Any], algorithm: Algorithm, online: float, target: float
) -> None:
    learner = filled(Switches(**switches), algorithm, "replay")
    passes = {"online": 0, "target": 0}

    def count(name: str) -> Any:
        def hook(*_: object) -> None:
            passes[name] += 1

        return hook

    learner.online.register_forward_hook(count("online"))
    learner.target.register_forward_hook(count("target"))
    learner.train_call()
    assert learner.gradient_steps == learner.q_loss_calls == STEPS_PER_CALL
    assert passes == {"online": online * STEPS_PER_CALL, "target": target * STEPS_PER_CALL}


def test_only_a_lazy_log_formats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, plain = [], torch.Tensor.__format__
    monkeypatch.setattr(torch.Tensor, "__format__", lambda self, how: (sizes.append(self.numel()), plain(self, how))[1])
    filled(Switches(lazy_log=True), "dqn", "replay").train_call()
    assert not sizes
    filled(Switches(), "dqn", "replay").train_call()
    assert sizes.count(SETTING.batch_size) == 2 * STEPS_PER_CALL, "Q-values and targets of each batch"


def test_the_other_switches_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled(Switches(fused_optimizer=True), "dqn", "replay").optimizer.param_groups[0]["fused"]
    plain = filled(Switches(), "dqn", "replay").optimizer.param_groups[0]
    assert (plain["fused"], plain["foreach"]) == (False, False)
    for on, gathers in ((False, 4), (True, 1)):
        learner, sizes = filled(Switches(prefetch=on), "dqn", "replay"), []
        gather = learner.memory.gather
        monkeypatch.setattr(
            learner.memory, "gather", lambda places, s=sizes, g=gather: (s.append(len(places)), g(places))[1]
        )
        learner.train_call()
        assert sizes == [4 * SETTING.batch_size // gathers] * gathers
    for on in (False, True):
        learner = filled(Switches(buffers=on), "dqn", "replay")
        batch = learner.memory.gather(learner.memory.draw(8))
        one, other = (learner._goal(batch, None) for _ in range(2))
        assert (one.data_ptr() == other.data_ptr()) == on


# -- the original against formulas ------------------------------------------------------------------------


class Formulas:
    """The same training in NumPy, float64, written out: no autograd, no optimiser of a library."""

    def __init__(self, learner: QLearner) -> None:
        self.algorithm = learner.algorithm
        self.online = [array.astype(np.float64) for array in learner.weights().values()]
        self.target = [array.copy() for array in self.online]
        self.means, self.squares = ([np.zeros_like(array) for array in self.online] for _ in range(2))
        self.steps = self.calls = 0

    @staticmethod
    def forward(weights: list[np.ndarray], s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        kernel, bias, last_kernel, last_bias = weights
        x = s @ kernel + bias
        hidden = SCALE * np.where(x > 0, x, SLOPE * np.expm1(np.minimum(x, 0)))
        return x, hidden, hidden @ last_kernel + last_bias

    def goal(self, batch: Batch) -> np.ndarray:
        s_t = batch.s_t.numpy()
        online, target = self.forward(self.online, s_t)[2], self.forward(self.target, s_t)[2]
        rows = np.arange(len(s_t))
        ahead = {
            "vanilla": online.max(1),
            "dqn": target.max(1),
            "double": target[rows, online.argmax(1)],
        }[self.algorithm]
        return batch.r_t.numpy() + DISCOUNT * np.where(batch.terminated_t.numpy() > 0, 0.0, ahead)

    def step(self, batch: Batch) -> tuple[float, np.ndarray]:
        """One gradient step; returns the loss before it and the TD errors."""
        s, a, size = batch.s_tm1.numpy(), batch.a_tm1.numpy(), len(batch.places)
        x, hidden, q = self.forward(self.online, s)
        td = self.goal(batch) - q[np.arange(size), a]
        slope_of_q = np.zeros_like(q)
        slope_of_q[np.arange(size), a] = -2 * td / size
        slope_of_x = slope_of_q @ self.online[2].T * SCALE * np.where(x > 0, 1.0, SLOPE * np.exp(np.minimum(x, 0)))
        gradients = [s.T @ slope_of_x, slope_of_x.sum(0), hidden.T @ slope_of_q, slope_of_q.sum(0)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        self.steps += 1
        rate = LEARNING_RATE * RATE_FACTOR ** (self.calls // RATE_EVERY)
        for weight, mean, square, raw in zip(self.online, self.means, self.squares, gradients, strict=True):
            gradient = raw * min(1.0, CLIP / (norm + 1e-6))
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            unbiased = mean / (1 - 0.9**self.steps), square / (1 - 0.999**self.steps)
            weight -= rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
        return float((td**2).mean()), td

    def call(self, batches: list[Batch]) -> np.ndarray:
        """A train call and a move of the target net; returns the last TD errors."""
        for batch in batches:
            for _ in range(STEPS_ON_EACH):
                _, td = self.step(batch)
        self.calls += 1
        self.target = [POLYAK * fast + (1 - POLYAK) * slow for fast, slow in zip(self.online, self.target, strict=True)]
        return td


SCALE, SLOPE = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_original_is_what_the_formulas_say(algorithm: Algorithm, memory: MemoryKind) -> None:
    learner = filled(Switches(), algorithm, memory)
    formulas, drawn = Formulas(learner), in_float64(learner)
    calls = 2
    for _ in range(calls):
        drawn.clear()
        learner.train_call()
        learner.move_target()
        td = formulas.call(drawn)
    assert formulas.steps == calls * STEPS_PER_CALL
    for name, found, expected in zip(learner.weights(), learner.weights().values(), formulas.online, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9, err_msg=name)
    for found, expected in zip(learner.target.parameters(), formulas.target, strict=True):
        np.testing.assert_allclose(found.detach().numpy().T, expected, rtol=0, atol=1e-9)
    if learner.memory.priorities is not None:
        tree = learner.memory.priorities.tree
        last = dict(zip(drawn[-1].places, td, strict=True))  # of a place drawn twice the later error counts
        for place, error in last.items():
            np.testing.assert_allclose(tree.sums[tree.first_leaf + place], (abs(error) + EPSILON) ** ALPHA, rtol=1e-6)


def test_the_formulas_can_tell_algorithms_apart_and_clip() -> None:
    learner = filled(Switches(), "double", "replay")
    formulas, drawn = Formulas(learner), in_float64(learner)
    formulas.algorithm = "dqn"
    for _ in range(2):
        drawn.clear()
        learner.train_call()
        learner.move_target()
        formulas.call(drawn)
    assert max(np.abs(a - b).max() for a, b in zip(learner.weights().values(), formulas.online, strict=True)) > 1e-3
    batch, norms = drawn[0], []
    loss = learner.q_loss(batch)
    loss.backward()
    norms = [parameter.grad.norm() for parameter in learner.online.parameters()]
    assert torch.stack(norms).norm() > CLIP, "clipping is at work in what was compared"


def test_the_loss_and_its_gradient_by_finite_differences() -> None:
    learner = filled(Switches(), "dqn", "replay")
    formulas, drawn = Formulas(learner), in_float64(learner)
    batch = learner.memory.gather(learner.memory.draw(8))
    assert drawn
    loss = learner.q_loss(batch)
    loss.backward()
    expected, _ = Formulas(learner).step(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    goal = formulas.goal(batch)
    rows, actions = np.arange(8), batch.a_tm1.numpy()

    def loss_at(weights: list[np.ndarray]) -> float:
        q = Formulas.forward(weights, batch.s_tm1.numpy())[2]
        return float(((q[rows, actions] - goal) ** 2).mean())

    for place, parameter in enumerate(learner.online.parameters()):
        moved = [array.copy() for array in formulas.online]
        at = tuple(size // 2 for size in moved[place].shape)
        h = 1e-6
        moved[place][at] += h
        above = loss_at(moved)
        moved[place][at] -= 2 * h
        slope = (above - loss_at(moved)) / (2 * h)
        assert parameter.grad.numpy().T[at] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def in_float64(learner: QLearner) -> list[Batch]:
    """Let a learner compute in float64; returns the list that its batches are noted in, as they are gathered."""
    learner.online.double()
    learner.target.double()
    gather, drawn = learner.memory.gather, []

    def noted(places: list[int]) -> Batch:
        batch = gather(places)
        s_tm1, a_tm1, r_t, s_t, terminated_t = batch.fields
        drawn.append(Batch(places, s_tm1.double(), a_tm1, r_t.double(), s_t.double(), terminated_t.double()))
        return drawn[-1]

    learner.memory.gather = noted  # type: ignore[method-assign]
    return drawn


def test_the_learning_rate_falls_by_train_calls_not_by_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = filled(Switches(), "dqn", "replay")
    monkeypatch.setattr(learner, "_groups", lambda drawn: [[]])
    monkeypatch.setattr(learner, "_gradient_step", lambda group: torch.zeros(()))
    learner.optimizer.step()  # of nothing; torch warns of a schedule that comes first
    rates = []
    for _ in range(2_001):
        rates.append(learner.optimizer.param_groups[0]["lr"])
        learner.train_call()
    assert rates[999] == LEARNING_RATE
    assert rates[1000] == rates[1999] == pytest.approx(0.9 * LEARNING_RATE)
    assert rates[2000] == pytest.approx(0.81 * LEARNING_RATE)


# -- the memory -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MEMORIES)
def test_what_came_since_the_last_draw_ends_the_batch(kind: MemoryKind) -> None:
    memory, untouched = Memory(kind, 1_000, 4), Memory(kind, 1_000, 4)
    rows = transitions(1_020)
    for row in rows[:1_003]:
        memory.insert(row)
        untouched.insert(row)
    untouched.since_draw = 0
    chance = [untouched.draw(size) for size in (5, 6, 7)]
    assert memory.draw(5) == [998, 999, 0, 1, 2], "more came than a batch has room for: the newest"
    assert memory.draw(6) == chance[1], "nothing came since: all by chance"
    for row in rows[1_003:1_005]:
        memory.insert(row)
        untouched.insert(row)
    places = memory.draw(7)
    assert places[-2:] == [3, 4] != chance[2][-2:]
    if kind == "replay":
        assert places[:-2] == chance[2][:-2], "the others by chance"


@pytest.mark.parametrize("kind", MEMORIES)
def test_lists_and_arrays_give_the_same_batches_of_the_newest_transitions(kind: MemoryKind) -> None:
    lists, arrays = Memory(kind, 10, 4), Memory(kind, 10, 4, in_arrays=True)
    rows = transitions(25)
    for row in rows:
        lists.insert(row)
        arrays.insert(row)
    held = {place: rows[number] for number in range(15, 25) for place in [number % 10]}
    for size in (1, 6, 32):
        places = lists.draw(size)
        assert places == arrays.draw(size)
        batches = lists.gather(places), arrays.gather(places)
        for batch in batches:
            assert [field.dtype for field in batch.fields] == [torch.float32, torch.int64, *[torch.float32] * 3]
            for i, place in enumerate(places):
                for field, value in zip(batch.fields, held[place], strict=True):
                    np.testing.assert_array_equal(field[i].numpy(), np.float32(value))


def test_the_sum_tree_draws_in_proportion_and_forgets_old_errors() -> None:
    priorities = Priorities(6, seed=0)
    priorities.set([0, 1, 2, 3], [FIRST_ERROR] * 4)
    priorities.set([0, 1, 2, 3, 3], [0.5, -2.0, 0.0, 9.0, 4.0])  # the sign does not count, the later of two does
    expected = (np.array([0.5, 2.0, 0.0, 4.0]) + EPSILON) ** ALPHA
    assert priorities.tree.sums[1] == pytest.approx(expected.sum(), rel=1e-9)
    drawn = np.bincount(priorities.draw(20_000, held=4), minlength=6)
    assert drawn[4:].sum() == 0
    deviation = np.sqrt(20_000 * (p := expected / expected.sum()) * (1 - p))
    assert (np.abs(drawn[:4] - 20_000 * p) < 4 * deviation + 1).all()
    assert abs(drawn[1] - 20_000 / 4) > 4 * deviation[1], "uniform draws would not pass"


def test_a_new_transition_takes_over_the_place_with_the_first_error() -> None:
    memory = Memory("prioritized", 3, 4)
    for row in transitions(3):
        memory.insert(row)
    memory.learned([0, 1, 2], np.zeros(3, np.float32))
    memory.insert(transitions(1)[0])
    memory.draw(1)
    assert set(memory.draw(50)) == {0}
    assert memory.priorities is not None
    assert memory.priorities.tree.sums[memory.priorities.tree.first_leaf] == pytest.approx(FIRST_ERROR**ALPHA, rel=1e-6)


# -- the loop ---------------------------------------------------------------------------------------------


class Counted(gym.Env[np.ndarray, np.int64]):
    """Its observation is the number of the frame; episodes last 7 frames, every other one is truncated."""

    observation_space, action_space = gym.spaces.Box(-1, np.inf, (1,)), gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.frame, self.episode = 0, 0

    def reset(self, **_: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array([-self.frame]), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.frame += 1
        ends = self.frame % 7 == 0
        self.episode += ends
        return np.array([self.frame]), 1.0, ends and self.episode % 2 == 1, ends and self.episode % 2 == 0, {}


class Noted:
    """A learner that learns nothing, and notes what it was asked."""

    def __init__(self) -> None:
        self.rows: list[Transition] = []
        self.acted: list[int] = []
        self.said: list[tuple[str, int]] = []

    def act(self, obs: np.ndarray) -> int:
        self.acted.append(len(self.rows))
        return 1

    def insert(self, transition: Transition) -> None:
        self.rows.append(transition)

    def train_call(self) -> None:
        self.said.append(("train", len(self.rows)))

    def move_target(self) -> None:
        self.said.append(("target", len(self.rows)))


def test_ten_thousand_frames_are_79744_gradient_steps() -> None:
    noted = Noted()
    loop = Loop(noted, Counted(), 2)
    loop.advance(32)
    assert noted.said == [("target", 32)]
    loop.advance(10_000 - 32)
    trained_at = [frame for what, frame in noted.said if what == "train"]
    assert trained_at == list(range(36, 10_001, 4))
    assert len(trained_at) * STEPS_PER_CALL == 79_744
    assert [frame for what, frame in noted.said if what == "target"] == list(range(32, 10_001, 32))
    assert noted.said.index(("train", 64)) < noted.said.index(("target", 64)), "learning first"
    counted = trained(Switches())
    assert counted.gradient_steps == 2 * STEPS_PER_CALL == 2 * 32


def test_the_loop_explores_less_and_less_and_stores_what_happened() -> None:
    noted = Noted()
    Loop(noted, Counted(), 2).advance(10_000)
    greedy = np.zeros(10_000, bool)
    greedy[noted.acted] = True
    assert abs(greedy[:1000].mean() - 0.45) < 0.06
    assert abs(greedy[900:1000].mean() - 0.85) < 0.12
    assert abs(greedy[1000:].mean() - 0.9) < 0.012
    for number, row in enumerate(noted.rows[:50]):
        first_of_episode = number % 7 == 0
        assert row.s_tm1[0] == (-number if first_of_episode else number)
        assert row.s_t[0] == number + 1, "of an episode's last frame the state it led to, not the next one's first"
        assert row.terminated_t == ((number + 1) % 14 == 7), "a truncated episode goes on in its value"


def test_a_task_arrives_as_it_was_sent() -> None:
    tasks = [
        Task(SETTING, 100, Switches(targets_once=True, mega_batch=4)),
        Task(Setting("Acrobot-v1", 6, 3), 100, engine=EngineCase("torch", "eager"), whole=True),
    ]
    for task in tasks:
        assert Task.from_json(task.as_json()) == task
        json.loads(task.as_json())


# -- hotloop on the same work -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        EngineCase("torch", "eager"),
        pytest.param(EngineCase("jax"), marks=pytest.mark.less_optimised),
        pytest.param(EngineCase("torch", "compiled"), marks=pytest.mark.heavy),
    ],
    ids=lambda case: " ".join(case).strip(),
)
def test_an_engine_learns_the_originals_weights_from_its_batches(case: EngineCase) -> None:
    setting = Setting()
    learner = EngineLearner(setting, case, transitions=40)
    found = deviations(setting, transitions(200, setting), {"engine": learner})
    assert found.pop("engine") < (NEAR if case.engine == "jax" else 1e-5)
    assert found.pop(ORIGINAL) == 0.0
    for name, off in found.items():
        assert off < 1e-5 if SWITCHED[name].is_exact else off > 10 * NEAR, name
    before = learner.engine.counts(learner.run.learner.state).updates
    learner.train_call()
    learner.close()
    assert learner.engine.counts(learner.run.learner.state).updates - before == STEPS_PER_CALL


def test_a_stretch_of_hotloop_learns_at_the_originals_frames() -> None:
    from hotloop.assembly import Assembly
    from hotloop.trial import begun

    with Assembly(spec_of(SETTING, EngineCase("torch", "eager"), 100)) as assembly:
        session, learned_at = begun(assembly), {}
        for _ in range(25):
            session.advance(1)
            host = session.read()
            learned_at[host.env_steps] = host.attempts
    assert learned_at == {frame: max(0, frame - 32) // 4 * STEPS_PER_CALL for frame in range(4, 101, 4)}


COLUMNS = {"fps", "learning_share", "gradient_steps", "peak_mb"}


def test_the_figures_of_a_loop() -> None:
    figures = do(Task(SETTING, 48, Switches()))
    assert set(figures) == COLUMNS | {"seconds", "q_loss_calls", "q_loss_ms", "q_loss_share"}
    assert figures["q_loss_calls"] == figures["gradient_steps"] == 4 * STEPS_PER_CALL
    assert 0 < figures["q_loss_share"] < figures["learning_share"] < 1
    figures = do(Task(SETTING, 48, engine=EngineCase("torch", "eager")))
    assert set(figures) == COLUMNS
    assert figures["gradient_steps"] == 4 * STEPS_PER_CALL


@pytest.mark.heavy
@pytest.mark.parametrize("case", [None, EngineCase("jax")])
def test_a_whole_training_takes_its_steps_in_a_process_of_its_own(case: EngineCase | None) -> None:
    frames = 10_000 if case else 200
    figures = in_child(Task(Setting(), frames, None if case else Switches(), case, whole=True))
    assert figures["gradient_steps"] == (frames - 32) // 4 * STEPS_PER_CALL
    assert figures["seconds"] > 0


def test_columns_of_a_row_are_shown_and_given(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("a", 1.0, "s", columns={"calls": 79_744, "share": None}), Row("b", 2.0, "s", columns={"off by": 1e-6})]
    result = Result("mine", {}, rows)
    result.print_table()
    shown = capsys.readouterr().out
    assert all(said in shown for said in ("calls", "79,744", "share", "–", "off by", "1e-06"))
    assert [row.get("columns") for row in result.as_json()["rows"]] == [row.columns for row in rows]  # type: ignore[attr-defined]
    assert "columns" not in Row("c", 1.0, "s").as_json()
