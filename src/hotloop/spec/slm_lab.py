"""SLM-Lab's specs in the words of ours: what each field means there, to the letter, and what is not done here.

Written for version 5. A file holds several specs by their names, each with `agent`, `env` and `meta`.
"""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from hotloop import registry
from hotloop.errors import SpecError

Section = dict[str, object]
FIRST_ERROR = 100_000.0
"""By which a new transition has its first priority there."""
ALGORITHMS = {"VanillaDQN": "vanilla", "DQNBase": "double", "DQN": "double", "DoubleDQN": "double"}
MEMORIES = ("Replay", "PrioritizedReplay")
NETS = ("MLPNet", "DuelingMLPNet", "ConvNet", "DuelingConvNet")
ACTIVATIONS = {"relu": "relu", "selu": "selu", "tanh": "tanh", "gelu": "gelu", "silu": "silu"}
INITS = {"orthogonal_": "orthogonal", "kaiming_normal_": "he"}
LOSSES = {"MSELoss": "mse", "SmoothL1Loss": "huber", "HuberLoss": "huber"}
DECAYS = {"linear_decay": "linear", "rate_decay": "rate", "periodic_decay": "periodic"}
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "RMSprop": "rmsprop", "SGD": "sgd"}
SUCCESSORS = {"LunarLander-v2": "LunarLander-v3", "CartPole-v0": "CartPole-v1", "MountainCar-v1": "MountainCar-v0"}
OLD_ATARI = re.compile(r"(?P<game>[A-Z][A-Za-z]+?)(NoFrameskip|Deterministic)?-v[04]")
NOT_ATARI = ("CartPole", "MountainCar", "Acrobot", "Pendulum", "FrozenLake", "Taxi", "CliffWalking", "Blackjack")
VARIABLE = re.compile(r"\$\{(\w+)\}")
KNOWN: dict[str, tuple[str, ...]] = {
    "": ("agent", "env", "meta", "search", "name", "body"),
    "agent": ("name", "algorithm", "memory", "net"),
    "agent.algorithm": (
        *("name", "action_pdtype", "action_policy", "explore_var_spec", "gamma", "training_frequency"),
        *("training_start_step", "training_iter", "training_batch_iter", "normalize_state"),
    ),
    "agent.algorithm.explore_var_spec": ("name", "start_val", "end_val", "start_step", "end_step"),
    "agent.memory": ("name", "batch_size", "max_size", "use_cer", "alpha", "epsilon"),
    "agent.net": (
        *("type", "shared", "hid_layers", "hid_layers_activation", "conv_hid_layers", "fc_hid_layers"),
        *("out_layer_activation", "init_fn", "normalize", "batch_norm", "layer_norm", "clip_grad_val", "loss_spec"),
        *("optim_spec", "lr_scheduler_spec", "update_type", "update_frequency", "polyak_coef", "gpu"),
    ),
}
OF_ENV = ("name", "num_envs", "max_t", "max_frame")
NOT_HERE = ("normalize_obs", "normalize_reward", "clip_obs", "clip_reward", "reward_scale", "frame_op", "frame_op_len")
OF_META = (
    *(
        "distributed",
        "max_session",
        "max_trial",
        "log_frequency",
        "eval_frequency",
        "rigorous_eval",
        "search_scheduler",
    ),
    *("search_resources", "num_gpus", "resume"),
)


class Translated(NamedTuple):
    """A spec of ours as plain data, what a person should know of it, and the spec it was (its `search` too)."""

    name: str
    spec: dict[str, object]
    notices: list[str]
    original: dict[str, object]
    trials: int  # of a search
    has_scheduler: bool  # that ends some of them


def is_slm_lab(data: Mapping[str, object]) -> bool:
    """Whether plain data is a file of SLM-Lab's specs."""
    each = list(data.values())
    return bool(each) and all(isinstance(one, dict) and {"agent", "env"} <= set(one) for one in each)


