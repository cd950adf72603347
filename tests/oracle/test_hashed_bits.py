"""Bits from a hash: as good as those of NumPy where an env uses them, by the tests that bad ones fail."""

import jax
import numpy as np
import pytest

from hotloop.envs.hashed_bits import hashed_bits

KEYS, COUNT = 4096, 32


@pytest.fixture(scope="module")
def words():
    """Words of many keys, one step apart as an env's are: (KEYS, COUNT)."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(7), i))(np.arange(KEYS))
    return np.asarray(jax.jit(jax.vmap(lambda key: hashed_bits(key, COUNT)))(keys))


def test_each_bit_is_one_half_of_the_time(words):
    bits = np.unpackbits(words.view(np.uint8)[..., None], axis=-1).reshape(KEYS, COUNT * 32)
    error = np.sqrt(0.25 / KEYS)
    assert abs(bits.mean(0) - 0.5).max() < 4.5 * error  # of 1,024 means
    assert abs(bits.mean() - 0.5) < 4.5 * error / np.sqrt(COUNT * 32)


def test_neither_neighbours_nor_successive_keys_go_together(words):
    scaled = words / 2.0**32 - 0.5
    error = np.sqrt(1 / words.size)
    for one, other in ((scaled[:, 1:], scaled[:, :-1]), (scaled[1:], scaled[:-1])):
        assert abs((one * other).mean() * 12) < 4.5 * error
    together = np.corrcoef(scaled.T)[np.triu_indices(COUNT, 1)]
    assert abs(together).max() < 5 / np.sqrt(KEYS)


@pytest.mark.parametrize("shift", [0, 16])
def test_rare_events_are_as_rare_as_they_should_be_and_as_often_together(words, shift):
    """What `treasure` asks for: a half of a word below a small limit, several of them within one step."""
    rate = 0.02
    happened = (words >> shift & 0xFFFF) < rate * 2**16
    expected = np.random.default_rng(0).binomial(COUNT, rate, 1_000_000)
    found, wanted = (np.bincount(np.minimum(counts, 4), minlength=5) for counts in (happened.sum(1), expected))
    wanted = wanted * (KEYS / len(expected))
    assert ((found - wanted) ** 2 / wanted).sum() < 20  # chi² of 4 degrees of freedom: p < 0.001 beyond 18.5


def test_both_halves_of_a_key_count():
    keys = jax.random.wrap_key_data(np.array([[1, 2], [1, 3], [2, 2]], np.uint32))
    one, other, third = (np.asarray(hashed_bits(key, 8)) for key in keys)
    assert not (one == other).any()
    assert not (one == third).any()


@pytest.mark.parametrize("half", [0, 1])
def test_each_bit_of_a_key_turns_each_bit_of_a_word_half_of_the_time(half):
    """What a weaker mixer fails: one multiplication carries nothing downwards."""
    chance = np.random.default_rng(half)
    data = chance.integers(2**32, size=(2000, 2), dtype=np.uint32)
    draw = jax.jit(jax.vmap(lambda pair: hashed_bits(jax.random.wrap_key_data(pair), 2)))
    before = np.asarray(draw(data))
    for bit in range(32):
        turned = data.copy()
        turned[:, half] ^= np.uint32(1 << bit)
        changed = np.asarray(draw(turned)) ^ before
        often = ((changed[..., None] >> np.arange(32)) & 1).mean((0, 1))
        assert abs(often - 0.5).max() < 0.05, bit
