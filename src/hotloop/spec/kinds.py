"""A section whose class follows from its `kind`, by the registry: kinds from outside are read as our own are."""

from collections.abc import Hashable
from typing import Literal

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, PydanticKnownError, core_schema

from hotloop import registry
from hotloop.spec.section import Section

UNKNOWN_KIND = "unknown_kind"
"""The type of the complaint about a kind that is not registered."""


class ByKind:
    """Beside a field's type in `Annotated`: its value is the section that the registry has for its `kind`."""

    def __init__(self, what: Literal["head", "torso"], default: str) -> None:
        """`default` is the kind of a section that does not say."""
        self.what, self.default = what, default

    @property
    def records(self) -> "dict[str, registry.HeadRecord] | dict[str, registry.TorsoRecord]":
        """The registry's table."""
        return registry.HEADS if self.what == "head" else registry.TORSOS

    def section(self, kind: str, base: type[Section] = Section) -> type[Section]:
        """The class that a registered kind names; raises ValueError if there is none of that `base`."""
        target = self.records[kind].section
        try:
            found = registry.imported(target)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"{self.what} '{kind}' is said to be {target}, which cannot be imported: {error}"
            ) from None
        if not (isinstance(found, type) and issubclass(found, base)):
            raise ValueError(f"{self.what} '{kind}' is said to be {target}, which is no hotloop.spec.{base.__name__}")
        return found

    def validated(self, value: object, base: type[Section]) -> Section:
        """A section from plain data, or as it is."""
        if not isinstance(value, dict | base):
            raise PydanticKnownError("model_attributes_type")
        kind = value.get("kind", self.default) if isinstance(value, dict) else getattr(value, "kind", None)
        if not isinstance(kind, str) or not registry.is_known(self.records, kind):
            expected = ", ".join(f"'{name}'" for name in self.records)
            raise PydanticCustomError(UNKNOWN_KIND, "unknown kind", {"expected": expected})
        return self.section(kind, base).model_validate({"kind": kind, **value} if isinstance(value, dict) else value)

    def __get_pydantic_core_schema__(self, source: type[Section], handler: GetCoreSchemaHandler) -> CoreSchema:
        del handler
        return core_schema.no_info_plain_validator_function(
            lambda value: self.validated(value, source),
            serialization=core_schema.simple_ser_schema("any"),  # by its own class, not by that of the field
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        del schema
        choices: dict[Hashable, CoreSchema] = {
            kind: self.section(kind).__pydantic_core_schema__ for kind in self.records
        }
        return handler(core_schema.tagged_union_schema(choices, "kind"))


def sections_in(field: FieldInfo) -> list[type[BaseModel]]:
    """Sections that a field may hold: one of a class, of a union, or of each kind that is registered."""
    if chosen := next((part for part in field.metadata if isinstance(part, ByKind)), None):
        return [chosen.section(kind) for kind in chosen.records]
    return _models_in(field.annotation)


def kinds_of(section: type[BaseModel]) -> tuple[str, ...]:
    """The values that `kind` may have in a section; none if it has no such field."""
    field = section.model_fields.get("kind")
    return tuple(getattr(field.annotation, "__args__", ())) if field else ()


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]
