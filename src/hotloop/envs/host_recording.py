"""One greedy episode of a Gymnasium env as pictures, if it can draw itself."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from hotloop.envs.host import HostEnvs
from hotloop.spec import Spec

if TYPE_CHECKING:
    from PIL.Image import Image


def can_record(env_id: str) -> bool:
    """Whether the env says that it can return pictures, and what it needs for that is installed."""
    try:
        env = gym.make(env_id, render_mode="rgb_array")
        env.reset(seed=0)
        picture = env.render()
        env.close()
    except Exception:  # a missing package, an unknown render mode, whatever the env raises
        return False
    return isinstance(picture, np.ndarray) and picture.ndim == 3


def record(spec: Spec, envs: HostEnvs, greedy: Callable[[Any], Any], seed: int) -> "tuple[list[Image], float]":
    """Play one episode; returns its frames and how many make a second."""
    from PIL import Image

    env = gym.make(spec.env.id, render_mode="rgb_array", **spec.env.options)
    obs, _ = env.reset(seed=seed)
    frames, over, steps = [Image.fromarray(np.asarray(env.render()))], False, 0
    while not over and steps < spec.evaluation.max_steps:
        seen = envs.observations.encode(jax.tree.map(lambda leaf: np.asarray(leaf)[None], obs))
        action = envs.actions.decode(np.asarray(greedy(seen)))[0]
        obs, _, terminated, truncated, _ = env.step(action)
        over, steps = bool(terminated or truncated), steps + 1
        frames.append(Image.fromarray(np.asarray(env.render())))
    env.close()
    return frames, float(env.metadata.get("render_fps", 30))
