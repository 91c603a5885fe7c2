"""What an operator ordered for an engine, against or beside the evidence."""

from dataclasses import dataclass
from enum import StrEnum

from xds_server.model.fleet import EngineId


class OrderAction(StrEnum):
    """What is to be done with an engine."""

    EJECT = "eject"  # out at once
    DRAIN = "drain"  # nothing new; what it has may finish
    RESTORE = "restore"  # in, whatever soft evidence says; a dead or hung engine stays out all the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order. It holds until ``until_s`` (monotonic); ``force`` lets it cross the capacity floor.

    ``by`` is who gave it, as far as that is known; ``given_at_unix_s`` is for people.
    """

    engine: EngineId
    action: OrderAction
    until_s: float
    reason: str
    by: str = ""
    force: bool = False
    given_at_unix_s: float = 0.0
