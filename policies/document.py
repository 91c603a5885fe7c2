"""What every policy document and field has in common: the Kubernetes shape, and fields that explain themselves.

Each field carries its description, its unit and the reason for its default, so that the JSON Schema, ``switchgear
explain``, the commented defaults file and the reference documentation are all read off the models.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

from policies.quantity import MAX_DURATION_S, Name, format_duration

API_VERSION: Final = "switchgear.dev/v1alpha1"


class Spec(BaseModel):
    """Base of all policy models: frozen, strict about unknown fields, camelCase in YAML."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


def documented_field(default: Any, description: str, *, why: str = "", unit: str = "", **constraints: Any) -> Any:
    """A field with its description, unit and the reason for its default; ``...`` as default means required."""
    extra: dict[str, JsonValue] = {key: text for key, text in (("x-unit", unit), ("x-why", why)) if text}
    if unit == "duration":
        # JSON Schema cannot compare durations, so what is allowed is said in words.
        extra["x-allowed"] = _durations_allowed(constraints)
    if isinstance(default, type) and issubclass(default, BaseModel):
        # A nested block whose own defaults apply when the operator leaves it out.
        return Field(default_factory=default, description=description, json_schema_extra=extra, **constraints)
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def _durations_allowed(constraints: Mapping[str, float]) -> str:
    low = f"more than {format_duration(constraints['gt'])}" if "gt" in constraints else ""
    low = low or f"at least {format_duration(constraints.get('ge', 0))}"
    return f"a duration, {low}, at most {format_duration(constraints.get('le', MAX_DURATION_S))}"


Labels = Annotated[dict[str, str], Field(max_length=64)]
"""Kubernetes labels or annotations: at most 64 pairs of text."""


class Metadata(Spec):
    """Name and labels of a document."""

    name: Name = documented_field(..., "Name of the document, unique for its kind.")
    namespace: Name | None = documented_field(None, "Kubernetes namespace; carried along, not interpreted.")
    labels: Labels = documented_field({}, "Labels, carried along.")
    annotations: Labels = documented_field({}, "Annotations, carried along.")
