import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from hotloop import registry
from hotloop.errors import SpecError
from hotloop.spec import Cnn, Constant, EpsilonGreedy, Linear, Mlp, ScalarHead, Spec, rules
from hotloop.spec.kinds import sections_in
from hotloop.spec.reading import (
    json_schema,
    load_spec,
    parse_spec,
    parse_value,
    preset_names,
    sections_given,
    to_yaml,
    with_meaning,
)


def refusal(data: dict[str, Any]) -> str:
    """The one line that a spec is refused with."""
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def nested(path: str, value: Any) -> dict[str, Any]:
    """`a.b` and 1 -> {"a": {"b": 1}}."""
    data: Any = value
    for name in reversed(path.split(".")):
        data = {name: data}
    return data


# -- every field says what it is ----------------------------------------------------------------------


def sections() -> list[type[BaseModel]]:
    """Spec and every section that can stand somewhere in it."""
    seen: list[type[BaseModel]] = []
    todo: list[type[BaseModel]] = [Spec]
    while todo:
        section = todo.pop()
        if section not in seen:
            seen.append(section)
            todo += [child for field in section.model_fields.values() for child in sections_in(field)]
    return seen


def is_tag(name: str, schema: dict[str, Any]) -> bool:
    """`kind` with one possible value: the section's own description is that of the kind."""
    return name == "kind" and "const" in schema


def test_the_walk_over_the_sections_finds_all_kinds() -> None:
    names = {section.__name__ for section in sections()}
    assert names >= {"Spec", "Env", "Mlp", "Cnn", "ScalarHead", "Boltzmann", "Periodic", "CustomNetwork", "Guard"}
    assert names >= {"Impala", "Core", "C51Head", "QuantileHead", "IqnHead", "Munchausen", "OnPolicy", "Sequence"}


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_field_has_a_description(section: type[BaseModel]) -> None:
    assert section.__doc__
    for name, field in section.model_fields.items():
        is_one_kind = name == "kind" and len(getattr(field.annotation, "__args__", ())) == 1
        assert field.description or is_one_kind, f"{section.__name__}.{name} has no docstring"


def test_the_json_schema_describes_every_field() -> None:
    schema = json_schema()
    assert len(schema["$defs"]) == len(sections()) - 1
    for title, section in {"Spec": schema, **schema["$defs"]}.items():
        assert section["description"], title
        assert section["additionalProperties"] is False, title
        for name, field in section["properties"].items():
            refers = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or refers.get("description") or is_tag(name, field), f"{title}.{name}"


# -- what is refused, and how -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("raplay", "replay"),
        ("update_per_step", "updates_per_step"),
        ("replay.capasity", "capacity"),
        ("env.num_env", "num_envs"),
        ("optimizer.lerning_rate", "learning_rate"),
        ("network.torso.hiden", "hidden"),
        ("network.hed", "head"),
        ("stop.return_at_last", "return_at_least"),
        ("exploration.epsilom", "epsilon"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(path: str, near: str) -> None:
    assert refusal(nested(path, 1)) == f"{path}: unknown key; did you mean '{near}'?"


@pytest.mark.parametrize(
    ("data", "near"),
    [
        (
            {"network": {"torso": {"kind": "cnn", "kernel": [3]}}},
            "network.torso.kernel: unknown key; did you mean 'kernels'?",
        ),
        (
            {"network": {"head": {"kind": "qr", "hiden": [3]}}},
            "network.head.hiden: unknown key; did you mean 'hidden'?",
        ),
        (
            {"exploration": {"epsilon": {"kind": "linear", "start": 1, "end": 0, "steps": 9, "colour": 1}}},
            "exploration.epsilon.colour: unknown key; known: end, kind, start, steps",
        ),
        (
            {"exploration": {"kind": "boltzmann", "temprature": 1}},
            "exploration.temprature: unknown key; did you mean 'temperature'?",
        ),
        ({"wombat": 1}, "wombat: unknown key; known: actors, agents, description, devices, discount, discount_per, "),
        ({"bogus": 1}, "bogus: unknown key; known: actors, agents, description, devices, discount, discount_per, "),
        ({"steps": 1000}, "steps: unknown key; did you mean 'stop.steps' or 'on_policy.steps'?"),
        ({"batch_size": 64}, "batch_size: unknown key; did you mean 'replay.batch_size'?"),
        ({"kind": "c51"}, "kind: unknown key; known: actors, agents, description, "),  # too many have one
    ],
)
def test_the_known_keys_are_those_of_the_kind_given(data: dict[str, Any], near: str) -> None:
    assert refusal(data).startswith(near)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", True),
        ("seed", 1.0),
        ("seed", "1"),
        ("env.num_envs", True),
        ("env.num_envs", 4.0),
        ("env.num_envs", "4"),
        ("env.num_envs", None),
        ("env.id", 5),
        ("env.options", [1]),
        ("discount", "0.99"),
        ("discount", True),
        ("updates_per_step", "1"),
        ("network.torso.hidden", 64),
        ("network.torso.hidden", "64"),
        ("network.torso", 5),
        ("network", 5),
        ("optimizer.learning_rate", "1e-3"),
        ("optimizer.learning_rate", True),
        ("optimizer.learning_rate", None),
        ("optimizer.clip", "10"),
        ("replay", None),
        ("replay", 5),
        ("env", []),
        ("stop.return_at_least", True),
        ("stop.episodes", 1.5),
        ("name", 7),
    ],
)
def test_a_wrong_type_is_refused_with_where_and_what(path: str, value: Any) -> None:
    message = refusal(nested(path, value))
    assert message.startswith(f"{path}: ")
    assert repr(value) in message
    assert "expected" in message or "should be" in message


