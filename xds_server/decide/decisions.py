"""The decisions for the fleet at one moment, each with its reason.

What only the next round reads is in ``decision_memory``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.report import Verdict
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pod_state import PodPhase, PodState


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShares:
    """The part of each region in the requests of one region's callers.

    ``home`` is the region that is to serve them; empty: none is, and all do by capacity. ``shares`` come to 1 and
    are those of the regions that serve now; ``failover`` is who does when none of these has an engine left, one
    tier after another, with their parts in each. ``excluded`` are engines of another revision, which never do.

    ``failed_over``: home is short of what is asked, or another took over. ``since_s`` is when (monotonic) the
    shares last moved. ``in_force`` is False in shadow mode: all regions serve by capacity then.
    """

    home: str
    shares: Mapping[str, float]
    failover: tuple[Mapping[str, float], ...]
    excluded: frozenset[EngineId]
    reason: str
    since_s: float
    failed_over: bool = False
    in_force: bool = True


class Health(StrEnum):
    """Endpoint health as Envoy names it."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    DRAINING = "DRAINING"


class Ejector(StrEnum):
    """Who wants an engine out."""

    VERDICT = "verdict"  # its agent, or the prober
    ERRORS = "errors"  # the breaker: its answers
    SLOWNESS = "slowness"  # the comparison with its peers
    ORCHESTRATOR = "orchestrator"  # whoever runs it: its pod is being deleted, its node is unfit
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDecision:
    """Whether an engine takes new requests, and the sentence that says why. ``since_s`` is monotonic seconds.

    ``verdict`` is what its last report said; None when nothing has been heard. The two may differ: what is said
    of an engine is evidence, what is decided weighs the whole pool. ``ejector`` is who wants it out, also where
    it is kept in (``floor``: because too few others are left). ``traffic_percent`` below 100: on trial, with so
    much of its normal share. ``cut``: the requests it holds are to be ended now. ``until_s``: monotonic time at
    which it is looked at again without new evidence; None where only evidence changes the decision. ``returns``
    says in words what would reverse it. ``pod_state`` is what that says of it, evidence as
    ``verdict`` is. ``shadow`` is what would have been decided, where that is not enforced.
    """

    health: Health
    reason: str
    since_s: float
    verdict: Verdict | None = None
    pod_state: PodState | None = None
    ejector: Ejector | None = None
    floor: bool = False
    traffic_percent: float = 100.0
    cut: bool = False
    until_s: float | None = None
    returns: str = ""
    shadow: "EngineDecision | None" = None

    @property
    def pod_phase(self) -> PodPhase:
        """How it stands with its orchestrator."""
        return PodPhase.PRESENT if self.pod_state is None else self.pod_state.standing

    @property
    def gone(self) -> bool:
        """Whether no process is there, so that Envoy need not even be told of the engine."""
        # The address of a pod that is gone may be another's soon.
        dead = self.verdict is Verdict.DEAD or self.pod_phase is PodPhase.GONE
        return self.health is not Health.HEALTHY and dead


class BreakerPhase(StrEnum):
    """The phase of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    TRIAL = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatus:
    """The phase of one engine's breaker, until when (monotonic) it lasts, and how often the breaker has opened."""

    phase: BreakerPhase
    until_s: float = 0.0
    opens: int = 0


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
class EngineCapacity:
    """What one engine can do: calls at once, mean seconds per call, and where the numbers come from.

    ``slots`` and ``service_s`` move in steps; a ``CapacityEstimate`` follows the measurements between them.
    """

    slots: float
    service_s: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """How much of a pool's traffic is let in, all proxies together, and each proxy's part.

    ``total`` requests in flight are allowed on engines that are in; ``held`` more are stuck on engines that are
    out, and are added to what the proxies that hold them may have. ``by_proxy`` is by node id; a proxy that is not
    in there yet gets what ``PoolDecisions.ceilings`` has for its role. ``pressure`` is what is asked of the
    engines that are in, over what they can serve (1.0: exactly as much); ``utilization`` the share of their slots
    in use. Both are None where no proxy tells, and where no engine is in. ``in_force`` is False in shadow mode:
    nothing is refused then.

    ``retry_percent`` and ``retry_min_concurrency`` are the retry budget of each proxy. ``crowded``: callers ask
    for as much as the pool can serve, or more.
    """

    total: int
    interactive: int
    batch: int
    held: int
    slots: float
    wait_s: float
    pressure: float | None
    utilization: float | None
    in_force: bool
    by_proxy: Mapping[str, Ceiling]
    capacities: Mapping[EngineId, EngineCapacity]
    reason: str
    retry_percent: float = 100.0
    retry_min_concurrency: int = 1
    crowded: bool = field(default=False, compare=False)


