"""Flood fill five ways: the slow baseline's Python BFS, and the remedies that were proposed or that one would try.

Each takes the boards of N games and returns, for a move straight, right and left, how many free cells are then
within reach (N, 3); 0 where the move is death.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""(dx, dy) of the headings up, right, down, left."""


class Boards(NamedTuple):
    """N games, as NumPy arrays on the host. Cells are (x, y)."""

    cells: np.ndarray  # (N, L, 2) the body from the head on; what lies beyond `length` means nothing
    length: np.ndarray  # (N,)
    heading: np.ndarray  # (N,)
    food: np.ndarray  # (N, 2)
    starts: np.ndarray  # (N, 3, 2) where a move straight, right, left leads
    safe: np.ndarray  # (N, 3) whether that is not death


def by_bfs(boards: Boards, grid: int) -> np.ndarray:
    """One breadth-first search after the other, in Python, as the slow baseline has it.

    On plain ints: the original searches with NumPy's, which would be slower without need.
    """
    longest = int(boards.length.max())
    counts = []
    for body, length, starts, safe in zip(
        boards.cells[:, :longest].tolist(),
        boards.length.tolist(),
        boards.starts.tolist(),
        boards.safe.tolist(),
        strict=True,
    ):
        taken = {(x, y) for x, y in body[:length]}
        counts.append([_search((x, y), taken, grid) if ok else 0 for (x, y), ok in zip(starts, safe, strict=True)])
    return np.array(counts)


def _search(start: tuple[int, int], taken: set[tuple[int, int]], grid: int) -> int:
    seen = {start}
    queue = deque(seen)
    while queue:
        x, y = queue.popleft()
        for dx, dy in MOVES:
            near_x, near_y = x + dx, y + dy
            if near_x < 0 or near_x >= grid or near_y < 0 or near_y >= grid:
                continue
            near = (near_x, near_y)
            if near not in seen and near not in taken:
                seen.add(near)
                queue.append(near)
    return len(seen)


def by_growth(boards: Boards, grid: int) -> np.ndarray:
    """All boards at once in NumPy: every reached cell reaches its neighbours, until nothing changes."""
    envs, side = len(boards.length), grid + 2  # a border that is never free, so that shifts cannot leak
    inside = np.zeros((side, side), bool)
    inside[1:-1, 1:-1] = True
    empty = np.repeat(inside[None], envs, axis=0)
    env, segment = np.nonzero(np.arange(boards.cells.shape[1]) < boards.length[:, None])
    x, y = boards.cells[env, segment].T
    empty[env, y + 1, x + 1] = False
    free = np.repeat(empty, 3, axis=0).ravel()
    started = np.zeros((envs, 3, side, side), bool)
    env, way = np.nonzero(boards.safe)
    x, y = boards.starts[env, way].T
    started[env, way, y + 1, x + 1] = True
    reached = started.ravel()
    while True:
        grown = reached.copy()
        for shift in (1, side):
            grown[shift:] |= reached[:-shift]
            grown[:-shift] |= reached[shift:]
        grown &= free
        if np.array_equal(grown, reached):
            return reached.reshape(envs, 3, -1).sum(2)
        reached = grown


def by_rows_of_bits(boards: Boards, grid: int) -> np.ndarray:
    """All boards at once in NumPy, a number per row of cells: a shift moves every reached cell of a row."""
    envs, rows = len(boards.length), np.zeros((len(boards.length), grid), np.uint32)
    env, segment = np.nonzero(np.arange(boards.cells.shape[1]) < boards.length[:, None])
    x, y = boards.cells[env, segment].T
    np.bitwise_or.at(rows, (env, y), np.uint32(1) << x.astype(np.uint32))
    free = np.repeat(~rows[:, None] & np.uint32((1 << grid) - 1), 3, axis=1)
    reached = np.zeros((envs, 3, grid), np.uint32)
    env, way = np.nonzero(boards.safe)
    x, y = boards.starts[env, way].T
    reached[env, way, y] = np.uint32(1) << x.astype(np.uint32)
    while True:
        grown = reached | (reached << np.uint32(1)) | (reached >> np.uint32(1))
        grown[..., 1:] |= reached[..., :-1]
        grown[..., :-1] |= reached[..., 1:]
        grown &= free
        if np.array_equal(grown, reached):
            return np.bitwise_count(reached).sum(2)
        reached = grown


class Cached:
    """The slow baseline's "cache flood-fill results for similar states": head, heading, length, direction of the food.

    Bodies that lie differently share an entry, so answers are wrong; `audit` counts how many, at the BFS's price.
    """

    def __init__(self, *, audit: bool = False) -> None:
        self.entries: dict[tuple[object, ...], np.ndarray] = {}
        self.audit = audit
        self.asked = self.found = self.wrong = 0
        """Features asked for, answered from an entry, and answered wrongly."""

    def __call__(self, boards: Boards, grid: int) -> np.ndarray:
        """Look every game up; search for those that are not there."""
        heads = boards.cells[:, 0]
        similar = np.concatenate(
            [heads, boards.heading[:, None], boards.length[:, None], np.sign(boards.food - heads)], axis=1
        )
        keys = [tuple(row) for row in similar.tolist()]
        missing = {key: i for i, key in enumerate(keys) if key not in self.entries}
        for key, i in missing.items():
            self.entries[key] = by_bfs(Boards(*(array[i : i + 1] for array in boards)), grid)[0]
        counts = np.stack([self.entries[key] for key in keys])
        if self.audit:
            self.asked += counts.size
            self.found += counts.size - 3 * len(missing)
            self.wrong += int((counts != by_bfs(boards, grid)).sum())
        return counts


def off(boards: Boards, grid: int) -> np.ndarray:
    """Nothing is ever within reach: the flood features are zeros."""
    return np.zeros((len(boards.length), 3), np.int64)
