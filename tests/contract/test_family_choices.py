"""Every pair of choices works together, or is refused; every preset of the family learns, saves and goes on."""

from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop.assembly import Assembly
from hotloop.engines.jax.engine import JaxEngine
from hotloop.errors import SpecError
from hotloop.experience import METRICS, Item
from hotloop.members import seeds
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec, preset_names

pytestmark = pytest.mark.less_optimised

BATCH, ACTIONS = 4, 3
CHOICES: dict[str, dict[str, dict[str, Any]]] = {
    "head": {
        "scalar": {},
        "c51": {"network.head.kind": "c51", "network.head.atoms": 5},
        "qr": {"network.head.kind": "qr", "network.head.quantiles": 5},
        "iqn": {"network.head.kind": "iqn", "network.head.taus": 3, "network.head.cosines": 4},
    },
    "streams": {"one": {}, "dueling": {"network.head.dueling": True, "network.head.hidden": [4]}},
    "trunk": {"no trunk": {}, "trunk": {"network.head.trunk": [5]}},
    "noise": {"without": {}, "noisy": {"network.head.noise": 0.5}},
    "target": {
        "vanilla": {"target.rule": "vanilla"},
        "target": {"target.rule": "target"},
        "double": {"target.rule": "double"},
        "munchausen": {"target.rule": "target", "target.munchausen": {}},
    },
    "torso": {
        "mlp": {"network.torso.hidden": [6]},
        "cnn": {"network.torso": {"kind": "cnn", "channels": [2], "kernels": [3], "strides": [2], "hidden": [4]}},
        "impala": {"network.torso": {"kind": "impala", "channels": [2], "blocks": 1, "hidden": [4]}},
        "branches": {
            "network.torso": {
                "kind": "branches",
                "branches": {"far": {"rows": [3], "hidden": [4]}, "near": {"hidden": [4]}},
                "attention": 3,
                "hidden": [5],
            }
        },
    },
    "normalization": {name: {"network.torso.normalization": name} for name in ("none", "layer", "batch")},
    "precision": {name: {"precision": name} for name in ("float32", "bfloat16", "float16")},
    "init": {name: {"network.init": name} for name in ("default", "he", "orthogonal")},
    "parts": {"whole": {}, "two parts": {"optimizer.accumulate": 2}},
    "weights": {"uniform": {}, "prioritized": {"replay.sampling.kind": "prioritized"}},
    "mask": {"all legal": {}, "masked": {"env.action_mask": True}},
}
REFUSED = {("c51", "munchausen"), ("batch", "two parts"), ("munchausen", "masked")}
"""Pairs that do not go together; `tests/unit/test_spec.py` reads their messages."""


def is_refused(names: tuple[str, ...]) -> bool:
    return any(set(pair) <= set(names) for pair in REFUSED)


def covering_cases() -> list[tuple[str, ...]]:
    """Few combinations in which every pair of choices that is not refused occurs: greedy, always the same."""
    options = [list(choice) for choice in CHOICES.values()]
    missing = {
        ((i, a), (j, b))
        for i, j in combinations(range(len(options)), 2)
        for a, b in product(options[i], options[j])
        if not is_refused((a, b))
    }
    cases = []
    while missing:
        (i, a), (j, b) = min(missing)
        case: list[str | None] = [None] * len(options)
        case[i], case[j] = a, b
        for k, names in enumerate(options):
            if case[k] is None:
                fitting = [n for n in names if not is_refused((n, *[c for c in case if c]))]
                case[k] = max(fitting, key=lambda n: sum(_pair(k, n, m, c) in missing for m, c in enumerate(case) if c))
        cases.append(tuple(name for name in case if name))
        missing -= {_pair(m, c, n, d) for (m, c), (n, d) in combinations(enumerate(cases[-1]), 2)}
    return cases


def _pair(i: int, a: str, j: int, b: str) -> tuple[tuple[int, str], tuple[int, str]]:
    return ((i, a), (j, b)) if i < j else ((j, b), (i, a))


