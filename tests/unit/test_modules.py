"""Networks and the flat vector they live in."""

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import hotloop
from hotloop.engines.jax.engine import JaxEngine
from hotloop.engines.jax.flat import Layout
from hotloop.engines.jax.heads import scalar
from hotloop.engines.jax.torsos import cnn, mlp
from hotloop.errors import SpecError
from hotloop.experience import Item
from hotloop.spec import Cnn, Mlp, ScalarHead, Spec
from hotloop.spec.reading import parse_value

pytestmark = pytest.mark.less_optimised

KEY = jax.random.key(7)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def built(module: Any, inputs: Any) -> tuple[Any, Any]:
    """Some parameters for a module, and its output for these inputs."""
    shapes = jax.eval_shape(module.init, KEY, inputs)
    params = jax.tree.map(lambda leaf: normal(*leaf.shape, seed=1) * 0.3, shapes)
    return params, jax.tree.map(np.asarray, jax.jit(module.apply)(params, inputs))


# -- torsos -------------------------------------------------------------------------------------------


def test_an_mlp_is_dense_layers_with_an_activation_after_each() -> None:
    obs_B = normal(5, 2, 3)
    params, features_BF = built(mlp(Mlp(hidden=(7, 4), activation="tanh")), obs_B)
    x = obs_B.reshape(5, 6)
    for layer in ("dense_0", "dense_1"):
        x = np.tanh(x @ params["layers"][layer]["kernel"] + params["layers"][layer]["bias"])
    np.testing.assert_allclose(features_BF, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", torch.relu),
        ("selu", torch.selu),
        ("tanh", torch.tanh),
        ("gelu", lambda x: torch.nn.functional.gelu(x)),
        ("silu", torch.nn.functional.silu),
    ],
)
def test_an_activation_is_the_one_it_is_called(name: Any, function: Any) -> None:
    obs_B = 3 * normal(6, 4)
    params, features_BF = built(mlp(Mlp(hidden=(9,), activation=name)), obs_B)
    layer = params["layers"]["dense_0"]
    expected = function(torch.from_numpy(obs_B @ layer["kernel"] + layer["bias"]))
    np.testing.assert_allclose(features_BF, expected, rtol=1e-5, atol=1e-6)


def test_an_mlp_without_layers_is_the_flat_observation() -> None:
    obs_B = normal(3, 2, 2)
    np.testing.assert_array_equal(built(mlp(Mlp(hidden=())), obs_B)[1], obs_B.reshape(3, 4))


@pytest.mark.parametrize(
    ("kernels", "strides", "padding"), [((3, 2), (2, 1), "valid"), ((4, 3), (3, 2), "valid"), ((3, 5), (1, 1), "same")]
)
def test_a_cnn_is_pytorchs_convolutions(kernels: Any, strides: Any, padding: Any) -> None:
    spec = Cnn(kind="cnn", channels=(5, 4), kernels=kernels, strides=strides, padding=padding, hidden=())
    images_BHWC = normal(2, 13, 11, 3)
    params, features_BF = built(cnn(spec), images_BHWC)
    x = torch.from_numpy(images_BHWC).permute(0, 3, 1, 2)
    for i, stride in enumerate(strides):
        layer = params["conv"][f"conv_{i}"]
        kernel, bias = torch.from_numpy(layer["kernel"]), torch.from_numpy(layer["bias"])
        x = torch.relu(torch.nn.functional.conv2d(x, kernel.permute(3, 2, 0, 1), bias, stride, padding))
    np.testing.assert_allclose(features_BF, x.permute(0, 2, 3, 1).flatten(1), rtol=1e-4, atol=1e-5)


def test_channels_first_and_channels_last_are_the_same_network_on_transposed_images() -> None:
    fields: dict[str, Any] = {"channels": (4,), "kernels": (3,), "strides": (1,), "hidden": (6,)}
    images_BHWC = normal(2, 5, 7, 3)
    _, last = built(cnn(Cnn(kind="cnn", layout="HWC", **fields)), images_BHWC)
    params, first = built(cnn(Cnn(kind="cnn", layout="CHW", **fields)), images_BHWC.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(last, first)
    assert params["conv"]["conv_0"]["kernel"].shape == (3, 3, 3, 4)


def test_uint8_images_are_divided_by_255_and_floats_are_not() -> None:
    module = cnn(Cnn(kind="cnn", channels=(4,), kernels=(2,), strides=(1,), hidden=(5,)))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.uint8)
    params, from_bytes = built(module, pixels)
    np.testing.assert_allclose(from_bytes, module.apply(params, pixels.astype(np.float32) / 255), rtol=1e-5, atol=1e-6)
    assert not np.allclose(from_bytes, module.apply(params, pixels.astype(np.float32)))