class HedgeCause(StrEnum):
    """What decides whether to hedge."""

    POLICY = "policy"  # it is not enabled
    DELAY = "delay"  # none is given, and none can be measured
    LADDER = "ladder"
    FULL = "full"
    WAITS = "waits"  # nothing speaks against it, but not for long
    ROOM = "room"  # nothing speaks against it


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeDecision:
    """Whether second tries start beside the first now, and after how many seconds.

    ``delay_s`` is the wait for the first token of a stream behind the gate, ``answer_delay_s`` for a whole answer
    that is not streamed; where one is None, requests of that kind are not hedged. ``since_s``: monotonic time of
    the last change of ``on``. ``shadow`` is the decision that would apply, where the policy does not enforce it.
    """

    on: bool
    delay_s: float | None
    reason: str
    since_s: float
    cause: HedgeCause = HedgeCause.POLICY
    answer_delay_s: float | None = None
    shadow: "HedgeDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """Statuses that are tried again now.

    ``since_s``: monotonic time of the last change of them. ``sign_at_s``: when requests, and not engines, last
    seemed to fail; None while 500 is tried again. ``shadow`` is the decision that would apply, where the policy
    does not enforce it.
    """

    statuses: tuple[int, ...]
    reason: str
    since_s: float
    sign_at_s: float | None = None
    shadow: "RetryDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits in force, in seconds; None, and 0 for a total, is off. What the policy says is in here unchanged.

    ``since_s``: monotonic time at which one of them last changed. ``shadow`` has the limits that would apply,
    where the policy does not enforce them.
    """

    first_token_s: float | None
    between_tokens_s: float | None
    stream_total_s: float
    per_try_s: float | None
    total_s: float
    reason: str
    since_s: float
    shadow: "TimeLimits | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationState:
    """The level of degradation of a pool, 0 to 4, and what is done because of it.

    ``since_s`` is when the pool entered the level. ``fallback_percent`` is the share of requests for the fallback.
    ``shadow`` is the same level with its actions, where the policy does not enforce them.
    """

    level: int
    reason: str
    since_s: float
    hedging_off: bool = False
    retries_minimum: bool = False
    fallback_percent: float = 0.0
    shed_batch: bool = False
    max_tokens: int | None = None
    maintenance: str = ""
    shadow: "DegradationState | None" = None


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
    """The decisions for one pool.

    ``zones`` is by calling zone, ``ceilings`` by role. ``declared`` are the engines of the pool. ``slow`` has the
    engines that were slower than their peers lately: True while they are. ``weight_factors`` multiply the weights
    of engines; it is empty where declared slots alone weigh them. ``regions`` is by the region of callers, and
    empty where all engines are in one; ``region_zones`` has the zones within each region, by calling zone.
    """

    engines: Mapping[EngineId, EngineDecision]
    zones: Mapping[str, ZoneShares]
    ceilings: Mapping[str, Ceiling]
    declared: tuple[Engine, ...] = ()
    breakers: Mapping[EngineId, BreakerStatus] = field(default_factory=dict)
    slow: Mapping[EngineId, bool] = field(default_factory=dict)
    admission: AdmissionDecision | None = None
    hedge: HedgeDecision | None = None
    retries: RetryDecision | None = None
    limits: TimeLimits | None = None
    degradation: DegradationState | None = None
    weight_factors: Mapping[EngineId, float] = field(default_factory=dict)
    regions: Mapping[str, RegionShares] = field(default_factory=dict)
    region_zones: Mapping[str, Mapping[str, ZoneShares]] = field(default_factory=dict)


UNDECIDED: Final = PoolDecisions(engines={}, zones={}, ceilings={})
"""The decisions for a pool before the first round: none."""

_NO_POOLS: Mapping[str, PoolDecisions] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Everything ``translate`` needs beside the policies and the fleet.

    ``zone_weights``: (pool, calling zone) -> engine zone -> weight 1..1000; a zone that gets nothing is absent.
    ``ceilings``: (pool, role of the proxy) -> ceiling. ``pools`` holds the same by pool, with reasons and times.
    ``leaving``: engines that are declared no more, until when (monotonic) they may finish what they have.
    """

    engines: Mapping[EngineId, EngineDecision]
    zone_weights: Mapping[tuple[str, str], Mapping[str, int]]
    ceilings: Mapping[tuple[str, str], Ceiling]
    pools: Mapping[str, PoolDecisions] = field(default_factory=lambda: _NO_POOLS)
    leaving: Mapping[EngineId, float] = field(default_factory=dict)


NO_DECISIONS: Final = Decisions(engines={}, zone_weights={}, ceilings={})
"""The decisions before the first round: none."""
