"""Checks of a field beyond its type: CEL rules for a cluster, keys of a list, and warnings about its value.

A CEL rule refuses only what the loader refuses too, independent of other documents and layers. Checks that need
other documents, an address or a regular expression are Switchgear's alone, and reported in the object's status.

Source: ``policies.document_relations``; Kubernetes, "Validation rules", "Resource use by validation functions".
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class CelRule:
    """A rule about fields of one block, which is ``self``.

    ``code`` is the loader's code for the same mistake, ``field`` the path below ``self`` that the cluster names.
    """

    rule: str
    message: str
    code: str
    field: str = ""

    def to_schema(self) -> dict[str, Any]:
        """An item of ``x-kubernetes-validations``."""
        about = {"rule": self.rule, "message": f"{self.message} ({self.code})"}
        return {**about, "fieldPath": self.field} if self.field else about


def ordered_durations(low: str, high: str, *, code: str, message: str) -> CelRule:
    """``low`` is not longer than ``high``, where both are given."""
    return CelRule(
        rule=f"!has(self.{low}) || !has(self.{high}) || duration(self.{low}) <= duration(self.{high})",
        message=message,
        code=code,
        field=f".{high}",
    )


@dataclass(frozen=True, slots=True)
class ListKeys:
    """Fields that identify the items of a list; without keys, the items themselves.

    The cluster then keeps items unique, and each item has its own field manager.
    """

    keys: tuple[str, ...] = ()

    def to_schema(self) -> dict[str, Any]:
        """The keys of a structural schema."""
        if not self.keys:
            return {"x-kubernetes-list-type": "set"}
        return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(self.keys)}


@dataclass(frozen=True, slots=True)
class NullAllowed:
    """A cluster accepts ``null`` for this field, unlike the model's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLint:
    """A warning about a valid value, decided by the value alone."""

    code: str
    applies: Callable[[Any], bool]
    message: str
    fix: str


FieldCheck: TypeAlias = CelRule | ListKeys | NullAllowed | ValueLint
