"""How an actor acts for a learner: a policy of named weights, and what that takes of chance."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from hotloop.engines.draws import Draw
from hotloop.engines.policies import numpy_policy
from hotloop.engines.protocol import Engine, Policy
from hotloop.spec import Network, Spec
from hotloop.trees import Tree

Freeze = Callable[[Mapping[str, np.ndarray]], Policy]
"""Makes a policy of named weights."""


class Way(NamedTuple):
    """In NumPy, or by an engine."""

    freeze: Freeze
    wanted: Callable[[int], Tree[Draw]]
    """What the policy takes of chance for so many envs."""


def in_numpy(spec: Spec) -> Way:
    """For small networks; imports no engine."""
    network = spec.network
    assert isinstance(network, Network)
    return Way(lambda named: numpy_policy(network, dict(named)), lambda _: None)


def by_engine(engine: Engine) -> Way:
    """As the engine does it."""
    return Way(lambda named: engine.freeze(engine.from_named(named)), engine.wanted_to_act)
