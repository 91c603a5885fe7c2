"""The decisions for the fleet at one moment, each with its reason.

What only the next round reads is in ``decision_memory``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.report import Verdict
from policies.tenants import QuotaPeriod
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShares:
    """Each region's share of the requests of one region's callers.

    ``home`` is the region that should serve them; empty: none, all serve by capacity. ``shares`` add up to 1 over
    the regions that serve now; ``failover`` has the tiers after them, one by one, with shares in each.
    ``excluded`` are engines of another revision, which never serve.

    ``failed_over``: home has too little capacity, or another region took over. ``since_s`` is when (monotonic) the
    shares last moved. ``in_force`` is False in shadow mode: then all regions serve by capacity.
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
    """What asks for an ejection."""

    VERDICT = "verdict"  # its agent, or the prober
    ERRORS = "errors"  # the breaker: its answers
    SLOWNESS = "slowness"  # the comparison with its peers
    ORCHESTRATOR = "orchestrator"  # its pod is being deleted, or its node is unfit
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineDecision:
    """Whether an engine takes new requests, and why. ``since_s`` is monotonic seconds.

    ``verdict`` is its last reported verdict; None without reports. It may differ from the decision: a verdict is
    evidence, a decision considers the whole pool. ``ejector`` is what asks for the ejection, even if the capacity
    floor keeps the engine in rotation (``floor``). ``traffic_percent`` below 100: on trial, with that part of its
    normal share; if ``paced``, its speed relative to its peers, so that it gets what it can serve. ``cut``: its
    requests are cut now. ``until_s``: monotonic time of the next evaluation without new evidence; None if only
    evidence changes the decision. ``returns`` says what would reverse it. ``pod_state`` is the orchestrator's
    evidence. ``shadow`` is the decision that is not enforced.
    """

    health: Health
    reason: str
    since_s: float
    verdict: Verdict | None = None
    pod_state: PodState | None = None
    ejector: Ejector | None = None
    floor: bool = False
    traffic_percent: float = 100.0
    paced: bool = False
    cut: bool = False
    until_s: float | None = None
    returns: str = ""
    shadow: "EngineDecision | None" = None

    @property
    def pod_phase(self) -> PodPhase:
        """Its phase in the orchestrator."""
        return PodPhase.PRESENT if self.pod_state is None else self.pod_state.standing

    @property
    def gone(self) -> bool:
        """Whether no process is there, so that Envoy need not list the engine."""
        # The address of a gone pod may soon belong to another.
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
    """Requests that one proxy may have in flight to a pool, per priority class, and how the number came about.

    ``retry_percent`` and ``retry_min_concurrency`` are the same proxy's part of the fleet's retry budget.
    """

    interactive: int
    batch: int
    retry_percent: float
    retry_min_concurrency: int
    reason: str


DECLARED: Final = "as declared"
MEASURED: Final = "measured"
AS_PEERS: Final = "as its peers"

AFTER_WAIT: Final = "the wait, if it stays healthy"
"""``EngineDecision.returns`` of a recovered engine that waits: it flaps, or proxies reconnect first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """The capacity of one engine: concurrent calls, mean seconds per call, and the source of the numbers.

    ``slots`` and ``service_s`` move in steps; a ``CapacityEstimate`` follows the measurements between them.
    ``service_s`` includes ``slowdown``: how many times slower than usual the engine makes tokens now.
    """

    slots: float
    service_s: float
    source: str
    slowdown: float = 1.0

    @property
    def per_s(self) -> float:
        """Answers per second: what floors, zones, regions, fallbacks and limits compare."""
        return self.slots / self.service_s

    @property
    def usual_s(self) -> float:
        """Seconds per call at the engine's usual pace."""
        return self.service_s / self.slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """How much of a pool's traffic is admitted over all proxies, and each proxy's part.

    ``total`` requests in flight are allowed on engines in rotation; ``held`` more are stuck on ejected engines and
    added for the proxies that hold them. ``by_proxy`` is by node id; a proxy without an entry gets its role's
    ceiling in ``PoolDecisions.ceilings``. ``pressure`` is demand over the capacity of engines in rotation (1.0: at
    capacity); ``utilization`` is the share of their slots in use. Both are None without telemetry, and without an
    engine in rotation. ``in_force`` is False in shadow mode: nothing is refused then.

    ``retry_percent`` and ``retry_min_concurrency`` are the retry budget of each proxy. ``crowded``: demand is at
    or above capacity. ``prefill_places`` of the total are for requests that prefill engines hold.
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
    prefill_places: int = 0


class HedgeCause(StrEnum):
    """What decides whether to hedge."""

    POLICY = "policy"  # it is not enabled
    DELAY = "delay"  # no delay is set, and none can be measured
    LADDER = "ladder"
    FULL = "full"
    WAITS = "waits"  # there is room, but not for long enough
    ROOM = "room"  # there is room


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeDecision:
    """Whether hedges start now, and after how many seconds.

    ``delay_s`` is the wait for the first token of a stream behind the gate, ``answer_delay_s`` for a whole answer
    without streaming; where one is None, such requests are not hedged. ``since_s``: monotonic time of the last
    change of ``on``. ``shadow`` is the decision that is not enforced.
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
    """Statuses that are retried now.

    ``since_s``: monotonic time of their last change. ``sign_at_s``: when requests, and not engines, last seemed to
    fail; None while 500 is retried. ``shadow`` is the decision that is not enforced.
    """

    statuses: tuple[int, ...]
    reason: str
    since_s: float
    sign_at_s: float | None = None
    shadow: "RetryDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRetryDecision:
    """Whether large requests are not retried, for lack of spare capacity (``full``); ``shadow``: not enforced."""

    full: bool
    reason: str
    shadow: "LargeRetryDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTimeLimit:
    """The limit of a try is ``wait_s`` and ``per_token_s`` for each estimated token of the request."""

    wait_s: float
    per_token_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits in force, in seconds; None, and 0 for a total, is off. Those of the policy are included unchanged.

    ``by_tokens`` replaces ``per_try_s`` for requests that state a limit of tokens. ``since_s``: monotonic time of
    the last change. ``shadow`` has the limits that are not enforced.
    """

    first_token_s: float | None
    between_tokens_s: float | None
    stream_total_s: float
    per_try_s: float | None
    total_s: float
    reason: str
    since_s: float
    by_tokens: TokenTimeLimit | None = None
    shadow: "TimeLimits | None" = None


DEADLINE_BASE_MOVE: Final = 1.5
"""Times by which the shortest time may leave the base before that follows."""

DEADLINE_STEPS: Final = (1 / DEADLINE_BASE_MOVE, 1.0, 2.0, 4.0, 8.0)
"""Multiples of a base, from which the shortest deadline that is served is chosen.

