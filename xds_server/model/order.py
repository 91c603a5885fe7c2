"""Operator orders for engines and pools, which may overrule the evidence."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from xds_server.model.fleet import EngineId

TOP_LEVEL: Final = 4
"""Highest degradation level."""


class OrderAction(StrEnum):
    """The ordered action."""

    EJECT = "eject"  # eject at once
    DRAIN = "drain"  # no new requests; present ones may finish
    RESTORE = "restore"  # keep in rotation despite soft evidence; a dead or hung engine stays ejected
    DEGRADE = "degrade"  # hold the pool at a degradation level


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order, in force until ``until_s`` (monotonic); ``force`` lets it violate the capacity floor.

    An order to degrade is for a pool: ``engine`` has an empty name, and ``level`` is the degradation level, 0..4.
    ``by`` is its author, if known; ``given_at_unix_s`` is for display.
    """

    engine: EngineId
    action: OrderAction
    until_s: float
    reason: str
    by: str = ""
    force: bool = False
    given_at_unix_s: float = 0.0
    level: int = 0

    @property
    def effect(self) -> str:
        """The action as people read it: ``eject``, ``degrade to level 2``."""
        return f"degrade to level {self.level}" if self.action is OrderAction.DEGRADE else self.action.value


def pool_key(pool: str) -> EngineId:
    """The key of an order for the whole pool."""
    return EngineId(pool, "")
