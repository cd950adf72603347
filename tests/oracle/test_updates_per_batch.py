"""Several gradient steps on each batch are those that the same batch drawn several times would give."""

from typing import Any

import numpy as np
import pytest

import hotloop
from hotloop.engines.draws import draw
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.host import JaxOnHost
from hotloop.engines.torch.engine import TorchEngine
from hotloop.errors import SpecError
from hotloop.experience import Item
from hotloop.spec.reading import parse_spec
from hotloop.trees import ArraySpec, leaves, tree_map

pytestmark = pytest.mark.less_optimised
BATCH, BATCHES, ON_EACH, ACTIONS = 4, 2, 3, 2
RULES: dict[str, dict[str, Any]] = {
    "target": {"target": {"rule": "target"}},
    "double": {"target": {"rule": "double"}},
    "noisy": {"network": {"torso": {"hidden": [6]}, "head": {"noise": 0.5}}},
    "weighted": {"replay": {"sampling": {"kind": "prioritized"}}},
}


def engine_of(name: str, case: dict[str, Any], on_each: int) -> Any:
    replay = {"batch_size": BATCH, **case.get("replay", {}), "updates_per_batch": on_each}
    network = case.get("network", {"torso": {"hidden": [6]}})
    spec = parse_spec({**case, "engine": name, "network": network, "updates_per_step": 6.0, "replay": replay})
    obs = ArraySpec((3,), np.float32)
    if name == "torch":
        return TorchEngine(spec, obs, ACTIONS)
    return JaxOnHost(JaxEngine(spec, obs, ACTIONS))


def drawn() -> Item[np.ndarray]:
    random, lead = np.random.default_rng(0), (BATCHES, BATCH)
    seen = random.normal(size=(2, *lead, 3)).astype(np.float32)
    numbers = random.normal(size=(2, *lead)).astype(np.float32)
    return Item(
        seen[0], random.integers(0, ACTIONS, lead).astype(np.int32), numbers[0], numbers[1] * 0.1 + 0.9, seen[1]
    )


@pytest.mark.parametrize("name", ["jax", "torch"])
@pytest.mark.parametrize("rule", list(RULES))
def test_steps_on_each_batch_are_those_on_the_batch_repeated(name: str, rule: str) -> None:
    several, single = engine_of(name, RULES[rule], ON_EACH), engine_of(name, RULES[rule], 1)
    items = drawn()
    weight = np.linspace(0.3, 1.0, BATCHES * BATCH, dtype=np.float32).reshape(BATCHES, BATCH)
    given = weight if rule == "weighted" else None
    wanted = several.wanted_to_learn(BATCHES * ON_EACH, BATCH)
    draws = draw(wanted, np.random.default_rng(1)) if wanted else None

    def repeated(array: np.ndarray) -> np.ndarray:
        return np.repeat(array, ON_EACH, axis=0)

    one = several.update(several.init(3), items, given, 0.01, 1, draws)
    other = single.update(
        single.init(3), tree_map(repeated, items), None if given is None else repeated(given), 0.01, 1, draws
    )
    assert several.counts(one.state).updates == BATCHES * ON_EACH
    for ours, theirs in zip(leaves(one.state), leaves(other.state), strict=True):
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=1e-5, atol=1e-6)
    last = np.asarray(other.td_KB)[ON_EACH - 1 :: ON_EACH]
    np.testing.assert_allclose(np.asarray(one.td_KB), last, rtol=1e-5, atol=1e-6)
    assert not np.allclose(last, np.asarray(other.td_KB)[::ON_EACH]), "the steps moved something"
    np.testing.assert_allclose(one.sums, other.sums, rtol=1e-5, atol=1e-6)


SMALL: dict[str, Any] = {
    "network": {"torso": {"hidden": [8]}},
    "replay": {"capacity": 512, "start": 32, "batch_size": 8, "updates_per_batch": 4},
    "updates_per_step": 2.0,
    "evaluation": {"every": 0},
    "stop": {"steps": 128},
    "env": {"id": "cartpole", "num_envs": 2},
}


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
@pytest.mark.parametrize(("pipeline", "env"), [("fused", "cartpole"), ("sync", "CartPole-v1")])
def test_a_run_takes_as_many_gradient_steps_as_its_ratio_says(pipeline: str, env: str, sampling: str) -> None:
    fields = {"pipeline": pipeline, "env.id": env, "learn_every": 8, "replay.sampling": {"kind": sampling}}
    run = hotloop.train(SMALL, out=None, **fields)
    assert run.updates % 16 == 0, "a turn of learning is 16 gradient steps"
    earned = 2 * (run.env_steps - 32 + 8)  # those of the block that reaches the learning start count
    assert earned - 2 * 16 <= run.updates <= earned


def test_stage_by_stage_gives_the_bits_of_the_fused_program() -> None:
    named = []
    for pipeline in ("fused", "sync"):
        run = hotloop.train(SMALL, out=None, pipeline=pipeline, learn_every=8)
        agent = hotloop.load(run, which="last")
        named.append(agent.engine.to_named(agent.weights))
    for name, array in named[0].items():
        np.testing.assert_array_equal(array, named[1][name], err_msg=name)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"replay.updates_per_batch": 3}, r"updates_per_batch is 3, but a block has 4 gradient step\(s\)"),
        ({"learn_every": 3}, "learn_every is 3, but updates_per_step 2 .* a multiple of 2 env steps"),
    ],
)
def test_what_does_not_divide_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        hotloop.train(SMALL, out=None, **fields)
