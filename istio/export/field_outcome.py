"""What becomes of a field in Istio, as the tables of fates say it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from istio.fidelity import Fidelity
from policies.model import PolicySet

LIVE = "`switchgear istio run` brings it back"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOutcome:
    """The fate of a field, one sentence about it, and the kind of object that carries it."""

    fidelity: Fidelity
    how: str
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldContext:
    """A field of one document: its value, and the document's name, for a fate that depends on them."""

    policies: PolicySet
    name: str
    value: Any


Judge: TypeAlias = Callable[[FieldContext], FieldOutcome | None]
"""Another outcome where the value, or what stands beside it, makes one; None keeps the one of the table."""

Table: TypeAlias = Mapping[str, FieldOutcome]


def kept(how: str, target: str) -> FieldOutcome:
    """It means the same."""
    return FieldOutcome(fidelity=Fidelity.EXACT, how=how, target=target)


def approximated(how: str, target: str = "") -> FieldOutcome:
    """Something stands for it."""
    return FieldOutcome(fidelity=Fidelity.APPROXIMATED, how=how, target=target)


def lost(how: str) -> FieldOutcome:
    """Nothing stands for it."""
    return FieldOutcome(fidelity=Fidelity.LOST, how=how)
