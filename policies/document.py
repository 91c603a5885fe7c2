"""What every policy document and field has in common: the Kubernetes shape, and fields that explain themselves.

Each field declares its description, unit, default and the reason for it, what carries it, and its checks. The JSON
Schema, the definitions for a cluster, ``switchgear explain``, the commented defaults file, the reference and the
tables of the exports are all read off the models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from policies.fidelity import approximated, kept
from policies.field_checks import FieldCheck
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import MAX_DURATION_S, Name, format_duration

API_VERSION: Final = "switchgear.dev/v1alpha1"

OF_THE_VERSION: Final = exported_alike(Xds.NONE, kept("what is exported is of this version"))
OF_THE_NAME: Final = kept("objects are named after it, and say it in an annotation")
OF_THE_KIND: Final = exported_alike(Xds.NONE, kept("each kind has its own objects"))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldDeclaration:
    """What a field declares about itself beside its type, default, description and constraints.

    It stands in pydantic's ``json_schema_extra``: the JSON Schema gets what editors show, and nothing more.
    """

    unit: str = ""
    why: str = ""
    allowed: str = ""
    targets: FieldTargets | None = None
    checks: tuple[FieldCheck, ...] = ()

    def __call__(self, schema: dict[str, JsonValue]) -> None:
        """Add unit, reason and range to the field's JSON Schema."""
        shown = {"x-unit": self.unit, "x-why": self.why, "x-allowed": self.allowed}
        schema.update({key: text for key, text in shown.items() if text})


_NOTHING_DECLARED: Final = FieldDeclaration()


def documented_field(
    default: Any,
    description: str,
    *,
    why: str = "",
    unit: str = "",
    targets: FieldTargets | None = None,
    checks: tuple[FieldCheck, ...] = (),
    **constraints: Any,
) -> Any:
    """A field with its description, unit and the reason for its default; ``...`` as default means required.

    ``targets`` is what carries it: each policy field that holds a value declares them, here or on the block that
    holds it. ``checks`` are its rules for a cluster and the advice on its value.
    """
    # JSON Schema cannot compare durations, so words say what is allowed.
    allowed = _durations_allowed(constraints) if unit == "duration" else ""
    declared = FieldDeclaration(unit=unit, why=why, allowed=allowed, targets=targets, checks=checks)
    if isinstance(default, type) and issubclass(default, BaseModel):
        # A nested block whose own defaults apply when the operator leaves it out.
        return Field(default_factory=default, description=description, json_schema_extra=declared, **constraints)
    return Field(default, description=description, json_schema_extra=declared, **constraints)


def declaration(field: FieldInfo) -> FieldDeclaration:
    """What a field of a model declares; nothing where it was not made by ``documented_field``."""
    return extra if isinstance(extra := field.json_schema_extra, FieldDeclaration) else _NOTHING_DECLARED


def _durations_allowed(constraints: Mapping[str, float]) -> str:
    low = f"more than {format_duration(constraints['gt'])}" if "gt" in constraints else ""
    low = low or f"at least {format_duration(constraints.get('ge', 0))}"
    return f"a duration, {low}, at most {format_duration(constraints.get('le', MAX_DURATION_S))}"


Labels = Annotated[dict[str, str], Field(max_length=64)]
"""Kubernetes labels or annotations: at most 64 pairs of text."""


_CARRIED: Final = exported_alike(
    Xds.NONE,
    approximated("it describes the document and decides nothing; objects name the document in an annotation"),
)


class Metadata(Spec):
    """Name and labels of a document."""

    # What carries the name, the kind of document declares: a pool's is the name of its cluster.
    name: Name = documented_field(..., "Name of the document, unique for its kind.")
    namespace: Name | None = documented_field(
        None,
        "Kubernetes namespace; carried along, not interpreted.",
        targets=exported_alike(Xds.NONE, kept("the namespace of the objects; --namespace where it is absent")),
    )
    labels: Labels = documented_field(
        {},
        "Labels, carried along.",
        targets=_CARRIED,
    )
    annotations: Labels = documented_field(
        {},
        "Annotations, carried along.",
        targets=_CARRIED,
    )