CASES = covering_cases()


def cases_of_every_choice() -> tuple[tuple[str, ...], ...]:
    """The fewest cases that hold every choice: a quick look at each."""
    every = {name for choice in CHOICES.values() for name in choice}
    subsets = (cases for count in range(1, len(CASES) + 1) for cases in combinations(CASES, count))
    return next(cases for cases in subsets if every <= set().union(*cases))


QUICK = cases_of_every_choice()


def spec_of(names: tuple[str, ...]) -> Spec:
    merged: dict[str, Any] = {"replay.batch_size": BATCH}
    for choice, name in zip(CHOICES.values(), names, strict=True):
        merged |= choice[name]
    return load_spec({}, dict(sorted(merged.items())))  # a whole section before its fields


@pytest.mark.parametrize(
    "names", [case if case in QUICK else pytest.param(case, marks=pytest.mark.heavy) for case in CASES], ids="-".join
)
def test_each_pair_of_choices_acts_and_learns(names: tuple[str, ...]) -> None:
    spec = spec_of(names)
    shapes: Any = {"far": (4, 2), "near": (3,)} if "branches" in names else {"": (7, 7, 2)}
    rng = np.random.default_rng(0)

    def obs(*lead: int) -> Any:
        parts = {name: rng.normal(size=(*lead, *shape)).astype(np.float32) for name, shape in shapes.items()}
        return parts.get("", parts)

    engine = JaxEngine(spec, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), obs()), ACTIONS)

    lead = (8, BATCH)
    legal = np.broadcast_to([True, False, True], (*lead, ACTIONS)) if spec.env.action_mask else None
    numbers = [rng.normal(size=lead).astype(np.float32), np.full(lead, 0.9, np.float32)]
    batches = Item(obs(*lead), rng.integers(0, ACTIONS, lead).astype(np.int32), *numbers, obs(*lead), legal)
    weight = rng.uniform(0.5, 1.0, lead).astype(np.float32) if spec.beta_schedule else None

    @jax.jit
    def program(key: jax.Array) -> Any:
        state = engine.init(key)
        new, td_KB, sums = engine.update(state, batches, jnp.float32(1e-2), weight, key)
        mask = None if legal is None else jnp.asarray(legal[0])
        first_N = jax.tree.map(lambda leaf: leaf[0], batches.s_t)
        action_N = engine.act(new.params, first_N, jnp.ones(BATCH), key, mask)
        return state, engine.move_target(new, jnp.int32(1)), td_KB, sums, action_N

    state, new, td_KB, sums, action_N = program(jax.random.key(0, impl="unsafe_rbg"))  # quicker to compile
    applied = sums[METRICS.index("applied")]
    assert applied == 8 or (spec.precision == "float16" and applied >= 4)  # while it looks for the scale of its loss
    assert np.isfinite(sums).all()
    assert np.isfinite(td_KB).all()
    assert np.isfinite(new.params).all()
    moved = np.asarray(new.params != state.params)
    assert moved.mean() > 0.2
    assert set(action_N.tolist()) <= ({0, 2} if legal is not None else {0, 1, 2})


def test_the_cases_are_few_and_hold_every_pair() -> None:
    assert len(CASES) <= 24
    assert {name for case in QUICK for name in case} == {name for choice in CHOICES.values() for name in choice}
    seen = {pair for case in CASES for pair in combinations(enumerate(case), 2)}
    options = [list(choice) for choice in CHOICES.values()]
    for i, j in combinations(range(len(options)), 2):
        for a, b in product(options[i], options[j]):
            assert (((i, a), (j, b)) in seen) == (not is_refused((a, b))), (a, b)


@pytest.mark.parametrize("pair", sorted(REFUSED), ids="-".join)
def test_what_does_not_go_together_is_refused(pair: tuple[str, str]) -> None:
    wanted = tuple(next((n for n in names if n in pair), next(iter(names))) for names in CHOICES.values())
    with pytest.raises(SpecError):
        spec_of(wanted)


