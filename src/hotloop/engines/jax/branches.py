"""From a Dict observation to features: dense layers for each key, attention over them, dense layers over all of it."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from hotloop.engines.jax.modules import ACTING, Functions, Mode, Params, dense_layers, sequential, stateless
from hotloop.engines.jax.torsos import flat_features
from hotloop.engines.networks import require_branches
from hotloop.spec import Branches


def branches(spec: Branches, scheme: str = "default") -> Functions:
    """A branch for each key, side by side; then attention, if asked for, and dense layers over what is joined."""
    layers = partial(
        dense_layers,
        activation=spec.activation,
        activate_last=True,
        normalization=spec.normalization,
        scheme=scheme,
    )
    parts = {
        key: sequential(
            **({"rows": _over_rows(layers(part.rows))} if part.rows else {"flat": stateless(flat_features)}),
            hidden=layers(part.hidden),
        )
        for key, part in sorted(spec.branches.items())
    }
    context = {} if spec.attention is None else {"attention": _attention(spec.attention, len(parts), scheme)}
    return sequential(branches=_side_by_side(spec, parts), **context, layers=layers(spec.hidden))


def _side_by_side(spec: Branches, parts: Mapping[str, Functions]) -> Functions:
    """Each part of a dict through its own functions; their outputs one behind the other."""

    def init(key: jax.Array, obs_B: Mapping[str, jax.Array]) -> Params:
        require_branches(obs_B, spec)
        keys = jax.random.split(key, len(parts))
        return {name: part.init(keys[i], obs_B[name]) for i, (name, part) in enumerate(parts.items())}

    def apply(params: Params, obs_B: Mapping[str, jax.Array], mode: Mode = ACTING) -> jax.Array:
        outputs = [part.apply(params[name], obs_B[name], mode.part(i)) for i, (name, part) in enumerate(parts.items())]
        return outputs[0] if len(outputs) == 1 else jnp.concatenate(outputs, axis=-1)

    return Functions(init, apply)


def _over_rows(layers: Functions) -> Functions:
    """The same layers over every row, (B, R, I) to (B, R O): one product of B R rows for each of them."""

    def rows(x_BRI: jax.Array) -> jax.Array:
        return x_BRI.reshape(-1, x_BRI.shape[-1])

    def apply(params: Params, x_BRI: jax.Array, mode: Mode = ACTING) -> jax.Array:
        return layers.apply(params, rows(x_BRI), mode).reshape(x_BRI.shape[0], -1)

    return Functions(lambda key, x_BRI: layers.init(key, rows(x_BRI)), apply)


def _attention(width: int, count: int, scheme: str) -> Functions:
    """Join to `count` equal pieces (B, count F) their sum, weighted by a softmax of each one's score (Bahdanau)."""
    scores = dense_layers([width, 1], "tanh", activate_last=False, scheme=scheme)

    def pieces(x_BJ: jax.Array) -> jax.Array:
        return x_BJ.reshape(x_BJ.shape[0] * count, -1)

    def apply(params: Params, x_BJ: jax.Array, mode: Mode = ACTING) -> jax.Array:
        x_BCF = x_BJ.reshape(x_BJ.shape[0], count, -1)
        # Softmax does not see the last bias, which moves all scores alike: its gradient would be nothing but rounding,
        # and Adam makes whole steps of that.
        last = params["dense_1"]
        still = {**params, "dense_1": {**last, "bias": jax.lax.stop_gradient(last["bias"])}}
        score_BC = scores.apply(still, pieces(x_BJ), mode).reshape(-1, count)
        wide_BC = score_BC.astype(jnp.promote_types(score_BC.dtype, jnp.float32))
        share_BC = jax.nn.softmax(wide_BC, axis=-1).astype(x_BJ.dtype)
        return jnp.concatenate([x_BJ, (share_BC[:, :, None] * x_BCF).sum(1)], axis=-1)

    return Functions(lambda key, x_BJ: scores.init(key, pieces(x_BJ)), apply)
