"""Flood fill on 3 x 256 boards from real games: Python BFS, NumPy on all boards at once, hotloop's compiled loop.

NumPy comes in two forms: cells that spread over arrays of booleans, and the rows of bits that hotloop uses itself.

Each takes the boards as its own environment holds them: lists of cells, or rows of bits.
"""

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from hotloop.bench.measure import Result, Row, interleave, machine, paired_ratio
from hotloop.bench.slow_baseline_flood import Boards, Cached, by_bfs, by_growth, by_rows_of_bits
from hotloop.bench.snake_games import GRID, NUM_ENVS, STEPS, Games, Selection
from hotloop.progress import Reporter
from hotloop.spec.reading import load_spec

POOL = 16
"""Sets of 256 states that the loops walk through, so that nothing can be computed once for all."""
BFS_SETS = 2
ROUNDS = 15
XLA_LOOPS = 20
LONG = 30
CACHE_STEPS = 60


def run(reporter: Reporter) -> Result:
    """Check that all count the same, then time them, interleaved."""
    from hotloop.engines.jax import setup

    setup.start(load_spec({}))
    games = Games()
    pools = {"typical": _draw(games, shortest=0), "long": _draw(games, shortest=LONG)}
    cases: dict[str, Callable[[], None]] = {}
    sets_per_call: dict[str, int] = {}
    notes: dict[str, str] = {}
    for kind, pool in pools.items():
        boards = [selection.as_boards() for selection in pool]
        xla, counts = xla_loop(pool)
        _check(kind, boards, counts)
        for who, call, sets in (
            ("python-bfs", _in_turn(by_bfs, boards, BFS_SETS), BFS_SETS),
            ("numpy", _in_turn(by_growth, boards, POOL), POOL),
            ("numpy-bits", _in_turn(by_rows_of_bits, boards, POOL), POOL),
            ("hotloop", xla, POOL * XLA_LOOPS),
        ):
            cases[f"{kind}/{who}"], sets_per_call[f"{kind}/{who}"] = call, sets
        lengths = np.concatenate([board.length for board in boards])
        notes[f"{kind}/python-bfs"] = f"bodies of {lengths.mean():.0f} cells ({lengths.min()}–{lengths.max()})"
    seconds = interleave(cases, rounds=ROUNDS, reporter=reporter)
    per_set = {name: [second / sets_per_call[name] for second in times] for name, times in seconds.items()}
    settings = {"grid": GRID, "boards": f"3 x {NUM_ENVS}", "same counts": "checked on all boards before timing"}
    result = Result("flood", {**machine(), **settings, "XLA and NumPy threads": 1})
    result.settings["wrong in a cache keyed by head, heading, length, direction of food"] = cache_errors(games)
    for name, times in per_set.items():
        row = Row(name, statistics.median(times) * 1e6, "us per 768 boards", note=notes.get(name, ""))
        baseline = f"{name.partition('/')[0]}/python-bfs"
        if name != baseline:
            row.against = baseline
            row.ratio, row.spread = paired_ratio(per_set[baseline], times)
        result.rows.append(row)
    for kind in pools:
        ours, in_numpy = f"{kind}/hotloop", (f"{kind}/numpy", f"{kind}/numpy-bits")
        faster = min(in_numpy, key=lambda name: statistics.median(per_set[name]))
        ratio, spread = paired_ratio(per_set[faster], per_set[ours])
        value = statistics.median(per_set[ours]) * 1e6
        result.rows.append(Row(f"{ours} again", value, "us per 768 boards", ratio, faster, spread))
    return result


def xla_loop(pool: Sequence[Selection]) -> tuple[Callable[[], None], np.ndarray]:
    """A call that floods every set `XLA_LOOPS` times inside one compiled loop, and the counts (POOL, N, 3)."""
    import jax
    import jax.numpy as jnp

    from hotloop.envs import boards

    bodies, starts = (jnp.asarray(np.stack(part)) for part in zip(*(s.as_bits() for s in pool), strict=True))

    def counts(body_NG: jax.Array, starts_NDG: jax.Array) -> jax.Array:
        return boards.count(jax.vmap(boards.flood_fill)(boards.free(body_NG), starts_NDG))

    def one(i: jax.Array, total: jax.Array) -> jax.Array:
        body, start = (jax.lax.dynamic_index_in_dim(part, i % POOL, keepdims=False) for part in (bodies, starts))
        return total + counts(body, start)

    loop = jax.jit(lambda n: jax.lax.fori_loop(0, n, one, jnp.zeros((NUM_ENVS, 3), jnp.int32)))

    def call() -> None:
        jax.block_until_ready(loop(POOL * XLA_LOOPS))

    return call, np.asarray(jax.jit(jax.vmap(counts))(bodies, starts))


def cache_errors(games: Games) -> str:
    """How wrong the slow baseline's cache "for similar states" is, over consecutive steps of all games."""
    cache = Cached(audit=True)
    for step in range(STEPS // 2, STEPS // 2 + CACHE_STEPS):
        cache(games.at(np.full(NUM_ENVS, step), np.arange(NUM_ENVS)).as_boards(), GRID)
    wrong, hits = cache.wrong / cache.found, cache.found / cache.asked
    return f"{wrong:.0%} of its answers on grown snakes ({hits:.0%} hits)"


def _draw(games: Games, *, shortest: int) -> list[Selection]:
    """POOL sets of different states with bodies at least so long."""
    step, env = np.nonzero(np.asarray(games.states.length) >= shortest)
    if len(step) < POOL * NUM_ENVS:
        raise ValueError(f"only {len(step)} states have bodies of {shortest} or more; {POOL * NUM_ENVS} are needed")
    chosen = np.random.default_rng(0).choice(len(step), (POOL, NUM_ENVS), replace=False)
    return [games.at(step[row], env[row]) for row in chosen]


def _in_turn(flood: Callable[[Boards, int], np.ndarray], boards: Sequence[Boards], sets: int) -> Callable[[], None]:
    """A call that floods the next so many sets of the pool."""
    at = 0

    def call() -> None:
        nonlocal at
        for _ in range(sets):
            flood(boards[at % POOL], GRID)
            at += 1

    return call


def _check(kind: str, boards: Sequence[Boards], counts: np.ndarray) -> None:
    for number, board in enumerate(boards):
        expected = by_bfs(board, GRID)
        in_numpy = {"numpy": by_growth(board, GRID), "numpy-bits": by_rows_of_bits(board, GRID)}
        for who, seen in {**in_numpy, "hotloop": counts[number]}.items():
            if not np.array_equal(seen, expected):
                raise ValueError(f"{kind} boards: {who} counts {(seen != expected).sum()} of 768 floods unlike the BFS")
