"""What becomes of a field in Istio, as the tables of fates say it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from istio.loss import Fate
from policies.model import PolicySet

LIVE = "`switchgear istio run` brings it back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The fate of a field, one sentence about it, and the kind of object that carries it."""

    fate: Fate
    how: str
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A field of one document: its value, and the document's name, for a fate that depends on them."""

    policies: PolicySet
    name: str
    value: Any


Judge: TypeAlias = Callable[[Seen], Outcome | None]
"""Another outcome where the value, or what stands beside it, makes one; None keeps the one of the table."""

Table: TypeAlias = Mapping[str, Outcome]


def kept(how: str, target: str) -> Outcome:
    """It means the same."""
    return Outcome(fate=Fate.EXACT, how=how, target=target)


def nearly(how: str, target: str = "") -> Outcome:
    """Something stands for it."""
    return Outcome(fate=Fate.APPROXIMATED, how=how, target=target)


def lost(how: str) -> Outcome:
    """Nothing stands for it."""
    return Outcome(fate=Fate.LOST, how=how)
