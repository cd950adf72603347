"""Networks with a memory against PyTorch's cells and naive twins: cells, sequences, loss, and what the envs carry."""

from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from hotloop.engines.jax import cores
from hotloop.engines.jax.cores import CORES
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.modules import Functions
from hotloop.engines.jax.recurrent import RecurrentEngine, mean_of_known
from hotloop.envs.cartpole import CartPole
from hotloop.envs.device import ObsSpec
from hotloop.errors import SpecError
from hotloop.experience import METRICS
from hotloop.pipelines.device_play import episodes_program, to_host
from hotloop.pipelines.recurrent import Recurrent
from hotloop.replay import ring, sequences
from hotloop.runs.state import digests, to_arrays
from hotloop.spec import Core
from hotloop.spec.reading import parse_spec

pytestmark = pytest.mark.less_optimised

F, H, B, T = 3, 5, 4, 7
KINDS = list(CORES)
Tensor = torch.Tensor


# -- cells ----------------------------------------------------------------------------------------------------


def their_cell(kind: str, params: Any, carry: Any, x: Tensor) -> Any:
    """One step of PyTorch's cell, float64; returns its new state."""
    p = {name: torch.as_tensor(np.asarray(leaf, np.float64)) if not torch.is_tensor(leaf) else leaf
         for name, leaf in params.items()}  # fmt: skip
    weights = (p["kernel"].T, p["recurrent"].T)
    if kind == "lstm":
        return torch.lstm_cell(x, carry, *weights, p["bias"], torch.zeros_like(p["bias"]))
    own = torch.cat([torch.zeros(2 * len(p["recurrent_bias"]), dtype=torch.float64), p["recurrent_bias"]])
    return torch.gru_cell(x, carry, *weights, p["bias"], own)


def output(kind: str, carry: Any) -> Tensor:
    return carry[0] if kind == "lstm" else carry


def tensors(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: torch.as_tensor(np.asarray(leaf, np.float64)), tree)


def assert_same(ours: Any, theirs: Any, tolerance: float = 2e-6) -> None:
    for mine, their in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(mine), their.detach().numpy(), rtol=tolerance, atol=tolerance)