def filled(text: str, variables: Mapping[str, str], where: str) -> str:
    """The text of a file with its `${name}`s filled: numbers as numbers, the rest as it stands."""
    there = sorted(set(VARIABLE.findall(text)))
    for name, value in variables.items():
        if name not in there:
            known = f"it has {', '.join(f'${{{one}}}' for one in there)}" if there else "it has none"
            raise SpecError(f"--var {name}=…: {where} has no ${{{name}}}; {known}")
        number = _as_number(value)
        if number is not None:
            text = text.replace(f'"${{{name}}}"', number)
        text = text.replace(f"${{{name}}}", value if number is None else number)
    return text


def chosen(data: Mapping[str, object], name: str | None, where: str) -> tuple[str, Section]:
    """One of a file's specs; the only one, if there is one and no name is given."""
    names = list(data)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None:
        raise SpecError(f"{where} holds {len(names)} specs; say which, by its name: {', '.join(names)}")
    if name not in data:
        raise SpecError(f"{where} has no spec '{name}'; it has {', '.join(names)}")
    return name, _section(data[name], name)


def translated(name: str, original: Mapping[str, object], variables: Mapping[str, str] | None = None) -> Translated:
    """One spec in our words; raises SpecError for what cannot be run, with the reason."""
    empty = sorted(set(VARIABLE.findall(repr(original))))
    if empty:
        raise SpecError(f"{name}: ${{{empty[0]}}} is not filled; add --var {empty[0]}=VALUE (Python: {empty[0]}=VALUE)")
    return _Translation(name, dict(original), dict(variables or {})).result()


