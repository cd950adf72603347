"""A sum tree on the host: draws places in proportion to their priorities, and changes many priorities at once.

Every node has 16 children that lie side by side in memory, 128 bytes aligned to cache lines: a million leaves are five
steps from the root, and a step reads two lines. Sums are float64, and always recomputed from the children: a tree that
adds differences instead drifts until it draws places of priority zero.
"""

from collections.abc import Callable
from itertools import accumulate
from typing import TypeVar, cast

import numba
import numpy as np
from numba import types

FAN_OUT = 16

Kernel = TypeVar("Kernel", bound=Callable[..., object])


class SumTree:
    """Priorities of `capacity` places, all zero at first."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a sum tree of capacity {capacity} holds nothing; use at least 1")
        self.capacity = capacity
        *starts, end = _starts_of_levels(capacity)
        self._starts = np.array(starts, np.int64)
        self._nodes = _aligned_zeros(end)
        # No sum of `capacity` such priorities overflows, whatever is set later.
        self.largest_priority = float(np.finfo(np.float64).max) / 2 / capacity

    @staticmethod
    def num_bytes(capacity: int) -> int:
        """Memory of a tree, before it is allocated."""
        return (_starts_of_levels(capacity)[-1] + 1) * FAN_OUT * 8

    @property
    def total(self) -> float:
        """Sum of all priorities."""
        return float(self._nodes[0, 0])

    def set(self, places: np.ndarray, priorities: np.ndarray) -> None:
        """Give places their priorities, two arrays of one shape; of duplicates the last wins.

        Raises ValueError, and changes nothing, if any place or priority is not valid.
        """
        if np.shape(places) != np.shape(priorities):
            raise ValueError(
                f"{np.shape(places)} places but {np.shape(priorities)} priorities; give one for each place"
            )
        places, priorities = self._checked(places), _flat(priorities, np.float64)
        bad = _first_outside(priorities, self.largest_priority)
        if bad >= 0:
            raise ValueError(self._refusal(priorities[bad], places[bad]))
        _set(self._nodes, self._starts, self.capacity, places, priorities)

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The places where the running sum of priorities passes each `mass`, in its shape; never one of priority zero.

        Masses lie in [0, total); one that rounding has lifted to `total` finds the last place that can be drawn.
        """
        total = self.total
        if total <= 0.0:
            raise ValueError("all priorities are zero, so no place can be drawn; set priorities first")
        masses = _flat(mass, np.float64)
        bad = _first_outside(masses, total * (1 + 1e-12))
        if bad >= 0:
            raise ValueError(f"mass {masses[bad]} is not between 0 and the tree's total {total}")
        return _find(self._nodes, self._starts, masses).reshape(np.shape(mass))

    def priorities(self, places: np.ndarray) -> np.ndarray:
        """Priorities of places, in their shape."""
        return self._leaves()[self._checked(places)].reshape(np.shape(places))

    @property
    def leaves(self) -> np.ndarray:
        """A copy of all priorities (capacity,), from which `restore` makes the same tree to the bit."""
        return self._leaves().copy()

    def restore(self, leaves: np.ndarray) -> None:
        """Take all priorities from an array (capacity,), or raise ValueError and change nothing."""
        if np.shape(leaves) != (self.capacity,):
            raise ValueError(f"priorities of shape {np.shape(leaves)} do not fit a sum tree of {self.capacity} places")
        priorities = _flat(leaves, np.float64)
        bad = _first_outside(priorities, self.largest_priority)
        if bad >= 0:
            raise ValueError(self._refusal(priorities[bad], bad))
        self._leaves()[:] = priorities
        _sum_all(self._nodes, self._starts, self.capacity)

    def _leaves(self) -> np.ndarray:
        return self._nodes[self._starts[-1] :].reshape(-1)[: self.capacity]

    def _checked(self, places: np.ndarray) -> np.ndarray:
        if np.asarray(places).dtype.kind not in "iu":
            raise ValueError(f"places are {np.asarray(places).dtype}; use integers")
        flat = _flat(places, np.int64)
        bad = _first_not_a_place(flat, self.capacity)
        if bad >= 0:
            raise ValueError(
                f"place {flat[bad]} is not in a sum tree of {self.capacity} places, 0 to {self.capacity - 1}"
            )
        return flat

    def _refusal(self, priority: float, place: int) -> str:
        return (
            f"priority {priority} of place {place} is not a finite number from 0 to {self.largest_priority:.3g}; "
            "look for NaN or infinity in the TD errors"
        )


