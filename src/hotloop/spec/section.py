"""What every section of a spec has in common."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """A part of a spec: nothing unknown, nothing converted, never changed."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Sizes = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False)]
PositiveInt = Annotated[int, Field(ge=1)]


def or_kind(default_kind: str) -> BeforeValidator:
    """A section with several kinds may leave `kind` out and gets the default one."""
    return BeforeValidator(lambda value: {"kind": default_kind, **value} if isinstance(value, dict) else value)