The first holds while the shortest time is a little below the base: it falls as more answers are seen.
More of them cost more: Envoy looks up each for each request, six took 3.5 % of its processor time.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineSteps:
    """Deadlines, in seconds, that requests can be refused below, and which one is in force.

    Requests with a deadline below ``all_s[in_force]`` are refused; None: none is.
    """

    base_s: float
    in_force: int | None = None

    @property
    def all_s(self) -> tuple[float, ...]:
        """The steps, from the shortest."""
        return tuple(self.base_s * one for one in DEADLINE_STEPS)

    @property
    def refused_below_s(self) -> float | None:
        """The shortest deadline that is served; None: all are."""
        return None if self.in_force is None else self.all_s[self.in_force]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineDecision:
    """The deadlines that are refused now: ``answer`` of requests without streaming, ``stream`` of streams.

    None: too few answers to tell. ``reason`` has numbers from when a step last changed.
    """

    answer: DeadlineSteps | None
    stream: DeadlineSteps | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """One tenant's share of a pool, in mean requests per second.

    ``share_per_s`` is its own while all tenants ask for everything, ``allowed_per_s`` what it gets now, with what
    others leave. ``admitted`` is the part, 0..1, of its requests that is not refused, since ``since_s``
    (monotonic); ``enforced`` is False in shadow mode.
    """

    share_per_s: float
    demand_per_s: float
    allowed_per_s: float
    admitted: float
    enforced: bool
    since_s: float

    @property
    def refused_percent(self) -> float:
        """Percentage of its requests that proxies refuse."""
        return 100.0 * (1.0 - self.admitted) if self.enforced else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShares:
    """The shares of a pool's tenants; ``on`` while it has no room for all they ask for, since ``since_s``."""

    on: bool
    capacity_per_s: float
    demand_per_s: float
    tenants: Mapping[TenantId, TenantShare]
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationState:
    """A pool's degradation level, 0 to 4, and its actions.

    ``since_s`` is when the pool entered the level. ``fallback_percent`` is the fallback's share of requests.
    ``ordered``: author and reason of an operator's order for this level, if any. ``reduces_answers``: requests for
    more than ``max_tokens`` are lowered to it, not refused. ``shadow`` is the same level with
    its actions, if they are not enforced.
    """

    level: int
    reason: str
    since_s: float
    ordered: str = ""
    hedging_off: bool = False
    retries_minimum: bool = False
    fallback_percent: float = 0.0
    shed_batch: bool = False
    max_tokens: int | None = None
    reduces_answers: bool = False
    maintenance: str = ""
    shadow: "DegradationState | None" = None

    @property
    def acting_level(self) -> int:
        """The level whose actions are taken: 0 in shadow mode."""
        return self.level if self.shadow is None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneShares:
    """Engine zone -> weight 1..1000 for one calling zone; a zone that gets nothing is absent.

    ``since_s`` is when these weights were chosen, in monotonic seconds.
    """

    weights: Mapping[str, int]
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRamp:
    """The part of its share that an engine in slow start gets, and when (monotonic) it gets all of it.

    ``held_until_s``: until then its keys stay with other engines (``affinity.returnAfter``); None: they do not.
    """

    percent: float
    full_at_s: float
    held_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillDecision:
    """For which part of a decode pool's requests lists name a prefill engine, and why, since when."""

    named_percent: float
    reason: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecisions:
    """The decisions for one pool.

    ``zones`` is by calling zone, ``ceilings`` by role. ``declared`` are the engines of the pool. ``slow`` has
    engines that were slower than their peers lately: True while they are. ``weight_factors`` multiply engine
    weights; it is empty where declared slots alone set them. ``ramps`` has engines in slow start. ``sessions`` has
    the percent of its strict sessions that each draining engine keeps; one without an entry keeps none.
    ``regions`` is by the callers' region, and empty if all engines are in one; ``region_zones`` has the zones
    within each region, by calling zone. ``serves_percent`` is the part of its traffic that the pool takes while
    another pool can take the rest: 0 while it fails as a whole, less than 100 on trial. ``fair_shares`` is None
    without tenants that have them, ``large_retries`` without a size of large requests, ``prefill`` if prefill
    engines are not compared with local prefill.
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
    large_retries: LargeRetryDecision | None = None
    prefill: PrefillDecision | None = None
    limits: TimeLimits | None = None
    deadline: DeadlineDecision | None = None
    degradation: DegradationState | None = None
    serves_percent: float = 100.0
    weight_factors: Mapping[EngineId, float] = field(default_factory=dict)
    ramps: Mapping[EngineId, ShareRamp] = field(default_factory=dict)
    sessions: Mapping[EngineId, float] = field(default_factory=dict)
    regions: Mapping[str, RegionShares] = field(default_factory=dict)
    region_zones: Mapping[str, Mapping[str, ZoneShares]] = field(default_factory=dict)
    fair_shares: FairShares | None = None


UNDECIDED: Final = PoolDecisions(engines={}, zones={}, ceilings={})
"""The decisions for a pool before the first round: none."""

_NO_POOLS: Mapping[str, PoolDecisions] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedUpQuota:
    """A tenant's ``limit`` of a calendar period is used up; the tenant is refused until the period ends."""

    period: QuotaPeriod
    limit: int
    until_unix_s: int


