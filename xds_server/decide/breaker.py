"""The breaker of one engine over all proxies: out on its error rate, back by proof."""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """Where a breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """What has to be remembered of one engine's breaker from one decision to the next."""

    phase: Phase = Phase.CLOSED
    since_s: float = 0.0
    until_s: float = 0.0
    opens: int = 0