@pytest.mark.parametrize("width", [True, 64.0, "64", None])
def test_a_width_that_is_no_integer_is_refused_by_its_place(width: Any) -> None:
    message = refusal({"network": {"torso": {"hidden": [32, width]}}})
    assert message == f"network.torso.hidden.1: got {width!r}; input should be a valid integer"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", -1),
        ("seed", 2**32),
        ("updates_per_step", 0),
        ("updates_per_step", -0.5),
        ("updates_per_step", float("nan")),
        ("discount", 1.01),
        ("discount", -0.1),
        ("env.num_envs", 0),
        ("network.torso.hidden", [0]),
        ("target.every", 0),
        ("target.tau", 0.0),
        ("target.tau", 1.5),
        ("loss.delta", 0),
        ("optimizer.beta1", 1.0),
        ("optimizer.eps", 0),
        ("optimizer.momentum", 1.0),
        ("optimizer.weight_decay", -1),
        ("optimizer.clip", 0),
        ("replay.capacity", 0),
        ("replay.start", 0),
        ("replay.batch_size", 0),
        ("evaluation.every", -1),
        ("evaluation.episodes", 0),
        ("stop.steps", 0),
        ("stop.steps", 2**31),
        ("stop.episodes", 0),
        ("log.every", 0),
        ("log.checkpoints", 0),
        ("guard.skips_in_a_row", 0),
        ("name", "../elsewhere"),
        ("name", ""),
        ("name", "two words"),
        ("name", "line\n"),
    ],
)
def test_a_number_or_name_out_of_bounds_is_refused(path: str, value: Any) -> None:
    assert refusal(nested(path, value)).startswith(path)


