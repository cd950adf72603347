"""The same training as a spec of ours, where a script's settings are known: how fast would it be here?

| kind | known by | what is taken over |
|---|---|---|
| Stable-Baselines3's DQN | the model's own attributes when `learn` is called | all its settings |
| CleanRL's dqn.py, and scripts with its arguments | names of their arguments | those, and the layers that were seen |

Anything else has no spec, nor has what would not be the same training: wrappers of the script's own, pictures, other
heads, schedules that are functions. A spec is for envs that Gymnasium makes by the same id.
"""

from collections.abc import Mapping
from typing import NamedTuple

import yaml

from hotloop.doctor.examination import learning_early
from hotloop.doctor.scripts.findings import Found
from hotloop.errors import HotloopError
from hotloop.plain import Figures, Json
from hotloop.progress import Reporter
from hotloop.spec import Spec
from hotloop.spec.reading import given, load_spec
from hotloop.trainer_process import Orders, Trainer

SECONDS, PATIENCE = 4.0, 60.0
SB3_LAYERS = [64, 64]
PLAIN_WRAPPERS = {"TimeLimit", "OrderEnforcing", "PassiveEnvChecker", "Monitor", "RecordEpisodeStatistics"}
PLAIN_WRAPPERS |= {"SyncVectorEnv", "AsyncVectorEnv", "Autoreset"}
"""Which leave observations, rewards and ends as they are."""


class Equivalent(NamedTuple):
    """A spec, and what came of training it."""

    spec: Spec | None
    env_steps_per_s: float | None
    speedup: float | None
    why_not: str
    """Why there is no spec, or no speed of it; empty if there are both."""

    def text(self) -> str | None:
        """The spec as a file has it."""
        return None if self.spec is None else yaml.safe_dump(given(self.spec), sort_keys=False)


def equivalent_of(found: Found, reporter: Reporter) -> Equivalent | None:
    """Trained for a few seconds on the same env; None where the script is of no known kind."""
    training = found.learner.training if found.learner else None
    if training is None:
        return None
    settings = training["settings"]
    assert isinstance(settings, dict)
    if (why_not := _another_training(found, settings)) is not None:
        return Equivalent(None, None, None, why_not)
    try:
        spec = load_spec({}, changes_of(str(training["kind"]), settings, _layers(found)))
    except HotloopError as error:
        return Equivalent(None, None, None, str(error))
    theirs = found.attended.per_second("env_steps")
    with reporter.busy("the same training in hotloop"):
        trainer = Trainer(Orders(given(load_spec(learning_early(spec), {"evaluation.every": 0}))))
        try:
            trainer.train(1.0, PATIENCE)
            ours = trainer.train(SECONDS, PATIENCE)["env_steps_per_s"]
        except HotloopError as error:
            return Equivalent(spec, None, None, str(error))
        finally:
            trainer.close()
    return Equivalent(spec, ours, ours / theirs if theirs else None, "")


def _another_training(found: Found, settings: Mapping[str, Json]) -> str | None:
    """Why the settings would not be all of it; None if they are."""
    env = (found.learner.env if found.learner else None) or {}
    chain = env.get("chain")
    own = [str(each) for each in chain[:-1] if each not in PLAIN_WRAPPERS] if isinstance(chain, list) else []
    if own:
        return f"its env has wrappers of its own ({', '.join(own)})"
    if heads := sorted({"n_atoms", "v_min", "n_quantiles"} & set(settings)):
        return f"it is no plain DQN ({', '.join(heads)})"
    products = ((found.learner.learning if found.learner else None) or {}).get("products")
    if isinstance(products, list) and any(isinstance(each, list) and each[0] == "convolution" for each in products):
        return "its network sees pictures"
    if settings.get("train_unit", "step") != "step":
        return "it learns by episodes"
    if isinstance(settings.get("learning_rate"), str):
        return "its learning rate is a function"
    return None


def changes_of(kind: str, settings: Mapping[str, Json], layers: list[int] | None) -> dict[str, object]:
    """What of the default spec differs."""
    return _sb3(settings) if kind == "sb3" else _cleanrl(settings, layers)