_NO_PARTS: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PortParts:
    """The division of a port's quotas among the proxies that are connected here.

    ``proxies`` are their node ids, ``by_tenant`` their parts of each tenant's quota, from 0 to 1; a tenant without
    requests is absent, and so divided evenly. ``sized_by``: the parts that buckets are chosen by, which change
    only when the present ones differ by much. ``count``: all proxies, those elsewhere too.
    """

    proxies: tuple[str, ...] = ()
    count: int = 1
    moved_at_s: float = 0.0
    by_tenant: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: _NO_PARTS)
    sized_by: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: _NO_PARTS)

    @property
    def even(self) -> float:
        """The part of each proxy of a quota that is divided evenly."""
        return 1 / self.count


NO_PORT_PARTS: Final = PortParts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Everything that ``translate`` needs besides the policies and the fleet.

    ``zone_weights``: (pool, calling zone) -> engine zone -> weight 1..1000; a zone that gets nothing is absent.
    ``ceilings``: (pool, role of the proxy) -> ceiling. ``pools`` holds the same by pool, with reasons and times.
    ``leaving``: removed engines, and until when (monotonic) they may finish their requests. ``quota_proxies``: by
    port with tenants, the number of proxies that their quotas are divided by; ``quota_parts``: by port, the parts
    of those that are connected here. ``used_up``: by port and tenant, a quota of a calendar period without
    anything left.
    """

    engines: Mapping[EngineId, EngineDecision]
    zone_weights: Mapping[tuple[str, str], Mapping[str, int]]
    ceilings: Mapping[tuple[str, str], Ceiling]
    pools: Mapping[str, PoolDecisions] = field(default_factory=lambda: _NO_POOLS)
    leaving: Mapping[EngineId, float] = field(default_factory=dict)
    quota_proxies: Mapping[int, int] = field(default_factory=dict)
    quota_parts: Mapping[int, PortParts] = field(default_factory=dict)
    used_up: Mapping[int, Mapping[str, UsedUpQuota]] = field(default_factory=dict)


class EnginesOfPools(Mapping[EngineId, EngineDecision]):
    """The decisions of all pools by engine, without a copy of them."""

    __slots__ = ("_pools",)

    def __init__(self, pools: Mapping[str, PoolDecisions]) -> None:
        self._pools = pools

    def __getitem__(self, key: EngineId) -> EngineDecision:
        return self._pools[key.pool].engines[key]

    def __iter__(self) -> Iterator[EngineId]:
        for pool in self._pools.values():
            yield from pool.engines

    def __len__(self) -> int:
        return sum(len(pool.engines) for pool in self._pools.values())


NO_DECISIONS: Final = Decisions(engines={}, zone_weights={}, ceilings={})
"""The decisions before the first round: none."""