IMPOSSIBLE: dict[str, tuple[dict[str, Any], str]] = {
    "a batch larger than the replay": (
        {"replay": {"capacity": 32, "batch_size": 33}},
        "replay.batch_size is 33 but replay.capacity is 32; a batch cannot be larger than the replay",
    ),
    "a replay smaller than a block": (
        {"env": {"num_envs": 256}, "replay": {"capacity": 100, "batch_size": 8}},
        "replay.capacity is 100 but a block of 256 env(s) inserts 256 transitions; use at least 256",
    ),
    "a ratio that fits no block": ({"updates_per_step": 0.00099}, "updates_per_step 0.00099 with 16 env(s) is 0.01584"),
    "a goal without evaluations": (
        {"stop": {"return_at_least": 5}, "evaluation": {"every": 0}},
        "stop.return_at_least needs evaluations, but evaluation.every is 0",
    ),
    "a negative learning rate": (
        {"optimizer": {"learning_rate": -1e-3}},
        "optimizer.learning_rate.value is -0.001; it cannot be negative",
    ),
    "a learning rate that becomes negative": (
        {"optimizer": {"learning_rate": {"kind": "linear", "start": 0.1, "end": -0.1, "steps": 5}}},
        "optimizer.learning_rate.end is -0.1; it cannot be negative",
    ),
    "a probability above 1": ({"exploration": {"epsilon": 1.5}}, "exploration.epsilon reaches 1.5"),
    "a temperature of 0": (
        {"exploration": {"kind": "boltzmann", "temperature": 0}},
        "exploration.temperature reaches 0",
    ),
    "a temperature that falls to 0": (
        {"exploration": {"kind": "boltzmann", "temperature": {"kind": "cosine", "start": 1.0, "steps": 9}}},
        "exploration.temperature reaches 0",
    ),
    "convolutions of different depth": (
        {"network": {"torso": {"kind": "cnn", "channels": [8, 8], "kernels": [3], "strides": [1, 1]}}},
        "channels, kernels and strides describe 2, 1 and 2 convolutions",
    ),
    "a number in place of a list": (
        {"network": {"torso": {"hidden": 64}}},
        "network.torso.hidden: got 64, expected a list, such as [1, 2]",
    ),
    "a number in place of a section": (
        {"replay": 5},
        "replay: got 5, expected a section, a mapping of fields to values",
    ),
    "an unknown engine": ({"engine": "jx"}, "unknown engine 'jx'; did you mean 'jax'?"),
    "an unknown pipeline": ({"pipeline": "fusd"}, "unknown pipeline 'fusd'; did you mean 'fused'?"),
    "an unknown torso": (
        {"network": {"torso": {"kind": "cn"}}},
        "network.torso.kind: unknown value 'cn'; did you mean 'cnn'? (one of mlp, cnn, impala, branches)",
    ),
    "an unknown head": (
        {"network": {"head": {"kind": "c52"}}},
        "network.head.kind: unknown value 'c52'; did you mean 'c51'? (one of scalar, c51, qr, iqn)",
    ),
    "a head of a plug-in that is not named": (
        {"network": {"head": {"kind": "two_tone"}}},
        "network.head.kind: unknown value 'two_tone'; one of scalar, c51, qr, iqn; a plug-in module can bring more "
        "(plugins: [module])",
    ),
    "an unknown target rule": (
        {"target": {"rule": "duble"}},
        "target.rule: unknown value 'duble'; did you mean 'double'?",
    ),
    "an unknown schedule": (
        {"exploration": {"epsilon": {"kind": "liner"}}},
        "exploration.epsilon.kind: unknown value 'liner'; did you mean 'linear'?",
    ),
    "a schedule with a part missing": (
        {"exploration": {"epsilon": {"kind": "linear", "start": 1.0, "end": 0.1}}},
        "exploration.epsilon.steps: missing",
    ),
    "a custom network without a name": ({"network": {"kind": "custom"}}, "network.name: missing"),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_what_cannot_be_run_is_refused(what: str) -> None:
    data, message = IMPOSSIBLE[what]
    assert message in refusal(data)


ON_POLICY: dict[str, Any] = {"on_policy": {}}
MEMORY: dict[str, Any] = {"network": {"core": {}}, "replay": {"sequence": {}}}
# In the order of hotloop.spec.rules: a spec that it refuses, what the message says, and the remedy it ends in.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"target": {"rule": "double", "munchausen": {}}}, "munchausen with rule: double", "use rule: target"),
    ({"target": {"munchausen": {}}, "replay": {"n_step": 3}}, "replay.n_step: 3", "use n_step: 1"),
    (
        {"target": {"munchausen": {}}, "network": {"head": {"kind": "c51"}}},
        "munchausen with head c51",
        "use scalar, qr or iqn",
    ),
    (
        {"target": {"munchausen": {}}, "env": {"action_mask": True}},
        "target.munchausen with env.action_mask",
        "use one of the two",
    ),
    ({"loss": {"kind": "mse"}, "network": {"head": {"kind": "iqn"}}}, "mse with head iqn", "use huber"),
    (
        {"target": {"rule": "vanilla"}, "network": {"head": {"kind": "iqn", "choice_taus": 32}}},
        "choice_taus with target.rule vanilla",
        "use rule target or double",
    ),
    ({"network": {"kind": "custom", "name": "Mine"}, "replay": {"sequence": {}}}, "of your own", ""),
    (ON_POLICY | {"replay": {"batch_size": 32}}, "without a replay", "leave replay out"),
    (ON_POLICY | {"target": {"rule": "double"}}, "without a target net", "leave target out"),
    (ON_POLICY | {"updates_per_step": 1.0}, "epochs x minibatches", "leave updates_per_step out"),
    (ON_POLICY | {"learn_every": 64}, "how much is collected at a time", "leave learn_every out"),
    (ON_POLICY | {"network": {"head": {"kind": "c51"}}}, "λ-returns", "use head scalar"),
    (
        {"on_policy": {"steps": 5, "minibatches": 3}, "env": {"num_envs": 4}},
        "on_policy collects 20 transitions",
        "use another number of these",
    ),
    ({"network": {"core": {}}}, "network.core and replay.sequence belong together", "give both or none"),
    (
        {"network": {"core": {}}, "replay": {"sequence": {}, "updates_per_batch": 2}},
        "one gradient step on each batch of sequences",
        "leave replay.updates_per_batch out",
    ),
    (
        {"network": {"core": {}, "head": {"kind": "qr"}}, "replay": {"sequence": {}}},
        "network.core learns with head scalar, without noise and Munchausen",
        "use those",
    ),
    (
        MEMORY | {"replay": {"sequence": {}, "sampling": {"kind": "prioritized"}}},
        "sequences that are drawn uniformly",
        "use sampling: uniform, n_step: 1, normalization: none or layer",
    ),
    (
        {"network": {"torso": {"normalization": "batch"}}, "optimizer": {"accumulate": 2}},
        "normalization: batch with optimizer.accumulate",
        "use layer, or accumulate: 1",
    ),
    ({"optimizer": {"accumulate": 3}}, "replay.batch_size is 64, which 3 part(s) on 1 device(s)", "use a multiple"),
    ({"devices": 2, "seeds": 2}, "devices is 2 and seeds is 2", "use one of the two"),
]
ALSO_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "qr by mse": ({"loss": {"kind": "mse"}, "network": {"head": {"kind": "qr"}}}, "use huber"),
    "munchausen by the online net": ({"target": {"rule": "vanilla", "munchausen": {}}}, "use rule: target"),
    "noise on policy": (ON_POLICY | {"network": {"head": {"noise": 0.5}}}, "use head scalar"),
    "sequences without memory": ({"replay": {"sequence": {}}}, "give both or none"),
    "memory and noise": (MEMORY | {"network": {"core": {}, "head": {"noise": 0.5}}}, "use those"),
    "memory and munchausen": (MEMORY | {"target": {"munchausen": {}}}, "use those"),
    "memory and n steps": (MEMORY | {"replay": {"sequence": {}, "n_step": 2}}, "normalization: none or layer"),
    "memory and batch norm": (
        MEMORY | {"network": {"core": {}, "torso": {"normalization": "batch"}}},
        "normalization: none or layer",
    ),
    "a batch on too many devices": ({"devices": 3}, "use a multiple"),
    "parts of a batch on too many devices": ({"devices": 16, "optimizer": {"accumulate": 8}}, "use a multiple"),
    "a minibatch in too many parts": ({"on_policy": {"steps": 3}, "optimizer": {"accumulate": 5}}, "use a multiple"),
}


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_choices_that_do_not_go_together_are_refused_with_the_remedy(number: int) -> None:
    data, complaint, remedy = REFUSED[number]
    message = refusal(data)
    assert complaint in message
    assert message.endswith(remedy)


