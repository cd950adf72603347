"""Reports beside each other; scripts of known kinds as specs of ours; remedies that need no edit."""

import io
import json
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import yaml
from rich.console import Console

from hotloop.doctor.causes import Cause
from hotloop.doctor.compare import compared, print_compared
from hotloop.doctor.scripts.attach import Attended, Process, Window
from hotloop.doctor.scripts.equivalent import changes_of, equivalent_of
from hotloop.doctor.scripts.findings import Found
from hotloop.doctor.scripts.verify import trials_of
from hotloop.errors import SpecError
from hotloop.progress import Silent
from hotloop.spec.reading import load_spec

CLEANRL = {
    "env_id": "CartPole-v1",
    "total_timesteps": 100_000,
    "learning_rate": 2.5e-4,
    "num_envs": 1,
    "buffer_size": 10_000,
    "gamma": 0.98,
    "tau": 1.0,
    "target_network_frequency": 500,
    "batch_size": 128,
    "start_e": 1,
    "end_e": 0.05,
    "exploration_fraction": 0.5,
    "learning_starts": 10_000,
    "train_frequency": 10,
}
SB3 = {
    "env_id": "LunarLander-v3",
    "n_envs": 4,
    "train_freq": 4,
    "gradient_steps": -1,
    "gamma": 0.99,
    "policy_kwargs": {"net_arch": [256, 128]},
    "target_update_interval": 250,
    "learning_rate": 6e-4,
    "buffer_size": 50_000,
    "batch_size": 64,
    "learning_starts": 100,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "exploration_initial_eps": 1.0,
    "max_grad_norm": 10,
    "tau": 1.0,
    "total_timesteps": 200_000,
}


def report(speed, **seconds):
    causes = [{"cause": name.replace("_", "-"), "seconds": each} for name, each in seconds.items()]
    verdict = {"cause": max(seconds, key=lambda name: seconds[name]).replace("_", "-")}
    return {
        "kind": "script",
        "verdict": verdict,
        "causes": causes,
        "env_steps_per_s": speed,
        "updates_per_s": speed / 4,
    }


def found_of(*causes, learning=None, training=None, chain=("TimeLimit", "CartPoleEnv")):
    process = Process(1, {}, learning=learning, training=training, env={"id": "CartPole-v1", "chain": list(chain)})
    window = Window(10.0, {"env_steps": 5_000.0, "gradient_steps": 500.0}, False)
    attended = Attended(["python"], {1: process}, [window], 12.0, 1.0, None, [])
    listed = [Cause(name, share, 1e-3, "", [], "", False, None, None) for name, share in causes]
    return Found(attended, process, listed, None, 1.0, 0.0)


def test_two_reports_beside_each_other(tmp_path):
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(report(100.0, env_step=8e-3, logging=1e-3)))
    after.write_text(json.dumps(report(400.0, env_step=1e-3, evaluation=5e-4)))
    found = compared(before, after)
    assert found["speedup"] == {"env_steps_per_s": 4.0, "updates_per_s": 4.0}
    assert found["verdicts"] == ["env-step", "env-step"]
    assert found["causes"] == [
        {"cause": "env-step", "seconds": [8e-3, 1e-3]},
        {"cause": "logging", "seconds": [1e-3, None]},
        {"cause": "evaluation", "seconds": [None, 5e-4]},
    ]
    console = Console(width=120, record=True, file=io.StringIO())
    print_compared(found, console)
    assert "4.00x" in console.export_text()


@pytest.mark.parametrize("text", ["no json", "[]", '{"verdict": {}}'])
def test_what_is_no_report_is_refused_in_a_line(tmp_path, text):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(report(1.0, env_step=1.0)))
    bad.write_text(text)
    with pytest.raises(SpecError, match="is no report of the doctor"):
        compared(good, bad)
    with pytest.raises(SpecError, match="cannot be read"):
        compared(good, tmp_path / "missing.json")


def test_cleanrls_arguments_are_a_spec():
    spec = load_spec({}, changes_of("cleanrl", CLEANRL, [120, 84]))
    assert (spec.env.id, spec.env.num_envs, spec.updates_per_step, spec.discount) == ("CartPole-v1", 1, 0.1, 0.98)
    assert (spec.replay.capacity, spec.replay.batch_size, spec.replay.start) == (10_000, 128, 10_000)
    assert list(spec.network.torso.hidden) == [120, 84]
    assert (spec.exploration.epsilon.end, spec.exploration.epsilon.steps) == (0.05, 50_000)
    assert spec.target.every == 500


