"""How a recording shows an env: how fast, which states, and for how long."""

import math
from typing import NamedTuple

MOST_PER_SECOND = 25.0
"""Envs that move faster are shown every second step, or fewer."""
MOST_SECONDS = 20.0
"""A recording is no longer, its last picture included."""
PAUSE_SECONDS = 1.0
"""For which the last picture stands."""
USUAL_FPS = 30.0


class Film(NamedTuple):
    """Every `every`-th state, at most `frames` of them, `fps` a second."""

    every: int
    frames: int
    fps: float


def film_of(render_fps: object) -> Film:
    """The film of an env that says so many of its steps are a second; where that is no speed, the usual one."""
    speed = USUAL_FPS
    if isinstance(render_fps, int | float) and math.isfinite(render_fps) and render_fps > 0:
        speed = float(render_fps)
    every = math.ceil(speed / MOST_PER_SECOND)
    fps = speed / every
    return Film(every, max(1, math.floor((MOST_SECONDS - PAUSE_SECONDS) * fps)), fps)