def test_every_refused_combination_is_among_the_cases() -> None:
    combinations = (rules._targets, rules._on_policy, rules._memory, rules._batches)
    of_heads = {choice for record in registry.HEADS.values() for choice in record.refuses}
    assert len(REFUSED) == len(of_heads) + sum(len(list(of(parse_spec(ON_POLICY)))) for of in combinations)


def test_a_field_that_means_nothing_is_refused_at_its_default_too_but_not_in_the_spec_of_a_run() -> None:
    data: dict[str, Any] = {**ON_POLICY, "replay": {"batch_size": Spec().replay.batch_size}}
    assert refusal(data).startswith("on_policy learns without a replay")
    whole = Spec.model_validate(ON_POLICY).model_dump(mode="json")  # what runs of earlier versions wrote
    assert parse_spec(with_meaning(whole)) == parse_spec(ON_POLICY)
    assert "replay" not in parse_value(to_yaml(parse_spec(ON_POLICY)))


@pytest.mark.parametrize("what", ALSO_REFUSED)
def test_every_part_of_a_refused_combination_is_refused(what: str) -> None:
    data, remedy = ALSO_REFUSED[what]
    assert refusal(data).endswith(remedy)


@pytest.mark.parametrize(
    "data",
    [
        {"target": {"munchausen": {}}, "network": {"head": {"kind": "iqn"}}},
        {"network": {"head": {"kind": "c51"}}, "loss": {"kind": "mse"}},
        {"network": {"head": {"kind": "qr", "dueling": True, "noise": 0.5}}, "replay": {"n_step": 3}},
        {"network": {"core": {"kind": "gru"}}, "replay": {"sequence": {"length": 4}}, "target": {"rule": "double"}},
        {"on_policy": {"steps": 4}, "network": {"torso": {"normalization": "batch"}}},
        {"optimizer": {"accumulate": 4}, "devices": 2, "precision": "float16"},
        {"network": {"torso": {"kind": "impala", "normalization": "layer"}, "init": "orthogonal"}},
    ],
)
def test_choices_that_do_go_together_are_accepted_and_survive_being_written(data: dict[str, Any]) -> None:
    spec = parse_spec(data)
    assert parse_spec(parse_value(to_yaml(spec))) == spec


