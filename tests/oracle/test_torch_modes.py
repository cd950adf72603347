"""Engine torch, eager and compiled, in whole and half precision: the same numbers; the mode is chosen as measured."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hotloop
from hotloop.engines.draws import draw
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.host import JaxOnHost
from hotloop.engines.torch import modes
from hotloop.engines.torch.engine import TorchEngine
from hotloop.engines.torch.gradient_steps import LossScale
from hotloop.errors import SpecError
from hotloop.experience import METRICS, Item
from hotloop.runs.folder import RunFolder
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec, leaves, named_leaves

pytestmark = pytest.mark.usefixtures("one_torch_thread")

BATCH, ACTIONS, UPDATES = 4, 3, 2
OBS = ArraySpec((3,), np.float32)
heavy = pytest.mark.heavy


def spec_of(case: dict[str, Any], engine: str = "torch", mode: str = "eager") -> Any:
    data = {"network": {"torso": {"hidden": [6]}}, **case, "engine": engine}
    if engine == "torch":
        data["torch"] = {"mode": mode}
    data["replay"] = {"batch_size": BATCH, **data.get("replay", {})}
    return parse_spec(data)


def batches(updates: int = UPDATES) -> Item[np.ndarray]:
    random, lead = np.random.default_rng(0), (updates, BATCH)
    seen = random.normal(size=(2, *lead, *OBS.shape)).astype(np.float32)
    action, reward = random.integers(0, ACTIONS, lead).astype(np.int32), random.normal(size=lead).astype(np.float32)
    return Item(seen[0], action, reward, np.full(lead, 0.9, np.float32), seen[1])


def learned(engine: Any, weight: np.ndarray | None = None, items: Item[np.ndarray] | None = None) -> Any:
    wanted = engine.wanted_to_learn(UPDATES, BATCH)
    draws = draw(wanted, np.random.default_rng(2)) if wanted else None
    return engine.update(engine.init(3), items or batches(), weight, 0.01, 1, draws)


CASES: dict[str, dict[str, Any]] = {
    "scalar": {"optimizer": {"clip": 0.5}},
    "iqn noisy dueling double accumulated": {
        "network": {
            "torso": {"hidden": [6]},
            "head": {"kind": "iqn", "cosines": 5, "taus": 3, "target_taus": 4, "noise": 0.5, "dueling": True},
        },
        "target": {"rule": "double"},
        "optimizer": {"accumulate": 2},
    },
    "c51 batch weights adamw": {
        "network": {
            "torso": {"hidden": [6], "normalization": "batch"},
            "head": {"kind": "c51", "atoms": 5, "low": -2.0, "high": 3.0},
        },
        "replay": {"sampling": {"kind": "prioritized"}},
        "optimizer": {"kind": "adamw", "weight_decay": 0.1},
    },
    "qr vanilla rmsprop": {
        "network": {"torso": {"hidden": [6]}, "head": {"kind": "qr", "quantiles": 4}},
        "target": {"rule": "vanilla"},
        "optimizer": {"kind": "rmsprop", "momentum": 0.7},
    },
    "munchausen float16": {"target": {"munchausen": {}}, "precision": "float16"},
    "layer bfloat16 sgd": {
        "network": {"torso": {"hidden": [6], "normalization": "layer"}},
        "precision": "bfloat16",
        "optimizer": {"kind": "sgd"},
    },
}


@pytest.mark.parametrize("name", [next(iter(CASES)), *(pytest.param(n, marks=heavy) for n in list(CASES)[1:])])
def test_compiled_and_eager_give_the_same_weights_moments_and_counts(name: str) -> None:
    case = CASES[name]
    weight = np.linspace(0.3, 1.0, UPDATES * BATCH, dtype=np.float32).reshape(UPDATES, BATCH)
    given = weight if "prioritized" in str(case) else None
    eager, compiled = (learned(TorchEngine(spec_of(case, mode=mode), OBS, ACTIONS), given) for mode in modes_of())
    by_name = named_leaves(compiled.state)
    is_half = "precision" in case
    rtol, atol = (0.02, 2e-3) if is_half else (1e-5, 1e-6)
    for leaf, array in named_leaves(eager.state).items():
        np.testing.assert_allclose(np.asarray(by_name[leaf]), np.asarray(array), rtol=rtol, atol=atol, err_msg=leaf)
    np.testing.assert_allclose(compiled.td_KB, eager.td_KB, rtol=rtol, atol=10 * atol)
    np.testing.assert_allclose(compiled.sums, eager.sums, rtol=10 * rtol, atol=10 * atol, err_msg=str(METRICS))


def modes_of() -> tuple[str, str]:
    return "eager", "compiled"


@heavy
def test_a_program_holds_a_part_of_the_updates_and_skips_what_is_not_finite() -> None:
    case = {"replay": {"updates_per_batch": 3}, "updates_per_step": 6.0}
    items = batches(6)  # two at a time
    reward = items.r_t.copy()
    reward[[1, 5]] = np.nan
    items = items._replace(r_t=reward)
    eager, compiled = (learned(TorchEngine(spec_of(case, mode=mode), OBS, ACTIONS), None, items) for mode in modes_of())
    np.testing.assert_allclose(compiled.state.params, eager.state.params, rtol=1e-5, atol=1e-6)
    engine = TorchEngine(spec_of(case), OBS, ACTIONS)
    assert tuple(engine.counts(compiled.state)) == tuple(engine.counts(eager.state)) == (12, 6, 3)


# -- half precision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("precision", "tolerance"), [("bfloat16", 0.06), ("float16", 0.01)])
def test_in_half_precision_a_step_is_nearly_that_of_float32_and_of_the_other_engine(
    precision: str, tolerance: float
) -> None:
    steps: dict[str, np.ndarray] = {}
    for name, numbers in (("torch", "float32"), ("torch", precision), ("jax", precision)):
        case = {"precision": numbers, "optimizer": {"kind": "sgd"}}
        spec = spec_of(case, name)
        torch_engine = TorchEngine(spec_of(case), OBS, ACTIONS)
        engine: Any = torch_engine if name == "torch" else JaxOnHost(JaxEngine(spec, OBS, ACTIONS))
        weights = torch_engine.init(3).params.numpy().copy()
        state = engine.init(3)._replace(params=engine.take(weights), target=engine.take(weights.copy()))
        after = engine.update(state, batches(1), None, 0.1, 0, None).state
        assert np.asarray(after.params).dtype == np.float32
        steps[f"{name} {numbers}"] = np.asarray(after.params) - weights
    whole = steps["torch float32"]
    for name, step in steps.items():
        error = np.linalg.norm(step - whole) / np.linalg.norm(whole)
        assert error < tolerance, name
        assert name == "torch float32" or error > 1e-6, f"{name} was computed in half the bits"


def test_an_overflow_halves_the_loss_scale_as_in_the_other_engine() -> None:
    case = {"precision": "float16", "loss": {"kind": "mse"}}
    items = batches(UPDATES)
    items = items._replace(r_t=np.full_like(items.r_t, 60.0))  # a slope of 120 x 2^15 is beyond float16's 65504
    ours, theirs = TorchEngine(spec_of(case), OBS, ACTIONS), JaxOnHost(JaxEngine(spec_of(case, "jax"), OBS, ACTIONS))
    state = ours.init(3)
    of_torch = ours.update(state, items, None, 0.01, 0, None).state
    also = theirs.init(3)._replace(params=theirs.take(state.params.numpy()), target=theirs.take(state.target.numpy()))
    of_jax = theirs.update(also, items, None, 0.01, 0, None).state
    assert [float(leaf) for leaf in leaves(of_torch.loss_scale)] == [float(leaf) for leaf in leaves(of_jax.loss_scale)]
    assert of_torch.loss_scale.factor < 2.0**15
    counts = ours.counts(of_torch)
    assert counts.skipped > 0
    assert counts.skipped_in_a_row == 0, "an overflow is no sign of divergence"
    assert tuple(counts) == tuple(theirs.counts(of_jax))


def test_the_loss_scale_doubles_when_it_has_held_and_leaves_the_gradient_alone() -> None:
    engine = TorchEngine(spec_of({"precision": "float16"}), OBS, ACTIONS)

    def after(factor: float, held: int) -> Any:
        scale = LossScale(torch.tensor(factor), torch.tensor(held, dtype=torch.int32))
        return engine.update(engine.init(3)._replace(loss_scale=scale), batches(1), None, 0.01, 0, None).state

    due, early = after(4.0, 1999), after(4.0, 1998)
    assert (float(due.loss_scale.factor), int(due.loss_scale.held)) == (8.0, 0)
    assert (float(early.loss_scale.factor), int(early.loss_scale.held)) == (4.0, 1999)
    np.testing.assert_allclose(after(1024.0, 0).params, after(1.0, 0).params, rtol=1e-2, atol=1e-3)


# -- which mode -----------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {
    "engine": "torch",
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 1_000, "start": 32, "batch_size": 8},
    "evaluation": {"every": 0},
    "stop": {"steps": 128},
    "env": {"id": "CartPole-v1", "num_envs": 4},
}


def test_a_short_run_stays_eager_and_says_so_in_its_spec(tmp_path: Any) -> None:
    run = hotloop.train(SMALL, out=tmp_path / "run")
    assert RunFolder.open(run.path).read_spec().torch.mode == "eager"


@heavy
def test_a_compiled_run_is_resumed_to_the_same_bits_and_its_checkpoint_goes_on_eager(tmp_path: Any) -> None:
    spec = {**SMALL, "torch": {"mode": "compiled"}, "env": {"id": "cartpole", "num_envs": 4}}
    whole = hotloop.train(spec, out=tmp_path / "whole")
    half = hotloop.train(spec, out=tmp_path / "half", **{"stop.steps": 64})
    resumed = hotloop.resume(half.path, steps=128)
    one, other = (weights_of(run) for run in (whole, resumed))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    assert not any("_orig_mod" in name for name in one)
    other_half = hotloop.train(spec, out=tmp_path / "again", **{"stop.steps": 64})
    folder = RunFolder.open(other_half.path)
    folder.rewrite_spec(folder.read_spec().with_field("torch.mode", "eager"))
    eager = weights_of(hotloop.resume(other_half.path, steps=128))
    for name, array in one.items():
        np.testing.assert_allclose(array, eager[name], rtol=1e-3, atol=1e-4, err_msg=name)


def weights_of(run: Any) -> dict[str, np.ndarray]:
    agent = hotloop.load(run, which="last")
    named: dict[str, np.ndarray] = agent.engine.to_named(agent.weights)
    return named


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    eager: float,
    compiled: float,
    add: float = 0.0,
    fails: bool = False,
    td_off: float = 0.0,
) -> Any:
    """The choice between modes that take so many seconds; compiled, weights or TD errors are off, or it fails."""
    engine = TorchEngine(spec_of({"stop": {"steps": 1_000_000}}, mode="auto"), OBS, ACTIONS)
    real = modes.eager_steps(engine.spec, engine.network)
    clock = [0.0]

    def steps(seconds: float, off: float, broken: bool) -> Any:
        def call(*inputs: Any) -> Any:
            if broken:
                raise RuntimeError("no compiler\nlong story")
            clock[0] += seconds
            stepped = real(*inputs)
            off_td = td_off if seconds == compiled else 0.0
            params = stepped.state.params + off
            return stepped._replace(state=stepped.state._replace(params=params), td_KB=stepped.td_KB + off_td)

        return call

    monkeypatch.setattr(modes.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(modes, "eager_steps", lambda spec, network: steps(eager, 0.0, False))
    monkeypatch.setattr(modes, "compiled_steps", lambda spec, network: steps(compiled, add, fails))
    return engine.prepare(batches(UPDATES), None, None, 250_000)


class Root(torch.nn.Linear):
    """Takes no number below zero."""

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.sqrt(obs_B))


def test_ways_to_learn_that_take_no_step_at_all_are_not_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(spec_of({"stop": {"steps": 1_000_000}}, mode="auto"), OBS, ACTIONS, Root(*OBS.shape, ACTIONS))
    real = modes.eager_steps(engine.spec, engine.network)

    def other_way(state: Any, work: Any) -> Any:
        return real(state, work._replace(learning_rate=-5.0))

    monkeypatch.setattr(modes, "WORTH_COMPILING", 0.0)
    monkeypatch.setattr(modes, "compiled_steps", lambda spec, network: other_way)
    zeros = batches(UPDATES)._replace(s_tm1=np.zeros((UPDATES, BATCH, *OBS.shape), np.float32))
    zeros = zeros._replace(s_t=zeros.s_tm1)
    choice = engine.prepare(zeros, None, None, 250_000)
    assert choice is not None
    assert choice.value == "eager"
    assert "computes something else" in choice.reason


@pytest.mark.parametrize(
    ("seconds", "value", "said"),
    [
        ({"eager": 1e-6, "compiled": 1e-9}, "eager", "too little to be worth compiling"),
        ({"eager": 1e-2, "compiled": 1e-3}, "compiled", "625 s eager 63 s compiled"),
        ({"eager": 1e-2, "compiled": 2e-2}, "eager", "no faster: 2.00x"),
        ({"eager": 1e-2, "compiled": 1e-3, "add": 0.5}, "eager", "computes something else"),
        ({"eager": 1e-2, "compiled": 1e-3, "td_off": 0.5}, "eager", "computes something else"),
        ({"eager": 1e-2, "compiled": 1e-3, "fails": True}, "eager", "could not be compiled: RuntimeError: no compiler"),
    ],
)
def test_the_mode_is_the_faster_one_that_computes_the_same(
    seconds: dict[str, Any], value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = chosen(monkeypatch, **seconds)
    assert (choice.field, choice.value) == ("torch.mode", value)
    assert said in choice.reason.replace(",", "")


class Undecided(nn.Module):
    """Its operations depend on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, obs_B: torch.Tensor) -> torch.Tensor:
        q = self.layer(obs_B)
        return q if q.sum() > 0 else 2 * q


def test_a_network_that_cannot_be_compiled_is_refused_in_a_line_and_runs_eager() -> None:
    with pytest.raises(SpecError, match=r"torch\.mode is compiled, but this cannot be compiled here: .*mode=eager"):
        hotloop.train(SMALL, out=None, network=Undecided, **{"torch.mode": "compiled"})
    assert hotloop.train(SMALL, out=None, network=Undecided, **{"torch.mode": "eager"}).updates > 0
