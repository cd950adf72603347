"""Figures of a run that nobody trained, for whoever judges them."""

from hotloop.doctor.examination import Examined, Stage
from hotloop.doctor.limits import Limits
from hotloop.doctor.watch import Watched
from hotloop.engines.products import Products
from hotloop.spec.reading import load_spec

CALM = Watched(10.0, 2, 0.0, (), 0.0, 0.0, 1.0, 1.0, 0, 0, 0.0, 1 << 30, False, ())
WHOLE = 1e-3
"""Seconds of an env step."""


def seen(changes=(), *, products=0.0, pipeline="sync", bare_step=None, in_turn=False, cores=2, limits=True, **stages):
    """A run whose stages take these shares of an env step; `products` is the share of the update."""
    spec = load_spec({}, {"env.id": "CartPole-v1", "env.num_envs": 4, "evaluation.every": 0, **dict(changes)})
    seconds = {name: Stage(share * WHOLE, False, None, None) for name, share in stages.items()}
    least = {"sample": 0.01 * WHOLE}
    made = None
    if "update" in stages:
        least["update"] = products * stages["update"] * WHOLE
        made = Products(11, 1e6, least["update"] / spec.replay_ratio)
    if bare_step is not None:
        least["step"] = bare_step
    known = Limits(least, made, bare_step, in_turn, cores)
    figures = (spec, pipeline, {}, 1 / WHOLE, seconds, 0.0, {}, 5, 1.0, True, [], CALM, None, 0.0, None, None)
    return Examined(*figures, limits=known if limits else None)
