"""What was decided for the fleet at one moment, each decision with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from xds_server.fleet import EngineId


class Health(StrEnum):
    """Endpoint health as Envoy names it."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDecision:
    """Whether an engine takes new requests, and the sentence that says why. ``since_s`` is monotonic seconds."""

    health: Health
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Requests one proxy may have in flight to a pool, per priority class, and how the number came about.

    ``retry_percent`` and ``retry_min_concurrency`` are the same proxy's part of the fleet-wide retry budget.
    """

    interactive: int
    batch: int
    retry_percent: float
    retry_min_concurrency: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Everything ``translate`` needs beside the policies and the fleet.

    ``zone_weights``: (pool, calling zone) -> engine zone -> weight 1..1000; a zone that gets nothing is absent.
    ``ceilings``: (pool, role of the proxy) -> ceiling.
    """

    engines: Mapping[EngineId, EngineDecision]
    zone_weights: Mapping[tuple[str, str], Mapping[str, int]]
    ceilings: Mapping[tuple[str, str], Ceiling]
