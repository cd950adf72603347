"""How many threads XLA gets: by the arithmetic of the largest product, not by the kind of network."""

import pytest

from hotloop.engines.jax.setup import choose_threads, dense_products, is_image_network
from hotloop.spec_reading import parse_spec

WIDE = {"network": {"torso": {"hidden": [1024, 1024]}}}


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)


@pytest.mark.parametrize("kind", ["cnn", "impala"])
def test_every_image_torso_gets_all_cores(kind):
    spec = parse_spec({"network": {"torso": {"kind": kind}}})
    assert is_image_network(spec)
    assert choose_threads(spec) == 4


def test_a_small_mlp_gets_one_thread_and_a_large_one_all_cores():
    assert choose_threads(parse_spec({})) == 1
    assert choose_threads(parse_spec({**WIDE, "replay": {"batch_size": 512}})) == 4
    assert choose_threads(parse_spec({**WIDE, "replay": {"batch_size": 512}, "seeds": 4})) == 1, "a core for each seed"


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
    on_policy = {**WIDE, "on_policy": {"steps": 8, "minibatches": 2}, "env": {"num_envs": 4}}
    assert dense_products(parse_spec(on_policy)) == [(16, 1024, 1024)]
    memory = {**WIDE["network"], "core": {}}
    sequences = {"batch_size": 2, "sequence": {"length": 6, "burn_in": 4}}
    assert dense_products(parse_spec({"network": memory, "replay": sequences})) == [(20, 1024, 1024)]
    assert dense_products(parse_spec({"network": {"torso": {"hidden": [4096]}}})) == [], "its input is not known yet"
