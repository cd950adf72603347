"""One gradient step: against eager PyTorch (small net), and against its own matrix products (large net).

hotloop's update has everything switched on: clipping, NaN guard, learning-rate schedule, metrics. The PyTorch
baseline does forward, target, loss, backward, clipping and fused Adam on one thread, and nothing else.
"""

import itertools
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from hotloop.bench.measure import COST, FASTER, Result, Row, interleave, machine, paired_ratio
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import load_spec

K = 64
ROUNDS = 60
OBS, ACTIONS = 4, 2


def run(reporter: Reporter) -> Result:
    """Measure all cases, interleaved."""
    small, large = _spec([64], 32, "target"), _spec([120, 84], 128, "target")
    double = _spec([120, 84], 128, "double")
    from hotloop.engines.jax import setup

    setup.start(small)
    cases = {
        "small/torch-eager": torch_updates(small),
        "small/hotloop": hotloop_updates(small),
        "large/matmuls": matrix_products(large),
        "large/hotloop": hotloop_updates(large),
        "large-double/matmuls": matrix_products(double),
        "large-double/hotloop": hotloop_updates(double),
    }
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    result = Result("update", {**machine(), "updates per call": K, "torch threads": 1})
    notes = {
        "small/hotloop": "net 4-64-2, batch 32",
        "large/hotloop": "net 4-120-84-2, batch 128; 11 products",
        "large-double/hotloop": "the same with Double targets; 14 products",
    }
    for name, times in seconds.items():
        row = Row(name, statistics.median(times) / K * 1e6, "us/update", note=notes.get(name, ""))
        if name == "small/hotloop":
            row.against, row.means = "small/torch-eager", FASTER
            row.ratio, row.spread = paired_ratio(seconds[row.against], times)
        elif name.endswith("/hotloop"):
            row.against, row.means = name.replace("hotloop", "matmuls"), COST
            row.ratio, row.spread = paired_ratio(times, seconds[row.against])
        result.rows.append(row)
    return result


def hotloop_updates(spec: Spec) -> Callable[[], None]:
    """K updates by one call of the engine, as the pipelines make it."""
    import jax
    import jax.numpy as jnp

    from hotloop.engines.jax.engine import JaxEngine, LearnerState
    from hotloop.experience import Item

    engine = JaxEngine(spec, jax.ShapeDtypeStruct((OBS,), jnp.float32), ACTIONS)
    batches = Item(*(jnp.asarray(array) for array in _batches(spec)))

    def update(
        state: LearnerState, batches: Item[jax.Array], env_steps: jax.Array
    ) -> tuple[LearnerState, jax.Array, jax.Array]:
        key = jax.random.fold_in(jax.random.key(0), state.updates) if engine.is_random else None
        return engine.update(state, batches, engine.learning_rate(env_steps), None, key)

    compiled = jax.jit(update, donate_argnums=0)
    state = engine.init(jax.random.key(0))

    def call() -> None:
        nonlocal state
        state, _, sums = compiled(state, batches, jnp.int32(1000))
        jax.block_until_ready((state, sums))

    return call


def matrix_products(spec: Spec) -> Callable[[], None]:
    """The matrix products that K updates cannot do without, and nothing between them."""
    import jax
    import jax.numpy as jnp

    Layers = tuple[list[jax.Array], list[jax.Array]]
    sizes, batch = [OBS, *_hidden(spec), ACTIONS], spec.replay.batch_size
    rng = np.random.default_rng(0)

    def weights() -> list[jax.Array]:
        return [jnp.asarray(rng.normal(0, 0.1, pair), jnp.float32) for pair in itertools.pairwise(sizes)]

    def forward(kernels: Sequence[jax.Array], x: jax.Array) -> list[jax.Array]:
        layers = [x]
        for kernel in kernels:
            layers.append(layers[-1] @ kernel)
        return layers

    def products(online: list[jax.Array], target: list[jax.Array], s_tm1: jax.Array, s_t: jax.Array) -> Layers:
        def one(_: Layers, states: tuple[jax.Array, jax.Array]) -> tuple[Layers, None]:
            now, then = states
            layers = forward(online, now)
            ahead = [forward(target, then)[-1]]
            if spec.target.rule == "double":
                ahead.append(forward(online, then)[-1])
            gradients, flowing = [], layers[-1]
            for i in reversed(range(len(online))):
                gradients.append(layers[i].T @ flowing)
                if i:  # the observation needs no gradient
                    flowing = flowing @ online[i].T
            return (gradients, ahead), None

        q = jnp.zeros((batch, ACTIONS))
        start = ([jnp.zeros_like(kernel) for kernel in reversed(online)], [q, q][: 1 + (spec.target.rule == "double")])
        return jax.lax.scan(one, start, (s_tm1, s_t))[0]

    online, target = weights(), weights()
    s_tm1, _, _, _, s_t = (jnp.asarray(array) for array in _batches(spec))
    compiled = jax.jit(products)

    def call() -> None:
        jax.block_until_ready(compiled(online, target, s_tm1, s_t))

    return call


def torch_updates(spec: Spec) -> Callable[[], None]:
    """K updates in eager PyTorch, as most DQN code has them."""
    import torch
    from torch import nn

    torch.set_num_threads(1)

    def network() -> nn.Sequential:
        sizes = [OBS, *_hidden(spec), ACTIONS]
        layers: list[nn.Module] = []
        for i, (wide, next_wide) in enumerate(itertools.pairwise(sizes)):
            layers += [nn.Linear(wide, next_wide)] + ([nn.ReLU()] if i < len(sizes) - 2 else [])
        return nn.Sequential(*layers)

    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-3, fused=True)
    arrays = [torch.as_tensor(array) for array in _batches(spec)]
    arrays[1] = arrays[1].long()
    loss_of, clip = nn.HuberLoss(), spec.optimizer.clip

    def call() -> None:
        for k in range(K):
            s_tm1, a_tm1, r_t, discount_t, s_t = (array[k] for array in arrays)
            with torch.no_grad():
                goal = r_t + discount_t * target(s_t).max(1).values
            q = online(s_tm1).gather(1, a_tm1[:, None])[:, 0]
            loss = loss_of(q, goal)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(online.parameters(), clip)
            optimizer.step()

    return call


def _spec(hidden: list[int], batch: int, rule: str) -> Spec:
    return load_spec(
        {},
        {
            "network.torso.hidden": hidden,
            "replay.batch_size": batch,
            "target.rule": rule,
            "optimizer.learning_rate": {"kind": "linear", "start": 1e-3, "end": 1e-4, "steps": 100_000},
        },
    )


def _hidden(spec: Spec) -> tuple[int, ...]:
    torso = getattr(spec.network, "torso", None)
    return tuple(getattr(torso, "hidden", ()))


def _batches(spec: Spec) -> tuple[np.ndarray, ...]:
    rng, shape = np.random.default_rng(0), (K, spec.replay.batch_size)
    return (
        rng.normal(size=(*shape, OBS)).astype(np.float32),
        rng.integers(0, ACTIONS, shape).astype(np.int32),
        rng.normal(size=shape).astype(np.float32),
        np.full(shape, spec.discount, np.float32),
        rng.normal(size=(*shape, OBS)).astype(np.float32),
    )
