"""A network of the user's own: any `torch.nn.Module` that gives one Q-value per action.

An instance begins with the weights it has; a class is called without arguments, one that is registered with the options
of the spec, and begins with what that makes. Modules run as in `eval()`. Weights that do not require a gradient stay as
they are, and so do buffers, which are saved with the weights: whatever a forward pass writes into one is forgotten.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from hotloop.engines.networks import HeadOutput
from hotloop.engines.registered import RegisteredNetwork, what_is
from hotloop.engines.torch.modules import Functions, Inputs, Mode, Params
from hotloop.errors import NetworkFailed, SpecError, said
from hotloop.trees import leaves, tree_map

EXPECTED = "expected a torch.nn.Module, or a class of them that takes no arguments; a flax module is for engine jax"


class OwnNetwork(NamedTuple):
    """The user's module as functions of its weights."""

    functions: Functions
    frozen: set[str]  # names of what is not learned
    state_dict: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]  # from its weights by `a.b.c`


def own_network(network: object, obs_B: Inputs, num_actions: int) -> OwnNetwork:
    """What a module, or what makes one, is to an engine; `obs_B` are observations as it will see them."""
    form = _made(network, 0, obs_B)
    # Weights are lent to a module while it runs. One that acts may do so while another learns, on another thread.
    acting = copy.deepcopy(form)
    saved, unsaved = _buffers(form)
    frozen = {name for name, leaf in form.named_parameters() if not leaf.requires_grad}

    def init(random: torch.Generator, obs_B: Inputs) -> Params:
        is_made_anew = isinstance(network, type | RegisteredNetwork)
        made = _made(network, random.initial_seed(), obs_B) if is_made_anew else form
        named = {**dict(made.named_parameters()), **_buffers(made).saved}
        return _nested({name: leaf.detach().cpu().to(torch.float32) for name, leaf in named.items()})

    def apply(params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[torch.Tensor]:
        given = {name: leaf.detach() if name in frozen else leaf for name, leaf in _flat(params).items()}
        device = next(iter(given.values())).device
        # Copies, as a forward pass may write into them.
        given |= {name: given[name].detach().to(leaf.dtype, copy=True) for name, leaf in saved.items()}
        given |= {name: leaf.to(device, copy=True) for name, leaf in unsaved.items()}
        try:
            # It sees copies: it may write into them, and the replay or another pass reads what it was given.
            seen = tree_map(torch.clone, obs_B)
            q_BA = torch.func.functional_call(acting if mode.role == "act" else form, given, (seen,))
        except Exception as error:  # whatever the user's own code raises
            raise NetworkFailed(f"the network raised {said(error)}, for observations {_described(obs_B)}") from error
        if not isinstance(q_BA, torch.Tensor):
            raise NetworkFailed(f"the network returns {what_is(q_BA)}, expected a tensor: one Q-value per action")
        count = leaves(obs_B)[0].shape[0]
        if q_BA.shape != (count, num_actions):
            raise NetworkFailed(
                f"the network returns shape {tuple(q_BA.shape)} for {count} observation(s), expected "
                f"({count}, {num_actions}): one Q-value per action"
            )
        return HeadOutput(q_BA)

    once = {id(leaf): name for name, leaf in form.named_parameters()}
    names = {
        name: once[id(leaf)] for name, leaf in form.named_parameters(remove_duplicate=False)
    }  # of tied weights too

    def state_dict(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        by_name = {name: weights[kept] for name, kept in names.items()}
        return {**by_name, **{name: weights[name].to(leaf.dtype) for name, leaf in saved.items()}}

    apart = {name.replace(".", "/") for name in frozen | set(saved)}
    return OwnNetwork(Functions(init, apply), apart, state_dict)


class _Buffers(NamedTuple):
    saved: dict[str, torch.Tensor]  # what the module would have in its `state_dict`
    unsaved: dict[str, torch.Tensor]


def _buffers(module: torch.nn.Module) -> _Buffers:
    named, kept = dict(module.named_buffers()), module.state_dict()
    return _Buffers(
        {name: leaf for name, leaf in named.items() if name in kept},
        {name: leaf for name, leaf in named.items() if name not in kept},
    )


def _made(network: object, seed: int, obs_B: Inputs) -> torch.nn.Module:
    """An instance of our own, with weights that do not depend on what else was drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _instance(network).eval()
        if any(torch.nn.parameter.is_lazy(leaf) for leaf in module.parameters()):  # as of LazyLinear
            _run_once(module, obs_B)
    _refuse(module)
    return module


def _refuse(module: torch.nn.Module) -> None:
    """Raise SpecError for what cannot be learned or saved."""
    name = type(module).__qualname__
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats:
            raise SpecError(
                f"{name} has a {type(part).__name__}, whose running averages would not be learned; use LayerNorm or "
                "GroupNorm"
            )
    others = sorted({str(leaf.dtype) for leaf in module.parameters() if leaf.dtype != torch.float32})
    if others:
        raise SpecError(f"{name} has weights of {', '.join(others)}, expected torch.float32")
    if not any(leaf.requires_grad for leaf in module.parameters()):
        has_any = any(True for _ in module.parameters())
        raise SpecError(f"{name} has no weights{' that require a gradient' * has_any}; there is nothing to learn")
    for key, leaf in _buffers(module).saved.items():
        is_lost = leaf.is_complex() or not torch.equal(leaf.to(torch.float32).to(leaf.dtype), leaf)
        if is_lost:
            raise SpecError(
                f"{name} has a buffer, {key}, that float32 cannot hold ({leaf.dtype}); it would not be saved with the "
                "weights: register it with persistent=False"
            )


def _run_once(module: torch.nn.Module, obs_B: Inputs) -> None:
    """Have layers that learn their sizes from what they see take them."""
    try:
        with torch.no_grad():
            module(obs_B)
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"the network raised {said(error)}, for observations {_described(obs_B)}") from error


def _described(obs_B: Inputs) -> str:
    return ", ".join(f"{str(leaf.dtype).removeprefix('torch.')}{tuple(leaf.shape)}" for leaf in leaves(obs_B))


def _instance(network: object) -> torch.nn.Module:
    if isinstance(network, torch.nn.Module):
        return copy.deepcopy(network)
    if isinstance(network, RegisteredNetwork):
        made = network.make()
        if not isinstance(made, torch.nn.Module):
            raise SpecError(
                f"{network} made {what_is(made)}, expected a torch.nn.Module; a flax module is for engine jax"
            )
        return made
    if not (isinstance(network, type) and issubclass(network, torch.nn.Module)):
        raise SpecError(f"the network is {what_is(network)}, {EXPECTED}")
    try:
        return network()
    except Exception as error:  # whatever the user's own code raises
        raise SpecError(f"{network.__qualname__}() raised {said(error)}; give an instance") from error


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
