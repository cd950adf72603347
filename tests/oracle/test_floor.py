"""The matrix products of a gradient step, counted by hand; both engines find the same, and time them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotloop import registry
from hotloop.engines.draws import draw
from hotloop.engines.jax.floor import flops_of as jax_flops
from hotloop.engines.jax.floor import products_of as jax_products
from hotloop.engines.jax.host import make_engine
from hotloop.engines.products import Products, seconds_of, taps
from hotloop.engines.protocol import Lesson
from hotloop.engines.torch.engine import TorchEngine
from hotloop.engines.torch.floor import flops_of as torch_flops
from hotloop.engines.torch.floor import products_of as torch_products
from hotloop.experience import Sequences, items_of, row_example
from hotloop.spec.reading import load_spec
from hotloop.trees import ArraySpec, zeros_of

pytestmark = [pytest.mark.usefixtures("one_torch_thread")]
OBS, ACTIONS = 4, 2
FLAT, IMAGE = ArraySpec((OBS,), np.float32), ArraySpec((12, 10, 3), np.uint8)
DICT = {"near": ArraySpec((3,), np.float32), "far": ArraySpec((4, 2), np.float32)}
BATCH = 8
NARROW = {"network.torso.hidden": [6, 5], "replay.batch_size": BATCH}
CNN = {"kind": "cnn", "channels": [4, 5], "kernels": [4, 3], "strides": [2, 1], "hidden": [7]}
NETWORKS = {
    "cnn": ({"network.torso": CNN}, IMAGE),
    "cnn, padded": ({"network.torso": {**CNN, "padding": "same"}}, IMAGE),
    "impala": ({"network.torso": {"kind": "impala", "channels": [2, 3], "blocks": 1, "hidden": [5]}}, IMAGE),
    "branches": (
        {
            "network.torso": {
                "kind": "branches",
                "branches": {"far": {"rows": [4, 3], "hidden": [5]}, "near": {"hidden": [4, 5]}},
                "attention": 3,
                "hidden": [6],
            }
        },
        DICT,
    ),
    "dueling": ({**NARROW, "network.head.dueling": True}, FLAT),
    "noisy": ({**NARROW, "network.head": {"kind": "scalar", "noise": 0.5}}, FLAT),
    "c51": ({**NARROW, "network.head": {"kind": "c51", "atoms": 5}}, FLAT),
    "iqn": (
        {**NARROW, "network.head": {"kind": "iqn", "cosines": 5, "taus": 3, "target_taus": 4, "acting_taus": 6}},
        FLAT,
    ),
    "parts of a batch": ({**NARROW, "optimizer.accumulate": 2}, FLAT),
}


def made(name, changes, obs=FLAT, batches=1):
    """An engine, and a blank lesson of so many batches."""
    spec = load_spec({}, {"replay.batch_size": BATCH, **changes, "engine": name})
    make = make_engine if name == "jax" else TorchEngine
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), obs) if name == "jax" else obs
    engine = make(spec, shapes, ACTIONS)
    shape = (batches, spec.replay.batch_size)
    wanted = engine.wanted_to_learn(batches * spec.replay.updates_per_batch, spec.replay.batch_size)
    draws = draw(wanted, np.random.default_rng(0)) if wanted else None
    state = engine.template() if name == "jax" else engine.init(0)
    return engine, Lesson(state, items_of(row_example(obs), shape, zeros_of), None, 0.0, 0, draws)


def found_by_jax(*given, **more):
    """How many products, and multiplications with additions."""
    found = jax_products(*made("jax", *given, **more))
    return sum(times for _, times in found), sum(times * jax_flops(one) for one, times in found)


def found_by_torch(*given, **more):
    found = torch_products(*made("torch", *given, **more))
    return sum(found.values()), sum(times * torch_flops(one) for one, times in found.items())


FORWARD = 2 * BATCH * (OBS * 6 + 6 * 5 + 5 * ACTIONS)
TO_WEIGHTS, TO_LAYERS = FORWARD, 2 * BATCH * (6 * 5 + 5 * ACTIONS)  # the observation needs no gradient


@pytest.mark.parametrize("found_by", [found_by_jax, found_by_torch])
@pytest.mark.parametrize(("rule", "forward_passes"), [("vanilla", 1), ("target", 2), ("double", 3)])
def test_products_of_a_small_network_are_those_counted_by_hand(found_by, rule, forward_passes):
    ahead = forward_passes if rule != "vanilla" else 2  # the online net twice
    by_hand = 3 * ahead + 3 + 2, ahead * FORWARD + TO_WEIGHTS + TO_LAYERS
    assert found_by({**NARROW, "target.rule": rule}) == by_hand


@pytest.mark.parametrize("found_by", [found_by_jax, found_by_torch])
def test_several_gradient_steps_are_as_much_as_each(found_by):
    count, flops = found_by(NARROW, batches=3)
    of_one = found_by(NARROW)
    assert flops == 3 * of_one[1]
    assert count == 3 * of_one[0] - 2 * 3, "one pass of the target net, of three layers, does for all batches"
    assert found_by({**NARROW, "replay.updates_per_batch": 2})[1] == 2 * of_one[1] - FORWARD


def test_products_of_convolutions_are_those_counted_by_hand():
    first, second = 5 * 4 * (4 * 4 * 3) * 4, 3 * 2 * (3 * 3 * 4) * 5  # 12x10 becomes 5x4 by 4x4 every second, then 3x2
    dense = 3 * 2 * 5 * 7 + 7 * ACTIONS
    forward, to_layers = first + second + dense, second + dense
    flops = 2 * BATCH * (2 * forward + forward + to_layers)
    assert found_by_jax(*NETWORKS["cnn"])[1] == flops
    assert found_by_torch(*NETWORKS["cnn"])[1] == flops


@pytest.mark.parametrize("network", NETWORKS)
def test_both_engines_find_as_much(network):
    assert found_by_jax(*NETWORKS[network])[1] == found_by_torch(*NETWORKS[network])[1]


def test_a_network_with_a_memory_has_those_of_each_step():
    changes = {"network.core": {"kind": "lstm", "size": 5}, "replay.sequence": {"length": 3, "burn_in": 2}}
    spec = load_spec({}, {**NARROW, **changes})
    engine = make_engine(spec, jax.ShapeDtypeStruct((OBS,), jnp.float32), ACTIONS)
    number = np.zeros((1, BATCH, 3), np.float32)
    memory = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), engine.engine.memory(BATCH))
    obs, first = np.zeros((1, BATCH, 6, OBS), np.float32), np.zeros((1, BATCH, 6), bool)
    items = Sequences(obs, first, number.astype(np.int32), number, number, number.astype(bool), memory)
    found = jax_products(engine, Lesson(engine.template(), items, None, 0.0, 0, None))
    recurrent = [times for one, times in found if (5, 20) in [var.aval.shape for var in one.invars]]
    assert max(recurrent) >= 6, "the core's own product is done in every step of a sequence"


def test_convolutions_of_xla_count_their_places_whatever_way_they_go():
    def loss(kernel, image):
        out = jax.lax.conv_general_dilated(
            image, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=1
        )
        return jnp.sum(out**2)

    shapes = jnp.zeros((3, 3, 3, 4)), jnp.zeros((2, 9, 9, 3))
    there, to_kernel, to_image = (
        jax_flops(equation)
        for equation in jax.make_jaxpr(jax.grad(loss, (0, 1)))(*shapes).eqns
        if equation.primitive.name == "conv_general_dilated"
    )
    along = sum(1 for o in range(5) for k in range(3) if 0 <= 2 * o + k - 1 < 9)
    assert taps(9, 3, 5, 2, 1) == along
    assert there == to_kernel == to_image == 2 * along**2 * 2 * 3 * 4


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_products_are_timed_in_the_order_of_their_size(name):
    floor = registry.imported(registry.ENGINES[name].floor)
    small: Products = floor(*made(name, NARROW))
    large: Products = floor(*made(name, {"network.torso.hidden": [512, 512], "replay.batch_size": 256}))
    assert small.number == large.number
    assert 0 <= small.seconds < large.seconds / 20
    assert 1e8 < large.flops_per_s < 1e14, "neither hoisted out of its loop nor left undone"


def test_a_round_is_timed_for_one_of_many():
    calls = []

    def run(times):
        calls.append(times)
        time.sleep(1e-3 + 1e-5 * times)  # a call, and what it is for

    assert 1e-5 <= seconds_of(run, 0.05, on_processor=False) < 5e-4, "a call is soon a small part of it"
    assert calls[0] == 1
    assert calls == sorted(calls)
    assert len(set(calls[-3:])) == 1, "rounds of one size"