# -- presets --------------------------------------------------------------------------------------------

SMALL = {
    "env.num_envs": 4,
    "evaluation.every": 0,
    "replay.capacity": 256,
    "replay.start": 72,
    "replay.batch_size": 8,
    "stop": {"steps": 10_000},
}
ON_THE_DEVICE = [
    *("dqn", "double", "dueling", "per", "c51", "qrdqn", "iqn", "rainbow", "munchausen", "pqn", "cartpole_memory"),
    "snake_rainbow",
]


def session_of(preset: str, overrides: dict[str, Any]) -> Any:
    session: Any = Assembly(load_spec(preset, overrides)).session(seeds([3]))
    session.compile()
    return session


def small(preset: str) -> dict[str, Any]:
    if load_spec(preset).on_policy is None:
        return SMALL
    return {
        "evaluation.every": 0,
        "stop": {"steps": 10_000},
        "env.num_envs": 8,
        "on_policy.steps": 4,
        "on_policy.minibatches": 2,
    }


@pytest.mark.as_users_compile
@pytest.mark.parametrize(
    "preset",  # what Rainbow saves beyond it is in tests/faults/test_device_priorities.py as well
    [name if name == "c51" else pytest.param(name, marks=pytest.mark.heavy) for name in ON_THE_DEVICE],
)
def test_a_preset_learns_and_resumes_to_the_bit(preset: str) -> None:
    session = session_of(preset, small(preset))
    session.begin()
    session.advance(20)
    saved = session.arrays()
    session.advance(7)
    straight, read = session.arrays(), session.read()
    assert read.updates[0] > 0
    assert read.skipped[0] == 0
    session.begin()
    session.restore(saved)
    session.advance(7)
    resumed = session.arrays()
    assert straight.keys() == resumed.keys()
    for name in straight:
        np.testing.assert_array_equal(straight[name], resumed[name], err_msg=name)
    assert any(not np.array_equal(saved[name], straight[name]) for name in saved if name.endswith("params"))


@pytest.mark.as_users_compile
@pytest.mark.heavy
@pytest.mark.parametrize(("preset", "pipeline"), [("rainbow", "sync"), ("iqn", "concurrent"), ("munchausen", "sync")])
def test_a_preset_trains_on_a_gymnasium_env(preset: str, pipeline: str) -> None:
    """Twice the same bits, and updates that were taken."""
    overrides = {**SMALL, "env.id": "CartPole-v1", "pipeline": pipeline}
    ends = []
    for _ in range(2):
        session = session_of(preset, overrides)
        session.begin()
        session.advance(40)
        assert session.read().updates[0] > 0
        ends.append(session.arrays())
        session.close()
    for name in ends[0]:
        np.testing.assert_array_equal(ends[0][name], ends[1][name], err_msg=name)


def test_every_preset_of_the_family_is_there_and_has_its_line() -> None:
    assert set(ON_THE_DEVICE) | {"pong_rainbow", "pong_iqn"} <= set(preset_names())
    for name in preset_names():
        spec = load_spec(name)
        assert spec.name == name
        assert len(spec.description) > 20


def test_a_base_is_a_preset_of_which_only_what_differs_is_said() -> None:
    spec = load_spec({"base": "rainbow", "name": "mine", "replay": {"n_step": 5}})
    rainbow = load_spec("rainbow")
    assert spec == rainbow.model_copy(
        update={"name": "mine", "replay": rainbow.replay.model_copy(update={"n_step": 5})}
    )
    with pytest.raises(SpecError, match="did you mean 'rainbow'"):
        load_spec({"base": "rainbo"})


def test_a_section_of_another_kind_replaces_that_of_the_base() -> None:
    spec = load_spec({"base": "rainbow", "network": {"head": {"kind": "iqn"}}})
    assert spec == load_spec("rainbow", {"network.head": {"kind": "iqn"}})