def test_a_cnn_refuses_what_is_no_image_and_kernels_that_leave_nothing_of_it() -> None:
    with pytest.raises(ValueError, match=r"needs images with 3 axes \(HWC\), got shape \(4,\)"):
        jax.eval_shape(cnn(Cnn(kind="cnn")).init, KEY, normal(1, 4))
    with pytest.raises(ValueError, match="convolution 1 with kernel 4 leaves nothing of a 10x10 image"):
        jax.eval_shape(cnn(Cnn(kind="cnn")).init, KEY, normal(1, 10, 10, 4))


def test_initial_weights_are_uniform_within_pytorchs_bound() -> None:
    params = jax.jit(mlp(Mlp(hidden=(400,))).init)(KEY, normal(1, 25))
    for name in ("kernel", "bias"):
        weights = np.asarray(params["layers"]["dense_0"][name])
        assert np.abs(weights).max() <= 0.2
        assert np.std(weights) == pytest.approx(0.2 / 3**0.5, rel=0.1)


# -- heads --------------------------------------------------------------------------------------------


def test_the_scalar_head_is_one_linear_layer() -> None:
    features_BF = normal(4, 6)
    params, (q_BA, tau) = built(scalar(ScalarHead(), 3), features_BF)
    assert tau is None
    np.testing.assert_allclose(q_BA, features_BF @ params["dense_0"]["kernel"] + params["dense_0"]["bias"], rtol=1e-5)


