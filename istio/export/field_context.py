"""Context that decides the outcome of a field in Istio."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from policies.fidelity import FieldOutcome
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldContext:
    """A field of one document: its value, and the document's name, for an outcome that depends on them.

    ``gateway``: requests come through a gateway, not from sidecars.
    """

    policies: PolicySet
    name: str
    value: Any
    gateway: bool = False


Judge: TypeAlias = Callable[[FieldContext], FieldOutcome | None]
"""Outcome by value or other fields; None keeps the declared one."""
