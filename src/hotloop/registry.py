"""What can be named in a spec or on the command line, as `module:attr` strings: listing imports nothing.

A head or a torso is one record here; `register_head`, `register_torso`, `register_network` and `register_env` add those
of other packages.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from hotloop import plugins


class Entry(NamedTuple):
    """Where a thing lives and one line about it."""

    target: str
    about: str
    has_agents: bool = False
    """Of an env: whether several agents act in it."""


class EngineRecord(NamedTuple):
    """What acts and learns."""

    make: str
    """`make(spec, obs, num_actions, network) -> Engine` (`hotloop.engines.protocol`)."""
    start: str
    """`start(spec, steps_meanwhile) -> dict`: called before it is made; says what was chosen of threads and devices."""
    threads: str
    """`choose_threads(spec) -> int`: with how many it computes on a CPU unless the environment says otherwise."""
    about: str
    """One line about it."""
    trace: str
    """`trace(folder)`: a context manager in which its own profiler looks on; gives a `Trace` (`engines.tracing`)."""
    floor: str
    """`floor(engine, lesson) -> Products`: how long the matrix products of a gradient step take by themselves
    (`engines.products`); of the lesson, a `Lesson` of `engines.protocol`, only shapes count."""
    has_programs: bool = True
    """Whether it can be a part of programs on the device; if not, device envs are stepped from the host."""
    refuses: Mapping[str, str] = MappingProxyType({})
    """Choices of a spec that do not go with it, and why: `path value`, or `path` for whatever stands there."""


class PipelineRecord(NamedTuple):
    """How a run flows. Who makes it depends on what it learns from (`Spec.learns_from`) and on where its envs are."""

    about: str
    """One line about it."""
    on_device: Mapping[str, str] = MappingProxyType({})
    """For device envs: `make(spec, env, device_functions)`, a `DevicePipeline` (`hotloop.pipelines.device_session`)."""
    on_host: Mapping[str, str] = MappingProxyType({})
    """For Gymnasium envs: `make(spec, envs, engine) -> HostPipeline` (`hotloop.pipelines.host_run`); where several
    agents act, `make(spec, team, engines)`."""
    steps_meanwhile: bool = False
    """Envs step while updates run, so that their times overlap."""
    in_processes: bool = False
    """Envs are opened elsewhere, and device envs stepped there as well: `make(spec, spaces, engine, make_env, network)`
    gets what the user brought along."""


class TorsoRecord(NamedTuple):
    """All that a torso is: from an observation to features."""

    section: str
    """Its section of a spec, a subclass of `hotloop.spec.Torso`, which also says what depends on its values."""
    builders: Mapping[str, str]
    """Who builds it, for each engine: `build(section, scheme) -> Functions` (of that engine's `modules`), from
    observations (B, …) to features (B, F)."""
    about: str
    """One line about it."""
    is_image: bool = False
    """Its input is an image, and learning is mostly convolutions."""


class HeadRecord(NamedTuple):
    """All that a head is: from features to Q-values, or to what they follow from."""

    section: str
    """Its section of a spec, a subclass of `hotloop.spec.Head`, which also says what depends on its values."""
    builders: Mapping[str, str]
    """Who builds it, for each engine: `build(section, num_actions, scheme) -> Functions`, from features to a
    `HeadOutput`."""
    estimates: str
    """The maths of what it says: `make(section, loss, *, xp, constant)`, as those in `hotloop.learning.estimates`."""
    about: str
    """One line about it."""
    gives: str = ""
    """What it gives instead of one Q-value per action, in words; empty if it gives just these."""
    refuses: Mapping[str, str] = MappingProxyType({})
    """Choices of a spec that do not go with it, and why: `path value`, or `path` for whatever stands there."""


class NetworkRecord(NamedTuple):
    """A whole network of another package: from an observation to one Q-value per action."""

    builders: Mapping[str, str]
    """Who makes it, for each engine: a class, or a function, that is called with `network.options`. For engine torch it
    makes a `torch.nn.Module`, for engine jax a flax module (or what else has its `init` and `apply`)."""
    about: str
    """One line about it."""
    is_image: bool = False
    """Its input is an image, and learning is mostly convolutions."""


ENVS: dict[str, Entry] = {
    "cartpole": Entry("hotloop.envs.cartpole:CartPole", "CartPole-v1 as a device env (4 numbers, 2 actions)"),
    "snake": Entry("hotloop.envs.snake:Snake", "Snake on a grid of 5-32 cells a side (10-23 features or an image)"),
    "treasure": Entry(
        "hotloop.envs.treasure:Treasure",
        "several agents look for gems on one grid (5 agents, 625 numbers, 4 actions)",
        has_agents=True,
    ),
    "sfc": Entry("hotloop.envs.sfc:Sfc", "service function chains on 2-8 data centres (three branches, 13 actions)"),
    "gymnax:NAME": Entry("hotloop.envs.gymnax:from_gymnax", "any gymnax env with discrete actions"),
}
TORSOS: dict[str, TorsoRecord] = {
    "mlp": TorsoRecord(
        section="hotloop.spec.network:Mlp",
        builders={"jax": "hotloop.engines.jax.torsos:mlp", "torch": "hotloop.engines.torch.torsos:mlp"},
        about="dense layers over the flattened observation",
    ),
    "cnn": TorsoRecord(
        section="hotloop.spec.network:Cnn",
        builders={"jax": "hotloop.engines.jax.torsos:cnn", "torch": "hotloop.engines.torch.torsos:cnn"},
        about="convolutions, then dense layers, over an image",
        is_image=True,
    ),
    "impala": TorsoRecord(
        section="hotloop.spec.network:Impala",
        builders={"jax": "hotloop.engines.jax.torsos:impala", "torch": "hotloop.engines.torch.torsos:impala"},
        about="the residual network of IMPALA, over an image",
        is_image=True,
    ),
    "branches": TorsoRecord(
        section="hotloop.spec.network:Branches",
        builders={"jax": "hotloop.engines.jax.branches:branches", "torch": "hotloop.engines.torch.branches:branches"},
        about="dense layers for each key of a Dict observation, with attention over them, then dense layers",
    ),
}
_BY_HUBER = {"loss.kind mse": "quantiles are learned by huber, weighted by quantile; use huber"}
HEADS: dict[str, HeadRecord] = {
    "scalar": HeadRecord(
        section="hotloop.spec.network:ScalarHead",
        builders={"jax": "hotloop.engines.jax.heads:scalar", "torch": "hotloop.engines.torch.heads:scalar"},
        estimates="hotloop.learning.estimates:means",
        about="one Q-value per action",
    ),
    "c51": HeadRecord(
        section="hotloop.spec.network:C51Head",
        builders={"jax": "hotloop.engines.jax.heads:c51", "torch": "hotloop.engines.torch.heads:c51"},
        estimates="hotloop.learning.estimates:atoms",
        about="probabilities of fixed returns per action",
        gives="c51's distribution",
        refuses={
            "target.munchausen": "a mean over actions of distributions that were moved apart has no fixed atoms; "
            "use scalar, qr or iqn"
        },
    ),
    "qr": HeadRecord(
        section="hotloop.spec.network:QuantileHead",
        builders={"jax": "hotloop.engines.jax.heads:qr", "torch": "hotloop.engines.torch.heads:qr"},
        estimates="hotloop.learning.estimates:quantiles",
        about="quantiles of the return at fixed fractions (QR-DQN)",
        gives="qr's quantiles",
        refuses=_BY_HUBER,
    ),
    "iqn": HeadRecord(
        section="hotloop.spec.network:IqnHead",
        builders={"jax": "hotloop.engines.jax.heads:iqn", "torch": "hotloop.engines.torch.heads:iqn"},
        estimates="hotloop.learning.estimates:quantiles",
        about="quantiles of the return at drawn fractions (IQN)",
        gives="iqn's quantiles",
        refuses=_BY_HUBER,
    ),
}
NETWORKS: dict[str, NetworkRecord] = {}
"""Whole networks of other packages; hotloop's own are a torso and a head."""
ENGINES: Mapping[str, EngineRecord] = {
    "jax": EngineRecord(
        make="hotloop.engines.jax.host:make_engine",
        start="hotloop.engines.jax.setup:start",
        threads="hotloop.engines.jax.setup:choose_threads",
        about="XLA; flat vectors; K gradient steps a call",
        trace="hotloop.engines.jax.tracing:trace",
        floor="hotloop.engines.jax.floor:seconds_of_products",
    ),
    "torch": EngineRecord(
        make="hotloop.engines.torch.engine:make_engine",
        start="hotloop.engines.torch.setup:start",
        threads="hotloop.engines.torch.setup:choose_threads",
        about="PyTorch, eager or compiled; for envs on the host, and networks that are a torch.nn.Module",
        trace="hotloop.engines.torch.tracing:trace",
        floor="hotloop.engines.torch.floor:seconds_of_products",
        has_programs=False,
        refuses={
            "on_policy": "rollouts are learned from in a program on the device; use engine jax",
            "network.core": "it has no networks with a memory; use engine jax",
        },
    ),
}
PIPELINES: Mapping[str, PipelineRecord] = {
    "fused": PipelineRecord(
        about="envs, acting, replay and updates in one XLA program",
        on_device={
            "transitions": "hotloop.pipelines.fused:Fused",
            "sequences": "hotloop.pipelines.recurrent:Recurrent",
            "rollouts": "hotloop.pipelines.on_policy:OnPolicy",
            "joint": "hotloop.pipelines.agents:Agents",
        },
    ),
    "sync": PipelineRecord(
        about="one stage after the other: acting, envs, replay, updates; device envs stage by stage",
        on_device={"transitions": "hotloop.pipelines.stepwise:Stepwise"},
        on_host={
            "transitions": "hotloop.pipelines.sync:pipeline",
            "joint": "hotloop.pipelines.host_team:HostTeamPipeline",
        },
    ),
    "concurrent": PipelineRecord(
        about="envs step on the host while the updates run",
        steps_meanwhile=True,
        on_host={"transitions": "hotloop.pipelines.concurrent:pipeline"},
    ),
    "processes": PipelineRecord(
        about="envs in processes of their own, which hand experience over in shared memory (Linux, x86)",
        steps_meanwhile=True,
        in_processes=True,
        on_host={
            "transitions": "hotloop.pipelines.processes:ProcessesPipeline",
            "joint": "hotloop.pipelines.process_team:ProcessTeamPipeline",
        },
    ),
}
BENCHES: Mapping[str, Entry] = {
    "update": Entry("hotloop.bench.update:run", "one gradient step against eager PyTorch and its own matrix products"),
    "qloss": Entry(
        "hotloop.bench.qloss:run", "a slow Q-loss, each piece of advice for it alone, and hotloop's engines"
    ),
    "slm_lab": Entry(
        "hotloop.bench.slm_lab:run", "SLM-Lab's six benchmark specs against its own way of training them, frames/s"
    ),
    "slm_lab_scores": Entry(
        "hotloop.bench.slm_lab_scores:run", "the same to their end: scores beside SLM-Lab's, 40 minutes and more"
    ),
    "train": Entry("hotloop.bench.train:run", "CartPole training against Stable-Baselines3"),
    "iteration": Entry("hotloop.bench.iteration:run", "one fused iteration against the sum of its stages"),
    "startup": Entry("hotloop.bench.startup:run", "help, first update, compile and shell-to-solved, in seconds"),
    "flood": Entry("hotloop.bench.flood:run", "flood fill on 768 Snake boards against Python and NumPy"),
    "env": Entry("hotloop.bench.env:run", "256 Snakes against the same rules in PyTorch and Python loops"),
    "snake": Entry("hotloop.bench.snake:run", "Snake training against a slow pipeline and each remedy for it"),
    "treasure": Entry(
        "hotloop.bench.treasure:run", "five agents hunting treasure, against one after the other in PyTorch"
    ),
    "treasure_learning": Entry(
        "hotloop.bench.treasure_learning:run", "three seeds of treasure beside scripted players: gems"
    ),
    "sfc_learning": Entry("hotloop.bench.sfc_learning:run", "three seeds of sfc beside heuristics on 2-8 data centres"),
    "sfc_variants": Entry(
        "hotloop.bench.sfc_variants:run", "training every 1 to 100 actions, batch 16, a rarer target: what each learns"
    ),
    "sfc": Entry(
        "hotloop.bench.sfc:run", "service function chains: a gradient step, decisions, the time of 50 of them"
    ),
    "pixels": Entry("hotloop.bench.pixels:run", "Pong by each pipeline and by SB3; acting against the bare emulator"),
    "doctor": Entry(
        "hotloop.bench.doctor:run", "planted slow runs: is the doctor's verdict right, and its predictions?"
    ),
    "doctor_scripts": Entry(
        "hotloop.bench.doctor_scripts:run",
        "planted slow scripts: verdicts, lines, predictions against the script put right",
    ),
    "tune": Entry("hotloop.bench.tune:run", "does `hotloop tune` bring what it says, and never less?"),
    "emulators": Entry(
        "hotloop.bench.emulators:run", "the share of bare emulators that envs and training reach: Pong and Mario"
    ),
    "replay": Entry("hotloop.bench.replay:run", "what priorities and stacks of single frames cost, and save"),
    "sum_tree": Entry("hotloop.bench.sum_tree:run", "draws and updates of prioritised replay against a tree in Python"),
    "transport": Entry(
        "hotloop.bench.transport:run", "parcels and weights between processes against a plain copy; wake-ups"
    ),
    "processes": Entry(
        "hotloop.bench.processes:run", "envs in processes against sync and concurrent, and what holds each back"
    ),
    "actors": Entry(
        "hotloop.bench.actors:run",
        "an actor and a learner that share a buffer, and each piece of advice for them alone",
    ),
    "mario": Entry(
        "hotloop.bench.mario:run",
        "Mario's collectors and learner by a document's expected figures, and each piece of its advice alone",
    ),
    "family": Entry("hotloop.bench.family:run", "what each head, target and replay costs beside plain DQN"),
    "learning": Entry(
        "hotloop.bench.learning:run", "every preset on CartPole until solved, Snake beside its reference scores"
    ),
}


def register_head(kind: str, record: HeadRecord) -> None:
    """Make a head known as `network.head.kind`."""
    _register(HEADS, kind, record, "head")


def register_torso(kind: str, record: TorsoRecord) -> None:
    """Make a torso known as `network.torso.kind`."""
    _register(TORSOS, kind, record, "torso")


def register_network(name: str, record: NetworkRecord) -> None:
    """Make a whole network known as `network.name`, with `network.kind: custom`."""
    for engine, target in record.builders.items():
        if engine not in ENGINES:
            raise ValueError(f"network '{name}': builders has '{engine}'; {nearest(engine, list(ENGINES))}")
        module, _, attribute = target.partition(":") if isinstance(target, str) else ("", "", "")
        if not module or not attribute:
            raise ValueError(
                f"network '{name}': its builder for engine {engine} is {target!r}, expected 'module:NameOfTheClass', "
                "which is imported when a spec names the network"
            )
    _register(NETWORKS, name, record, "network")


def register_env(name: str, entry: Entry) -> None:
    """Make a device env known as `env.id`; its target is called with `env.options` (see `hotloop.envs.device`)."""
    _register(ENVS, name, entry, "env")


PETTINGZOO = "pettingzoo:"
"""What ids of PettingZoo's envs begin with: `pettingzoo:module`, `pettingzoo:module:Name`."""


def is_known(table: Mapping[str, object], name: str) -> bool:
    """Whether `name` is in a table; plug-ins of installed packages are looked at before it is said to be unknown."""
    return name in table or (plugins.load_installed() and name in table)


def is_device_env(env_id: str) -> bool:
    """Whether `env_id` names one of ENVS, or is of a family there (`gymnax:NAME`)."""
    names = {env_id, f"{env_id.partition(':')[0]}:NAME"}
    return not names.isdisjoint(ENVS) or (plugins.load_installed() and not names.isdisjoint(ENVS))


def has_agents(env_id: str) -> bool:
    """Whether several agents act in the env of this id."""
    names = (env_id, f"{env_id.partition(':')[0]}:NAME")
    return env_id.startswith(PETTINGZOO) or any(ENVS[name].has_agents for name in names if name in ENVS)


def opens_envs_elsewhere(pipeline: str) -> bool:
    """Whether envs are stepped in processes of their own."""
    return pipeline in PIPELINES and PIPELINES[pipeline].in_processes


def steps_on_device(env_id: str, engine: str, pipeline: str) -> bool:
    """Whether envs of this id are a part of programs on the device; else they are stepped from the host."""
    if opens_envs_elsewhere(pipeline):
        return False
    if pipeline in PIPELINES and has_agents(env_id):
        record = PIPELINES[pipeline]
        if "joint" in record.on_host and "joint" not in record.on_device:
            return False
    return is_device_env(env_id) and (engine not in ENGINES or ENGINES[engine].has_programs)


def nearest(name: str, known: list[str], otherwise: str = "") -> str:
    """The tail of an error about a name: the nearest known one, else `otherwise` or all that are known."""
    match = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean '{match[0]}'?" if match else otherwise or f"known: {', '.join(sorted(known))}"


def load(registry: Mapping[str, Entry], name: str, what: str) -> Any:
    """Import the thing called `name`, or raise ValueError with the nearest known name."""
    if name not in registry:
        raise ValueError(f"unknown {what} '{name}'; {nearest(name, list(registry))}")
    return imported(registry[name].target)


def builder(record: HeadRecord | TorsoRecord, engine: str) -> Any:
    """Import who builds a head or a torso for an engine, or raise ValueError if there is nobody."""
    if engine not in record.builders:
        raise ValueError(f"{record.section} is not built for engine {engine}; it is for {', '.join(record.builders)}")
    return imported(record.builders[engine])


def imported(target: str) -> Any:
    """Import `module:attr`."""
    module, _, attr = target.partition(":")
    return getattr(import_module(module), attr)


Record = TypeVar("Record", Entry, TorsoRecord, HeadRecord, NetworkRecord)
_NAME = re.compile(r"[A-Za-z]\w*(:NAME)?", re.ASCII)


def _register(table: dict[str, Record], name: str, record: Record, what: str) -> None:
    if not _NAME.fullmatch(name) or (":" in name and what != "env"):
        raise ValueError(f"{what} {name!r}: expected a name of letters, digits and underscores")
    if table.setdefault(name, record) != record:
        raise ValueError(f"{what} '{name}' is registered already ({table[name].about}); choose another name")
