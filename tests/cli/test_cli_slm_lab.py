"""Specs of SLM-Lab's from the command line."""

import json
import shutil
from pathlib import Path

import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "slm_lab.json"


def test_a_spec_is_trained_converted_and_compared_by_its_figures(hotloop, tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "specs.json")
    small = ("--steps", "400", "--set", "evaluation.every=0", "--set", "log.every=100")
    ran = hotloop("train", "specs.json", "dqn_cartpole", *small, "--out", "run", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["updates"] == 92 * 32, "a turn of 32 gradient steps at transitions 33, 37, …, 397"
    assert ran.json["seeds"] == [0, 1]
    assert "not as in SLM-Lab, or worth knowing: DQN of SLM-Lab 5" in ran.err
    found = hotloop("metrics", "run", "--json").json
    assert found["sessions"] == 2
    assert found["strength"] == found["strength"] is not None
    assert "consistency" in hotloop("metrics", "run").out
    converted = hotloop("convert", "specs.json", "dqn_cartpole", "--out", "ours.yaml")
    assert converted.code == 0
    spec = yaml.safe_load((tmp_path / "ours.yaml").read_text())
    assert spec["turns"] == {"every": 4, "updates": 32}
    assert (tmp_path / "ours.yaml").read_text().startswith("# DQN of SLM-Lab 5")
    assert yaml.safe_load(hotloop("convert", "specs.json", "dqn_cartpole").out) == spec
    assert "cannot be written" in hotloop("convert", "specs.json", "dqn_cartpole", "--out", "ours.yaml").refusal


def test_what_is_wrong_with_a_file_or_a_name_is_one_line(hotloop, tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "specs.json")
    specs = json.loads(EXAMPLE.read_text())
    specs["dqn_cartpole"]["env"]["name"] = "${env}"
    specs["dqn_cartpole"]["agent"]["algorithm"]["gamma"] = 2
    (tmp_path / "open.json").write_text(json.dumps(specs))
    for words, said in (
        (("train", "specs.json"), "specs.json holds 3 specs; say which, by its name: dqn_cartpole, ddqn"),
        (("train", "specs.json", "dqn"), "specs.json has no spec 'dqn'; it has dqn_cartpole"),
        (("train", "open.json", "dqn_cartpole"), "dqn_cartpole: ${env} is not filled; add --var env=VALUE"),
        (("convert", "open.json", "dqn_cartpole", "--var", "env"), "--var 'env': expected k=v"),
        (("convert", "open.json", "dqn_cartpole", "--var", "env=CartPole-v1"), "in hotloop's words: discount: got 2"),
        (("search", "specs.json", "ddqn_per_concat_lunar"), "nothing says what to search"),
        (("train", "cartpole", "NAME"), "preset cartpole is not a file of SLM-Lab's specs"),
    ):
        line = hotloop(*words).refusal
        assert said in line, words
    assert not (tmp_path / "runs").exists()
