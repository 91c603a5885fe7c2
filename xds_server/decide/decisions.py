"""What was decided for the fleet at one moment, each decision with its reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.report import Verdict
from xds_server.decide.decision_memory import BreakerState, CapacityEstimate, Demand, FlapState, StragglerState
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import PoolTraffic, Proxy


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShares:
    """The part of each region in the requests of one region's callers.

    ``home`` is the region that is to serve them; empty: none is, and all do by capacity. ``shares`` come to 1 and
    are those of the regions that serve now; ``failover`` is who does when none of these has an engine left, one
    tier after another, with their parts in each. ``excluded`` are engines of another revision, which never do.

    ``failed_over``: home is short of what is asked, or another took over. ``towards_s`` is since when (monotonic)
    the opposite is asked for (None: it is not), ``since_s`` when the shares last moved. ``order`` is that of the
    policy by which ``home`` was found. ``in_force`` is False in shadow mode: all regions serve by capacity then.
    """

    home: str
    shares: Mapping[str, float]
    failover: tuple[Mapping[str, float], ...]
    excluded: frozenset[EngineId]
    reason: str
    since_s: float
    failed_over: bool = False
    towards_s: float | None = None
    order: tuple[str, ...] = field(default=(), compare=False)
    in_force: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRevisions:
    """Revisions of the engines of a region, and when (monotonic) it last had any engine."""

    revisions: frozenset[str]
    seen_at_s: float


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

    ``slots`` and ``service_s`` move in steps; ``estimate`` is what is being measured meanwhile.
    """

    slots: float
    service_s: float
    source: str
    estimate: CapacityEstimate | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionDecision:
    """How much of a pool's traffic is let in, all proxies together, and each proxy's part.

    ``total`` requests in flight are allowed on engines that are in; ``held`` more are stuck on engines that are
    out, and are added to what the proxies that hold them may have. ``by_proxy`` is by node id; a proxy that is not
    in there yet gets what ``PoolDecisions.ceilings`` has for its role. ``pressure`` is what is asked of the
    engines that are in, over what they can serve (1.0: exactly as much); ``utilization`` the share of their slots
    in use. Both are None where no proxy tells, and where no engine is in. ``in_force`` is False in shadow mode:
    nothing is refused then.

    ``retry_percent`` and ``retry_min_concurrency`` are the retry budget of each proxy.

    The rest is what the next decision goes by: ``demand`` of each proxy that tells it, ``reporting_gateways``
    those that ever did, ``moved_at_s`` when a part last moved, ``stuck_by_proxy`` what a proxy holds on engines
    that are out, ``crowded`` whether as much is asked as can be served, and ``basis`` what makes every part move
    at once when it changes. ``traffic`` and ``proxies`` are the traffic and the proxies that the parts were
    divided by, ``divided_at_s`` when. ``idle_limit`` is what a proxy has, gateways apart, that has no part of its
    own: interactive and batch.
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
    demand: Mapping[str, Demand] = field(default_factory=dict, compare=False)
    reporting_gateways: frozenset[str] = field(default=frozenset(), compare=False)
    moved_at_s: Mapping[str, float] = field(default_factory=dict, compare=False)
    stuck_by_proxy: Mapping[str, int] = field(default_factory=dict, compare=False)
    crowded: bool = field(default=False, compare=False)
    basis: tuple[object, ...] = field(default=(), compare=False)
    traffic: PoolTraffic | None = field(default=None, compare=False)
    proxies: Mapping[str, Proxy] = field(default_factory=dict, compare=False)
    divided_at_s: float = field(default=0.0, compare=False)
    idle_limit: tuple[int, int] = (1, 1)


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

    ``remembered_until_s``: it is from the last run of the server, and holds so long while nobody tells.

    ``delay_s`` is the wait for the first token of a stream behind the gate, ``answer_delay_s`` for a whole answer
    that is not streamed; where one is None, requests of that kind are not hedged. ``since_s``: monotonic time of
    the last change of ``on``; ``calm_since_s``: since when the pool has been empty enough to begin again (None: it
    is not); ``moved_at_s``: when a delay was last moved. ``shadow`` is what would have been decided, where that is
    not enforced.
    """

    on: bool
    delay_s: float | None
    reason: str
    since_s: float
    cause: HedgeCause = HedgeCause.POLICY
    answer_delay_s: float | None = None
    calm_since_s: float | None = None
    moved_at_s: float = 0.0
    remembered_until_s: float | None = None
    shadow: "HedgeDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A failure of an engine: how many calls it had answered by then, and when it was heard (monotonic)."""

    calls: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailures:
    """Calls that an engine answered, those that failed, when the last one was heard, and the newest failures."""

    calls: int
    failed: int
    called_at_s: float
    newest: tuple[FailedCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """Statuses that are tried again now.

    ``since_s``: monotonic time of the last change of them; ``moved_at_s`` the same, None where they never changed.
    ``sign_at_s``: when it last looked as if requests failed and not engines; None while 500 is tried again.
    ``failed`` is by engine name. ``shadow`` is what would have been decided, where that is not enforced.
    """

    statuses: tuple[int, ...]
    reason: str
    since_s: float
    moved_at_s: float | None = None
    sign_at_s: float | None = None
    failed: Mapping[str, RecentFailures] = field(default_factory=dict, compare=False)
    shadow: "RetryDecision | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestCall:
    """The longest time of healthy calls lately, without the wait for a slot; ``seen_at_s`` is monotonic."""

    time_s: float
    seen_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Limits in force, in seconds; None, and 0 for a total, is off. What the policy says is in here unchanged.

    ``since_s``: monotonic time at which one of them last changed. What derived limits rest on: the longest
    ``answer``, the longest wait for a ``first_byte``, and ``widened``, by how much the limits are wider than these
    ask for since ``doubted_at_s``, when they looked as if they ended healthy work. ``remembered_until_s``: they
    are from the last run of the server, and derived ones hold so long while nobody tells. ``shadow`` is what would
    have been decided, where that is not enforced.
    """

    first_token_s: float | None
    between_tokens_s: float | None
    stream_total_s: float
    per_try_s: float | None
    total_s: float
    reason: str
    since_s: float
    answer: LongestCall | None = None
    first_byte: LongestCall | None = None
    widened: float = 1.0
    doubted_at_s: float | None = None
    remembered_until_s: float | None = None
    shadow: "TimeLimits | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationState:
    """The level of degradation of a pool, 0 to 4, and what is done because of it.

    ``since_s`` is when the level was entered; ``towards_s`` since when the next level is asked for, or the present
    one is no longer needed (None: neither), and ``next_level`` which of the two. ``fallback_percent`` is the share
    of requests for the fallback, and ``fallback_since_s`` when it was chosen. ``unknown_since_s``: since when
    nobody has told the pressure (None: it is told). ``shadow`` is the same level with its actions, where those are
    not carried out.
    """

    level: int
    reason: str
    since_s: float
    towards_s: float | None = None
    hedging_off: bool = False
    retries_minimum: bool = False
    fallback_percent: float = 0.0
    shed_batch: bool = False
    max_tokens: int | None = None
    maintenance: str = ""
    fallback_since_s: float | None = None
    unknown_since_s: float | None = None
    next_level: int | None = None
    shadow: "DegradationState | None" = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneShares:
    """Engine zone -> weight 1..1000 for one calling zone; a zone that gets nothing is absent.

    ``since_s`` is when these weights were chosen, in monotonic seconds. ``asked_per_s`` is what the proxies of the
    calling zone are asked for, averaged over long (None: nobody tells), as of ``asked_at_s``.
    """

    weights: Mapping[str, int]
    reason: str
    since_s: float
    asked_per_s: float | None = field(default=None, compare=False)
    asked_at_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointWeight:
    """How an engine is weighed beside its declared slots, because others of its zone are faster or slower.

    ``step`` is by how many steps of a quarter it is slower than the zone's median, ``factor`` (0, 1] what its
    weight is multiplied with; the fastest of a zone has 1. ``towards_s``: since when (monotonic) another value is
    asked for (None: it is not); ``moved_at_s``: when a weight of the zone last moved for this (None: never).
    """

    step: int
    factor: float
    towards_s: float | None = None
    moved_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolDecisions:
    """What was decided of one pool, and what it was made of.

    ``zones`` is by calling zone, ``ceilings`` by role; ``endpoint_weights`` is empty where engines of a zone are
    weighed by their declared slots alone, and ``lost_since_s`` has those whose requests look lost. ``regions`` is
    by the region of callers, empty where all engines are in one; ``region_zones`` has the zones within each
    region, by calling zone, and ``revisions`` what each region serves. ``restored_capacities`` is what engines
    could do when the last run of the server ended; empty but before the first round. While ``inputs`` is the same
    and ``valid_until_s`` has not come, deciding again gives the same; so it is not done again.
    """

    engines: Mapping[EngineId, EngineDecision]
    zones: Mapping[str, ZoneShares]
    ceilings: Mapping[str, Ceiling]
    declared: tuple[Engine, ...]
    inputs: tuple[object, ...]
    valid_until_s: float
    breakers: Mapping[EngineId, BreakerState] = field(default_factory=dict)
    stragglers: Mapping[EngineId, StragglerState] = field(default_factory=dict)
    flaps: Mapping[EngineId, FlapState] = field(default_factory=dict)
    lost_since_s: Mapping[EngineId, float] = field(default_factory=dict)
    admission: AdmissionDecision | None = None
    hedge: HedgeDecision | None = None
    retries: RetryDecision | None = None
    limits: TimeLimits | None = None
    degradation: DegradationState | None = None
    endpoint_weights: Mapping[EngineId, EndpointWeight] = field(default_factory=dict)
    regions: Mapping[str, RegionShares] = field(default_factory=dict)
    region_zones: Mapping[str, Mapping[str, ZoneShares]] = field(default_factory=dict)
    revisions: Mapping[str, RegionRevisions] = field(default_factory=dict)
    restored_capacities: Mapping[EngineId, EngineCapacity] = field(default_factory=dict)


UNDECIDED: Final = PoolDecisions(
    engines={}, zones={}, ceilings={}, declared=(), inputs=(), valid_until_s=-math.inf
)
"""What was decided of a pool before the first round: nothing, and that is no longer valid."""

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
"""What was decided before the first round."""
