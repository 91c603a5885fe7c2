"""How well another configuration language carries a field: kept, approximated or lost.

Fields declare it where they are defined. Exporters read it there; a value may make another outcome.
"""

from dataclasses import dataclass
from enum import StrEnum


class Fidelity(StrEnum):
    """How well a field is carried."""

    EXACT = "exact"
    APPROXIMATED = "approximated"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldOutcome:
    """The fidelity of a field, one sentence about it, and the kind of object that carries it."""

    fidelity: Fidelity
    how: str
    target: str = ""


def kept(how: str, target: str = "") -> FieldOutcome:
    """Exact counterpart."""
    return FieldOutcome(fidelity=Fidelity.EXACT, how=how, target=target)


def approximated(how: str, target: str = "") -> FieldOutcome:
    """Approximate counterpart."""
    return FieldOutcome(fidelity=Fidelity.APPROXIMATED, how=how, target=target)


def lost(how: str) -> FieldOutcome:
    """No counterpart."""
    return FieldOutcome(fidelity=Fidelity.LOST, how=how)