def test_sb3s_settings_are_a_spec():
    spec = load_spec({}, changes_of("sb3", SB3, None))
    assert (spec.env.id, spec.env.num_envs, spec.updates_per_step) == ("LunarLander-v3", 4, 1.0)
    assert list(spec.network.torso.hidden) == [256, 128]
    assert (spec.optimizer.learning_rate.value, spec.optimizer.clip, spec.loss.kind) == (6e-4, 10.0, "huber")
    four = load_spec({}, changes_of("sb3", {**SB3, "gradient_steps": 2}, None))
    assert four.updates_per_step == 2 / 16


def test_the_same_training_is_trained_here():
    products = [
        ["addmm", [[16], [1, 4], [4, 16]], []],
        ["addmm", [[2], [1, 16], [16, 2]], []],
        ["addmm", [[16], [128, 4], [4, 16]], []],
        ["addmm", [[2], [128, 16], [16, 2]], []],
        ["mm", [[128, 2], [2, 16]], []],
    ]
    learning = {"products": products, "batch": 128}
    same = equivalent_of(found_of(learning=learning, training={"kind": "cleanrl", "settings": CLEANRL}), Silent())
    assert same is not None
    assert same.why_not == ""
    assert list(same.spec.network.torso.hidden) == [16]
    assert same.speedup == pytest.approx(same.env_steps_per_s / 500)
    assert load_spec(yaml.safe_load(same.text())) == same.spec
    assert equivalent_of(found_of(), Silent()) is None


@pytest.mark.parametrize(
    ("more", "chain", "why"),
    [
        ({}, ("Slow", "TimeLimit", "CartPoleEnv"), "wrappers of its own (Slow)"),
        ({"n_atoms": 51}, ("CartPoleEnv",), "no plain DQN"),
        ({"train_unit": "episode"}, ("CartPoleEnv",), "by episodes"),
        ({"learning_rate": "<function>"}, ("CartPoleEnv",), "a function"),
        ({"env_id": "NoSuchEnv-v0", "batch_size": 0}, ("CartPoleEnv",), ""),
    ],
)
def test_what_would_be_another_training_is_not_compared(more, chain, why):
    training = {"kind": "cleanrl", "settings": {**CLEANRL, **more}}
    same = equivalent_of(found_of(training=training, chain=chain), Silent())
    assert same is not None
    assert (same.env_steps_per_s, same.speedup) == (None, None)
    assert same.why_not
    assert why in same.why_not


def test_remedies_that_need_no_edit():
    many = found_of(("update-dispatch", 0.6), ("logging", 0.2), learning={"threads": 8, "several_at_once": False})
    assert [trial.apply for trial in trials_of(many)] == [
        {"threads": 1},
        {"logging": True, "prints": True},
        {"optimizer": True},
    ]
    assert trials_of(found_of(("env-step", 0.9))) == []
    small = found_of(("logging", 0.05), learning={"threads": 1})
    assert trials_of(small) == []


def test_hooks_apply_them(tmp_path):
    text = """
import torch, builtins
torch.set_num_threads(4)
print("hidden")
import sys
sys.stdout.write(f"threads {torch.get_num_threads()}\\n")
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([parameter])
sys.stdout.write(f"foreach {optimizer.param_groups[0]['foreach']}\\n")
with torch.autograd.set_detect_anomaly(True):
    sys.stdout.write(f"anomaly {torch.is_anomaly_enabled()}\\n")
"""
    from hotloop.doctor.scripts.attach import attend

    path, out = tmp_path / "mine.py", tmp_path / "out"
    path.write_text(text)
    apply = {"threads": 1, "prints": True, "optimizer": True, "anomaly": True}
    with out.open("wb") as file:
        seen = attend([sys.executable, str(path)], 60.0, Silent(), file, apply, is_sampled=False)
    assert seen.exit_code == 0, out.read_text()
    assert out.read_text().splitlines() == ["threads 1", "foreach True", "anomaly False"]
    assert Counter(process.pid for process in seen.processes.values()).total() == 1
    assert SimpleNamespace(**seen.processes.popitem()[1].counts).gradient_steps == 0
