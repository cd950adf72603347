"""A network of the user's own: any `torch.nn.Module` that gives one Q-value per action.

An instance begins with the weights it has; a class is called without arguments, one that is registered with the options
of the spec, and begins with what that makes. Modules run as in `eval()`. Weights that do not require a gradient stay as
they are, and so do buffers: fractions are saved with the weights, and whatever a forward pass writes into one is
forgotten.
"""

import copy
from typing import Any, NamedTuple

import torch

from hotloop.engines.networks import HeadOutput
from hotloop.engines.registered import RegisteredNetwork, what_is
from hotloop.engines.torch.modules import Functions, Inputs, Mode, Params
from hotloop.errors import NetworkFailed, SpecError, said
from hotloop.trees import leaves

EXPECTED = "expected a torch.nn.Module, or a class of them that takes no arguments; a flax module is for engine jax"


class OwnNetwork(NamedTuple):
    """The user's module as functions of its weights."""

    functions: Functions
    frozen: set[str]  # names of weights that are not learned
    constants: dict[str, torch.Tensor]  # what else its `state_dict` holds: buffers of whole numbers


def own_network(network: object, obs_B: Inputs) -> OwnNetwork:
    """What a module, or what makes one, is to an engine; `obs_B` are observations as it will see them."""
    form = _made(network, 0, obs_B)
    # Weights are lent to a module while it runs. One that acts may do so while another learns, on another thread.
    acting = copy.deepcopy(form)
    buffers = set(_saved_buffers(form))
    frozen = {name for name, leaf in form.named_parameters() if not leaf.requires_grad}

    def init(random: torch.Generator, obs_B: Inputs) -> Params:
        is_made_anew = isinstance(network, type | RegisteredNetwork)
        made = _made(network, random.initial_seed(), obs_B) if is_made_anew else form
        named = {**dict(made.named_parameters()), **_saved_buffers(made)}
        return _nested({name: leaf.detach().cpu() for name, leaf in named.items()})

    def apply(params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[torch.Tensor]:
        given = {name: leaf.detach() if name in frozen else leaf for name, leaf in _flat(params).items()}
        given |= {name: given[name].detach().clone() for name in buffers}  # which a forward pass may write into
        try:
            q_BA = torch.func.functional_call(acting if mode.role == "act" else form, given, (obs_B,))
        except Exception as error:  # whatever the user's own code raises
            raise NetworkFailed(f"the network raised {said(error)}, for observations {_described(obs_B)}") from error
        if not isinstance(q_BA, torch.Tensor):
            raise SpecError(f"the network returns {what_is(q_BA)}, expected a tensor: one Q-value per action")
        return HeadOutput(q_BA)

    learned = {name for name, _ in form.named_parameters()} | buffers
    constants = {name: leaf for name, leaf in form.state_dict().items() if name not in learned}
    return OwnNetwork(Functions(init, apply), {name.replace(".", "/") for name in frozen | buffers}, constants)


def _saved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers of fractions that the module would have in its `state_dict`."""
    saved, names = module.state_dict(), {name for name, _ in module.named_parameters()}
    return {name: leaf for name, leaf in saved.items() if name not in names and _is_of_fractions(leaf)}


def _is_of_fractions(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _made(network: object, seed: int, obs_B: Inputs) -> torch.nn.Module:
    """An instance of our own, with weights that do not depend on what else was drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _instance(network).eval()
        if any(torch.nn.parameter.is_lazy(leaf) for leaf in module.parameters()):  # as of LazyLinear
            _run_once(module, obs_B)
    for part in module.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
            raise SpecError(
                f"{type(module).__qualname__} has a {type(part).__name__}, whose running averages would not be "
                "learned; use LayerNorm or GroupNorm"
            )
    held = [*module.parameters(), *_saved_buffers(module).values()]
    others = sorted({str(leaf.dtype) for leaf in held if leaf.dtype != torch.float32})
    if others:
        raise SpecError(f"{type(module).__qualname__} has weights of {', '.join(others)}, expected torch.float32")
    if not any(True for _ in module.parameters()):
        raise SpecError(f"{type(module).__qualname__} has no weights; there is nothing to learn")
    return module


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
