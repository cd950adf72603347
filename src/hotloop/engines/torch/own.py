"""A network of the user's own: any `torch.nn.Module` that gives one Q-value per action.

An instance begins with the weights it has; a class is called without arguments, and begins with what that makes.
Modules run as in `eval()`. Weights that do not require a gradient stay as they are.
"""

import copy
from typing import Any

import torch

from hotloop.engines.networks import HeadOutput
from hotloop.engines.torch.modules import Functions, Inputs, Mode, Params
from hotloop.errors import SpecError

EXPECTED = "expected a torch.nn.Module, or a class of them that takes no arguments"


def functions_of(network: object) -> Functions:
    """The user's module as functions of its weights."""
    form = _made(network, seed=0)
    frozen = {name for name, leaf in form.named_parameters() if not leaf.requires_grad}

    def init(random: torch.Generator, obs_B: Inputs) -> Params:
        del obs_B
        made = form if not isinstance(network, type) else _made(network, seed=random.initial_seed())
        return _nested({name: leaf.detach().cpu() for name, leaf in made.named_parameters()})

    def apply(params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[torch.Tensor]:
        del mode
        flat = _flat(params)
        given = {name: leaf.detach() if name in frozen else leaf for name, leaf in flat.items()}
        return HeadOutput(torch.func.functional_call(form, given, (obs_B,)))

    return Functions(init, apply)


def frozen_names(network: object) -> set[str]:
    """Names of weights that are not learned, as the engine names them."""
    form = _made(network, seed=0)
    return {name.replace(".", "/") for name, leaf in form.named_parameters() if not leaf.requires_grad}


def _made(network: object, seed: int) -> torch.nn.Module:
    """An instance of our own."""
    if isinstance(network, torch.nn.Module):
        module = copy.deepcopy(network)
    elif isinstance(network, type) and issubclass(network, torch.nn.Module):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                module = network()
            except Exception as error:  # whatever the user's own code raises
                raise SpecError(
                    f"{network.__qualname__}() raised {type(error).__name__}: {error}; give an instance"
                ) from error
    else:
        name = network.__qualname__ if isinstance(network, type) else type(network).__qualname__
        raise SpecError(f"the network is {name}, {EXPECTED}")
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            raise SpecError(
                f"{type(module).__qualname__} has a {type(part).__name__}, whose running averages would not be "
                "learned; use LayerNorm or GroupNorm"
            )
    others = sorted({str(leaf.dtype) for leaf in module.parameters() if leaf.dtype != torch.float32})
    if others:
        raise SpecError(f"{type(module).__qualname__} has weights of {', '.join(others)}, expected torch.float32")
    if not any(True for _ in module.parameters()):
        raise SpecError(f"{type(module).__qualname__} has no weights; there is nothing to learn")
    return module.eval()


def _nested(named: dict[str, torch.Tensor]) -> Params:
    """`a.b.c` as dicts of dicts, which have the names `a/b/c`."""
    tree: dict[str, Any] = {}
    for name, leaf in named.items():
        *path, last = name.split(".")
        part = tree
        for step in path:
            part = part.setdefault(step, {})
        part[last] = leaf
    return tree


def _flat(tree: Params, prefix: str = "") -> dict[str, torch.Tensor]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        name: leaf
        for key, part in tree.items()
        for name, leaf in _flat(part, f"{prefix}.{key}" if prefix else key).items()
    }
