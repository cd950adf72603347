"""Specs that were once accepted, or refused with a traceback."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotloop.errors import SpecError
from hotloop.spec.reading import load_spec, parse_spec, parse_value, to_yaml


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "path",
    [
        "updates_per_step",
        "discount",
        "optimizer.learning_rate",
        "optimizer.eps",
        "optimizer.clip",
        "loss.delta",
        "stop.return_at_least",
    ],
)
def test_a_number_that_is_not_finite_is_refused(path: str, value: float) -> None:
    with pytest.raises(SpecError, match=f"^{path}.*finite"):
        load_spec({}, {path: value})


def test_an_epsilon_that_rises_above_one_is_refused() -> None:
    with pytest.raises(SpecError, match="epsilon reaches 2"):
        parse_spec({"exploration": {"epsilon": {"kind": "linear", "start": 0.5, "end": 2.0, "steps": 10}}})


def test_a_temperature_that_begins_at_zero_is_refused() -> None:
    schedule = {"kind": "linear", "start": 0.0, "end": 1.0, "steps": 10}
    with pytest.raises(SpecError, match="temperature reaches 0"):
        parse_spec({"exploration": {"kind": "boltzmann", "temperature": schedule}})


@pytest.mark.parametrize("text", ["1e5", "12E3", "1.5e-7"])
def test_text_that_looks_like_a_number_is_written_as_text(text: str) -> None:
    spec = parse_spec({"name": text, "description": text, "env": {"options": {"key": text}}})
    assert parse_spec(parse_value(to_yaml(spec))) == spec


def test_json_may_be_indented_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"seed": 3, "env": {"num_envs": 4}}, indent="\t"))
    assert load_spec(path).seed == 3


@pytest.mark.parametrize(
    ("name", "text"), [("a.yaml", "seed: 3\nenv: [1\nname: x\n"), ("a.json", '{"seed": 3,\n "env": [1\n}')]
)
def test_a_broken_file_is_refused_in_one_line_that_says_where(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SpecError, match="line 3") as caught:
        load_spec(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["2024-99-99", "[" * 5000, "9" * 5000])
def test_what_the_yaml_parser_chokes_on_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="not YAML"):
        parse_value(text)


def test_a_complaint_about_a_whole_section_names_the_section_without_its_kind() -> None:
    torso: dict[str, Any] = {"kind": "cnn", "channels": [1]}
    with pytest.raises(SpecError, match=r"^network\.torso: channels, kernels and strides"):
        parse_spec({"network": {"torso": torso}})


def test_steps_that_a_whole_block_would_carry_over_int32_are_refused() -> None:
    with pytest.raises(SpecError, match=r"stop\.steps is 2147483647; use at most"):
        parse_spec({"stop": {"steps": 2**31 - 1}})
