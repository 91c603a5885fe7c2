"""Types of ``/v1/usage``: what tenants used, by day and model, as this replica's proxies reported it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageStatus:
    """Usage of a tenant of a port on a day (UTC, ``2026-11-28``), of one model.

    ``requests`` that engines answered, and their estimated ``tokens``: 0 on ports without limits of tokens.
    ``corrected``: about the tokens that they really cost, by the counters of the engines.
    """

    day: str
    port: int
    tenant: str
    model: str
    requests: float
    tokens: float
    corrected: float = 0.0

    @property
    def name(self) -> str:
        """``DAY/PORT/TENANT/MODEL``."""
        return f"{self.day}/{self.port}/{self.tenant}/{self.model}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageList:
    """Usage of every day that is kept, the oldest first."""

    usage: tuple[UsageStatus, ...]