# -- noise instead of ε -------------------------------------------------------------------------------


def test_a_noisy_head_needs_no_epsilon() -> None:
    noisy: dict[str, Any] = {"network": {"head": {"kind": "c51", "noise": 0.5}}}
    assert parse_spec(noisy).exploration == EpsilonGreedy(epsilon=Constant(value=0.0))
    assert Spec(network=parse_spec(noisy).network).exploration == EpsilonGreedy(epsilon=Constant(value=0.0))
    assert parse_spec({"network": {"head": {"kind": "c51"}}}).exploration == EpsilonGreedy()


@pytest.mark.parametrize(
    "exploration", [{"epsilon": 0.1}, {}, {"kind": "boltzmann", "temperature": 0.5}], ids=["number", "default", "other"]
)
def test_exploration_that_is_given_stays_beside_noise(exploration: dict[str, Any]) -> None:
    plain = parse_spec({"exploration": exploration})
    noisy = parse_spec({"exploration": exploration, "network": {"head": {"noise": 0.5}}})
    assert noisy.exploration == plain.exploration
    assert parse_spec(parse_value(to_yaml(noisy))) == noisy


# -- what is accepted ---------------------------------------------------------------------------------


def test_the_empty_spec_is_all_defaults() -> None:
    spec = parse_spec({})
    assert spec == Spec()
    assert (spec.env.id, spec.updates_per_step, spec.block_plan.updates) == ("cartpole", 0.25, 4)


def test_a_bare_number_is_a_constant_schedule() -> None:
    spec = parse_spec({"optimizer": {"learning_rate": 1}, "exploration": {"epsilon": 0.1}})
    assert spec.optimizer.learning_rate == Constant(value=1.0)
    assert spec.exploration_schedule == Constant(value=0.1)


def test_kind_may_be_left_out_for_the_default_kind() -> None:
    spec: Any = parse_spec({"network": {"torso": {"hidden": [7]}}, "exploration": {"epsilon": {"value": 0.2}}})
    assert spec.network.torso == Mlp(hidden=(7,))
    assert spec.exploration_schedule == Constant(value=0.2)


def test_the_temperature_is_the_exploration_schedule_of_boltzmann() -> None:
    spec = parse_spec({"exploration": {"kind": "boltzmann", "temperature": 0.5}})
    assert spec.exploration_schedule == Constant(value=0.5)


def test_a_spec_cannot_be_changed_once_made() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Spec().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_says_what_it_is(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    assert spec.description
    assert parse_spec(parse_value(to_yaml(spec))) == spec


def test_cartpole_is_a_preset() -> None:
    assert "cartpole" in preset_names()


# -- where a spec comes from --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        ("-2.5e3", -2500.0),
        ("1.e3", 1000.0),
        ("5", 5),
        ("0.25", 0.25),
        ("true", True),
        ("null", None),
        ("", None),
        ("cartpole", "cartpole"),
        ("'1e-3'", "1e-3"),
        ("e3", "e3"),
        ("[64, 32]", [64, 32]),
        (
            "{kind: linear, start: 1.0, end: 1e-2, steps: 10}",
            {"kind": "linear", "start": 1.0, "end": 0.01, "steps": 10},
        ),
    ],
)
def test_the_right_hand_side_of_set_is_read_as_yaml(text: str, value: Any) -> None:
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "text", ["a: b: c", "[1", "{a", "!!python/object/apply:os.getcwd []", "!!python/name:os.system"]
)
def test_what_is_not_plain_yaml_is_refused_and_nothing_is_run(text: str) -> None:
    with pytest.raises(SpecError, match="is not YAML"):
        parse_value(text)


