"""Specs of SLM-Lab: what their fields mean, what is said of what is not done as there, what is refused and why."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hotloop.errors import SpecError
from hotloop.runs.slm_figures import Lines, Session, figures_of, sessions_of
from hotloop.spec import slm_lab
from hotloop.spec.reading import load_slm_lab, load_spec, parse_spec, to_yaml

DQN_CARTPOLE: dict[str, Any] = {
    "agent": {
        "name": "DQN",
        "algorithm": {
            "name": "DQN",
            "action_pdtype": "Argmax",
            "action_policy": "epsilon_greedy",
            "explore_var_spec": {
                "name": "linear_decay",
                "start_val": 1.0,
                "end_val": 0.1,
                "start_step": 0,
                "end_step": 1000,
            },
            "gamma": 0.99,
            "training_batch_iter": 8,
            "training_iter": 4,
            "training_frequency": 4,
            "training_start_step": 32,
        },
        "memory": {"name": "Replay", "batch_size": 32, "max_size": 10000, "use_cer": True},
        "net": {
            "type": "MLPNet",
            "hid_layers": [64],
            "hid_layers_activation": "selu",
            "clip_grad_val": 0.5,
            "loss_spec": {"name": "MSELoss"},
            "optim_spec": {"name": "Adam", "lr": 0.02},
            "lr_scheduler_spec": {"name": "StepLR", "step_size": 1000, "gamma": 0.9},
            "update_type": "polyak",
            "update_frequency": 32,
            "polyak_coef": 0.1,
            "gpu": "auto",
        },
    },
    "env": {"name": "CartPole-v1", "max_t": None, "max_frame": 10000},
    "meta": {"distributed": False, "max_session": 2, "max_trial": 1, "log_frequency": 500, "eval_frequency": 500},
    "search": {"agent": {"algorithm": {"gamma__choice": [0.9, 0.99]}}},
}


def changed(**changes: Any) -> dict[str, Any]:
    """The spec with dotted paths (`__` for a dot) set, or taken out by `...`."""
    spec = copy.deepcopy(DQN_CARTPOLE)
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = spec
        for name in parents:
            section = section.setdefault(name, {})
        if value is ...:
            section.pop(last)
        else:
            section[last] = value
    return spec


def ours(spec: dict[str, Any]) -> Any:
    return parse_spec(slm_lab.translated("one", spec).spec)


def test_every_field_of_dqn_cartpole_means_here_what_it_means_there() -> None:
    spec = ours(DQN_CARTPOLE)
    assert (spec.seeds, spec.discount, spec.stop.steps, spec.log.every) == (2, 0.99, 10_000, 500)
    assert spec.turns == type(spec.turns)(every=4, updates=32)
    assert spec.replay_ratio == 8.0
    replay = spec.replay
    assert (replay.capacity, replay.start, replay.batch_size, replay.updates_per_batch) == (10_000, 32, 32, 8)
    assert replay.newest_in_batch == "all"
    assert (spec.network.torso.hidden, spec.network.torso.activation) == ((64,), "selu")
    assert (spec.target.rule, spec.target.every, spec.target.tau) == ("double", 32, 0.1)
    assert (spec.loss.kind, spec.optimizer.kind, spec.optimizer.clip) == ("mse", "adam", 0.5)
    rate = spec.optimizer.learning_rate
    assert (rate.kind, rate.start, rate.every, rate.rate, spec.optimizer.schedule_in) == (
        "step",
        0.02,
        1000,
        0.9,
        "turns",
    )
    epsilon = spec.exploration.epsilon
    assert (epsilon.decay, epsilon.start, epsilon.end, epsilon.after, epsilon.until) == ("linear", 1.0, 0.1, 0, 1000)
    assert (spec.env.id, spec.env.num_envs, spec.env.vectorization) == ("CartPole-v1", 1, "sync")


def test_priorities_have_no_importance_weights_and_a_first_error() -> None:
    memory = {"name": "PrioritizedReplay", "alpha": 0.6, "epsilon": 0.0001, "batch_size": 64, "max_size": 5e4}
    spec = ours(changed(agent__memory=memory, agent__algorithm__name="DoubleDQN"))
    sampling = spec.replay.sampling
    assert (sampling.alpha, sampling.epsilon, sampling.beta.value) == (0.6, 0.0001, 0.0)
    assert (sampling.first_error, sampling.updates_per_draw, spec.replay.capacity) == (100_000.0, 8, 50_000)
    assert spec.batches_per_draw == 1, "each batch is drawn by the priorities that the one before left"
    assert spec.replay.newest_in_batch is False


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({"agent__algorithm__name": "VanillaDQN"}, "target.rule", "vanilla"),
        ({"agent__net__update_type": "replace"}, "target.tau", 1.0),
        ({"agent__net__update_frequency": 0.9}, "target.every", 1),
        ({"agent__net__type": "DuelingMLPNet"}, "network.head.dueling", True),
        ({"agent__net__clip_grad_val": None}, "optimizer.clip", None),
        ({"agent__net__optim_spec": {"name": "AdamW", "lr": 0.01}}, "optimizer.weight_decay", 0.01),
        ({"agent__net__optim_spec": {"name": "RMSprop", "lr": 0.01, "alpha": 0.95}}, "optimizer.decay", 0.95),
        ({"agent__net__optim_spec": {"name": "RMSprop", "lr": 0.01}}, "optimizer.kind", "rmsprop"),
        ({"agent__net__loss_spec": {"name": "SmoothL1Loss"}}, "loss.kind", "huber"),
        ({"agent__net__init_fn": "orthogonal_"}, "network.init", "orthogonal"),
        ({"agent__net__init_fn": "xavier_uniform_"}, "network.init", "default"),
        ({"agent__net__lr_scheduler_spec": None}, "optimizer.learning_rate.value", 0.02),
        ({"env__max_frame": 1e7}, "stop.steps", 10_000_000),
        ({"env__name": "LunarLander-v2"}, "env.id", "LunarLander-v3"),
        ({"env__name": "PongNoFrameskip-v4"}, "env.id", "ALE/Pong-v5"),
        ({"env__name": "VideoPinball-v0"}, "env.id", "ALE/VideoPinball-v5"),
        ({"agent__algorithm__action_policy": "random"}, "exploration.epsilon.value", 1.0),
        ({"agent__algorithm__action_policy": "default"}, "exploration.epsilon.value", 0.0),
        (
            {"agent__algorithm__action_policy": "default", "agent__algorithm__action_pdtype": ...},
            "exploration.temperature.value",
            1.0,
        ),
        (
            {"agent__algorithm__action_policy": "boltzmann", "agent__algorithm__action_pdtype": "default"},
            "exploration.temperature.end",
            0.1,
        ),
        ({"agent__net__layer_norm": True}, "network.torso.normalization", "layer"),
        (
            {"agent__net__layer_norm": True, "agent__net__type": "DuelingMLPNet"},
            "network.torso.normalization",
            "none",
        ),
        (
            {"agent__algorithm__explore_var_spec": {"name": "no_decay", "start_val": 0.3}},
            "exploration.epsilon.value",
            0.3,
        ),
        ({"agent__algorithm__explore_var_spec__name": "rate_decay"}, "exploration.epsilon.decay", "rate"),
        ({"agent__algorithm__explore_var_spec__name": "periodic_decay"}, "exploration.epsilon.decay", "periodic"),
        ({"agent__algorithm__training_start_step": ...}, "replay.start", 32),
        ({"env__num_envs": 4}, "exploration.together", True),
    ],
)
def test_a_field_means_what_it_means_there(changes: dict[str, Any], path: str, expected: object) -> None:
    found: Any = ours(changed(**changes))
    for name in path.split("."):
        found = getattr(found, name)
    assert found == expected


def test_boltzmann_temperatures_and_linear_learning_rates() -> None:
    boltzmann = {"agent__algorithm__action_policy": "boltzmann", "agent__algorithm__action_pdtype": "Categorical"}
    spec = ours(changed(**boltzmann, agent__net__lr_scheduler_spec={"name": "LinearToZero", "frame": 10_001}))
    assert spec.exploration.temperature.end == 0.1
    rate = spec.optimizer.learning_rate
    assert (rate.kind, rate.end, rate.steps) == ("linear", 0.0, 10_001 / 4)


def test_images() -> None:
    net = {
        "type": "DuelingConvNet",
        "conv_hid_layers": [[32, 8, 4, 0, 1], [64, 4, 2, 0, 1], [64, 3, 1, 0, 1]],
        "fc_hid_layers": [256],
        "hid_layers_activation": "relu",
        "optim_spec": {"name": "AdamW", "lr": 1e-4},
    }
    env = {"name": "ALE/Pong-v5", "num_envs": 16, "max_frame": 4e6, "life_loss_info": True}
    found = slm_lab.translated("one", changed(agent__net=net, env=env))
    spec: Any = parse_spec(found.spec)
    torso = spec.network.torso
    assert (torso.channels, torso.kernels, torso.strides, torso.hidden) == ((32, 64, 64), (8, 4, 3), (4, 2, 1), (256,))
    assert (torso.layout, spec.network.head.dueling, spec.replay.stacked_frames) == ("CHW", True, 4)
    assert spec.env.options == {"life_loss_info": True, "stack_num": 4, "reward_clipping": True}
    assert spec.evaluation.options == {"reward_clipping": False, "life_loss_info": False}, "whole games"
    assert any("a lost life ends an episode" in notice for notice in found.notices)
    assert torso.normalization == "none", "unlike ConvNet's"
    alone: Any = parse_spec(slm_lab.translated("one", changed(agent__net=net, env={**env, "num_envs": 1})).spec)
    assert alone.env.options["reward_clipping"] is False
    plain: Any = parse_spec(slm_lab.translated("one", changed(agent__net={**net, "type": "ConvNet"}, env=env)).spec)
    assert plain.network.torso.normalization == "batch"
    assert any("divided by 255" in notice for notice in found.notices)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"agent__net__update_frequency": 0.9},
            "update_frequency is 0.9; the target net moves after every vector step",
        ),
        ({}, "DQN of SLM-Lab 5 lets the online net choose"),
        ({}, "the target net is averaged every 32 frames"),
        ({}, "not in float16"),
        ({"env__max_t": 200}, "env.max_t is not done here"),
        ({"env__normalize_obs": True}, "env.normalize_obs is not done here"),
        ({"env__name": "LunarLander-v2"}, "of the past; this run is on LunarLander-v3"),
        ({"agent__net__init_fn": "xavier_uniform_"}, "first weights are PyTorch's default"),
        ({"agent__algorithm__explore_var_spec__end_val": 0}, "end_val is 0, which SLM-Lab takes for none"),
        ({"meta__wombats": 3}, "meta.wombats mean nothing here"),
    ],
)
def test_what_is_not_done_as_there_is_said(changes: dict[str, Any], said: str) -> None:
    notices = slm_lab.translated("one", changed(**changes)).notices
    assert any(said in notice for notice in notices)
    assert all("\n" not in notice for notice in notices)
    assert "DoubleDQN" not in str(slm_lab.translated("one", changed(agent__algorithm__name="DoubleDQN")).notices)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent__algorithm__name": "PPO"}, "PPO is not of the DQN family; hotloop trains VanillaDQN"),
        ({"agent__algorithm__name": "PPO", "agent__algorithm__lam": 0.9}, "PPO is not of the DQN family"),
        ({"agent__net__type": "RecurrentNet", "agent__net__cell_type": "GRU"}, "RecurrentNet is recurrent"),
        ({"agent__algorithm__name": "SoftActorCritic"}, "is not of the DQN family"),
        ({"agent__net__type": "RecurrentNet"}, "RecurrentNet is recurrent"),
        ({"agent__net__type": "TorchArcNet"}, "TorchArcNet is not known here; known: MLPNet"),
        ({"agent__memory__name": "OnPolicyBatchReplay"}, "keeps what was just collected, for on-policy methods"),
        ({"agent__memory__name": ...}, "one: agent.memory.name: is missing"),
        ({"agent__algorithm__gamma": "much"}, "agent.algorithm.gamma: got 'much', expected a number"),
        ({"agent__algorithm__gama": 0.9}, "agent.algorithm.gama: unknown key of a DQN spec; did you mean 'gamma'"),
        ({"agent__net__hid_layerz": [3]}, "agent.net.hid_layerz: unknown key"),
        ({"agent__algorithm__training_frequency": 2.5}, "got 2.5, expected a whole number"),
        ({"agent__net__hid_layers": 64}, r"got 64, expected a list of widths"),
        ({"agent__net__hid_layers_activation": "elu"}, "elu is not known here; known: relu"),
        ({"agent__net__update_type": "gossip"}, "gossip is not known; expected replace or polyak"),
        ({"agent__net__optim_spec": {"name": "Lookahead"}}, "Lookahead is not known here; known: Adam"),
        ({"agent__net__optim_spec": {"name": "Adam", "amsgrad": True}}, "amsgrad: True with Adam is not known here"),
        ({"agent__net__lr_scheduler_spec": {"name": "CyclicLR"}}, "CyclicLR is not known here"),
        ({"agent__net__loss_spec": {"name": "L1Loss"}}, "L1Loss is not known here"),
        ({"agent__algorithm__explore_var_spec__name": "no"}, "no is not known; known: no_decay"),
        ({"agent__algorithm__explore_var_spec__end_step": 0}, "is 0, but start_step is 0"),
        ({"meta__distributed": "synced"}, "Hogwild"),
        ({"env__max_frame": ...}, "env.max_frame: is missing"),
        ({"env": 3}, "expected a mapping"),
        ({"env__max_frame": math.inf}, "got inf, expected a number"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said) as refused:
        slm_lab.translated("one", changed(**changes))
    assert "\n" not in str(refused.value)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    two = {"first": DQN_CARTPOLE, "second": changed(env__name="${env}", env__max_frame="${max_frame}")}
    found = {"two": two, "one": {"only": DQN_CARTPOLE}, "none": {"network": {}}}
    for name, data in found.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(two))
    return {name: str(tmp_path / f"{name}.json") for name in found} | {"yaml": str(tmp_path / "two.yaml")}


def test_a_spec_is_chosen_by_its_name_and_variables_are_filled(files: dict[str, str]) -> None:
    assert load_slm_lab(files["one"])[0].name == "only"
    assert load_slm_lab(files["two"], "first")[0].stop.steps == 10_000
    for file in (files["two"], files["yaml"]):
        variables = {"env": "ALE/Pong-v5", "max_frame": "4e6"}
        spec, found = load_slm_lab(file, "second", variables, {"seeds": 1})
        assert (spec.name, spec.env.id, spec.stop.steps, spec.seeds) == ("second_pong", "ALE/Pong-v5", 4_000_000, 1)
        assert found.original["search"] == DQN_CARTPOLE["search"]


def test_names_and_variables_that_are_not_there_are_named(files: dict[str, str]) -> None:
    assert slm_lab.filled('"${x}"', {"x": "nan"}, "it") == '"nan"', "no number that a file could hold"
    for file, name, variables, said in (
        ("two", None, {}, "holds 2 specs; say which, by its name: first, second"),
        ("two", "third", {}, "has no spec 'third'; it has first, second"),
        ("two", "second", {}, r"second: \$\{env\} is not filled; add --var env=VALUE"),
        ("two", "second", {"enf": "x"}, r"--var enf=…: .* has no \$\{enf\}; it has \$\{env\}, \$\{max_frame\}"),
        ("one", "only", {"env": "x"}, "it has none"),
        ("none", "network", {}, "is not a file of SLM-Lab's specs"),
    ):
        with pytest.raises(SpecError, match=said):
            load_slm_lab(files[file], name, variables)
    with pytest.raises(SpecError, match=r"holds specs of SLM-Lab's \(first, second\)"):
        load_spec(files["two"])


def test_what_is_written_is_read_again_as_the_same(files: dict[str, str]) -> None:
    spec, _ = load_slm_lab(files["one"])
    again = load_spec(yaml.safe_load(to_yaml(spec)))
    assert again.model_dump() == spec.model_dump()


# -- figures ------------------------------------------------------------------------------------------------


def test_figures_are_those_of_the_formulas() -> None:
    steps, updates = np.array([0.0, 10.0, 20.0]), np.array([0.0, 5.0, 15.0])
    sessions = [
        Session(steps, updates, np.array([22.97, 32.97, 27.97])),
        Session(steps, updates, np.array([23.97] * 3)),
    ]
    found: Any = figures_of(sessions, "CartPole-v1")
    first, second = [0.0, 10.0, 5.0], [1.0, 1.0, 1.0]
    assert math.isclose(found["strength"], (15 / 3 + 1) / 2)
    assert math.isclose(found["max_strength"], (10 + 1) / 2)
    assert math.isclose(found["final_strength"], (5 + 1) / 2)
    assert math.isclose(found["sample_efficiency"], ((10 / 10 + 5 / 20) / 15 + (1 / 10 + 1 / 20) / 3) / 2)
    assert math.isclose(found["training_efficiency"], ((10 / 5 + 5 / 15) / 15 + (1 / 5 + 1 / 15) / 3) / 2)
    assert math.isclose(found["stability"], ((1 - 5 / 10) + 1) / 2)
    spread = sum(2 * abs(a - b) / math.sqrt(2) for a, b in zip(first, second, strict=True))
    assert math.isclose(found["consistency"], 1 - spread / sum((a + b) / 2 for a, b in zip(first, second, strict=True)))
    assert found["total_reward_ma"] == pytest.approx((83.91 / 3 + 23.97) / 2)
    assert found["total_reward_ma_by_session"] == pytest.approx([83.91 / 3, 23.97])
    low, high = found["total_reward_ma_interval"]
    assert low <= found["total_reward_ma_iqm"] <= high
    alone: Any = figures_of(sessions[:1], "Unknown-v0")
    assert alone["random_return"] == 0.0
    assert alone["consistency"] is None


def test_sessions_are_read_from_lines_of_metrics_however_seeds_are_kept(tmp_path: Path) -> None:
    def line(steps: int, value: Any, episodes: int, **more: Any) -> str:
        row = {"kind": "train", "env_steps": steps, "updates": steps // 2, "ep_return_mean": value, **more}
        return json.dumps({**row, "episodes": episodes}) + "\n"

    alone, beside, apart = (tmp_path / name for name in ("alone", "beside", "apart"))
    for folder in (alone, beside, apart / "seed-3", apart / "seed-4"):
        folder.mkdir(parents=True)
    text = line(5, None, 0) + line(10, 1.0, 60) + line(20, None, 60) + line(30, 3.0, 100) + line(40, 5.0, 150)
    (alone / "metrics.jsonl").write_text(text)
    by_seed = {"updates": [5, 6], "ep_return_mean": [1.0, None], "episodes": [2, 0]}
    later = {"updates": [7, 8], "ep_return_mean": [3.0, 4.0], "episodes": [4, 1]}
    (beside / "metrics.jsonl").write_text(line(10, 1.0, 2, by_seed=by_seed) + line(20, 2.0, 3, by_seed=later))
    for number in (3, 4):
        (apart / f"seed-{number}" / "metrics.jsonl").write_text(line(10, float(number), 2))
    (found,) = sessions_of(alone, Lines())
    assert list(found.env_steps) == [10, 20, 30, 40], "from the first episode on, every line"
    last_hundred = [1.0, 1.0, (60 * 1.0 + 40 * 3.0) / 100, (10 * 1.0 + 40 * 3.0 + 50 * 5.0) / 100]
    np.testing.assert_allclose(found.returns, last_hundred)
    (found,) = sessions_of(alone, Lines(window=1))
    assert list(found.returns) == [1.0, 1.0, 3.0, 5.0]
    assert [list(one.returns) for one in sessions_of(beside, Lines())] == [[1.0, 2.0], [4.0]]
    assert [list(one.updates) for one in sessions_of(beside, Lines())] == [[5.0, 7.0], [8.0]]
    assert [list(one.returns) for one in sessions_of(apart, Lines())] == [[3.0], [4.0]]
    played = json.dumps({"kind": "eval", "env_steps": 30, "return_mean": 7.0, "episodes": 8}) + "\n"
    (alone / "metrics.jsonl").write_text(line(10, 1.0, 3) + line(20, 2.0, 5) + played + played)
    (found,) = sessions_of(alone, Lines("eval", "return_mean", 1))
    assert (list(found.env_steps), list(found.updates), list(found.returns)) == ([30.0] * 2, [10.0] * 2, [7.0] * 2)
    (alone / "metrics.jsonl").write_text("")
    with pytest.raises(SpecError, match="no episode has ended"):
        figures_of(sessions_of(alone, Lines()), "CartPole-v1")
