"""What decides the outcome of a field in Istio, beside what the field declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from policies.fidelity import FieldOutcome
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldContext:
    """A field of one document: its value, and the document's name, for an outcome that depends on them."""

    policies: PolicySet
    name: str
    value: Any


Judge: TypeAlias = Callable[[FieldContext], FieldOutcome | None]
"""Another outcome where the value, or what stands beside it, makes one; None keeps what the field declares."""
