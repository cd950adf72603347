"""What networks are in every engine: the numbers, names, shapes and complaints that must not differ between two."""

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from hotloop.spec import Cnn, Impala, IqnHead
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
