"""Specs that are slow for one reason that is known: what `hotloop bench doctor` asks the doctor about.

Half of them set the doctor's thresholds, the figures come from the other half. Where two ids are both right (a costly
step of many envs is their step, and that they are stepped in turn), both count.
"""

from dataclasses import dataclass
from typing import Literal

Half = Literal["set", "asked"]
"""`set`: was looked at when thresholds were chosen; `asked`: was not."""


@dataclass(frozen=True)
class Case:
    """One slow run."""

    name: str
    half: Half
    truth: frozenset[str]
    spec: dict[str, object]
    burners: int = 0
    """Processes that do nothing but use a core, beside it."""


def _env(name: str, **options: object) -> dict[str, object]:
    return {"env.id": f"hotloop.bench.planted_envs:planted/{name}-v0", "env.options": options}


SMALL: dict[str, object] = {
    "network.torso.hidden": [32],
    "replay.batch_size": 16,
    "replay.capacity": 20_000,
    "env.num_envs": 4,
    "env.vectorization": "sync",
    "updates_per_step": 0.25,
    "pipeline": "sync",
    "evaluation.every": 0,
    "log.checkpoint_every": 100_000_000,
    "log.every": 100_000,
    "stop.steps": 1_000_000,
}
WIDE: dict[str, object] = {"network.torso.hidden": [512, 512], "replay.batch_size": 256}
PEEPHOLE = {"kind": "cnn", "layout": "CHW", "channels": [1], "kernels": [16], "strides": [16], "hidden": [8]}
IMAGES: dict[str, object] = {
    **_env("Cheap", shape=[4, 84, 84], image=True),
    "network.torso": {"kind": "cnn", "layout": "CHW"},
}
FUSED: dict[str, object] = {"env.id": "cartpole", "pipeline": "fused", "env.vectorization": None}
DOCUMENT: dict[str, object] = {
    "env.id": "hotloop.bench.planted_snakes:planted/DocumentSnakes-v0",
    "env.vectorization": "native",
    "env.num_envs": 256,
    "engine": "torch",
    "torch.mode": "eager",
    "network.torso.hidden": [128, 128],
    "replay.batch_size": 64,
    "replay.capacity": 100_000,
}
STEP, TURN = "env-step", "env-one-at-a-time"
ARITHMETIC = frozenset({"update-arithmetic", "nothing-wrong"})


def _case(name: str, half: Half, truth: str | frozenset[str], *changes: dict[str, object], burners: int = 0) -> Case:
    causes = frozenset({truth}) if isinstance(truth, str) else truth
    spec = dict(SMALL)
    for each in changes:
        spec |= each
    if isinstance(spec.get("network.torso"), dict):
        spec.pop("network.torso.hidden", None)
    if spec["env.vectorization"] is None:  # of a device env there is nothing to say
        del spec["env.vectorization"]
    return Case(name, half, causes, spec, burners)