@pytest.mark.parametrize("hidden", [(), (8,)])
def test_a_dueling_head_adds_centred_advantages_to_the_value(hidden: Any) -> None:
    head, features_BF = scalar(ScalarHead(dueling=True, hidden=hidden), 3), normal(4, 6)
    params, (q_BA, _) = built(head, features_BF)
    value_B1, advantage_BA = (_dense(params[stream], features_BF, len(hidden) + 1) for stream in ("value", "advantage"))
    assert value_B1.shape == (4, 1)
    np.testing.assert_allclose(
        q_BA, value_B1 + advantage_BA - advantage_BA.mean(-1, keepdims=True), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(q_BA.mean(-1), value_B1[:, 0], rtol=1e-5, atol=1e-6)
    last = f"dense_{len(hidden)}"
    params["advantage"][last]["bias"] = params["advantage"][last]["bias"] + 5.0
    np.testing.assert_allclose(head.apply(params, features_BF).values, q_BA, rtol=1e-4, atol=1e-5)


def _dense(params: Any, x: np.ndarray, layers: int) -> np.ndarray:
    for i in range(layers):
        x = x @ np.asarray(params[f"dense_{i}"]["kernel"]) + np.asarray(params[f"dense_{i}"]["bias"])
        x = np.maximum(x, 0) if i < layers - 1 else x
    return x


# -- the flat vector ----------------------------------------------------------------------------------

TREE = {"b": {"kernel": normal(2, 3), "bias": normal(3)}, "a": [normal(4), normal(1, 1, 2)]}


def test_a_tree_survives_being_flattened_and_named() -> None:
    layout = Layout(TREE)
    assert layout.size == 6 + 3 + 4 + 2
    vector = layout.flatten(TREE)
    assert vector.shape == (layout.size,)
    for tree in (layout.unflatten(vector), layout.unflatten(layout.from_named(layout.to_named(vector)))):
        assert jax.tree.structure(tree) == jax.tree.structure(TREE)
        for ours, theirs in zip(jax.tree.leaves(tree), jax.tree.leaves(TREE), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_names_are_paths_and_arrays_are_copies() -> None:
    layout = Layout(TREE)
    vector = np.array(layout.flatten(TREE))
    named = layout.to_named(vector)
    assert set(named) == {"a/0", "a/1", "b/kernel", "b/bias"}
    np.testing.assert_array_equal(named["b/kernel"], TREE["b"]["kernel"])
    vector[:] = 0
    np.testing.assert_array_equal(named["b/kernel"], TREE["b"]["kernel"])


def test_named_arrays_may_come_in_any_order() -> None:
    layout = Layout(TREE)
    named = layout.to_named(layout.flatten(TREE))
    np.testing.assert_array_equal(layout.from_named(dict(reversed(named.items()))), layout.flatten(TREE))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"b/bias": None}, "b/bias is absent, expected (3,) (1 mismatch(es))"),
        ({"b/bias": normal(4)}, "b/bias is (4,), expected (3,) (1 mismatch(es))"),
        ({"c": normal(2)}, "c is (2,), expected no such parameter (1 mismatch(es))"),
        ({"c": normal(2), "a/0": None}, "a/0 is absent, expected (4,) (2 mismatch(es))"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(change: dict[str, Any], complaint: str) -> None:
    layout = Layout(TREE)
    named = {**layout.to_named(layout.flatten(TREE)), **change}
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        layout.from_named({name: array for name, array in named.items() if array is not None})
    assert str(caught.value) == f"weights do not fit the network: {complaint}"


@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_parameters_must_be_float32(dtype: Any) -> None:
    with pytest.raises(ValueError, match=f"parameter a/w is {np.dtype(dtype)}, expected float32"):
        Layout({"a": {"w": jax.ShapeDtypeStruct((2,), dtype)}})


# -- networks of the user's own -----------------------------------------------------------------------


class QNetwork(nn.Module):
    """What a user would write."""

    actions: int = 2
    width: int = 12

    @nn.compact
    def __call__(self, obs_B: jax.Array) -> jax.Array:
        features = nn.relu(nn.Dense(self.width)(obs_B))
        return nn.Dense(self.actions)(features)


TINY = {
    "env": {"num_envs": 4},
    "replay": {"capacity": 400, "start": 32, "batch_size": 8},
    "evaluation": {"every": 128, "episodes": 2, "max_steps": 20},
    "stop": {"steps": 256},
}


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return hotloop.train(TINY, network=QNetwork(), out=tmp_path_factory.mktemp("own") / "run")


def test_a_flax_module_learns_as_it_is() -> None:
    engine = JaxEngine(Spec(), jax.ShapeDtypeStruct((4,), np.float32), 2, QNetwork())
    names = {f"params/Dense_{i}/{part}" for i in (0, 1) for part in ("kernel", "bias")}
    assert set(engine.layout.names) == names
    batch = Item(normal(8, 4), np.arange(8) % 2, normal(8, seed=1), np.zeros(8, np.float32), normal(8, 4))
    batches = jax.tree.map(lambda leaf: np.repeat(leaf[None], 300, axis=0), batch)
    _, td_KB, _ = jax.jit(engine.update)(engine.init(KEY), batches, jnp.float32(0.02))
    assert np.abs(td_KB[-1]).mean() < 0.1 * np.abs(td_KB[0]).mean()


def test_a_flax_module_trains_from_python(own_run: Any) -> None:
    assert (own_run.env_steps, own_run.updates, own_run.skipped) == (256, 57, 0)


def test_a_flax_module_is_loaded_again_with_its_weights(own_run: Any) -> None:
    agent = hotloop.load(own_run.path, network=QNetwork())
    obs_B = normal(5, 4)
    params = agent.engine.device_functions.layout.unflatten(agent.weights)
    np.testing.assert_allclose(
        agent.q_values(obs_B), QNetwork().apply(params, jnp.asarray(obs_B)), rtol=1e-5, atol=1e-6
    )
    assert agent.predict(obs_B).tolist() == agent.q_values(obs_B).argmax(-1).tolist()


def test_the_run_says_which_network_it_was_and_never_loads_it_from_a_file(own_run: Any) -> None:
    written = parse_value((own_run.path / "spec.yaml").read_text())
    assert written["network"] == {"kind": "custom", "name": "QNetwork", "options": {}}


def test_the_run_itself_still_has_the_network_it_was_trained_with(own_run: Any) -> None:
    obs_B = normal(5, 4)
    again = hotloop.load(own_run.path, network=QNetwork())
    np.testing.assert_array_equal(own_run.agent.q_values(obs_B), again.q_values(obs_B))


@pytest.mark.parametrize("again", [hotloop.load, hotloop.resume], ids=["load", "resume"])
def test_a_run_with_ones_own_network_asks_for_it(own_run: Any, again: Any) -> None:
    with pytest.raises(SpecError, match=r"network of your own \(QNetwork\); pass it again .*network=") as caught:
        again(own_run.path)
    assert "\n" not in str(caught.value)


def test_another_network_than_the_runs_is_refused(own_run: Any) -> None:
    with pytest.raises(SpecError, match="weights do not fit the network: params/Dense_0/bias is"):
        hotloop.load(own_run.path, network=QNetwork(width=5))


def test_a_network_with_the_wrong_number_of_actions_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"returns shape \(1, 3\) for 1 observation\(s\), expected \(1, 2\)"):
        hotloop.train(TINY, network=QNetwork(actions=3), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def own_on_a_preset(preset: str, folder: Path, **more: Any) -> Any:
    small = {name: TINY[name] for name in ("env", "evaluation", "stop")}
    replay = {f"replay.{name}": value for name, value in TINY["replay"].items()}
    return hotloop.train(preset, network=QNetwork(), out=folder / "run", **small, **replay, **more)


@pytest.mark.heavy
def test_what_a_presets_head_did_is_left_out_with_a_word_and_epsilon_explores(tmp_path: Path) -> None:
    said = (
        "one Q-value per action; left out of this spec's head: c51's distribution, dueling, noise; where noise "
        "explored, ε does now, from 1 to 0.05 in 10,000 env steps (give exploration for another)"
    )
    with pytest.warns(RuntimeWarning, match=re.escape(said)):
        run = own_on_a_preset("rainbow", tmp_path)
    written = hotloop.load_spec(run.path / "spec.yaml")
    assert written.network.kind == "custom"
    assert written.exploration_schedule.model_dump() == {"kind": "linear", "start": 1.0, "end": 0.05, "steps": 10_000}
    assert written.replay.n_step == 3, "all else is the preset's"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = hotloop.resume(run, network=QNetwork(), steps=320)
    assert resumed.env_steps == 320


@pytest.mark.heavy
def test_exploration_that_is_given_is_kept(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="dueling, noise$"):
        run = own_on_a_preset("rainbow", tmp_path, **{"exploration.epsilon": 0.0})
    assert hotloop.load_spec(run.path / "spec.yaml").exploration_schedule.value == 0.0


@pytest.mark.heavy
def test_a_preset_with_a_plain_head_is_trained_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own_on_a_preset("double", tmp_path)


def test_a_preset_with_memory_is_refused_for_ones_own_network(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"replay\.sequence is for networks with a core, and a network of your own"):
        hotloop.train("cartpole_memory", network=QNetwork(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# -- the cost of importing ----------------------------------------------------------------------------


def test_importing_hotloop_is_cheap_and_starts_no_framework() -> None:
    script = """
import sys, time
began = time.perf_counter()
import hotloop
seconds = time.perf_counter() - began
heavy = {"jax", "jaxlib", "torch", "numpy", "matplotlib", "pydantic", "gymnasium", "optax", "scipy"} & set(sys.modules)
print(f"{seconds:.3f}", *sorted(heavy))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    seconds, *heavy = answer.stdout.split()
    assert heavy == []
    assert float(seconds) < 0.3


def test_reading_and_checking_a_spec_starts_no_framework() -> None:
    script = """
import sys
import warnings
import hotloop
hotloop.load_spec("cartpole", {"seed": 3})
print(*sorted({"jax", "torch", "matplotlib", "numpy"} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == []


def test_public_names_can_be_listed_and_unknown_ones_are_errors() -> None:
    assert all(getattr(hotloop, name) is not None for name in hotloop.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = hotloop.trian


def test_a_section_is_no_module_to_load_a_run_with(own_run: Any) -> None:
    with pytest.raises(SpecError, match="network is a section of a spec; expected the module"):
        hotloop.load(own_run.path, network={"kind": "composed"})
