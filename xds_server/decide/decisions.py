"""What was decided for the fleet at one moment, each decision with its reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from engine.report import Verdict
from xds_server.fleet import Engine, EngineId


class Health(StrEnum):
    """Endpoint health as Envoy names it."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDecision:
    """Whether an engine takes new requests, and the sentence that says why. ``since_s`` is monotonic seconds.

    ``verdict`` is what its last report said; None when nothing has been heard. The two may differ: what is said
    of an engine is evidence, what is decided weighs the whole pool.
    """

    health: Health
    reason: str
    since_s: float
    verdict: Verdict | None = None

    @property
    def gone(self) -> bool:
        """Whether no process is there, so that Envoy need not even be told of the engine."""
        return self.health is not Health.HEALTHY and self.verdict is Verdict.DEAD


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
class ZoneShares:
    """Engine zone -> weight 1..1000 for one calling zone; a zone that gets nothing is absent.

    ``since_s`` is when these weights were chosen, in monotonic seconds.
    """

    weights: Mapping[str, int]
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecisions:
    """What was decided of one pool, and what it was made of.

    ``zones`` is by calling zone, ``ceilings`` by role. While ``made_of`` is the same and ``valid_until_s`` has
    not come, deciding again gives the same; so it is not done again.
    """

    engines: Mapping[EngineId, EngineDecision]
    zones: Mapping[str, ZoneShares]
    ceilings: Mapping[str, Ceiling]
    declared: tuple[Engine, ...]
    made_of: tuple[object, ...]
    valid_until_s: float


_NO_POOLS: Mapping[str, PoolDecisions] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Everything ``translate`` needs beside the policies and the fleet.

    ``zone_weights``: (pool, calling zone) -> engine zone -> weight 1..1000; a zone that gets nothing is absent.
    ``ceilings``: (pool, role of the proxy) -> ceiling. ``pools`` holds the same by pool, with reasons and times.
    """

    engines: Mapping[EngineId, EngineDecision]
    zone_weights: Mapping[tuple[str, str], Mapping[str, int]]
    ceilings: Mapping[tuple[str, str], Ceiling]
    pools: Mapping[str, PoolDecisions] = field(default_factory=lambda: _NO_POOLS)
