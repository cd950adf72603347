"""Reading a spec: presets, files, overrides, and complaints that fit on one line."""

import copy
import json
import re
import reprlib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, get_origin

from pydantic import BaseModel, ValidationError

from hotloop import plugins, registry
from hotloop.errors import SpecError
from hotloop.spec import slm_lab
from hotloop.spec.kinds import UNKNOWN_KIND, kinds_of, sections_in
from hotloop.spec.rules import NOT_IN_TURNS, NOT_ON_POLICY, ONLY_ON_THE_HOST
from hotloop.spec.spec import MODULE_NAME, SPEC_VERSION, Spec

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from yaml import Node, SafeDumper, SafeLoader

OWN_ENV = "own:"
"""Begins the id of an env that was given from Python."""
SEARCH = "search"
"""What stands beside the fields of a spec in a file: the space that `hotloop search` searches. Nobody else reads it."""


def preset_names() -> list[str]:
    """Names that `load_spec` knows without a file."""
    return sorted(p.name.removesuffix(".yaml") for p in _presets().iterdir() if p.name.endswith(".yaml"))


def load_spec(
    source: "str | Path | Mapping[str, object] | Spec",
    overrides: Mapping[str, object] | None = None,
    *,
    imports_plugins: bool = False,
) -> Spec:
    """Read a preset's name, a YAML/JSON file, a mapping or a Spec; `overrides` maps dotted paths to values.

    To read is to import nothing: kinds of a plug-in are known once it is imported. With `imports_plugins` those that
    the spec names are, from the current folder too.
    """
    data = _read(source)
    for path, value in (overrides or {}).items():
        _set(data, path, value)
    sections = {path.partition(".")[0] for path in overrides or {}}
    if "engine" in sections and data["engine"] != "torch" and "torch" not in sections:
        data.pop("torch", None)  # how the engine works that stood there before
    if imports_plugins:
        plugins.import_named(plugins_in(data), plugins.current_folder())
    return parse_spec(data)


