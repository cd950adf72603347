"""What can be named in a spec or on the command line, as `module:attr` strings: listing imports nothing."""

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """Where a thing lives and one line about it."""

    target: str
    about: str


ENVS: Mapping[str, Entry] = {
    "cartpole": Entry("hotloop.envs.cartpole:CartPole", "CartPole-v1 as a device env (4 numbers, 2 actions)"),
    "snake": Entry("hotloop.envs.snake:Snake", "Snake on a grid of 5-32 cells a side (10-23 features or an image)"),
    "gymnax:NAME": Entry("hotloop.envs.gymnax:from_gymnax", "any gymnax env with discrete actions"),
}
TORSOS: Mapping[str, Entry] = {
    "mlp": Entry("hotloop.engines.jax.torsos:mlp", "dense layers over the flattened observation"),
    "cnn": Entry("hotloop.engines.jax.torsos:cnn", "convolutions, then dense layers, over an image"),
    "impala": Entry("hotloop.engines.jax.torsos:impala", "the residual network of IMPALA, over an image"),
}
HEADS: Mapping[str, Entry] = {
    "scalar": Entry("hotloop.engines.jax.heads:scalar", "one Q-value per action"),
    "c51": Entry("hotloop.engines.jax.heads:c51", "probabilities of fixed returns per action"),
    "qr": Entry("hotloop.engines.jax.heads:qr", "quantiles of the return at fixed fractions (QR-DQN)"),
    "iqn": Entry("hotloop.engines.jax.heads:iqn", "quantiles of the return at drawn fractions (IQN)"),
}
ENGINES: Mapping[str, Entry] = {
    "jax": Entry("hotloop.engines.jax.engine:make_engine", "XLA; flat vectors; K gradient steps a call"),
}
PIPELINES: Mapping[str, Entry] = {
    "fused": Entry("hotloop.pipelines.fused:pipeline", "envs, acting, replay and updates in one XLA program"),
    "sync": Entry("hotloop.pipelines.sync:pipeline", "envs, acting and replay on the host, then updates, in turn"),
    "concurrent": Entry("hotloop.pipelines.concurrent:pipeline", "envs step on the host while the updates run"),
}
BENCHES: Mapping[str, Entry] = {
    "update": Entry("hotloop.bench.update:run", "one gradient step against eager PyTorch and its own matrix products"),
    "train": Entry("hotloop.bench.train:run", "CartPole training against Stable-Baselines3"),
    "iteration": Entry("hotloop.bench.iteration:run", "one fused iteration against the sum of its stages"),
    "startup": Entry("hotloop.bench.startup:run", "help, first update, compile and shell-to-solved, in seconds"),
    "flood": Entry("hotloop.bench.flood:run", "flood fill on 768 Snake boards against Python and NumPy"),
    "env": Entry("hotloop.bench.env:run", "256 Snakes against the same rules in PyTorch and Python loops"),
    "snake": Entry("hotloop.bench.snake:run", "Snake training against a slow pipeline and each remedy for it"),
    "pixels": Entry("hotloop.bench.pixels:run", "Pong by each pipeline and by SB3; acting against the bare emulators"),
    "replay": Entry("hotloop.bench.replay:run", "what priorities and stacks of single frames cost, and save"),
    "sum_tree": Entry("hotloop.bench.sum_tree:run", "draws and updates of prioritised replay against a tree in Python"),
    "family": Entry("hotloop.bench.family:run", "what each head, target and replay costs beside plain DQN"),
    "learning": Entry(
        "hotloop.bench.learning:run", "every preset on CartPole until solved, Snake beside its reference scores"
    ),
}


def is_device_env(env_id: str) -> bool:
    """Whether `env_id` names one of ENVS, or is of a family there (`gymnax:NAME`)."""
    return env_id in ENVS or f"{env_id.partition(':')[0]}:NAME" in ENVS


def nearest(name: str, known: list[str], otherwise: str = "") -> str:
    """The tail of an error about a name: the nearest known one, else `otherwise` or all that are known."""
    match = get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{match[0]}'?" if match else otherwise or f"known: {', '.join(sorted(known))}"


def load(registry: Mapping[str, Entry], name: str, what: str) -> Any:
    """Import the thing called `name`, or raise ValueError with the nearest known name."""
    if name not in registry:
        raise ValueError(f"unknown {what} '{name}'; {nearest(name, list(registry))}")
    module, _, attr = registry[name].target.partition(":")
    return getattr(import_module(module), attr)
