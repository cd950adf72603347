"""One greedy episode of a Gymnasium env as pictures: drawn by the env, or what the agent sees if that is an image."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from hotloop.envs.gym_types import Env
from hotloop.envs.host import open_envs
from hotloop.envs.host_spaces import HostSpaces, observations
from hotloop.envs.own import one_env
from hotloop.envs.serial import MASK
from hotloop.film import film_of
from hotloop.spec import Spec
from hotloop.trees import Arrays, ArraySpec, leaves

if TYPE_CHECKING:
    from PIL.Image import Image

SMALLEST_SIDE = 240
"""Pixels to which a small observation is enlarged."""
FRAMES_PER_SECOND = 15.0
"""Of a recording of observations, which have no speed of their own."""


Greedy = Callable[[Arrays, np.ndarray | None], np.ndarray]
"""Actions (N,) for what N envs see and, with masks on, allow."""


def can_record(spec: Spec, spaces: HostSpaces) -> bool:
    """Whether the env says that it can return pictures, or shows the agent some."""
    if _sees_images(spaces):
        return True
    env = _drawing_env(spec, spaces)
    if env is not None:
        env.close()
    return env is not None


def record(
    spec: Spec,
    spaces: HostSpaces,
    greedy: Greedy,
    seed: int,
) -> "tuple[list[Image], float]":
    """Play one episode by `greedy(obs, legal)`, or its first seconds; returns frames and how many make a second."""
    env = _drawing_env(spec, spaces)
    if env is None:
        played, film = _observed_frames(spec, greedy, seed), film_of(FRAMES_PER_SECOND)
    else:
        played, film = _drawn_frames(env, spec, spaces, greedy, seed), film_of(env.metadata.get("render_fps"))
    frames, last = [], None
    with closing(played):
        for t, last in enumerate(played):
            if t % film.every == 0:
                frames.append(last)
            if len(frames) == film.frames:
                break
    if last is not None and last is not frames[-1]:
        frames.append(last)
    return frames, film.fps


def _drawing_env(spec: Spec, spaces: HostSpaces) -> Env | None:
    """One env that draws itself and shows the agent what the vector env does; None if there is no such thing."""
    if not spaces.draws:
        return None
    quieten_pygame()
    options, env = {**spec.env.options, **spec.evaluation.options, "render_mode": "rgb_array"}, None
    try:
        env = one_env(spec.env.id, **options)
        env.reset(seed=0)
        picture = env.render()
        is_same = observations(env.observation_space, spec.env.observe).space == spaces.observations.space
        if is_same and isinstance(picture, np.ndarray) and picture.ndim == 3:
            return env
    except Exception:  # a missing package, options of the vector env only, whatever the env raises
        pass
    if env is not None:
        with contextlib.suppress(Exception):  # it may be what raised
            env.close()
    return None


def quieten_pygame() -> None:
    """Drawing with it opens sound card and screen, too, which complain where there are none; what is set stays."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "hide")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _drawn_frames(env: Env, spec: Spec, spaces: HostSpaces, greedy: Greedy, seed: int) -> "Generator[Image]":
    from PIL import Image

    with closing(env):
        obs, info = env.reset(seed=seed)
        yield Image.fromarray(np.asarray(env.render()))
        for _ in range(spec.evaluation.max_steps):
            seen, _ = spaces.observations.batch(obs)
            legal = spaces.mask(info.get(MASK), spec.env.id)[None] if spec.env.action_mask else None
            chosen = np.asarray(greedy(seen, legal))
            obs, _, terminated, truncated, info = env.step(spaces.actions.decode(chosen)[0])
            yield Image.fromarray(np.asarray(env.render()))
            if terminated or truncated:
                break


def _observed_frames(spec: Spec, greedy: Greedy, seed: int) -> "Generator[Image]":
    options = {**spec.env.options, **spec.evaluation.options}
    with closing(open_envs(spec.env.id, 1, options, spec.env.vectorization, observe=spec.env.observe)) as envs:
        if spec.env.action_mask:
            envs.mask_actions(spec.env.id)
        obs = envs.reset(seed)
        yield _picture(obs)
        for _ in range(spec.evaluation.max_steps):
            step = envs.step(np.asarray(greedy(obs, envs.legal)))
            obs = step.obs
            yield _picture(step.final_obs)
            if step.terminated[0] or step.truncated[0]:
                break


def _picture(obs_1: Arrays) -> "Image":
    """The newest frame of a stack (frames first), or an image (channels last), of the one env that there is."""
    from PIL import Image

    obs = leaves(obs_1)[0][0]
    pixels = obs if obs.shape[-1] == 3 else obs[-1] if obs.shape[0] <= obs.shape[-1] else obs[..., -1]
    image = Image.fromarray(pixels)
    times = max(1, -(-SMALLEST_SIDE // min(image.size)))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST).convert("RGB")


def _sees_images(spaces: HostSpaces) -> bool:
    shapes = spaces.observations.shapes
    return isinstance(shapes, ArraySpec) and len(shapes.shape) == 3 and shapes.dtype == np.uint8
