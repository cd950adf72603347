"""From a Dict observation to features: dense layers for each key, attention over them, dense layers over all of it."""

from collections.abc import Mapping
from functools import partial

import torch

from hotloop.engines.networks import require_branches
from hotloop.engines.torch.modules import ACTING, Functions, Mode, Params, dense_layers, sequential, stateless
from hotloop.engines.torch.torsos import flat_features
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

    def init(random: torch.Generator, obs_B: Mapping[str, torch.Tensor]) -> Params:
        require_branches(obs_B, spec)
        return {name: part.init(random, obs_B[name]) for name, part in parts.items()}

    def apply(params: Params, obs_B: Mapping[str, torch.Tensor], mode: Mode = ACTING) -> torch.Tensor:
        outputs = [part.apply(params[name], obs_B[name], mode.part(i)) for i, (name, part) in enumerate(parts.items())]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)

    return Functions(init, apply)


def _over_rows(layers: Functions) -> Functions:
    """The same layers over every row, (B, R, I) to (B, R O): one product of B R rows for each of them."""

    def rows(x_BRI: torch.Tensor) -> torch.Tensor:
        return x_BRI.reshape(-1, x_BRI.shape[-1])

    def apply(params: Params, x_BRI: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        return layers.apply(params, rows(x_BRI), mode).reshape(x_BRI.shape[0], -1)

    return Functions(lambda random, x_BRI: layers.init(random, rows(x_BRI)), apply)


def _attention(width: int, count: int, scheme: str) -> Functions:
    """Join to `count` equal pieces (B, count F) their sum, weighted by a softmax of each one's score (Bahdanau)."""
    scores = dense_layers([width, 1], "tanh", activate_last=False, scheme=scheme)

    def pieces(x_BJ: torch.Tensor) -> torch.Tensor:
        return x_BJ.reshape(x_BJ.shape[0] * count, -1)

    def apply(params: Params, x_BJ: torch.Tensor, mode: Mode = ACTING) -> torch.Tensor:
        x_BCF = x_BJ.reshape(x_BJ.shape[0], count, -1)
        # Softmax does not see the last bias, which moves all scores alike: its gradient would be nothing but rounding,
        # and Adam makes whole steps of that.
        last = params["dense_1"]
        still = {**params, "dense_1": {**last, "bias": last["bias"].detach()}}
        score_BC = scores.apply(still, pieces(x_BJ), mode).reshape(-1, count)
        share_BC = torch.softmax(score_BC, dim=-1).to(x_BJ.dtype)  # autocast takes it in float32
        return torch.cat([x_BJ, (share_BC[:, :, None] * x_BCF).sum(1)], dim=-1)

    return Functions(lambda random, x_BJ: scores.init(random, pieces(x_BJ)), apply)
