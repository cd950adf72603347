"""What networks are in every engine: the numbers, names, shapes and complaints that must not differ between two."""

import math
from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from hotloop.registry import nearest
from hotloop.spec import Branch, Branches, Cnn, Impala, IqnHead
from hotloop.trees import HasShape

A = TypeVar("A")
"""Arrays of one engine."""
Layer = TypeVar("Layer")

RUNNING = ("running_mean", "running_variance")
"""Names of parameters that follow measurements instead of a gradient."""
EPSILON, MOMENTUM = 1e-5, 0.1
"""Of normalization: PyTorch's."""


class HeadOutput(NamedTuple, Generic[A]):
    """Q-values (B, A), or per action logits of atoms or quantiles (B, A, N), whose fractions are `tau`."""

    values: A
    tau: A | None = None  # (N,) or (B, N)


class TargetOutputs(NamedTuple, Generic[A]):
    """What the target net says of a batch: estimates at s_t, Munchausen's addition to the reward, and where the choice
    of an action has fractions of its own, the Q-values it is made by."""

    values_t: A | None
    bonus_B: A | None
    choice_BA: A | None = None


def fractions_by_pass(head: IqnHead) -> dict[str, int]:
    """How many fractions IQN draws, by what a pass is for."""
    choice = head.choice_taus or head.target_taus
    return {"learn": head.taus, "target": head.target_taus, "choose": choice, "act": head.acting_taus}


def noise_size(params: object) -> int:
    """How many factors of noise a tree of parameters takes: one for each input and output of its noisy layers."""
    if not isinstance(params, Mapping):
        return 0
    if "kernel_noise" in params:
        return sum(params["kernel"].shape)
    return sum(noise_size(part) for part in params.values())


def each_noisy_layer(params: Layer, noise_T: A, perturb: Callable[[Layer, A], Layer]) -> Layer:
    """The tree with `perturb(layer, factors)` in place of each noisy layer; each takes its part of the factors."""
    if not isinstance(params, Mapping):
        return params
    if "kernel_noise" in params:
        return perturb(params, noise_T)
    out, start = {}, 0
    for name in sorted(params):
        end = start + noise_size(params[name])
        out[name], start = each_noisy_layer(params[name], noise_T[start:end], perturb), end  # type: ignore[index]
    return out  # type: ignore[return-value]


def require_image(obs_B: object, spec: Cnn | Impala) -> None:
    """Refuse a batch of observations that are not one image each."""
    if isinstance(obs_B, dict | tuple):
        parts = ", ".join(map(str, obs_B)) if isinstance(obs_B, dict) else f"{len(obs_B)} of them"
        raise ValueError(
            f"the {spec.kind} torso sees one image, but the observation has parts ({parts}); choose one by its key, "
            "e.g. env.observe=[image], or use torso mlp"
        )
    assert isinstance(obs_B, HasShape)
    seen = tuple(obs_B.shape[1:])
    if len(seen) != 3:
        raise ValueError(f"the {spec.kind} torso needs images with 3 axes ({spec.layout}), got shape {seen}")


def require_room(spec: Cnn, height: int, width: int) -> None:
    """Refuse convolutions that leave nothing of an image of this size."""
    high, wide = height, width
    for i, (kernel, stride) in enumerate(zip(spec.kernels, spec.strides, strict=True)):
        if spec.padding == "valid":
            high, wide = (high - kernel) // stride + 1, (wide - kernel) // stride + 1
        if min(high, wide) < 1:
            raise ValueError(
                f"network.torso: convolution {i} with kernel {kernel} leaves nothing of a {height}x{width} image; "
                "use smaller kernels or strides, or padding: same"
            )


def require_branches(obs_B: object, spec: Branches) -> None:
    """Refuse a batch of observations whose keys are not those of the branches, or whose shapes do not fit them."""
    if not isinstance(obs_B, Mapping):
        seen = f"of shape {tuple(obs_B.shape[1:])}" if isinstance(obs_B, HasShape) else "without keys"
        raise ValueError(
            f"the branches torso sees a Dict observation by its keys, but the observation is {seen} (one key that "
            "env.observe chooses alone is seen without its name); use torso mlp"
        )
    keys = sorted(map(str, obs_B))
    for name in spec.branches:
        if name not in obs_B:
            raise ValueError(f"torso branches: '{name}' is no key of the observation; {nearest(name, keys)}")
    if unseen := [key for key in keys if key not in spec.branches]:
        raise ValueError(
            f"torso branches: there is no branch for {', '.join(unseen)}; add one for each, or leave them out of the "
            f"observation (of a Gymnasium env: env.observe=[{','.join(sorted(spec.branches))}])"
        )
    widths = {name: _width(name, branch, obs_B[name]) for name, branch in sorted(spec.branches.items())}
    if spec.attention is not None and len(set(widths.values())) > 1:
        raise ValueError(
            "torso branches: attention weighs branches of equal width, but theirs are "
            f"{', '.join(f'{name} {width}' for name, width in widths.items())}; give all the same last width in "
            "hidden, or set attention: null"
        )


def _width(name: str, branch: Branch, part_B: object) -> int:
    """How many numbers a branch gives of a part of the observation that fits it."""
    if not isinstance(part_B, HasShape):
        raise ValueError(
            f"torso branches: the observation's '{name}' has parts of its own, and a branch sees one array; leave it "
            "out (of a Gymnasium env: env.observe), or use torso mlp, which takes any"
        )
    seen = tuple(part_B.shape[1:])
    if branch.rows and len(seen) != 2:
        raise ValueError(
            f"torso branches: '{name}' has layers over rows, which need 2 axes (rows, numbers), but its shape is "
            f"{seen}; leave out rows, and use hidden"
        )
    flat = seen[0] * branch.rows[-1] if branch.rows else math.prod(seen)
    return branch.hidden[-1] if branch.hidden else flat