def _starts_of_levels(capacity: int) -> list[int]:
    """In which group of 16 nodes each level begins, from the root (0) to the leaves, and after them the end."""
    groups = [-(-capacity // FAN_OUT)]
    while groups[0] > 1:
        groups.insert(0, -(-groups[0] // FAN_OUT))
    return list(accumulate([0, 1, *groups]))  # the root has a group for itself


def _aligned_zeros(groups: int) -> np.ndarray:
    """Zeros (groups, 16), each group on cache lines of its own."""
    nodes = np.zeros((groups + 1) * FAN_OUT, np.float64)
    skip = -nodes.ctypes.data % (8 * FAN_OUT) // 8
    return nodes[skip : skip + groups * FAN_OUT].reshape(groups, FAN_OUT)


def _flat(values: np.ndarray, dtype: type) -> np.ndarray:
    return np.require(values, dtype, ("C", "A")).reshape(-1)


# Below: what is compiled. It trusts its arguments, which the methods above have checked.

_nodes = types.float64[:, ::1]
_floats_in = types.Array(types.float64, 1, "C", readonly=True)  # also takes writable ones
_ints_in = types.Array(types.int64, 1, "C", readonly=True)


def _compiled(signature: object) -> Callable[[Kernel], Kernel]:
    """Compile when imported, not in the middle of a run; keep it on disk for the next import where that can be done."""

    def compile_now(kernel: Kernel) -> Kernel:
        try:
            return cast(Kernel, numba.njit(signature, cache=True)(kernel))
        except (RuntimeError, OSError):  # no folder to write to, or no room in it
            return cast(Kernel, numba.njit(signature)(kernel))

    return compile_now


@_compiled(types.int64(_floats_in, types.float64))
def _first_outside(values: np.ndarray, largest: float) -> int:
    """Index of the first that is not from 0 to `largest` (NaN is not), or -1."""
    for i in range(len(values)):
        if not 0.0 <= values[i] <= largest:
            return i
    return -1


@_compiled(types.int64(_ints_in, types.int64))
def _first_not_a_place(places: np.ndarray, capacity: int) -> int:
    """Index of the first outside of the tree, or -1."""
    for i in range(len(places)):
        if not 0 <= places[i] < capacity:
            return i
    return -1


@_compiled(types.float64(types.float64[::1], types.int64))
def _sum_of_four(group: np.ndarray, at: int) -> float:
    return (group[at] + group[at + 1]) + (group[at + 2] + group[at + 3])


@_compiled(types.float64(types.float64[::1]))
def _sum_of(group: np.ndarray) -> float:
    """Sum of 16 children: one fixed order, without a chain of 16 additions."""
    return (_sum_of_four(group, 0) + _sum_of_four(group, 4)) + (_sum_of_four(group, 8) + _sum_of_four(group, 12))


@_compiled(types.void(_nodes, _ints_in, types.int64))
def _sum_all(nodes: np.ndarray, starts: np.ndarray, capacity: int) -> None:
    """Recompute every sum from the leaves."""
    width = capacity
    for level in range(len(starts) - 2, -1, -1):
        sums = nodes[starts[level] :].reshape(-1)
        width = (width + FAN_OUT - 1) // FAN_OUT
        for node in range(width):
            sums[node] = _sum_of(nodes[starts[level + 1] + node])


@_compiled(types.void(_nodes, _ints_in, types.int64, _ints_in, _floats_in))
def _set(nodes: np.ndarray, starts: np.ndarray, capacity: int, places: np.ndarray, priorities: np.ndarray) -> None:
    """Write the leaves, then recompute the sums above them level by level."""
    leaves = nodes[starts[-1] :].reshape(-1)
    for i in range(len(places)):
        leaves[places[i]] = priorities[i]
    changed, count, width = places.copy(), len(places), capacity
    for level in range(len(starts) - 2, -1, -1):
        sums, below = nodes[starts[level] :].reshape(-1), starts[level + 1]
        width = (width + FAN_OUT - 1) // FAN_OUT
        if width <= count:  # all of a narrow level is less work than a sum for each change
            for node in range(width):
                sums[node] = _sum_of(nodes[below + node])
            continue
        kept, previous = 0, -1
        for i in range(count):
            node = changed[i] // FAN_OUT
            if node != previous:  # neighbours, as inserted rows are, share a parent
                sums[node] = _sum_of(nodes[below + node])
                changed[kept] = previous = node
                kept += 1
        count = kept


@_compiled("Tuple((int64, float64))(float64, float64, float64, float64)")
def _passed(mass: float, first: float, second: float, third: float) -> tuple[int, float]:
    """How many of three running sums are not above the mass, and the last such sum; without a branch to mispredict."""
    before = first if first <= mass else 0.0
    before = second if second <= mass else before
    before = third if third <= mass else before
    return (first <= mass) + (second <= mass) + (third <= mass), before


@_compiled(types.int64[::1](_nodes, _ints_in, _floats_in))
def _find(nodes: np.ndarray, starts: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Take all masses down one level at a time, so that their reads do not wait for each other."""
    rest, at = masses.copy(), np.zeros(len(masses), np.int64)
    for level in range(1, len(starts)):
        for i in range(len(masses)):
            group = nodes[starts[level] + at[i]]
            # First which four of the children, then which of the four.
            sum4 = _sum_of_four(group, 0)
            sum8 = sum4 + _sum_of_four(group, 4)
            sum12 = sum8 + _sum_of_four(group, 8)
            fours, before = _passed(rest[i], sum4, sum8, sum12)
            mass, first = rest[i] - before, 4 * fours
            sum1 = group[first]
            sum2 = sum1 + group[first + 1]
            sum3 = sum2 + group[first + 2]
            ones, before = _passed(mass, sum1, sum2, sum3)
            child = first + ones
            if mass < sum3 + group[first + 3]:
                mass -= before  # the running sum passed the mass at this child, so the child is not zero
            else:  # rounding left the mass outside of the four: step back to the last child that is not zero
                while child > 0 and group[child] == 0.0:
                    child -= 1
                mass = group[child]
            rest[i], at[i] = mass, at[i] * FAN_OUT + child
    return at
