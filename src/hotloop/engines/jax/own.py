"""A network of the user's own: any flax linen module, or what else has its `init` and `apply`."""

from typing import Any

import jax

from hotloop.engines.jax.modules import Functions, Inputs, Mode, Params
from hotloop.engines.networks import HeadOutput
from hotloop.engines.registered import RegisteredNetwork, what_is
from hotloop.errors import SpecError, said

EXPECTED = (
    "expected init(key, obs_B) and apply(params, obs_B), as a flax module has; a torch.nn.Module is for engine torch"
)


def functions_of(network: object) -> Functions:
    """The user's module as functions of its weights; what its code raises is one line."""
    module = _instance(network)

    def init(key: jax.Array, obs_B: Inputs) -> Params:
        try:
            params = module.init(key, obs_B)
        except Exception as error:  # whatever the user's own code raises
            raise SpecError(_raised("init", obs_B, error)) from error
        if not jax.tree.leaves(params):
            raise SpecError("the network has no weights; there is nothing to learn")
        return params

    def apply(params: Params, obs_B: Inputs, mode: Mode) -> HeadOutput[jax.Array]:
        del mode
        try:
            q_BA = module.apply(params, obs_B)
        except Exception as error:  # whatever the user's own code raises
            raise SpecError(_raised("apply", obs_B, error)) from error
        if not isinstance(q_BA, jax.Array):
            raise SpecError(f"the network returns {what_is(q_BA)}, expected an array: one Q-value per action")
        return HeadOutput(q_BA)

    return Functions(init, apply)


def _instance(network: object) -> Any:
    made, what = network, "the network is"
    if isinstance(network, RegisteredNetwork):
        made, what = network.make(), f"{network} made"
    if isinstance(made, type) and callable(getattr(made, "init", None)):
        raise SpecError(f"{what} {what_is(made)}, expected an instance of it: {made.__qualname__}(…)")
    if not all(callable(getattr(made, name, None)) for name in ("init", "apply")):
        raise SpecError(f"{what} {what_is(made)}, {EXPECTED}")
    return made


def _raised(function: str, obs_B: Inputs, error: Exception) -> str:
    seen = ", ".join(f"{leaf.dtype}{leaf.shape}" for leaf in jax.tree.leaves(obs_B))
    return f"the network's {function} raised {said(error)}, for observations {seen}"