CASES: tuple[Case, ...] = (
    # envs
    _case("a search in Python, one env", "set", STEP, _env("Searches"), {"env.num_envs": 1}),
    _case("a search in Python, 8 envs in turn", "asked", TURN, _env("Searches"), {"env.num_envs": 8}),
    _case("an env that waits, 8 in turn", "set", TURN, _env("Waits"), {"env.num_envs": 8}),
    _case("an env that waits, one", "asked", STEP, _env("Waits"), {"env.num_envs": 1}),
    _case(
        "a search in Python, 4 envs in threads",
        "asked",
        frozenset({STEP, TURN}),
        _env("Searches"),
        {"env.vectorization": "threads"},
    ),
    # Without gradient steps it is 3.3x as fast, without flood fill 1.4x (`hotloop bench snake`), whatever it believes.
    _case("a document's 256 Snakes with flood fill", "asked", "update-dispatch", DOCUMENT),
    _case("cheap envs in processes", "set", "env-transport", _env("Cheap"), {"env.vectorization": "async"}),
    _case(
        "cheap envs with pictures in processes",
        "asked",
        "env-transport",
        _env("Cheap", shape=[4, 64, 64], image=True),
        {"env.vectorization": "async", "network.torso": PEEPHOLE, "updates_per_step": 0.03125},
    ),
    _case("an env that draws itself", "set", "rendering", _env("Renders"), {"env.num_envs": 1}),
    _case("envs that draw themselves", "asked", "rendering", _env("Renders"), {"env.num_envs": 4}),
    _case("episodes that get longer", "set", "longer-episodes", _env("Lengthens"), {"stop.episodes": 100_000}),
    _case(
        "episodes that get longer, and a costlier net",
        "asked",
        "longer-episodes",
        _env("Lengthens"),
        {"stop.episodes": 100_000, "network.torso.hidden": [128, 128]},
    ),
    # gradient steps
    _case(
        "small steps by eager PyTorch, one at a time",
        "set",
        "update-dispatch",
        {"env.id": "CartPole-v1", "engine": "torch", "torch.mode": "eager", "env.num_envs": 1},
    ),
    _case(
        "small steps by eager PyTorch, dueling Double",
        "asked",
        "update-dispatch",
        {"env.id": "CartPole-v1", "engine": "torch", "torch.mode": "eager", "network.head.dueling": True},
        {"target.rule": "double", "updates_per_step": 0.5},
    ),
    _case("a document's 256 Snakes", "asked", "update-dispatch", DOCUMENT, {"env.options": {"flood": "none"}}),
    _case(
        "a huge batch",
        "set",
        ARITHMETIC,
        {"env.id": "CartPole-v1", "replay.batch_size": 2048},
        {"network.torso.hidden": [128, 128]},
    ),
    _case("wide layers", "asked", ARITHMETIC, {"env.id": "CartPole-v1"}, WIDE),
    _case(
        "eight gradient steps an env step", "asked", "update-count", {"env.id": "CartPole-v1", "updates_per_step": 8.0}
    ),
    _case("two gradient steps an env step", "set", "update-count", {"env.id": "CartPole-v1", "updates_per_step": 2.0}),
    _case(
        "sixteen threads for a small net",
        "set",
        "threads",
        {"env.id": "CartPole-v1", "threads": 16},
        {"engine": "torch", "torch.mode": "eager", "network.torso.hidden": [256, 256], "replay.batch_size": 64},
    ),
    _case(
        "pictures on one thread",
        "asked",
        "threads",
        IMAGES,
        {"engine": "torch", "torch.mode": "eager", "threads": 1, "replay.batch_size": 32},
    ),
    # acting, storing, drawing
    _case(
        "a wide net asked by one env",
        "set",
        "act-one-at-a-time",
        {
            "env.id": "CartPole-v1",
            "env.num_envs": 1,
            "updates_per_step": 0.015625,
            "network.torso.hidden": [1024, 1024],
        },
        {"replay.batch_size": 1},
    ),
    _case(
        "a wide net asked by two envs",
        "asked",
        "act-one-at-a-time",
        {"env.id": "CartPole-v1", "env.num_envs": 2, "updates_per_step": 0.015625, "network.torso.hidden": [1500, 700]},
        {"replay.batch_size": 1},
    ),
    _case(
        "hindsight with many copies",
        "set",
        "replay-insert",
        {"env.id": "hotloop.envs.bit_flip:hotloop/BitFlip-v0", "replay.hindsight": {"relabelled": 16}},
        {"updates_per_step": 0.0625},
    ),
    # now and then
    _case(
        "a line of metrics for every block",
        "set",
        "logging",
        FUSED | {"log.every": 4, "log.exact": True},
    ),
    _case(
        "a line of metrics for every second block of Snakes",
        "asked",
        "logging",
        FUSED | {"env.id": "snake", "log.every": 32, "log.exact": True},
        {"env.num_envs": 16},
    ),
    _case(
        "evaluations every 500 env steps",
        "set",
        "evaluation",
        _env("Cheap", length=200),  # of one length, whatever has been learned
        {"evaluation.every": 500, "evaluation.episodes": 32},
    ),
    _case(
        "evaluations of long episodes",
        "asked",
        "evaluation",
        _env("Cheap", length=500),
        {"evaluation.every": 500, "evaluation.episodes": 16, "evaluation.max_share": 20.0},
    ),
    _case(
        "a replay saved every 1,000 env steps",
        "set",
        "checkpointing",
        _env("Cheap", shape=[64]),
        {"log.checkpoint_every": 1_000, "replay.capacity": 200_000},
    ),
    _case(
        "a wide net saved every 200 env steps",
        "asked",
        "checkpointing",
        {"env.id": "CartPole-v1", "log.checkpoint_every": 200, "network.torso.hidden": [1024, 1024]},
        {"updates_per_step": 0.015625, "env.num_envs": 16, "replay.batch_size": 16},
    ),
    # memory, machine
    _case("cycles of objects", "set", "memory", _env("Litters"), {"env.num_envs": 1}),
    _case("cycles of objects in four envs", "asked", "memory", _env("Litters"), {"env.num_envs": 4}),
    _case("two busy processes beside it", "set", "machine", {"env.id": "CartPole-v1"}, burners=2),
    _case(
        "four busy processes beside it",
        "asked",
        "machine",
        FUSED,
        burners=4,
    ),
    # nothing
    _case(
        "matrix products and little else, fused",
        "asked",
        ARITHMETIC,
        FUSED,
        WIDE,
        {"updates_per_step": 0.0625},
    ),
)
