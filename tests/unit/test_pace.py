"""How long chunks become, for machines and programs of different cost."""

import numpy as np
import pytest

from hotloop.pace import LONGEST_CHUNK, SECONDS_PER_CHUNK, Pace
from hotloop.spec.reading import parse_spec

ENDLESS = {"stop": {"steps": 2_000_000_000}, "evaluation": {"every": 0}, "log": {"checkpoint_every": 2_000_000_000}}


def lengths(per_block: float, per_chunk: float, noise: float = 0.0, chunks: int = 30) -> list[int]:
    """Blocks of each chunk where a block and a chunk take so many seconds, give or take some noise."""
    pace, found, env_steps, random = Pace(parse_spec(ENDLESS)), [], 0, np.random.default_rng(0)
    for _ in range(chunks):
        blocks = pace.blocks(env_steps)
        pace.note(blocks, (per_chunk + per_block * blocks) * float(np.exp(noise * random.normal())))
        found.append(blocks)
        env_steps += blocks
    return found


@pytest.mark.parametrize("per_block", [1e-5, 1e-3, 0.1])
def test_chunks_of_cheap_blocks_take_half_a_second(per_block: float) -> None:
    assert lengths(per_block, 0.0)[-1] * per_block == pytest.approx(SECONDS_PER_CHUNK, rel=0.3)


def test_blocks_of_many_seconds_are_chunks_of_their_own_after_a_first_look() -> None:
    assert lengths(3.0, 0.0)[2:] == [1] * 28


@pytest.mark.parametrize("per_chunk", [0.2, 1.0, 1.5])
def test_a_chunk_that_is_costly_by_itself_becomes_ten_times_as_long(per_chunk: float) -> None:
    blocks = lengths(0.01, per_chunk)[-1]
    assert per_chunk / (per_chunk + 0.01 * blocks) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.2])
def test_noise_makes_no_long_chunks(noise: float) -> None:
    seconds = np.array(lengths(0.005, 0.0, noise, chunks=2000)) * 0.005
    assert np.quantile(seconds, 0.95) < 4 * SECONDS_PER_CHUNK
    assert seconds.max() < LONGEST_CHUNK


def test_no_chunk_is_longer_than_someone_would_wait() -> None:
    assert lengths(0.01, 60.0)[-1] * 0.01 <= LONGEST_CHUNK


def test_a_chunk_ends_where_something_is_due() -> None:
    spec = parse_spec({"env": {"num_envs": 4}, "evaluation": {"every": 100}, "updates_per_step": 0.25})
    pace = Pace(spec)
    pace.note(1, 1e-6)
    pace.note(2, 2e-6)
    assert pace.blocks(92) == 2