def _sb3(said: Mapping[str, Json]) -> dict[str, object]:
    envs, every = int(_number(said, "n_envs", 1)), _number(said, "train_freq", 4)
    steps = _number(said, "gradient_steps", 1)
    per_turn = every * envs
    kwargs = said.get("policy_kwargs")
    layers = kwargs.get("net_arch") if isinstance(kwargs, dict) else None
    total = _number(said, "total_timesteps", 1_000_000)
    return {
        "name": "from-sb3",
        "env.id": said["env_id"],
        "env.num_envs": envs,
        "updates_per_step": 1.0 if steps < 0 else steps / per_turn,
        "discount": _number(said, "gamma", 0.99),
        "network.torso.hidden": layers if isinstance(layers, list) else SB3_LAYERS,
        "target.every": max(1, int(_number(said, "target_update_interval", 10_000))),
        "target.tau": _number(said, "tau", 1.0),
        "loss.kind": "huber",
        "optimizer.learning_rate": _number(said, "learning_rate", 1e-4),
        "optimizer.clip": _number(said, "max_grad_norm", 10.0),
        "exploration.epsilon": {
            "kind": "linear",
            "start": _number(said, "exploration_initial_eps", 1.0),
            "end": _number(said, "exploration_final_eps", 0.05),
            "steps": max(1, int(_number(said, "exploration_fraction", 0.1) * total)),
        },
        "replay.capacity": int(_number(said, "buffer_size", 1_000_000)),
        "replay.batch_size": int(_number(said, "batch_size", 32)),
        "replay.start": max(int(_number(said, "learning_starts", 100)), int(_number(said, "batch_size", 32))),
        "stop.steps": int(total),
    }


def _cleanrl(said: Mapping[str, Json], layers: list[int] | None) -> dict[str, object]:
    envs, total = int(_number(said, "num_envs", 1)), _number(said, "total_timesteps", 500_000)
    batch = int(_number(said, "batch_size", 128))
    return {
        "name": "from-script",
        "env.id": said.get("env_id") or said.get("gym_id"),
        "env.num_envs": envs,
        "updates_per_step": 1 / (_number(said, "train_frequency", 10) * envs),
        "discount": _number(said, "gamma", 0.99),
        "network.torso.hidden": layers or [120, 84],
        "target.every": max(1, int(_number(said, "target_network_frequency", 500))),
        "target.tau": _number(said, "tau", 1.0),
        "loss.kind": "mse",
        "optimizer.learning_rate": _number(said, "learning_rate", 2.5e-4),
        "optimizer.clip": None,
        "exploration.epsilon": {
            "kind": "linear",
            "start": _number(said, "start_e", 1.0),
            "end": _number(said, "end_e", 0.05),
            "steps": max(1, int(_number(said, "exploration_fraction", 0.5) * total)),
        },
        "replay.capacity": int(_number(said, "buffer_size", 10_000)),
        "replay.batch_size": batch,
        "replay.start": max(int(_number(said, "learning_starts", 10_000)), batch),
        "stop.steps": int(total),
    }


def _number(said: Mapping[str, Json], name: str, default: float) -> float:
    value = said.get(name)
    return float(value) if isinstance(value, float | int) and not isinstance(value, bool) else default


def _layers(found: Found) -> list[int] | None:
    """Widths of the hidden layers of the network that was asked first for a batch; None where it is no such network."""
    learning: Figures = (found.learner.learning if found.learner else None) or {}
    products, batch = learning.get("products"), learning.get("batch")
    if not isinstance(products, list):
        return None
    widths: list[int] = []
    for each in products:
        assert isinstance(each, list)
        name, shapes = each[0], each[1]
        if name != "addmm" or not isinstance(shapes, list):
            break
        left, right = shapes[-2:]
        assert isinstance(left, list)
        assert isinstance(right, list)
        inner, width = int(str(left[1])), int(str(right[1]))
        if widths and (left[0] != batch or inner != widths[-1]):
            break
        if left[0] == batch:  # before it, the network may have been asked for an action
            widths.append(width)
    return widths[:-1] or None