def a_core(kind: str) -> tuple[cores.Core, Any, Any, np.ndarray, np.ndarray]:
    """A core, its parameters, a carry, inputs and flags of T steps."""
    random, core = np.random.default_rng(0), CORES[kind](Core(size=H))
    params = jax.tree.map(lambda leaf: 2 * leaf, core.init(jax.random.key(1), jnp.zeros((1, F))))
    carry = jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), core.first(B))
    return core, params, carry, random.normal(size=(T, B, F)).astype(np.float32), random.random((T, B)) < 0.3


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_pytorchs_cell(kind: str) -> None:
    core, params, carry, x_TBF, _ = a_core(kind)
    after, y_BH = jax.jit(core.step)(params, carry, x_TBF[0])
    theirs = their_cell(kind, params, tensors(carry), tensors(x_TBF[0]))
    assert_same(after, theirs)
    assert_same(y_BH, output(kind, theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_unrolling_is_stepping_with_resets(kind: str) -> None:
    core, params, carry, x_TBF, first_TB = a_core(kind)
    assert first_TB.any()
    assert not first_TB.all()
    after, y_TBH = jax.jit(core.unroll)(params, carry, x_TBF, first_TB)
    for b in range(B):
        theirs = jax.tree.map(lambda leaf, b=b: leaf[b : b + 1], tensors(carry))
        for t in range(T):
            if first_TB[t, b]:
                theirs = jax.tree.map(torch.zeros_like, theirs)
            theirs = their_cell(kind, params, theirs, tensors(x_TBF[t, b : b + 1]))
            assert_same(y_TBH[t, b], output(kind, theirs)[0])
        assert_same(jax.tree.map(lambda leaf, b=b: leaf[b : b + 1], after), theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_are_those_of_pytorch_or_orthogonal_in_each_gate(kind: str) -> None:
    size, x = 50, jnp.zeros((1, 20))
    plain = CORES[kind](Core(size=size)).init(jax.random.key(0), x)
    for leaf in jax.tree.leaves(plain):
        assert np.abs(leaf).max() == pytest.approx(size**-0.5, rel=0.1)
        assert np.std(leaf) == pytest.approx(size**-0.5 / 3**0.5, rel=0.2)
    other = CORES[kind](Core(size=size), "orthogonal").init(jax.random.key(0), x)
    for gate in np.split(np.asarray(other["recurrent"]), other["recurrent"].shape[1] // size, axis=1):
        np.testing.assert_allclose(gate.T @ gate, np.eye(size), atol=1e-5)
    assert not np.any(other["bias"])


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_keeps_its_memory_in_float32(kind: str) -> None:
    core, params, carry, x_TBF, first_TB = a_core(kind)
    exact = core.unroll(params, carry, x_TBF, first_TB)
    half = core.unroll(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), carry, x_TBF, first_TB)
    for rough, fine in zip(jax.tree.leaves(half), jax.tree.leaves(exact), strict=True):
        assert rough.dtype == np.float32
        np.testing.assert_allclose(rough, fine, atol=0.05)


# -- the replay of sequences ----------------------------------------------------------------------------------

N, ROWS, LENGTH, BURN_IN = 3, 12, 3, 2
STRETCH = BURN_IN + LENGTH + 1


def numbered(step: int) -> sequences.Step:
    """One vector step whose fields all tell which step of which env it is: 100 x step + env."""
    number = 100 * step + np.arange(N, dtype=np.float32)
    flag = np.arange(N) == step % N
    pair = (np.stack([number, -number], 1), number[:, None] + 0.5)
    return sequences.Step(
        number[:, None],
        number.astype(np.int32),
        number + 0.1,
        number + 0.2,
        flag,
        ~flag,
        jax.tree.map(np.float32, pair),
    )


def a_ring(steps: int, steps_per_insert: int) -> ring.Ring:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), numbered(0))
    row: Any = sequences.row_example(shapes.obs, shapes.memory)
    kept = ring.empty(ROWS * N, row)
    for start in range(0, steps, steps_per_insert):
        several = [numbered(step) for step in range(start, start + steps_per_insert)]
        items: Any = jax.tree.map(lambda *leaves: np.concatenate(leaves), *several)
        kept = ring.insert(kept, items)
    return kept


def naive_stretches(steps: int) -> dict[tuple[int, int], list[int]]:
    """Every (first step, env) there may be, and the steps of it, out of a list of the newest ROWS steps."""
    held = list(range(steps))[-ROWS:]
    return {
        (held[i], env): held[i : i + STRETCH] for i in range(len(held)) for env in range(N) if i + STRETCH <= len(held)
    }


@pytest.mark.parametrize(("steps", "steps_per_insert"), [(6, 1), (12, 3), (13, 1), (22, 2), (60, 12)])
def test_stretches_are_those_of_a_list_and_all_are_drawn_equally_often(steps: int, steps_per_insert: int) -> None:
    kept, allowed = a_ring(steps, steps_per_insert), naive_stretches(steps)
    count = 100 * len(allowed)
    drawn = jax.device_get(sequences.sample(kept, jax.random.key(steps), (2, count // 2), N, LENGTH, BURN_IN))
    drawn = jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), drawn)
    seen: Counter[tuple[int, int]] = Counter()
    for i in range(count):
        step, env = divmod(int(drawn.obs[i, 0, 0]), 100)
        if seen[step, env] == 0:  # each kind once: a thousand would be the same rows
            assert_is_stretch(jax.tree.map(lambda leaf, i=i: leaf[i], drawn), allowed[step, env], env)
        seen[step, env] += 1
    assert set(seen) == set(allowed)
    assert min(seen.values()) > 100 - 5 * 100**0.5
    assert max(seen.values()) < 100 + 5 * 100**0.5


def assert_is_stretch(drawn: sequences.Sequences, steps: list[int], env: int) -> None:
    rows = [jax.tree.map(lambda leaf: leaf[env], numbered(step)) for step in steps]
    learned = rows[BURN_IN:-1]
    assert len(learned) == LENGTH
    expected = sequences.Sequences(
        obs=[row.obs for row in rows],
        first=[row.first for row in rows],
        a_tm1=[row.action for row in learned],
        r_t=[row.r_t for row in learned],
        discount_t=[row.discount_t for row in learned],
        truncated=[row.truncated for row in learned],
        memory=rows[0].memory,
    )
    for field in sequences.Sequences._fields[:-1]:
        np.testing.assert_array_equal(getattr(drawn, field), np.array(getattr(expected, field)), err_msg=field)
    for ours, theirs in zip(drawn.memory, expected.memory, strict=True):
        np.testing.assert_array_equal(ours, theirs)


# -- loss and gradient ----------------------------------------------------------------------------------------

ACTIONS, OBS = 3, 2
TWINS = {
    "lstm, double": {"network": {"core": {"kind": "lstm"}}, "target": {"rule": "double"}},
    "gru, target net, mse, dueling": {
        "network": {"core": {"kind": "gru"}, "head": {"dueling": True}},
        "target": {"rule": "target"},
        "loss": {"kind": "mse"},
    },
    "lstm, vanilla, no burn-in": {
        "network": {"core": {"kind": "lstm"}},
        "target": {"rule": "vanilla"},
        "replay": {"sequence": {"length": 4, "burn_in": 0}},
    },
}


def small_spec(**more: Any) -> Any:
    more = {name: dict(section) for name, section in more.items()}
    network, replay = more.pop("network", {}), more.pop("replay", {})
    return parse_spec(
        {
            "discount": 0.9,
            "network": {"torso": {"hidden": [4]}, **network, "core": {"size": 3, **network.get("core", {})}},
            "replay": {
                **{"capacity": 100, "start": 40, "batch_size": 4, "sequence": {"length": 4, "burn_in": 2}},
                **replay,
            },
            "evaluation": {"every": 0},
            **more,
        }
    )


def an_engine(spec: Any, obs: tuple[int, ...] = (OBS,), actions: int = ACTIONS) -> RecurrentEngine:
    return RecurrentEngine(spec, jax.ShapeDtypeStruct(obs, np.float32), actions)


def a_batch(spec: Any, engine: RecurrentEngine, seed: int, size: int = 4) -> sequences.Sequences:
    random, cut = np.random.default_rng(seed), spec.replay.sequence
    steps = cut.burn_in + cut.length + 1
    learned = (size, cut.length)
    terminated = random.random(learned) < 0.2
    return sequences.Sequences(
        obs=random.normal(size=(size, steps, OBS)).astype(np.float32),
        first=random.random((size, steps)) < 0.25,
        a_tm1=random.integers(ACTIONS, size=learned).astype(np.int32),
        r_t=2 * random.normal(size=learned).astype(np.float32),
        discount_t=np.where(terminated, 0.0, 0.9).astype(np.float32),
        truncated=(random.random(learned) < 0.3) & ~terminated,
        memory=jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), engine.memory(size)),
    )