def load_slm_lab(
    source: str | Path,
    name: str | None = None,
    variables: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> tuple[Spec, slm_lab.Translated]:
    """One spec of a file of SLM-Lab's in our words; `variables` fill its `${name}`s, `overrides` are fields of ours."""
    text, where = _text(source)
    data = _parsed(slm_lab.filled(text, variables or {}, where), where)
    if not slm_lab.is_slm_lab(data):
        raise SpecError(f"{where} is not a file of SLM-Lab's specs, each of which has agent and env")
    found = slm_lab.translated(*slm_lab.chosen(data, name, where), variables)
    try:
        return load_spec(found.spec, overrides), found
    except SpecError as error:
        raise SpecError(f"{found.name}, in hotloop's words: {error}") from None


def is_slm_lab_file(source: str) -> bool:
    """Whether a file, if it is one, holds specs of SLM-Lab's."""
    path = Path(source)
    if source in preset_names() or path.suffix not in (".json", ".yaml", ".yml") or not path.is_file():
        return False
    try:
        return slm_lab.is_slm_lab(_parsed(*_text(source)))
    except SpecError:  # which whoever reads it says
        return False


def space_in(source: "str | Path | Mapping[str, object] | Spec") -> object:
    """What a spec's file or mapping says of the space to search; None where it says nothing."""
    if isinstance(source, Spec):
        return None
    data = source if isinstance(source, Mapping) else _parsed(*_text(source))
    return data.get(SEARCH)


def plugins_in(data: Mapping[str, object]) -> tuple[str, ...]:
    """The plug-ins that plain data names, before anything else of it is looked at."""
    named = data.get("plugins", ())
    if isinstance(named, list | tuple) and all(isinstance(one, str) and MODULE_NAME.fullmatch(one) for one in named):
        return tuple(named)
    raise SpecError(f"plugins: got {_short(named)}, expected a list of names of modules, such as [my_module]")


def parse_spec(data: Mapping[str, object]) -> Spec:
    """Validate plain data, turning every complaint into one line: what was seen, expected, and to do."""
    version = data.get("version", SPEC_VERSION)
    if isinstance(version, int) and version > SPEC_VERSION:
        raise SpecError(
            f"version is {version} but this hotloop reads up to {SPEC_VERSION}; it was made by a newer hotloop"
        )
    try:
        return Spec.model_validate(dict(data))
    except ValidationError as error:
        raise SpecError("; ".join(_explain(e, data) for e in error.errors(include_url=False))) from None


def parse_value(text: str) -> object:
    """Read the right-hand side of `--set a.b=c` as YAML."""
    try:
        return _parse_yaml(text)
    except SpecError as error:
        raise SpecError(f"{_short(text)} is {error}") from None


def to_yaml(spec: Spec) -> str:
    """Write every field that means something, defaults too, so that the file says all that was decided."""
    return _dumped(plain(spec))


def with_base(preset: str, changes: Mapping[str, object]) -> str:
    """The text of a spec that begins with `base: PRESET`; `changes` maps dotted paths to values."""
    data: dict[str, object] = {"base": preset}
    for path, value in changes.items():
        _set(data, path, value)
    return _dumped(data)


def as_given(spec: Spec) -> str:
    """The text of a spec with what was given of it, without defaults."""
    return _dumped(given(spec))


def _dumped(data: dict[str, object]) -> str:
    import yaml

    text: str = yaml.dump(data, Dumper=_yaml_dumper(), sort_keys=False, allow_unicode=True, width=110)
    return text


def given(spec: Spec) -> dict[str, object]:
    """What was given of a spec, without defaults: it is refused for the same fields when it is read again."""
    return spec.model_dump(mode="json", exclude_unset=True)


def plain(spec: Spec) -> dict[str, object]:
    """Every field that means something beside the others, as plain data that `parse_spec` takes back."""
    return with_meaning(spec.model_dump(mode="json"))


def with_meaning(data: dict[str, object]) -> dict[str, object]:
    """Leave out what the other choices make meaningless: of a whole spec, it is nobody's mistake that it is there."""
    env = data.get("env")
    env_id = str(env.get("id", "")) if isinstance(env, dict) else ""
    on_device = registry.steps_on_device(env_id, str(data.get("engine", "jax")), str(data.get("pipeline", "auto")))
    meaningless = [*(NOT_ON_POLICY if data.get("on_policy") is not None else ()), *(ONLY_ON_THE_HOST * on_device)]
    meaningless += NOT_IN_TURNS if data.get("turns") is not None else ()
    pipeline = str(data.get("pipeline", "auto"))
    says_nothing = pipeline != "auto" or _field(data, "actors") == _field(Spec().model_dump(mode="json"), "actors")
    meaningless += ["actors"] * (says_nothing and not registry.opens_envs_elsewhere(pipeline))
    # Of one's own it may be either, and another engine may step it on the device: a default says nothing.
    if env_id.startswith(OWN_ENV) or (registry.is_device_env(env_id) and not on_device):
        default = Spec().model_dump(mode="json")
        meaningless += [path for path in ONLY_ON_THE_HOST if _field(data, path) == _field(default, path)]
    for path in meaningless:
        section, _, last = path.rpartition(".")
        found = _field(data, section) if section else data
        if isinstance(found, dict):
            found.pop(last, None)
    return data


def _field(data: object, path: str) -> object:
    """What lies at a dotted path of plain data; None where there is nothing."""
    for name in path.split("."):
        data = data.get(name) if isinstance(data, dict) else None
    return data


def json_schema() -> dict[str, object]:
    """Return the JSON Schema of a spec, with the description of every field."""
    return Spec.model_json_schema()


def _presets() -> Traversable:
    return resources.files("hotloop") / "presets"


def _read(source: "str | Path | Mapping[str, object] | Spec") -> dict[str, object]:
    if isinstance(source, Spec):
        return given(source)
    if isinstance(source, Mapping):
        return _with_base(copy.deepcopy(dict(source)), "the spec")
    data = read_text(*_text(source))
    if slm_lab.is_slm_lab(data):
        raise SpecError(
            f"{source} holds specs of SLM-Lab's ({', '.join(data)}); hotloop train {source} NAME, and from Python "
            "hotloop.train(hotloop.slm_lab(FILE, NAME))"
        )
    return data


def _text(source: str | Path) -> tuple[str, str]:
    """The text of a preset or a file, and what to call it in a complaint."""
    if isinstance(source, str) and source in preset_names():
        return (_presets() / f"{source}.yaml").read_text(), f"preset {source}"
    path = Path(source)
    looks_like_a_file = path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1
    if not path.is_file():
        names = preset_names()
        hint = (
            "no such file" if looks_like_a_file else f"no such preset or file; {registry.nearest(str(source), names)}"
        )
        raise SpecError(f"'{source}': {hint}")
    try:
        return path.read_text(), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"'{source}' cannot be read: {error}") from None