def test_overrides_reach_any_depth_and_replace_bare_numbers() -> None:
    spec: Any = load_spec(
        {"optimizer": {"learning_rate": 1e-3}},
        {
            "seed": 5,
            "network.torso.hidden": (8, 4),
            "network.head.dueling": True,
            "optimizer.learning_rate.kind": "linear",
            "optimizer.learning_rate.start": 1.0,
            "optimizer.learning_rate.end": 0.5,
            "optimizer.learning_rate.steps": 10,
        },
    )
    assert spec.seed == 5
    assert spec.network.torso == Mlp(hidden=(8, 4))
    assert spec.network.head == ScalarHead(dueling=True)
    assert spec.optimizer.learning_rate == Linear(kind="linear", start=1.0, end=0.5, steps=10)


def test_overrides_of_a_preset_leave_the_rest_as_it_is() -> None:
    spec, preset = load_spec("cartpole", {"replay.capacity": 5000}), load_spec("cartpole")
    assert spec.replay.capacity == 5000
    assert spec.replay.batch_size == preset.replay.batch_size
    assert spec.model_copy(update={"replay": preset.replay}) == preset


def test_the_source_is_not_changed_by_overrides() -> None:
    source = {"env": {"num_envs": 4}}
    load_spec(source, {"env.num_envs": 8})
    assert source == {"env": {"num_envs": 4}}


def test_an_unknown_override_is_refused_with_the_nearest_known_key() -> None:
    with pytest.raises(SpecError, match=re.escape("replay.capasity: unknown key; did you mean 'capacity'?")):
        load_spec("cartpole", {"replay.capasity": 5})


