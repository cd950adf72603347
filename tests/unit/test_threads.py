"""How many threads XLA gets: by the arithmetic of the largest product, not by the kind of network."""

import gymnasium as gym
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import hotloop
from hotloop.engines.jax.setup import choose_threads, dense_products
from hotloop.engines.torch import setup as torch_setup
from hotloop.spec.reading import parse_spec

WIDE = {"network": {"torso": {"hidden": [1024, 1024]}}}


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.mark.parametrize("kind", ["cnn", "impala"])
def test_every_image_torso_gets_all_cores(kind):
    spec = parse_spec({"network": {"torso": {"kind": kind}}})
    assert spec.sees_images
    assert choose_threads(spec) == 4


def test_a_small_mlp_gets_one_thread_and_a_large_one_all_cores():
    assert choose_threads(parse_spec({})) == 1
    assert choose_threads(parse_spec({**WIDE, "replay": {"batch_size": 512}})) == 4
    assert choose_threads(parse_spec({**WIDE, "replay": {"batch_size": 512}, "seeds": 4})) == 1, "a core for each seed"


@pytest.mark.parametrize("choose", [choose_threads, torch_setup.choose_threads])
def test_the_spec_may_say_how_many(choose):
    assert choose(parse_spec({"threads": 3})) == 3
    assert choose(parse_spec({"threads": 1, "network": {"torso": {"kind": "cnn"}}})) == 1


@pytest.mark.parametrize(
    ("width", "batch", "threads"),
    [(256, 64, 1), (256, 128, 1), (256, 192, 4), (512, 256, 4), (1024, 64, 1), (1024, 256, 1), (1024, 512, 4)],
)
def test_threads_are_those_that_were_faster_when_measured(width, batch, threads):
    sizes = {"network": {"torso": {"hidden": [width, width]}}, "replay": {"batch_size": batch}}
    assert choose_threads(parse_spec(sizes)) == threads


def test_products_count_what_a_batch_really_is():
    assert dense_products(parse_spec({**WIDE, "replay": {"batch_size": 512}})) == [(512, 1024, 1024)]
    fractions = {"torso": {"hidden": [64]}, "head": {"kind": "iqn", "taus": 8, "choice_taus": 16, "hidden": [32]}}
    assert dense_products(parse_spec({"network": fractions, "replay": {"batch_size": 10}})) == [(160, 64, 32)]
    trunk = {"torso": {"hidden": [64]}, "head": {"trunk": [32], "hidden": [16]}}
    assert dense_products(parse_spec({"network": trunk, "replay": {"batch_size": 10}})) == [(10, 64, 32), (10, 32, 16)]
    on_policy = {**WIDE, "on_policy": {"steps": 8, "minibatches": 2}, "env": {"num_envs": 4}}
    assert dense_products(parse_spec(on_policy)) == [(16, 1024, 1024)]
    memory = {**WIDE["network"], "core": {}}
    sequences = {"batch_size": 2, "sequence": {"length": 6, "burn_in": 4}}
    assert dense_products(parse_spec({"network": memory, "replay": sequences})) == [(20, 1024, 1024)]
    assert dense_products(parse_spec({"network": {"torso": {"hidden": [4096]}}})) == [], "its input is not known yet"


@pytest.mark.parametrize("engine", ["jax", "torch"])
def test_every_layer_of_branches_and_trunks_counts(engine):
    choose = {"jax": choose_threads, "torch": torch_setup.choose_threads}[engine]
    small = {"near": {"hidden": [8]}, "far": {"hidden": [8]}}

    def threads(branches, head=(), **fields):
        torso = {"kind": "branches", "branches": {**small, **branches}, "hidden": [8], **fields}
        network = {"torso": torso, "head": {"trunk": list(head)}}
        return choose(parse_spec({"network": network, "engine": engine, "replay": {"batch_size": 512}}))

    assert threads({}) == 1
    assert threads({"near": {"hidden": [256, 256]}}) == 4, "within a branch"
    assert threads({"near": {"hidden": [300]}, "far": {"hidden": [300]}}, hidden=[100]) == 4, "over what is joined"
    assert threads({}, head=[256, 256]) == 4, "in the trunk of the head"


def test_what_is_joined_is_as_wide_as_branches_and_attention_make_it():
    def widths(**fields):
        return parse_spec({"network": {"torso": {"kind": "branches", **fields}}}).network.torso.dense_widths

    three = {"a": {"hidden": [9, 4]}, "b": {"rows": [5], "hidden": [4]}, "c": {"hidden": [4]}}
    assert widths(branches=three, hidden=[7]) == (12, 7)
    assert widths(branches=three, hidden=[7], attention=2) == (16, 7)
    assert widths(branches={**three, "c": {"hidden": []}}, hidden=[7]) == (7,), "not known before the observation"


def _blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


class Watching(gym.Env):
    """Notes on how many threads NumPy multiplies while it is stepped."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    seen: set[int] = set()  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        Watching.seen |= _blas_threads()
        return self.observation_space.sample(), 0.0, self.t == 5, False, {}


def test_numpy_has_one_thread_while_a_run_steps_and_its_own_again_afterwards(tmp_path):
    gym.register("Watching-v0", entry_point=Watching, disable_env_checker=True)
    spec = {
        "name": "watching",
        "env": {"id": "Watching-v0", "num_envs": 2},
        "network": {"torso": {"hidden": [8]}},
        "replay": {"capacity": 64, "start": 16, "batch_size": 8},
        "evaluation": {"episodes": 2},
        "stop": {"steps": 40},
    }
    with threadpool_limits(2, "blas"):
        before = _blas_threads()
        hotloop.train(spec, out=tmp_path / "run")
        assert Watching.seen == {1}
        assert _blas_threads() == before == {2}
