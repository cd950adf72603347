"""A console's screen as a DQN sees it: a stack of small grey pictures, the newest last."""

import gymnasium as gym
import numpy as np
from scipy.sparse import csr_array

from hotloop.envs.nes import HEIGHT, WIDTH, Nes, rgb_of

GREY = rgb_of(np.arange(1 << 16, dtype=np.uint16)) @ np.array([0.299, 0.587, 0.114], np.float32)
"""Brightness of each of a console's colours."""


class StackedPictures:
    """The last `stack` pictures, uint8 (stack, size, size); every observation is an array of its own."""

    def __init__(self, nes: Nes, size: int, stack: int) -> None:
        self.space = gym.spaces.Box(0, 255, (stack, size, size), np.uint8)
        self._nes, self._picture, self._stack = nes, GreyPicture(size), stack

    def begin(self) -> np.ndarray:
        """The first of an episode: one picture repeated."""
        self._seen = np.repeat(self._picture(self._nes.pixels)[None], self._stack, axis=0)
        return self._seen

    def look(self) -> np.ndarray:
        """The next one."""
        seen = np.empty_like(self._seen)
        seen[:-1] = self._seen[1:]
        seen[-1] = self._picture(self._nes.pixels)
        self._seen = seen
        return seen


class GreyPicture:
    """Turns a console's pixels (240, 256) into a grey picture uint8 (size, size), each of whose pixels is the mean of
    the part of the screen it covers."""

    def __init__(self, size: int) -> None:
        self._rows, self._columns = _shares(HEIGHT, size), _shares(WIDTH, size)

    def __call__(self, pixels: np.ndarray) -> np.ndarray:
        """Shrink one picture."""
        small = (self._columns @ (self._rows @ GREY[pixels]).T).T
        small += 0.5
        bytes_: np.ndarray = small.astype(np.uint8)
        return bytes_


def _shares(source: int, target: int) -> csr_array:
    """How much of each of `source` cells each of `target` cells takes: sparse (target, source), rows sum to one."""
    edge = np.arange(target + 1)[:, None] * (source / target)
    cell = np.arange(source)
    covered = np.minimum(edge[1:], cell + 1) - np.maximum(edge[:-1], cell)
    return csr_array((np.maximum(covered, 0.0) * (target / source)).astype(np.float32))
