"""State that only the next round of ``decide`` reads: states, timers and averages.

Each part holds the last decision where hysteresis needs it. The module that fills a part explains it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from xds_server.decide.decisions import (
    UNDECIDED,
    AdmissionDecision,
    BreakerPhase,
    DeadlineDecision,
    DegradationState,
    EngineCapacity,
    FairShares,
    HedgeDecision,
    PoolDecisions,
    PortParts,
    RegionShares,
    RetryDecision,
    TimeLimits,
    ZoneShares,
)
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import PoolTraffic, Proxy, TenantId


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """The state of one engine's circuit breaker.

    ``opens`` counts openings since it was last healthy for long. ``succeeded`` and ``failed`` are the engine's
    totals at ``since_s``, when the phase or its counts began. ``proofs`` are successful canaries in a row since
    then, the newest at ``proof_at_s``. ``failing`` is the failure rate, 0..1, and ``why`` the reason it opened.
    ``boot`` is the engine process of these counts.
    """

    phase: BreakerPhase = BreakerPhase.CLOSED
    since_s: float = 0.0
    until_s: float = 0.0
    opens: int = 0
    succeeded: int = 0
    failed: int = 0
    proofs: int = 0
    proof_at_s: float = 0.0
    failing: float = 0.0
    why: str = ""
    boot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSample:
    """Calls finished and work held, in two consecutive buckets; ``work_s`` is slots in use times seconds.

    ``expected`` is what peers would have finished in that work, at their rate of each moment. ``done`` is the
    total of finished calls when the newer bucket began, ``in_use`` the slots in use at the last sample.
    """

    at_s: float
    began_s: float
    done: int
    finished: int = 0
    work_s: float = 0.0
    expected: float = 0.0
    in_use: int = 0
    past_began_s: float | None = None
    past_finished: int = 0
    past_work_s: float = 0.0
    past_expected: float = 0.0

    @property
    def since_s(self) -> float:
        """When the older bucket began."""
        return self.began_s if self.past_began_s is None else self.past_began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerState:
    """The state of one engine in the peer comparison.

    ``ejected``: since ``since_s``; ``trial``: returned with a share of its traffic. ``until_s`` ends either.
    ``slow_since_s`` is since when it looks slow, None if it does not. ``ejections`` counts since it was last
    healthy for long, ``proofs`` measurements in a row that showed it as fast as its peers, the newest at
    ``proof_at_s``. ``times`` is its slowness ratio, and ``why`` the reason. ``running`` requests made the tokens
    up to its ejection, then up to ``proof_at_s``.
    """

    ejected: bool = False
    slow_since_s: float | None = None
    trial: bool = False
    since_s: float = 0.0
    until_s: float = 0.0
    ejections: int = 0
    proofs: int = 0
    proof_at_s: float = 0.0
    times: float = 0.0
    running: int = 0
    why: str = ""
    sample: WorkSample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSpeed:
    """The usual speed of one engine while it gets its full share of traffic.

    ``finished`` calls took ``work_s`` slot-seconds, over the last minutes; ``book_s`` is when the last counted
    bucket began. ``tokens`` holds tokens per second and seconds observed, by the power of two of running requests.
    ``canary_s`` is the usual time of a canary without other work, of ``canaries``, the newest at ``canary_at_s``.
    ``slow_canaries`` in a row were much slower, since ``slow_since_s``. ``at_s``: the last report used.
    """

    finished: float = 0.0
    work_s: float = 0.0
    book_s: float = -math.inf
    tokens: tuple[tuple[float, float], ...] = ()
    canary_s: float | None = None
    canaries: int = 0
    canary_at_s: float = -math.inf
    slow_canaries: int = 0
    slow_since_s: float | None = None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentSpeed:
    """How many times slower than its peers a busy engine is now, seen last at ``seen_at_s``.

    ``began_s``: since when (monotonic) it has been slower; ``confirmed``: not because the pool begins to slow
    down. ``better_since_s``: since when it has looked faster than that; None if it does not.
    """

    times: float
    seen_at_s: float
    began_s: float
    confirmed: bool = False
    better_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlapState:
    """Flap damping of one engine.

    ``at_s`` are its returns of the last minute, oldest first. ``waits`` counts its waits since it was last healthy
    for a minute. ``well_since_s`` is since when it would be back without the wait. ``uncut_at_s`` is when cutting
    its requests last ended.
    """

    at_s: tuple[float, ...] = ()
    waits: int = 0
    well_since_s: float | None = None
    uncut_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests per second arriving at one proxy, refused ones included, and whether it refuses some now."""

    interactive_per_s: float
    batch_per_s: float
    sheds_interactive: bool
    sheds_batch: bool
    at_s: float

    @property
    def per_s(self) -> float:
        """Of both classes."""
        return self.interactive_per_s + self.batch_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityEstimate:
    """Recent averages of one engine's successful calls, and its observed slots.

    ``done`` calls succeeded and took ``busy`` call-seconds, as at the engine's usual pace, over a remembered
    ``span_s``; ``slots`` is None unless the engine cannot fill its declared ones. ``at_s``: monotonic time of the
    last telemetry used; ``looked_at_s`` that of the last report.
    """

    done: float = 0.0
    busy: float = 0.0
    span_s: float = 0.0
    at_s: float = 0.0
    slots: float | None = None
    looked_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPace:
    """How many times slower than usual an engine makes tokens: ``slowdown``, since ``since_s`` (monotonic).

    ``usual`` holds tokens per second of a running request, and seconds observed, by the power of two of running
    requests. ``asked`` is a slowdown seen since ``asked_since_s`` and not in force yet. ``at_s``: the last report
    used.
    """

    usual: tuple[tuple[float, float], ...] = ()
    at_s: float = 0.0
    slowdown: float = 1.0
    since_s: float = 0.0
    asked: float | None = None
    asked_since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptWatch:
    """Engines of a pool that stand still in a prefill, and since when (monotonic).

    ``origin``: the first, whose request may have moved to the others; None without one. ``last_s``: when the
    newest standstill that this explains began. ``judged``: those that count as hung.
    """

    origin: EngineId | None = None
    origin_began_s: float = 0.0
    last_s: float = 0.0
    began_s: Mapping[EngineId, float] = field(default_factory=dict)
    judged: frozenset[EngineId] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStandstill:
    """Engines of a pool that stand still with work, and since when (monotonic).

    ``together``: those that began to in the same moment, and count as hung. ``began_s``: when the last such event
    began.
    """

    since_s: Mapping[EngineId, float] = field(default_factory=dict)
    together: frozenset[EngineId] = frozenset()
    began_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAnswers:
    """How one engine's newest calls ended, as means that forget old calls.

    ``succeeded``, ``failed`` and ``shed`` are its totals so far; ``spoiled_at_s`` is when a call last failed or
    was shed.
    """

    succeeded: int = 0
    failed: int = 0
    shed: int = 0
    good_calls: float = 0.0
    failed_calls: float = 0.0
    spoiled_at_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBreakerMemory:
    """The circuit breaker of a pool as a whole.

    ``good`` and ``spoiled`` calls ended since ``since_s``, when the phase began; ``dry`` of them were spoiled
    since the last good one at ``good_at_s``. ``until_s`` ends an open phase or a trial. ``opens`` counts openings
    since the pool was last healthy for long, ``why`` is the reason of the last one.
    """

    phase: BreakerPhase = BreakerPhase.CLOSED
    since_s: float = 0.0
    until_s: float = 0.0
    opens: int = 0
    good: int = 0
    spoiled: int = 0
    dry: int = 0
    good_at_s: float = -math.inf
    why: str = ""
    answers: Mapping[EngineId, EngineAnswers] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EjectionMemory:
    """The states of breakers, slow engines and flapping engines.

    ``lost_since_s``: engines whose requests look lost, and since when (monotonic). ``prompts``: engines that
    stand still in a prefill. ``standing``: all that stand still with work. ``speeds``: busy engines that are
    slower than their peers now.
    """

    breakers: Mapping[EngineId, BreakerState] = field(default_factory=dict)
    stragglers: Mapping[EngineId, StragglerState] = field(default_factory=dict)
    past_speeds: Mapping[EngineId, PastSpeed] = field(default_factory=dict)
    flaps: Mapping[EngineId, FlapState] = field(default_factory=dict)
    lost_since_s: Mapping[EngineId, float] = field(default_factory=dict)
    prompts: PromptWatch = field(default_factory=PromptWatch)
    standing: JointStandstill = field(default_factory=JointStandstill)
    speeds: Mapping[EngineId, PresentSpeed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWork:
    """Slots in use on one engine, and its total of ended calls."""

    in_use: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSnapshot:
    """The work on the engines that get their full share, at one moment."""

    at_s: float
    engines: Mapping[EngineId, EngineWork]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityMemory:
    """The capacities of the last round, and the measurements that move them."""

    capacities: Mapping[EngineId, EngineCapacity] = field(default_factory=dict)
    estimates: Mapping[EngineId, CapacityEstimate] = field(default_factory=dict)
    work: tuple[WorkSnapshot, ...] = ()
    paces: Mapping[EngineId, TokenPace] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionMemory:
    """The last admission, and what smooths the next one.

    ``demand`` is by proxy that reports it; ``reporting_gateways`` have reported at least once. ``moved_at_s`` is
    when a proxy's part last moved, ``stuck_by_proxy`` what a proxy holds on ejected engines. When ``basis``
    changes every part moves at once. ``traffic`` and ``proxies`` divided the parts at ``divided_at_s``.
    ``idle_limit`` is the limit, interactive and batch, of a sidecar without its own part. ``places_at_s`` is when
    the places for requests in prefill last changed.
    """

    decided: AdmissionDecision
    demand: Mapping[str, Demand] = field(default_factory=dict)
    reporting_gateways: frozenset[str] = frozenset()
    moved_at_s: Mapping[str, float] = field(default_factory=dict)
    stuck_by_proxy: Mapping[str, int] = field(default_factory=dict)
    basis: tuple[object, ...] = ()
    traffic: PoolTraffic | None = None
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    divided_at_s: float = 0.0
    idle_limit: tuple[int, int] = (1, 1)
    places_at_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareMemory:
    """The last shares of tenants, at ``at_s``, and what smooths the next ones.

    ``costs``: work of a tenant's request over that of the mean request. ``calm_since_s``: since when demand has
    been low (None: it is not). ``trim`` corrects the capacity. ``moved_at_s`` is when limits last moved much.
    """

    decided: FairShares
    costs: Mapping[TenantId, float] = field(default_factory=dict)
    calm_since_s: float | None = None
    trim: float = 1.0
    at_s: float = 0.0
    moved_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DegradationMemory:
    """The last level, and its timers.

    ``towards_s`` is since when the policy asks for ``next_level`` (None: for none). The fallback's share was
    chosen at ``fallback_since_s``. ``unknown_since_s``: since when no proxy reports the pressure. ``strained``: a
    sign besides pressure holds the level or asks for the next one.
    """

    decided: DegradationState
    towards_s: float | None = None
    next_level: int | None = None
    fallback_since_s: float | None = None
    unknown_since_s: float | None = None
    strained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeMemory:
    """The last hedging decision, and its timers.

    ``calm_since_s``: since when the pool has had room for hedging (None: it has not). ``moved_at_s`` is when a
    delay last moved. ``restored_until_s``: the delays were restored from the last run, and hold without telemetry
    until then.
    """

    decided: HedgeDecision
    calm_since_s: float | None = None
    moved_at_s: float = 0.0
    restored_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """A failed call: the engine's number of answered calls by then, and when telemetry arrived (monotonic)."""

    calls: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentFailures:
    """Calls that an engine answered, those that failed, when the last one ended, and the newest failures."""

    calls: int
    failed: int
    called_at_s: float
    newest: tuple[FailedCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryMemory:
    """The last retry decision, when its statuses last changed (None: never), and failures by engine name."""

    decided: RetryDecision
    moved_at_s: float | None = None
    failed: Mapping[str, RecentFailures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestCall:
    """The longest recent time of healthy calls, without the wait for a slot; ``seen_at_s`` is monotonic."""

    time_s: float
    seen_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimitMemory:
    """The last time limits, and the basis of derived ones.

    That is the longest ``answer`` and the longest wait for a ``first_byte``. ``widened`` is the factor on derived
    limits since ``doubted_at_s``, when they seemed to cut healthy calls. ``restored_until_s``: the limits were
    restored from the last run, and derived ones hold without telemetry until then.
    """

    decided: TimeLimits
    answer: LongestCall | None = None
    first_byte: LongestCall | None = None
    widened: float = 1.0
    doubted_at_s: float | None = None
    restored_until_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointWeight:
    """The weight of an engine relative to its declared slots, because others of its zone are faster or slower.

    ``step``: steps of a quarter by which it is slower than the zone's median. ``factor`` (0, 1] multiplies its
    weight; the fastest of a zone has 1. ``towards_s``: since when (monotonic) measurements ask for another value
    (None: they do not). ``moved_at_s``: when this last moved a weight of the zone (None: never).
    """

    step: int
    factor: float
    towards_s: float | None = None
    moved_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortestTime:
    """The shortest time of recent healthy calls, in seconds, without the wait for a slot.

    ``base_s`` is that of the steps in routes, which moved last at ``moved_at_s`` (monotonic).
    """

    time_s: float
    base_s: float
    moved_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineMemory:
    """The deadlines refused last, their evidence, and when (monotonic) a request last waited for a slot."""

    decided: DeadlineDecision
    answer: ShortestTime | None = None
    stream: ShortestTime | None = None
    waited_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneDemand:
    """Requests per second from one calling zone, as a long average (None: unknown), as of ``at_s``."""

    per_s: float | None
    at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneMemory:
    """The last shares of zones, and the demand, by calling zone."""

    shares: Mapping[str, ZoneShares] = field(default_factory=dict)
    demand: Mapping[str, ZoneDemand] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionTimer:
    """``towards_s``: since when (monotonic) the opposite of a region's failover is due (None: it is not).

    ``order`` is the policy's, with which the home region was found.
    """

    towards_s: float | None = None
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRevisions:
    """Revisions of the engines of a region, and when (monotonic) it last had any engine."""

    revisions: frozenset[str]
    seen_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionMemory:
    """The last shares of regions and their timers by the region of callers, zones and revisions by region."""

    shares: Mapping[str, RegionShares] = field(default_factory=dict)
    timers: Mapping[str, RegionTimer] = field(default_factory=dict)
    zones: Mapping[str, ZoneMemory] = field(default_factory=dict)
    revisions: Mapping[str, RegionRevisions] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RampMemory:
    """The slow start of one engine.

    ``ramped_s`` counts towards the window, as of ``at_s`` (monotonic). ``succeeded`` and ``failed`` are the
    engine's totals when the ramp began. ``proven``: it answers well, so its time counts double. ``held_s``: its
    keys stay with other engines that much longer, and the ramp begins then.
    """

    at_s: float
    ramped_s: float = 0.0
    held_s: float = 0.0
    succeeded: int = 0
    failed: int = 0
    proven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowStartMemory:
    """Engines in slow start, and engines out of rotation: those ramp when they return."""

    ramps: Mapping[EngineId, RampMemory] = field(default_factory=dict)
    absent: frozenset[EngineId] = frozenset()


NO_SLOW_START: Final = SlowStartMemory()
"""Slow start is off, or nothing is known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """What the next round reads of one pool; ``decided`` are the last decisions.

    While ``inputs`` is the same and ``valid_until_s`` has not come, these decisions stay.
    """

    decided: PoolDecisions = UNDECIDED
    inputs: tuple[object, ...] = ()
    valid_until_s: float = -math.inf
    ejection: EjectionMemory = field(default_factory=EjectionMemory)
    breaker: PoolBreakerMemory = field(default_factory=PoolBreakerMemory)
    capacity: CapacityMemory = field(default_factory=CapacityMemory)
    admission: AdmissionMemory | None = None
    fair_shares: FairShareMemory | None = None
    degradation: DegradationMemory | None = None
    hedge: HedgeMemory | None = None
    retries: RetryMemory | None = None
    limits: TimeLimitMemory | None = None
    deadline: DeadlineMemory | None = None
    endpoint_weights: Mapping[EngineId, EndpointWeight] = field(default_factory=dict)
    slow_start: SlowStartMemory = NO_SLOW_START
    zones: ZoneMemory = field(default_factory=ZoneMemory)
    regions: RegionMemory = field(default_factory=RegionMemory)


NO_POOL_MEMORY: Final = PoolMemory()
"""The memory of a pool before its first round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMemory:
    """What the next round reads, by pool.

    ``leaving``: removed engines, and until when (monotonic) they may finish their requests. ``places``: those of
    the last round's fleet, to tell pools with the same engines. ``quota_parts``: the division of quotas by port.
    """

    pools: Mapping[str, PoolMemory] = field(default_factory=dict)
    leaving: Mapping[EngineId, float] = field(default_factory=dict)
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    quota_parts: Mapping[int, PortParts] = field(default_factory=dict)


NO_MEMORY: Final = DecisionMemory()
"""The memory before the first round."""