class _Translation:
    def __init__(self, name: str, original: Section, variables: dict[str, str]) -> None:
        self.name, self.original, self.notices = name, original, list[str]()
        self._variables = variables
        self.meta = self._at("meta")
        self._refuse_others()
        for path in KNOWN:
            self._refuse_unknown(path)
        self.algorithm, self.memory, self.net = (self._at(f"agent.{part}") for part in ("algorithm", "memory", "net"))
        self.env = self._at("env")
        self.num_envs = self._whole("env.num_envs", 1)

    def result(self) -> Translated:
        """All of it."""
        every = self._whole("agent.algorithm.training_frequency")
        on_each = self._whole("agent.algorithm.training_batch_iter", 1)
        updates = on_each * self._whole("agent.algorithm.training_iter", 1)
        frames = self._whole("env.max_frame")
        spec: dict[str, object] = {
            "name": re.sub(r"[^\w.-]+", "-", self._full_name()),
            "description": f"SLM-Lab's {self.name}",
            "seeds": self._whole("meta.max_session", 1),
            "pipeline": "sync",
            "discount": self._number("agent.algorithm.gamma"),
            "turns": {"every": every, "updates": updates},
            "env": self._env(),
            "network": self._network(),
            "target": self._target(),
            "loss": self._loss(),
            "optimizer": self._optimizer(every),
            "exploration": self._exploration(),
            "replay": self._replay(on_each),
            "evaluation": self._evaluation(frames),
            "stop": {"steps": frames},
            "log": self._log(frames),
        }
        if not self._env_id().startswith("ALE/"):
            self._say("states are kept as the env gives them (float32), not in float16")
        trials, scheduler = self._whole("meta.max_trial", 1), self.meta.get("search_scheduler")
        return Translated(self.name, spec, self.notices, self.original, trials, bool(scheduler))

    def _full_name(self) -> str:
        """With the game, where it was given by a variable: as there."""
        env = self._variables.get("env")
        return self.name if env is None else f"{self.name}_{env.split('/')[-1].split('-')[0].lower()}"

    def _refuse_others(self) -> None:
        algorithm, net, memory = (
            str(self._text(path)) for path in ("agent.algorithm.name", "agent.net.type", "agent.memory.name")
        )
        if algorithm not in ALGORITHMS:
            raise self._refusal(
                "agent.algorithm.name", f"{algorithm} is not of the DQN family; hotloop trains {', '.join(ALGORITHMS)}"
            )
        if "Recurrent" in net:
            raise self._refusal("agent.net.type", f"{net} is recurrent, which SLM-Lab's DQN does not take either")
        if net not in NETS:
            raise self._refusal("agent.net.type", f"{net} is not known here; known: {', '.join(NETS)}")
        if memory not in MEMORIES:
            why = (
                "keeps what was just collected, for on-policy methods" if "OnPolicy" in memory else "is not known here"
            )
            raise self._refusal("agent.memory.name", f"{memory} {why}; known: {', '.join(MEMORIES)}")
        if self.meta.get("distributed", False) not in (False, None):
            raise self._refusal(
                "meta.distributed", "several sessions that change one network (Hogwild) are not done here"
            )

    # -- the parts --------------------------------------------------------------------------------------

    def _env(self) -> Section:
        env_id, given = self._env_id(), {key: value for key, value in self.env.items() if key not in OF_ENV}
        for key in NOT_HERE:
            asked = given.pop(key, None)
            if asked not in (None, False) and (key, asked) != ("reward_scale", 1):
                self._say(f"env.{key} is not done here: observations and rewards are those of the env")
        if self.env.get("max_t") is not None:
            self._say("env.max_t is not done here: the env's own time limit ends episodes")
        if not env_id.startswith("ALE/"):
            return {"id": env_id, "num_envs": self.num_envs, "vectorization": "sync", "options": given}
        if given.get("life_loss_info"):
            self._say(
                "env.life_loss_info: in training a lost life ends an episode, and the step after it is not stored; "
                "evaluations play whole games"
            )
        given |= {"stack_num": 4, "reward_clipping": self.num_envs > 1}  # there, one env alone is not clipped
        return {"id": env_id, "num_envs": self.num_envs, "options": given}

    def _env_id(self) -> str:
        name = self._text("env.name")
        found = SUCCESSORS.get(name, name)
        if (old := OLD_ATARI.fullmatch(name)) and old["game"] not in NOT_ATARI:
            found = f"ALE/{old['game']}-v5"
        if found != name:
            self._say(f"env {name} is of the past; this run is on {found}")
        return found

    def _network(self) -> Section:
        kind, path = self._text("agent.net.type"), "agent.net.hid_layers_activation"
        activation = self._text(path).lower()
        if activation not in ACTIVATIONS:
            raise self._refusal(path, f"{activation} is not known here; known: {', '.join(ACTIVATIONS)}")
        if self.net.get("out_layer_activation") is not None:
            raise self._refusal("agent.net.out_layer_activation", "Q-values have no nonlinearity here; leave it out")
        torso: Section = {"activation": ACTIVATIONS[activation], "normalization": self._normalization(kind)}
        if "Conv" in kind:
            torso |= {"kind": "cnn", "layout": "CHW", **self._convolutions()}
            torso["hidden"] = self._sizes("agent.net.fc_hid_layers", [])
            if not self.net.get("normalize"):
                self._say("images are divided by 255, though net.normalize does not ask for it")
        else:
            torso |= {"kind": "mlp", "hidden": self._sizes("agent.net.hid_layers")}
        return {"torso": torso, "head": {"kind": "scalar", "dueling": kind.startswith("Dueling")}, "init": self._init()}

    def _normalization(self, kind: str) -> str:
        batch, layer = self.net.get("batch_norm", kind == "ConvNet"), self.net.get("layer_norm", False)
        if (layer and kind != "MLPNet") or (batch and kind == "DuelingMLPNet"):
            self._say(f"net.layer_norm and net.batch_norm that {kind} does not look at there are left out here, too")
        if batch and kind != "DuelingMLPNet":
            self._say(
                "net.batch_norm (of ConvNet the default) stands before the nonlinearity of every layer here, with "
                "running averages in the target net; there behind it, and not in the first layer"
            )
            return "batch"
        return "layer" if layer and kind == "MLPNet" else "none"

    def _init(self) -> str:
        init = self.net.get("init_fn")
        if init is None:
            return "default"
        if init not in INITS:
            self._say(f"net.init_fn {init} is not known here: first weights are PyTorch's default")
            return "default"
        if init == "orthogonal_":
            self._say("net.init_fn orthogonal_: the last layer has gain 1")
        return INITS[str(init)]

    def _convolutions(self) -> Section:
        path, layers = "agent.net.conv_hid_layers", self._get("agent.net.conv_hid_layers")
        if not isinstance(layers, list) or not all(isinstance(one, list) and len(one) == 5 for one in layers):
            raise self._refusal(path, "expected a list of [channels, kernel, stride, padding, dilation]")
        for channels, kernel, stride, padding, dilation in layers:
            if padding != 0 or dilation != 1 or not all(isinstance(one, int) for one in (channels, kernel, stride)):
                raise self._refusal(path, "only square kernels without padding and dilation are known here")
        columns = list(zip(*layers, strict=True))
        return {name: list(columns[i]) for i, name in enumerate(("channels", "kernels", "strides"))}

    def _target(self) -> Section:
        name = self._text("agent.algorithm.name")
        rule = ALGORITHMS[name]
        if rule == "vanilla":
            return {"rule": rule}
        if name != "DoubleDQN":
            self._say(
                f"{name} of SLM-Lab 5 lets the online net choose the next action, as Double DQN does, and so does this "
                "run; the paper's, and that of SLM-Lab 4, is --set target.rule=target"
            )
        update = str(self.net.get("update_type", "replace"))
        if update not in ("replace", "polyak"):
            raise self._refusal("agent.net.update_type", f"{update} is not known; expected replace or polyak")
        target: Section = {"rule": rule, "every": self._period()}
        if update == "polyak":
            target["tau"] = self._number("agent.net.polyak_coef")
            if target["every"] != 1:
                self._say(
                    f"the target net is averaged every {target['every']} frames, as net.update_frequency says; SLM-Lab "
                    "5.0 does not look at it and averages after every vector step (--set target.every=1)"
                )
        return target

    def _period(self) -> int:
        given = self._number("agent.net.update_frequency", 1)
        if given < 1:
            self._say(f"net.update_frequency is {given:g}; the target net moves after every vector step")
        return max(1, round(given))

    def _loss(self) -> Section:
        loss = self._at("agent.net.loss_spec") or {"name": "MSELoss"}
        kind = str(loss.get("name"))
        if kind not in LOSSES:
            raise self._refusal("agent.net.loss_spec.name", f"{kind} is not known here; known: {', '.join(LOSSES)}")
        size = loss.get("delta", loss.get("beta", 1.0))
        if kind == "SmoothL1Loss" and size != 1.0:
            raise self._refusal("agent.net.loss_spec.beta", "a SmoothL1Loss of another beta than 1 is not known here")
        return {"kind": LOSSES[kind]} if kind == "MSELoss" else {"kind": "huber", "delta": size}

    def _optimizer(self, frequency: int) -> Section:
        given = dict(self._at("agent.net.optim_spec")) or {"name": "Adam"}
        name = str(given.pop("name", ""))
        if name not in OPTIMIZERS:
            known = ", ".join(OPTIMIZERS)
            raise self._refusal("agent.net.optim_spec.name", f"{name or 'none'} is not known here; known: {known}")
        found: Section = {"kind": OPTIMIZERS[name], "clip": self._clip()}
        rate = given.pop("lr", None)
        if rate is None and name == "SGD":
            raise self._refusal("agent.net.optim_spec.lr", "is missing")
        rate = (
            (0.01 if name == "RMSprop" else 0.001) if rate is None else _plain_number(rate, "agent.net.optim_spec.lr")
        )
        if name == "AdamW":
            found["weight_decay"] = given.pop("weight_decay", 0.01)
        betas = given.pop("betas", None)
        if name in ("Adam", "AdamW") and isinstance(betas, list) and len(betas) == 2:
            found["beta1"], found["beta2"] = betas
        for theirs, ours, takers in (
            ("eps", "eps", ("Adam", "AdamW", "RMSprop")),
            ("alpha", "decay", ("RMSprop",)),
            ("momentum", "momentum", ("RMSprop", "SGD")),
        ):
            if theirs in given and name in takers:
                found[ours] = given.pop(theirs)
        for key, value in given.items():
            if value not in (0, 0.0, False, None):
                raise self._refusal(f"agent.net.optim_spec.{key}", f"{value} with {name} is not known here")
        return {**found, **self._schedule(float(rate), frequency)}

    def _clip(self) -> float | None:
        clip = self.net.get("clip_grad_val")
        return None if clip is None else _plain_number(clip, "agent.net.clip_grad_val")

    def _schedule(self, rate: float, frequency: int) -> Section:
        """The learning rate: schedulers step once per train call."""
        given = self._at("agent.net.lr_scheduler_spec")
        if not given:
            return {"learning_rate": rate}
        name, path = str(given.get("name")), "agent.net.lr_scheduler_spec"
        if name == "StepLR":
            found: Section = {"kind": "step", "rate": self._number(f"{path}.gamma", 0.1)}
            found["every"] = self._whole(f"{path}.step_size")
        elif name == "ExponentialLR":
            found = {"kind": "exponential", "rate": self._number(f"{path}.gamma"), "every": 1}
        elif name == "LinearToZero":
            calls = self._number(f"{path}.frame") / (frequency * self.num_envs)
            found = {"kind": "linear", "end": 0.0, "steps": max(1.0, calls)}
        elif name == "CosineAnnealingLR":
            found = {
                "kind": "cosine",
                "end": self._number(f"{path}.eta_min", 0.0),
                "steps": self._whole(f"{path}.T_max"),
            }
            self._say(
                "net.lr_scheduler_spec CosineAnnealingLR: after T_max train calls the learning rate stays at its end"
            )
        else:
            known = "StepLR, ExponentialLR, LinearToZero, CosineAnnealingLR"
            raise self._refusal(f"{path}.name", f"{name} is not known here; known: {known}, or null")
        return {"learning_rate": {**found, "start": rate}, "schedule_in": "turns"}

    def _exploration(self) -> Section:
        policy = str(self.algorithm.get("action_policy", "epsilon_greedy"))
        sampled = self.algorithm.get("action_pdtype") != "Argmax"  # none is the first one there: Categorical
        if policy == "random":
            return {"kind": "epsilon_greedy", "epsilon": 1.0}
        if policy == "default":
            greedy: Section = {"kind": "epsilon_greedy", "epsilon": 0.0}
            return {"kind": "boltzmann", "temperature": 1.0} if sampled else greedy
        if policy not in ("epsilon_greedy", "boltzmann"):
            raise self._refusal("agent.algorithm.action_policy", f"{policy} is not known here")
        decay = self._decay()
        if policy == "epsilon_greedy":
            return {"kind": policy, "epsilon": decay, "together": self.num_envs > 1}
        if not sampled:
            self._say(
                "action_pdtype Argmax with action_policy boltzmann takes the best action whatever the temperature"
            )
            return {"kind": "epsilon_greedy", "epsilon": 0.0}
        return {"kind": policy, "temperature": decay}

    def _decay(self) -> object:
        path = "agent.algorithm.explore_var_spec"
        name, start = self._text(f"{path}.name"), self._number(f"{path}.start_val")
        end = self._number(f"{path}.end_val", start)
        if not end:
            self._say(f"{path}.end_val is 0, which SLM-Lab takes for none: it stays at start_val, {start:g}")
            end = start
        if name == "no_decay":
            return end
        if name not in DECAYS:
            known = ", ".join(("no_decay", *DECAYS))
            raise self._refusal(f"{path}.name", f"{name} is not known; known: {known}")
        after, until = self._whole(f"{path}.start_step", 0), self._whole(f"{path}.end_step")
        if until <= after:
            raise self._refusal(f"{path}.end_step", f"is {until}, but start_step is {after}; expected a later one")
        return {"kind": "slm_lab", "decay": DECAYS[name], "start": start, "end": end, "after": after, "until": until}

    def _replay(self, on_each: int) -> Section:
        batch = self._whole("agent.memory.batch_size")
        start = self._whole("agent.algorithm.training_start_step", batch)
        if start < 1:
            self._say("training_start_step is 0: the turn that the very first transition asks for is left out")
        replay: Section = {
            "capacity": self._whole("agent.memory.max_size"),
            "start": max(1, start),
            "batch_size": batch,
            "updates_per_batch": on_each,
            "newest_in_batch": "all" if self.memory.get("use_cer") else False,
        }
        if self._env_id().startswith("ALE/"):
            replay["stacked_frames"] = 4
        if self._text("agent.memory.name") == "PrioritizedReplay":
            replay["sampling"] = {
                "kind": "prioritized",
                "alpha": self._number("agent.memory.alpha", 1.0),
                "epsilon": max(self._number("agent.memory.epsilon", 0.0), 1e-30),
                "beta": 0.0,
                "first_error": FIRST_ERROR,
                "updates_per_draw": on_each,
            }
            self._say("priorities: each batch has one draw from each of batch_size equal parts of their sum")
            if self.memory.get("use_cer"):
                self._say("priorities of what use_cer puts into a batch follow their TD errors as all others do")
        return replay

    def _evaluation(self, frames: int) -> Section:
        """Greedy games of our own: there, scores are those of training episodes."""
        every = self._whole("meta.eval_frequency", 10_000)
        section: Section = {"every": max(every, frames // 10), "episodes": 8}
        whole_games = {"reward_clipping": False, "life_loss_info": False}
        return {**section, "options": whole_games} if self._env_id().startswith("ALE/") else section

    def _log(self, frames: int) -> Section:
        return {
            "every": self._whole("meta.log_frequency", 10_000),
            "exact": True,
            "checkpoint_every": max(10_000, frames // 10),
            "save_replay": not self._env_id().startswith("ALE/"),
        }

    # -- reading ----------------------------------------------------------------------------------------

    def _refuse_unknown(self, path: str) -> None:
        for key in self._at(path) if path else self.original:
            if key not in KNOWN[path]:
                where = f"{path}.{key}".lstrip(".")
                raise self._refusal(where, f"unknown key of a DQN spec; {registry.nearest(key, list(KNOWN[path]))}")
        if path == "":
            ignored = [key for key in self._at("meta") if key not in OF_META]
            if ignored:
                self._say(f"meta.{', meta.'.join(ignored)} mean nothing here")

    def _at(self, path: str) -> Section:
        """A section; empty where there is none."""
        found: object = self.original
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return _section(found, f"{self.name}: {path}") if found is not None else {}

    def _get(self, path: str) -> object:
        section, _, key = path.rpartition(".")
        found = self._at(section)
        if key not in found:
            raise self._refusal(path, "is missing")
        return found[key]

    def _text(self, path: str) -> str:
        found = self._get(path)
        if not isinstance(found, str):
            raise self._refusal(path, f"got {found!r}, expected a name")
        return found

    def _number(self, path: str, default: float | None = None) -> float:
        section, _, key = path.rpartition(".")
        if default is not None and self._at(section).get(key) is None:
            return default
        return _plain_number(self._get(path), f"{self.name}: {path}")

    def _whole(self, path: str, default: int | None = None) -> int:
        number = self._number(path, default)
        if number != int(number):
            raise self._refusal(path, f"got {number:g}, expected a whole number")
        return int(number)

    def _sizes(self, path: str, default: list[int] | None = None) -> list[int]:
        found = default if default is not None and path.rpartition(".")[2] not in self.net else self._get(path)
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise self._refusal(path, f"got {found!r}, expected a list of widths, such as [64, 64]")
        return found

    def _say(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)

    def _refusal(self, path: str, why: str) -> SpecError:
        return SpecError(f"{self.name}: {path}: {why}")


def _section(found: object, where: str) -> Section:
    if not isinstance(found, dict):
        raise SpecError(f"{where}: got {found!r:.60}, expected a mapping")
    return found


def _plain_number(found: object, path: str) -> float:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise SpecError(f"{path}: got {found!r:.60}, expected a number")
    return found


def _as_number(text: str) -> str | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return str(int(number)) if number == int(number) else str(number)
