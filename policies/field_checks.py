"""What a field is checked for beyond its type: rules for a cluster, keys of a list, and advice on its value.

A rule in CEL refuses only what the loader refuses as well, whatever other documents say: it does not miss a value
that another layer may still supply. What needs other documents, an address, or a regular expression, Switchgear
judges alone, and the object's status says so.

Source: ``policies.relations``; Kubernetes, "Validation rules", "Resource use by validation functions".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """A rule about a field and others beside it; ``self`` is the block that holds them.

    ``code`` is what the loader calls the same mistake, ``field`` the path below ``self`` that the cluster names.
    """

    rule: str
    message: str
    code: str
    field: str = ""

    def to_schema(self) -> dict[str, Any]:
        """As ``x-kubernetes-validations`` has it."""
        about = {"rule": self.rule, "message": f"{self.message} ({self.code})"}
        return {**about, "fieldPath": self.field} if self.field else about


def ordered_durations(low: str, high: str, *, code: str, message: str) -> CelRule:
    """Where both durations are given, ``low`` is not longer than ``high``."""
    return CelRule(
        rule=f"!has(self.{low}) || !has(self.{high}) || duration(self.{low}) <= duration(self.{high})",
        message=message,
        code=code,
        field=f".{high}",
    )


@dataclass(frozen=True, slots=True)
class ListKeys:
    """What the items of a list differ in; without keys, the items themselves differ.

    It holds them apart at no cost and gives each an owner of its own.
    """

    keys: tuple[str, ...] = ()

    def to_schema(self) -> dict[str, Any]:
        """As a structural schema has it."""
        if not self.keys:
            return {"x-kubernetes-list-type": "set"}
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}


@dataclass(frozen=True, slots=True)
class NullAllowed:
    """A cluster takes ``null`` for this field, though the model's schema does not say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLint:
    """Advice on a valid value, which needs nothing but the value: it ``applies``, and why it hurts."""

    code: str
    applies: Callable[[Any], bool]
    message: str
    fix: str


FieldCheck: TypeAlias = CelRule | ListKeys | NullAllowed | ValueLint