class Twin:
    """Loss of a batch, sequence by sequence and step by step, by PyTorch in float64."""

    def __init__(self, spec: Any, engine: RecurrentEngine, online: np.ndarray, target: np.ndarray) -> None:
        self.spec, self.kind = spec, spec.network.core.kind
        self.online, self.target = (
            {n: torch.tensor(a, dtype=torch.float64) for n, a in engine.layout.to_named(vector).items()}
            for vector in (online, target)
        )
        for leaf in self.online.values():
            leaf.requires_grad_(True)

    def q(self, p: dict[str, Tensor], carry: Any, obs: Tensor) -> tuple[Any, Tensor]:
        x = torch.relu(obs[None] @ p["torso/layers/dense_0/kernel"] + p["torso/layers/dense_0/bias"])
        core = {name.removeprefix("core/"): leaf for name, leaf in p.items() if name.startswith("core/")}
        carry = their_cell(self.kind, core, carry, x)
        y = output(self.kind, carry)[0]
        if not self.spec.network.head.dueling:
            return carry, y @ p["head/dense_0/kernel"] + p["head/dense_0/bias"]
        value, advantage = (
            y @ p[f"head/{s}/dense_0/kernel"] + p[f"head/{s}/dense_0/bias"] for s in ("value", "advantage")
        )
        return carry, value + advantage - advantage.mean()

    def q_values(self, p: dict[str, Tensor], one: sequences.Sequences) -> list[Tensor]:
        """Of each step behind the burn-in."""
        burn_in, out = self.spec.replay.sequence.burn_in, []
        carry = jax.tree.map(lambda leaf: leaf[None], tensors(one.memory))
        for t in range(len(one.first)):
            if one.first[t]:
                carry = jax.tree.map(torch.zeros_like, carry)
            with torch.set_grad_enabled(t >= burn_in):
                carry, q = self.q(p, carry, torch.tensor(one.obs[t], dtype=torch.float64))
            if t >= burn_in:
                out.append(q)
        return out

    def loss(self, batch: sequences.Sequences) -> tuple[Tensor, np.ndarray]:
        losses, td_BL = [], np.zeros(batch.r_t.shape)
        for b in range(len(batch.r_t)):
            one = jax.tree.map(lambda leaf, b=b: leaf[b], batch)
            online, target = self.q_values(self.online, one), self.q_values(self.target, one)
            for t in range(len(one.r_t)):
                mine, theirs = online[t + 1].detach(), target[t + 1].detach()
                rule = self.spec.target.rule
                value = {"vanilla": mine.max(), "target": theirs.max(), "double": theirs[mine.argmax()]}[rule]
                td = float(one.r_t[t]) + float(one.discount_t[t]) * value - online[t][one.a_tm1[t]]
                td_BL[b, t] = td.detach()
                if one.truncated[t]:
                    continue
                if self.spec.loss.kind == "mse":
                    losses.append(td**2)
                else:
                    losses.append(td**2 / 2 if abs(td) <= 1 else abs(td) - 0.5)
        return sum(losses) / len(losses), td_BL


