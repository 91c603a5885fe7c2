"""The base of every policy document and field: the Kubernetes shape, and self-describing fields.

Each field declares its description, unit, default and reason, the resources that carry it, and its checks. The
JSON Schema, the CRDs, ``switchgear explain``, the commented defaults file, the reference and the tables of the
exports are generated from the models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from policies.fidelity import approximated, kept
from policies.field_checks import FieldCheck
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import MAX_DURATION_S, Name, format_duration

API_VERSION: Final = "switchgear.dev/v1alpha1"
"""What Switchgear writes, what clusters store, and what every model holds."""

WrittenVersion: TypeAlias = Literal["switchgear.dev/v1alpha1", "switchgear.dev/v1beta1"]
"""What files and objects may say. The fields and their meanings are equal: docs/versioning.md."""

API_VERSIONS: Final[tuple[WrittenVersion, ...]] = get_args(WrittenVersion)

NEWEST_API_VERSION: Final = API_VERSIONS[-1]

# Converted at the edge, so that an edit of the version changes no value that anything compares.
ApiVersion: TypeAlias = Annotated[WrittenVersion, AfterValidator(lambda _: API_VERSION)]

OF_THE_VERSION: Final = exported_alike(Xds.NONE, kept("exports have this version"))
OF_THE_NAME: Final = kept("objects have it in their name and an annotation")
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
    """Declarations of a field besides its type, default, description and constraints.

    Stored in pydantic's ``json_schema_extra``; the JSON Schema gets only what editors show.
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

    ``targets`` are the resources that carry it, declared for each field with a value, here or on its block.
    ``checks`` are its CEL rules and warnings.
    """
    # JSON Schema cannot compare durations, so the range is text.
    allowed = _durations_allowed(constraints) if unit == "duration" else ""
    declared = FieldDeclaration(unit=unit, why=why, allowed=allowed, targets=targets, checks=checks)
    if isinstance(default, type) and issubclass(default, BaseModel):
        # A nested block has its own defaults when it is absent.
        return Field(default_factory=default, description=description, json_schema_extra=declared, **constraints)
    return Field(default, description=description, json_schema_extra=declared, **constraints)


def declaration(field: FieldInfo) -> FieldDeclaration:
    """The declaration of a field; empty where ``documented_field`` did not make it."""
    return extra if isinstance(extra := field.json_schema_extra, FieldDeclaration) else _NOTHING_DECLARED


def _durations_allowed(constraints: Mapping[str, float]) -> str:
    low = f"more than {format_duration(constraints['gt'])}" if "gt" in constraints else ""
    low = low or f"at least {format_duration(constraints.get('ge', 0))}"
    return f"a duration, {low}, at most {format_duration(constraints.get('le', MAX_DURATION_S))}"


Labels = Annotated[dict[str, str], Field(max_length=64)]
"""Kubernetes labels or annotations: at most 64 pairs of text."""


_CARRIED: Final = exported_alike(
    Xds.NONE,
    approximated("it describes the document only; objects name the document in an annotation"),
)


class Metadata(Spec):
    """Name and labels of a document."""

    # Each kind of document declares the targets of its name: a pool names its cluster.
    name: Name = documented_field(..., "Name of the document, unique within its kind.")
    namespace: Name | None = documented_field(
        None,
        "Kubernetes namespace; stored, not interpreted.",
        targets=exported_alike(Xds.NONE, kept("the namespace of the objects; --namespace where it is absent")),
    )
    labels: Labels = documented_field(
        {},
        "Labels; stored, not interpreted.",
        targets=_CARRIED,
    )
    annotations: Labels = documented_field(
        {},
        "Annotations; stored, not interpreted.",
        targets=_CARRIED,
    )