def sections_given(source: "str | Path | Mapping[str, object] | Spec") -> set[str]:
    """Sections that a user has written: not those of a preset, by its name or as the base of a file."""
    if isinstance(source, Spec):
        return set(source.model_fields_set)
    if isinstance(source, Mapping):
        return set(source)
    return set() if source in preset_names() else set(_parsed(*_text(source)))


def read_text(text: str, where: str) -> dict[str, object]:
    """The plain data of a spec's text, which came from `where`: a YAML file, or a JSON one by its name."""
    return _with_base(_parsed(text, where), where)


def _parsed(text: str, where: str) -> dict[str, object]:
    try:
        data = json.loads(text) if where.endswith(".json") else _parse_yaml(text)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{where}: not JSON: {error}") from None
    if not isinstance(data, dict):
        held = "nothing" if data is None else type(data).__name__
        raise SpecError(f"{where} holds {held}, expected a mapping of spec fields")
    return data


def _with_base(data: dict[str, object], where: str) -> dict[str, object]:
    """A spec may begin with `base: PRESET` and say only what differs from it; a space to search is no field of it."""
    data.pop(SEARCH, None)
    if "base" not in data:
        return data
    name = data.pop("base")
    if name not in preset_names():
        raise SpecError(
            f"{where}: base is {_short(name)}, expected a preset; {registry.nearest(str(name), preset_names())}"
        )
    return _merged(_read(str(name)), data)


