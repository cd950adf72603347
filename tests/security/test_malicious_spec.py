"""A spec or run folder from a stranger executes nothing and stays small."""

import json
import tracemalloc

import pytest
from hotloop_process import contents

import hotloop as package
from hotloop.envs.device import make_env
from hotloop.errors import SpecError

TAGS = [
    "!!python/object/apply:os.system ['touch executed']",
    "!!python/object/new:os.system ['touch executed']",
    "!!python/name:os.system",
    "!!python/module:os",
]


@pytest.mark.parametrize("tag", TAGS)
def test_yaml_tags_execute_nothing(tmp_path, monkeypatch, tag):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(f"name: x\ndescription: {tag}\n")
    with pytest.raises(SpecError, match="YAML"):
        package.load_spec("spec.yaml")
    assert not (tmp_path / "executed").exists()


def test_yaml_tags_on_the_command_line_execute_nothing(hotloop, tmp_path):
    before = contents(tmp_path)
    assert "YAML" in hotloop("train", "tiny.yaml", "--set", f"description={TAGS[0]}").refusal
    assert contents(tmp_path) == before


def _laughs(levels):
    """YAML of a few lines that stands for 10^levels words."""
    lines = ["a0: &a0 [ha, ha, ha, ha, ha, ha, ha, ha, ha, ha]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "{" + ", ".join(lines) + "}"


@pytest.mark.parametrize(
    "where",
    [
        "seed: {}",
        "description: {}",
        "optimizer: {{learning_rate: [{}]}}",
        "network: {{head: {{kind: {}}}}}",
        "replay: {}",
        "env: {{id: {}}}",
        "env: {{options: {{max_steps: {}}}}}",
        "env: {{options: {}}}",
    ],
)
def test_yaml_that_multiplies_itself_takes_no_more_memory_than_its_size(tmp_path, where):
    (tmp_path / "laughs.yaml").write_text(where.format(_laughs(6)))  # 600 bytes; 6 MB when written out
    tracemalloc.start()
    try:
        with pytest.raises(SpecError) as refusal:
            _build_env(tmp_path / "laughs.yaml")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert len(str(refusal.value)) < 1_500


def _build_env(path):
    env = package.load_spec(path).env
    return make_env(env.id, env.options)


def test_a_setting_that_multiplies_itself_is_refused_in_a_short_line(hotloop):
    assert hotloop("train", "tiny.yaml", "--set", f"seed={_laughs(5)}").refusal


def test_yaml_nested_without_end_is_refused(hotloop, tmp_path):
    (tmp_path / "deep.yaml").write_text("seed: " + "[" * 100_000)
    assert "deep.yaml" in hotloop("train", "deep.yaml").refusal


def test_a_long_value_is_not_repeated_in_full(hotloop):
    assert "seed" in hotloop("train", "tiny.yaml", "--set", f"seed={'x' * 50_000}").refusal


@pytest.mark.parametrize("facts", ["[" * 100_000, "{}", "3", '{"format": 1e999}'], ids=lambda facts: facts[:20])
def test_forged_facts_of_a_run_are_refused(hotloop, finished, facts):
    (finished / "run.json").write_text(facts)
    assert hotloop("eval", "run").refusal


def test_a_run_cannot_make_its_reader_write_elsewhere(hotloop, finished, tmp_path):
    spec = (finished / "spec.yaml").read_text().replace("name: tiny", "name: ../../elsewhere")
    assert "../../elsewhere" in spec
    (finished / "spec.yaml").write_text(spec)
    before = contents(tmp_path)
    assert "name" in hotloop("resume", "run", "--steps", "1200").refusal
    assert contents(tmp_path) == before


def test_a_custom_network_is_never_loaded_from_a_file(hotloop, finished):
    network = {"kind": "custom", "name": "os.system"}
    data = package.load_spec(finished / "spec.yaml").model_dump(mode="json")
    (finished / "spec.yaml").write_text(json.dumps({**data, "network": network}))
    refusal = hotloop("eval", "run").refusal
    assert "network of your own" in refusal
