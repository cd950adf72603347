"""The reference of every spec field as Markdown, written by the spec itself: `make docs`."""

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hotloop.spec.kinds import kinds_of, sections_in
from hotloop.spec.schedules import Constant, Cosine, Exponential, Linear, Periodic, Staircase
from hotloop.spec.spec import Spec


def as_markdown() -> str:
    """One table per section, in the order of the spec; schedules once, at the end."""
    parts = [
        "# Spec reference",
        "Made by `make docs` from `src/hotloop/spec/`. All times are environment steps. "
        "Change a field with `--set a.b=c`; `hotloop schema` prints the same as JSON Schema.",
    ]
    schedules: list[type[BaseModel]] = [Constant, Linear, Exponential, Staircase, Cosine, Periodic]
    _section(Spec, "", parts, schedules)
    parts.append("## Schedules\n\nWherever a *schedule* is asked for, a bare number means `constant`.")
    for model in schedules:
        parts += [f"### {_kind(model)}\n\n{model.__doc__}", _table(model, schedules)]
    return "\n\n".join(parts) + "\n"


def _section(model: type[BaseModel], path: str, parts: list[str], schedules: list[type[BaseModel]]) -> None:
    if path:
        kind = _kind(model)
        parts.append(f"## {path}" + (f" (kind: {kind})" if kind else "") + f"\n\n{model.__doc__}")
    parts.append(_table(model, schedules))
    for name, field in model.model_fields.items():
        for child in sections_in(field):
            if child not in schedules:
                _section(child, f"{path}.{name}".lstrip("."), parts, schedules)


def _table(model: type[BaseModel], schedules: list[type[BaseModel]]) -> str:
    rows = ["| field | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        if name == "kind" and _kind(model) and not field.description:
            continue
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{name}` | {_default(field, schedules)} | {meaning} |")
    return "\n".join(rows) if len(rows) > 2 else "No fields."


def _default(field: FieldInfo, schedules: list[type[BaseModel]]) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, Constant):
        return f"`{value.value:g}`"
    if type(value) in schedules:
        return "`" + ", ".join(f"{k}: {v}" for k, v in value.model_dump().items()) + "`"
    if isinstance(value, BaseModel):
        kind = _kind(type(value))
        return f"`kind: {kind}`" if kind else "see below"
    return "null" if value is None else f"`{list(value) if isinstance(value, tuple) else value}`"


def _kind(model: type[BaseModel]) -> str:
    """The value of `kind` that selects this model, when it has just one."""
    options = kinds_of(model)
    return options[0] if len(options) == 1 else ""


if __name__ == "__main__":
    print(as_markdown(), end="")