def _merged(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    """Sections are merged field by field, unless they change their kind."""
    merged = {**below, **above}
    for name in below.keys() & above.keys():
        old, new = below[name], above[name]
        if isinstance(old, dict) and isinstance(new, dict) and new.get("kind", old.get("kind")) == old.get("kind"):
            merged[name] = _merged(old, new)
    return merged


def _set(data: dict[str, object], path: str, value: object) -> None:
    *parents, last = path.split(".")
    section = data
    for name in parents:
        child = section.get(name)
        if not isinstance(child, dict):  # absent, or a bare number that a mapping replaces
            child = section[name] = {}
        section = child
    section[last] = value


def _explain(error: "ErrorDetails", data: Mapping[str, object]) -> str:
    kind, seen = error["type"], error.get("input")
    path = [str(part) for part in _path_without_tags(error["loc"], data, ends_in_key=kind in _ABOUT_A_KEY)]
    where = ".".join(path)
    if kind == "extra_forbidden":
        elsewhere = [] if len(path) > 1 else fields_of_sections(path[0])
        if elsewhere:
            return f"{where}: unknown key; did you mean {' or '.join(map(repr, elsewhere))}?"
        known = _fields_at(path[:-1], data)
        return f"{where}: unknown key; {registry.nearest(path[-1], known)}"
    if kind in ("literal_error", "union_tag_invalid", "union_tag_not_found", UNKNOWN_KIND):
        context = error.get("ctx", {})
        expected = re.findall(r"'([^']+)'", str(context.get("expected_tags") or context.get("expected") or ""))
        if isinstance(seen, dict):
            seen, where = seen.get("kind"), f"{where}.kind"
        if expected:
            choice = f"one of {', '.join(expected)}"
            hint = registry.nearest(str(seen), expected, otherwise=choice)
            hint += "" if hint == choice else f" ({choice})"
            more = "; a plug-in module can bring more (plugins: [module])" if kind == UNKNOWN_KIND else ""
            return f"{where}: unknown value {_short(seen)}; {hint}{more}"
        return f"{where}: got {_short(seen)}, expected {context.get('expected', 'another value')}"
    message = re.sub(r"^Value error, ", "", error["msg"])
    if kind == "value_error":
        return f"{where}: {message}" if where else message
    if kind == "missing":
        return f"{where}: missing"
    if kind in _EXPECTED:
        return f"{where}: got {_short(seen)}, expected {_EXPECTED[kind]}"
    return f"{where}: got {_short(seen)}; {message[0].lower()}{message[1:]}"


def _short(value: object) -> str:
    """A value as a person wants to see it again: a few dozen characters of it."""
    shortener = reprlib.Repr()
    shortener.maxlevel, shortener.maxstring, shortener.maxother = 2, 60, 60
    return shortener.repr(value)


_ABOUT_A_KEY = ("extra_forbidden", "missing")
_A_SECTION = "a section, a mapping of fields to values"
_EXPECTED = {
    "tuple_type": "a list, such as [1, 2]",
    "model_type": _A_SECTION,
    "model_attributes_type": _A_SECTION,
    "dict_type": "a mapping",
}
"""What pydantic expects, in words of a spec."""


def _path_without_tags(loc: tuple[str | int, ...], data: Mapping[str, object], *, ends_in_key: bool) -> list[str | int]:
    """Drop the union tags that pydantic puts into a location (`torso.mlp.hiden` -> `torso.hiden`)."""
    path: list[str | int] = []
    node: object = data
    for i, part in enumerate(loc):
        is_tag = (isinstance(node, dict) and part not in node and node.get("kind", part) == part) or (
            part == "constant" and not isinstance(node, dict)
        )
        if is_tag and not (ends_in_key and i == len(loc) - 1):
            continue
        path.append(part)
        node = node.get(part) if isinstance(node, dict) else None
    return path


def _fields_at(path: list[str], data: Mapping[str, object]) -> list[str]:
    """Names of the fields a section has, following the `kind` given in the data."""
    model: type[BaseModel] = Spec
    node: object = data
    is_by_name = False
    for part in path:
        node = node.get(part, {}) if isinstance(node, dict) else {}
        if is_by_name:  # such as network.torso.branches, whose keys are the user's
            is_by_name = False
            continue
        options = sections_in(model.model_fields[part]) if part in model.model_fields else []
        is_by_name = bool(options) and get_origin(model.model_fields[part].annotation) is dict
        kind = node.get("kind") if isinstance(node, dict) else None
        named = [section for section in options if kind in kinds_of(section)]
        if not (named or options):
            return []
        model = (named or options)[0]
    return list(model.model_fields)


def fields_of_sections(name: str) -> list[str]:
    """Where a section has a field of this name, `stop` first; none where too many have for a hint."""
    sections = sorted(Spec.model_fields.items(), key=lambda item: item[0] != "stop")
    paths = [at for at, field in sections if any(name in section.model_fields for section in sections_in(field))]
    return [f"{at}.{name}" for at in paths] if len(paths) <= 2 else []


def _parse_yaml(text: str) -> object:
    import yaml

    try:
        return yaml.load(text, Loader=_yaml_loader())  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        at = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SpecError(f"not YAML: {error.problem}{at}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # e.g. a date that is none, 2024-99-99
        raise SpecError(f"not YAML: {' '.join(str(error).split())}") from None


# YAML 1.2 reads 1e-3 as a number; PyYAML alone would not. Reader and writer agree, so that the name 1e5 is quoted.
_EXPONENT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _yaml_loader() -> "type[SafeLoader]":
    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader with YAML 1.2's numbers and without aliases, which let a few lines stand for gigabytes."""

        def compose_node(self, parent: "Node | None", index: int) -> "Node | None":
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem="an alias; write its value out", problem_mark=mark)
            return super().compose_node(parent, index)

    Loader.add_implicit_resolver(*_EXPONENT)
    return Loader


def _yaml_dumper() -> "type[SafeDumper]":
    import yaml

    class Dumper(yaml.SafeDumper):
        """SafeDumper with YAML 1.2's numbers."""

    Dumper.add_implicit_resolver(*_EXPONENT)
    return Dumper
