"""How many threads XLA gets: by the arithmetic of the largest product, not by the kind of network."""

import pytest

from hotloop.engines.jax.setup import choose_threads, is_image_network, largest_product
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


def test_the_largest_product_counts_what_a_batch_really_is():
    assert largest_product(parse_spec({**WIDE, "replay": {"batch_size": 512}})) == 512 * 1024 * 1024
    fractions = {"torso": {"hidden": [64]}, "head": {"kind": "iqn", "taus": 8, "hidden": [32]}}
    assert largest_product(parse_spec({"network": fractions, "replay": {"batch_size": 10}})) == 10 * 8 * 64 * 32
    on_policy = {**WIDE, "on_policy": {"steps": 8, "minibatches": 2}, "env": {"num_envs": 4}}
    assert largest_product(parse_spec(on_policy)) == 16 * 1024 * 1024
    assert largest_product(parse_spec({"network": {"torso": {"hidden": [4096]}}})) == 0, "its input is not known yet"