@pytest.mark.parametrize("name", TWINS)
def test_loss_and_gradient_are_those_of_a_naive_twin(name: str) -> None:
    spec = small_spec(**TWINS[name])
    engine = an_engine(spec)
    online, target = (2 * np.asarray(engine.init(jax.random.key(k)).params) for k in (0, 1))
    batch = a_batch(spec, engine, seed=3)
    assert batch.truncated.any()
    assert batch.first[:, spec.replay.sequence.burn_in :].any()
    twin = Twin(spec, engine, online, target)
    expected, td_BL = twin.loss(batch)
    expected.backward()

    @jax.jit
    def ours(online: Any, target: Any, batch: Any) -> Any:
        frozen = engine.target_outputs(target, batch)
        return engine.gradient(online, batch, frozen, mean_of_known(batch.truncated))

    gradient, loss, td, _ = ours(online, target, batch)
    assert float(loss) == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(np.asarray(td).reshape(td_BL.shape), td_BL, rtol=1e-4, atol=1e-5)
    for parameter, grad in engine.layout.to_named(gradient).items():
        theirs = twin.online[parameter].grad
        assert theirs is not None
        np.testing.assert_allclose(grad, theirs.numpy(), rtol=1e-4, atol=1e-6, err_msg=parameter)
        assert np.abs(grad).max() > 1e-6, f"{parameter} has no part in the loss"


@pytest.fixture(scope="module", params=[1, 2], ids=["whole batches", "in two parts"])
def learner(request: pytest.FixtureRequest) -> Any:
    """An engine, its update compiled for two batches, a state to begin with, and the batches."""
    sgd = {"kind": "sgd", "learning_rate": 0.1, "clip": None, "accumulate": request.param}
    spec = small_spec(target={"rule": "double"}, optimizer=sgd)
    engine = an_engine(spec)
    batches = jax.tree.map(lambda *leaves: np.stack(leaves), *(a_batch(spec, engine, seed) for seed in (5, 6)))
    return spec, engine, jax.jit(engine.update), engine.init(jax.random.key(0)), batches