@pytest.mark.parametrize("suffix", [".yaml", ".json"])
def test_a_spec_is_read_from_a_file(tmp_path: Path, suffix: str) -> None:
    data = {"seed": 9, "network": {"torso": {"kind": "cnn", "channels": [4], "kernels": [3], "strides": [1]}}}
    path = tmp_path / f"mine{suffix}"
    path.write_text(json.dumps(data, indent=2) if suffix == ".json" else yaml.safe_dump(data))
    for source in (path, str(path)):
        spec: Any = load_spec(source)
        assert spec.seed == 9
        assert spec.network.torso == Cnn(kind="cnn", channels=(4,), kernels=(3,), strides=(1,))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("- 1\n- 2\n", "holds list, expected a mapping"), ("", "holds nothing, expected a mapping"), ("{a", "not YAML")],
)
def test_a_file_that_holds_no_spec_is_refused_by_name(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    with pytest.raises(SpecError, match=complaint) as caught:
        load_spec(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(path)


def test_a_misspelt_preset_and_a_missing_file_are_told_apart() -> None:
    with pytest.raises(SpecError, match=re.escape("'cartpol': no such preset or file; did you mean 'cartpole'?")):
        load_spec("cartpol")
    with pytest.raises(SpecError, match=re.escape("'specs/cartpole.yaml': no such file")):
        load_spec("specs/cartpole.yaml")


# -- there and back -----------------------------------------------------------------------------------

SHARE = st.floats(0, 1)
SMALL = st.integers(1, 50)
SIZES = st.lists(SMALL, max_size=3)
ACTIVATION = st.sampled_from(["relu", "selu", "tanh", "gelu", "silu"])
NORMALIZATION = st.sampled_from(["none", "layer", "batch"])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=6,
)


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, or none."""
    return st.fixed_dictionaries({}, optional=fields)


def schedules(lowest: float, highest: float) -> st.SearchStrategy[Any]:
    value, steps, rate = st.floats(lowest, highest), SMALL, st.floats(0.01, 1)
    ends = {"start": value, "end": value}
    return st.one_of(
        value,
        st.fixed_dictionaries({"kind": st.sampled_from(["linear", "cosine"]), **ends, "steps": steps}),
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["exponential", "step"]), **ends, "rate": rate, "every": steps},
        ),
        st.fixed_dictionaries({"kind": st.just("periodic"), **ends, "steps": steps, "period": steps}),
    )


@st.composite
def cnns(draw: st.DrawFn) -> dict[str, Any]:
    depth = draw(st.integers(0, 3))
    layers = st.lists(SMALL, min_size=depth, max_size=depth)
    fields = {"channels": draw(layers), "kernels": draw(layers), "strides": draw(layers)}
    more = some(hidden=SIZES, layout=st.sampled_from(["HWC", "CHW"]), padding=st.sampled_from(["valid", "same"]))
    return {"kind": "cnn", **fields, **draw(more)}


SPECS = some(
    version=st.just(1),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True),
    description=st.text(st.characters(codec="utf-8")),
    seed=st.integers(0, 2**32 - 1),
    pipeline=st.sampled_from(["auto", "fused"]),
    updates_per_step=st.sampled_from([0.25, 1, 2.0, 0.5, 1 / 3]),
    discount=SHARE,
    precision=st.sampled_from(["float32", "bfloat16", "float16"]),
    env=some(
        id=st.sampled_from(["cartpole", "gymnax:Catch-bsuite"]),
        num_envs=SMALL,
        options=st.dictionaries(st.text(st.characters(codec="utf-8")), PLAIN, max_size=2),
    ),
    network=some(
        torso=cnns() | some(kind=st.just("mlp"), hidden=SIZES, activation=ACTIVATION, normalization=NORMALIZATION),
        head=some(kind=st.just("scalar"), dueling=st.booleans(), hidden=SIZES, noise=st.none() | st.floats(0.01, 9))
        | st.fixed_dictionaries({"kind": st.just("c51"), "atoms": st.integers(2, 99), "low": st.floats(-99, 9)}),
        init=st.sampled_from(["default", "he", "orthogonal"]),
    )
    | st.fixed_dictionaries({"kind": st.just("custom"), "name": st.text(st.characters(codec="utf-8"))}),
    target=some(rule=st.sampled_from(["vanilla", "target", "double"]), every=SMALL, tau=st.floats(1e-6, 1)),
    loss=some(kind=st.sampled_from(["mse", "huber"]), delta=st.floats(1e-6, 1e6)),
    optimizer=some(
        kind=st.sampled_from(["adam", "adamw", "rmsprop", "sgd"]),
        learning_rate=schedules(0, 10),
        beta1=st.floats(0, 0.999),
        eps=st.floats(1e-12, 1),
        clip=st.none() | st.floats(1e-6, 1e6),
    ),
    exploration=some(epsilon=schedules(0, 1))
    | st.fixed_dictionaries({"kind": st.just("boltzmann"), "temperature": schedules(0.01, 100)}),
    replay=some(capacity=st.integers(10_000, 10**9), start=SMALL, batch_size=SMALL),
    evaluation=some(every=SMALL, episodes=SMALL, max_steps=SMALL),
    stop=some(steps=SMALL, return_at_least=st.none() | st.floats(-1e9, 1e9), episodes=st.none() | SMALL),
    log=some(every=SMALL, checkpoint_every=SMALL, checkpoints=SMALL),
    guard=some(skips_in_a_row=SMALL),
)


@settings(max_examples=150)
@given(data=SPECS)
def test_any_valid_spec_survives_being_written_and_read(data: dict[str, Any]) -> None:
    spec = parse_spec(data)
    assert parse_spec(parse_value(to_yaml(spec))) == spec
    assert parse_spec(json.loads(spec.model_dump_json())) == spec
    assert load_spec(spec) == spec


def test_a_written_spec_says_every_field() -> None:
    written = parse_value(to_yaml(Spec()))
    assert set(written) == set(Spec.model_fields) - {"actors"}  # which another pipeline would have
    assert set(parse_value(to_yaml(Spec(pipeline="processes")))) == set(Spec.model_fields)
    assert written["optimizer"]["learning_rate"] == {"kind": "constant", "value": 0.001}


def test_what_a_preset_says_is_not_what_the_user_has_given(tmp_path: Path) -> None:
    plain_file, own_file = tmp_path / "plain.yaml", tmp_path / "own.yaml"
    plain_file.write_text("base: rainbow\nseed: 1\n")
    own_file.write_text("base: rainbow\nexploration: {epsilon: 0.0}\n")
    assert sections_given("rainbow") == set()
    assert "exploration" not in sections_given(plain_file)
    assert "exploration" in sections_given(own_file)
    assert "exploration" not in parse_spec({"network": {"head": {"noise": 0.5}}}).model_fields_set
