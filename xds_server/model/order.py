"""Operator orders for engines, which may overrule the evidence."""

from dataclasses import dataclass
from enum import StrEnum

from xds_server.model.fleet import EngineId


class OrderAction(StrEnum):
    """The ordered action."""

    EJECT = "eject"  # eject at once
    DRAIN = "drain"  # no new requests; present ones may finish
    RESTORE = "restore"  # keep in rotation despite soft evidence; a dead or hung engine stays ejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order, in force until ``until_s`` (monotonic); ``force`` lets it violate the capacity floor.

    ``by`` is its author, if known; ``given_at_unix_s`` is for display.
    """

    engine: EngineId
    action: OrderAction
    until_s: float
    reason: str
    by: str = ""
    force: bool = False
    given_at_unix_s: float = 0.0