def test_an_update_follows_the_gradient_of_each_batch_in_turn(learner: Any) -> None:
    spec, engine, update, state, batches = learner
    after, td_KBL, sums = update(state, batches, jnp.float32(0.1))
    params = np.asarray(state.params, np.float64)
    losses = []
    for k in range(2):
        twin = Twin(spec, engine, params.astype(np.float32), np.asarray(state.target))
        loss, td_BL = twin.loss(jax.tree.map(lambda leaf, k=k: leaf[k], batches))
        loss.backward()
        np.testing.assert_allclose(td_KBL[k], td_BL, rtol=1e-3, atol=1e-4)
        params = params - 0.1 * np.concatenate([leaf.grad.numpy().reshape(-1) for leaf in twin.online.values()])
        losses.append(loss.item())
    np.testing.assert_allclose(after.params, params, rtol=1e-4, atol=1e-5)
    assert sums[METRICS.index("loss")] == pytest.approx(sum(losses), rel=1e-4)
    assert (int(after.updates), int(after.skipped)) == (2, 0)


def test_a_batch_that_is_not_finite_leaves_no_trace(learner: Any) -> None:
    _, _, update, state, batches = learner
    alone, _, _ = update(state, jax.tree.map(lambda leaf: leaf[[0, 0]], batches), jnp.float32(0.0))
    r_t = batches.r_t.copy()
    r_t[1, 0, 0] = np.nan
    after, _, sums = update(state, batches._replace(r_t=r_t), jnp.float32(0.1))
    assert (int(after.updates), int(after.skipped), int(after.skipped_in_a_row)) == (1, 1, 1)
    assert np.isfinite(after.params).all()
    assert np.isfinite(sums).all()
    assert not np.array_equal(after.params, alone.params), "the good batch was followed"


def test_a_batch_of_nothing_but_truncations_teaches_nothing(learner: Any) -> None:
    _, _, update, state, batches = learner
    after, _, sums = update(state, batches._replace(truncated=np.ones_like(batches.truncated)), jnp.float32(0.1))
    np.testing.assert_array_equal(after.params, state.params)
    assert (int(after.skipped), float(sums[METRICS.index("loss")])) == (0, 0.0)


# -- the pipeline ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Countdown:
    """Shows how long the episode will be, then only the time; of three episodes one is truncated, one is both."""

    num_actions: int = 2

    @property
    def obs_spec(self) -> ObsSpec:
        return ObsSpec((2,), np.float32, np.zeros(2), np.full(2, 6.0))

    def reset(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = jnp.append(jax.random.randint(key, (2,), 1, 4), 0)
        return state, jnp.stack([state[0], 0]).astype(jnp.float32)

    def step(self, state: jax.Array, action: jax.Array, key: jax.Array) -> Any:
        length, ending, t = state[0], state[1], state[2] + 1
        over = t >= length
        obs = jnp.stack([0, t]).astype(jnp.float32)
        return state.at[2].set(t), obs, t + 0.5 * action, over & (ending != 1), over & (ending != 3), {}


class Program(NamedTuple):
    """A pipeline and its compiled loop."""

    spec: Any
    pipeline: Recurrent
    advance: Any


@cache
def program(kind: str, updates_per_step: float, start: int, compiled: str = "less optimised") -> Program:
    """Kept apart by how it was `compiled`, which is the marker's choice."""
    sections: Any = {"network": {"core": {"kind": kind}}, "replay": {"start": start, "capacity": 47}}
    spec = small_spec(**sections, target={"rule": "double", "every": 10}, env={"num_envs": 2})
    spec = spec.model_copy(update={"updates_per_step": updates_per_step})
    pipeline = Recurrent(spec, Countdown(), an_engine(spec, actions=2))
    return Program(spec, pipeline, jax.jit(pipeline.advance))


def test_the_memory_stored_is_that_of_the_episode_so_far() -> None:
    """Two vector steps a block, and no learning, so that one set of weights played it all."""
    _, pipeline, advance = program("lstm", 0.25, 1000)
    assert pipeline.capacity == 44, "a whole number of blocks of 4"
    states = [jax.device_get(pipeline.init(jnp.uint32(2)))]
    for _ in range(25):  # past the end of the ring, which takes 11 blocks
        states.append(jax.device_get(advance(states[-1], jnp.int32(1))))
    params = pipeline.engine.layout.to_named(states[0].learner.params)
    core = {name.removeprefix("core/"): leaf for name, leaf in params.items() if name.startswith("core/")}
    new = [
        jax.tree.map(lambda leaf, at=int(before.ring.position): leaf[at : at + 4], after.ring.rows)
        for before, after in pairwise(states)
    ]
    rows = jax.tree.map(lambda *leaves: np.concatenate(leaves), *new)
    endings = Counter()
    for env in range(2):
        mine = jax.tree.map(lambda leaf, env=env: leaf[env::2], rows)
        carry = begin = tensors((np.zeros((1, 3)), np.zeros((1, 3))))
        for t in range(50):
            elapsed = mine.obs[t, 1]
            assert bool(mine.first[t]) == (elapsed == 0)
            carry = begin if mine.first[t] else carry
            assert_same(jax.tree.map(lambda leaf, t=t: leaf[t : t + 1], mine.memory), carry)
            x = np.maximum(mine.obs[t] @ params["torso/layers/dense_0/kernel"] + params["torso/layers/dense_0/bias"], 0)
            carry = their_cell("lstm", core, carry, tensors(x[None]))
            assert mine.r_t[t] == elapsed + 1 + 0.5 * mine.action[t]
            if t < 49:
                over, cut, end = bool(mine.first[t + 1]), bool(mine.truncated[t]), mine.discount_t[t] == 0
                assert over == (cut or end)
                assert not (cut and end)
                endings[cut, end] += 1
                assert over or mine.discount_t[t] == np.float32(0.9)
    assert min(endings[kind] for kind in ((False, False), (True, False), (False, True))) > 5
    kept = states[-1].ring
    oldest_first = jax.tree.map(lambda leaf: np.roll(leaf, -int(kept.position), axis=0), kept.rows)
    for ours, logged in zip(jax.tree.leaves(oldest_first), jax.tree.leaves(rows), strict=True):
        np.testing.assert_array_equal(ours, logged[-44:])


def test_the_memory_of_an_env_is_forgotten_where_its_episode_ended() -> None:
    _, pipeline, advance = program("lstm", 0.25, 1000)
    state, kinds = pipeline.init(jnp.uint32(2)), set()
    for _ in range(8):
        state = advance(state, jnp.int32(1))
        actor: Any = jax.device_get(state.actor)
        for env in range(2):
            is_zero = not any(np.any(leaf[env]) for leaf in actor.memory)
            assert is_zero == bool(actor.first[env]) == (actor.obs[env, 1] == 0)
            kinds.add(is_zero)
    assert kinds == {True, False}


def test_blocks_steps_updates_and_target_copies_are_counted() -> None:
    _, pipeline, advance = program("gru", 1.0, 20)
    state, per_block = pipeline.init(jnp.uint32(0)), pipeline.block_plan.env_steps
    learned = 0
    for blocks in range(1, 16):
        before, state = state, advance(state, jnp.int32(1))
        steps = blocks * per_block
        learned += pipeline.block_plan.updates if steps >= 20 else 0
        assert (int(state.env_steps), int(state.learner.updates)) == (steps, learned)
        assert int(state.first_update_at) == (20 if steps >= 20 else 0)
        is_copied = steps // 10 > (steps - per_block) // 10
        expected = state.learner.params if is_copied else before.learner.target
        np.testing.assert_array_equal(state.learner.target, expected)
    assert learned > 5
    assert not np.array_equal(state.learner.params, pipeline.init(jnp.uint32(0)).learner.params)


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_a_run_resumed_from_its_arrays_ends_in_the_same_bits() -> None:
    _, pipeline, advance = program("gru", 1.0, 20, "as users compile")
    whole, half, rest = sessions = [pipeline.session([7]) for _ in range(3)]
    for session in sessions:
        session._init, session._advance = jax.jit(pipeline.init), advance  # compiled once
    whole.begin()
    whole.advance(30)
    half.begin()
    half.advance(13)
    assert rest.restore(half.arrays()) == []
    rest.advance(17)
    assert digests(rest.arrays()) == digests(whole.arrays())
    assert any(name.startswith("actor/memory") for name in rest.arrays())


@pytest.mark.heavy
@pytest.mark.as_users_compile
def test_a_seed_among_several_is_the_run_it_would_be_alone() -> None:
    _, pipeline, advance = program("gru", 1.0, 20, "as users compile")
    both = pipeline.session([3, 4])
    both.compile()
    both.begin()
    both.advance(16)
    arrays = both.arrays()
    for place, seed in enumerate((3, 4)):
        alone = to_arrays(advance(jax.jit(pipeline.init)(jnp.uint32(seed)), jnp.int32(16)))
        for name, array in alone.items():
            np.testing.assert_array_equal(arrays[name][place], array, err_msg=name)


def test_greedy_episodes_are_played_with_the_memory_of_each() -> None:
    env, engine = CartPole(observe="positions", max_steps=40), an_engine(small_spec(), actions=2)
    params = np.random.default_rng(3).normal(size=engine.layout.size).astype(np.float32) * 3
    recalled, step = jax.jit(engine.recall), jax.jit(env.step)
    reset_key, _ = jax.random.split(jax.random.key(1))

    def naive(remembers: bool) -> list[int]:
        lengths = []
        for key in jax.random.split(reset_key, 6):
            (state, obs), memory, length, over = env.reset(key), engine.memory(1), 0, False
            while not over:
                after, q = recalled(params, memory, obs[None])
                memory = after if remembers else memory
                state, obs, _, terminated, truncated, _ = step(state, np.argmax(q), key)
                length, over = length + 1, bool(terminated | truncated)
            lengths.append(length)
        return lengths

    assert naive(remembers=True) != naive(remembers=False), "with these weights the memory should matter"
    played = to_host(jax.jit(episodes_program(env, engine, 6, 100))(params, jax.random.key(1)))
    assert played.length.tolist() == naive(remembers=True)


def test_what_a_memory_cannot_learn_from_is_refused() -> None:
    def build(**more: Any) -> None:
        spec = small_spec(**more)
        Recurrent(spec, Countdown(), an_engine(spec, actions=2))

    with pytest.raises(SpecError, match=r"replay.start is 13 env steps, but sequences of 7 .* in 2 env\(s\) take 14"):
        build(replay={"start": 13}, env={"num_envs": 2})
    with pytest.raises(SpecError, match=r"replay.capacity is 12 env steps, .* take 14; use at least 16"):
        build(replay={"capacity": 15}, env={"num_envs": 2})
    with pytest.raises(SpecError, match=r"env\.action_mask is not for networks with a core"):
        build(env={"num_envs": 2, "action_mask": True})
    own, obs = Functions(lambda key, x: {"w": jnp.zeros((2, 2))}, lambda params, x: x @ params["w"]), (2,)
    with pytest.raises(SpecError, match=r"replay.sequence is for networks with a core; one of your own has none"):
        Recurrent(small_spec(), Countdown(), JaxEngine(small_spec(), jax.ShapeDtypeStruct(obs, np.float32), 2, own))
    with pytest.raises(ValueError, match="not for one of your own"):
        RecurrentEngine(small_spec(), jax.ShapeDtypeStruct(obs, np.float32), 2, own)
