"""ResiliencePolicy: how a pool behaves when engines or callers misbehave.

Every field has a default that was chosen from a measurement or a published source; ``why`` says which. The
document named ``default`` applies to every pool, and a document that lists pools overrides it field by field.
"""

from enum import StrEnum
from typing import Final, Literal

from pydantic import Field

from policies.document import API_VERSION, Metadata, Spec, described
from policies.quantity import Duration, ErrorStatus, Name, Percent


class RetryCondition(StrEnum):
    """When a request may be tried on another engine. Names are Envoy's."""

    CONNECT_FAILURE = "connect-failure"
    REFUSED_STREAM = "refused-stream"
    RESET_BEFORE_REQUEST = "reset-before-request"
    RESET = "reset"
    GATEWAY_ERROR = "gateway-error"
    SERVER_ERROR = "5xx"
    RETRIABLE_4XX = "retriable-4xx"


class Mode(StrEnum):
    """Whether decisions are carried out, or only made, recorded and reported."""

    ENFORCE = "enforce"
    SHADOW = "shadow"


def _mode_of_part(what: str) -> Mode | None:
    found: Mode | None = described(
        None, f"Whether {what} is enforced or only shadowed; as the policy's own mode when absent."
    )
    return found


class Breaker(Spec):
    """When an engine that fails is taken out, and for how long."""

    mode: Mode | None = _mode_of_part("the breaker")
    error_rate_percent: Percent = described(
        40.0,
        "Share of failed calls that ejects an engine; 0 turns it off.",
        why="the published starting point for LLM engines",
        unit="%",
    )
    window_calls: int = described(
        25,
        "Calls the error rate is taken over.",
        why="the published starting point",
        unit="calls",
        ge=1,
        le=100_000,
    )
    interval: Duration = described(
        5.0,
        "How often Envoy looks at the error rate.",
        why="the window tumbles with it: at this interval 25 calls are 5 calls per second and engine",
        unit="duration",
        ge=0.1,
        le=600,
    )
    consecutive_errors: int = described(
        5, "Failures in a row that eject an engine at once; 0 turns it off.", unit="calls", ge=0, le=100_000
    )
    consecutive_local_errors: int = described(
        2,
        "Connection failures in a row that eject an engine at once; 0 turns it off, and so does hedging.",
        why="least-request is drawn to a dead engine: it has nothing active. Two was measured best",
        unit="connections",
        ge=0,
        le=100_000,
    )
    min_calls: int = described(
        8,
        "Calls of the window that must be there before the error rate counts.",
        why="an engine that fails everything is out after eight calls; fewer are too few to tell",
        unit="calls",
        ge=1,
        le=100_000,
    )
    weigh_peers: bool = described(
        True,
        "Whether failures are weighed against those of the other engines: sooner out where calls to the others "
        "succeed, not at all where they fail as often.",
        why="where hardly any other call fails, three failures in a row are no chance; where all engines fail "
        "alike it is the requests, and taking out the unluckiest only costs capacity",
    )
    cooldown: Duration = described(
        60.0,
        "How long an engine that fails stays out, unless it proves itself sooner; doubles with each failed trial.",
        why="the published starting point",
        unit="duration",
        ge=0.1,
        le=86400,
    )
    max_cooldown: Duration = described(
        600.0, "Longest cooldown, however often trials have failed.", unit="duration", ge=0.1, le=86400
    )
    trial_calls: int = described(
        5,
        "Real requests that an engine on trial answers before it counts as well again.",
        unit="calls",
        ge=1,
        le=1000,
    )
    trial_share_percent: Percent = described(
        25.0, "Share of its normal traffic that an engine on trial gets.", unit="%", gt=0
    )
    local_ejection: Duration = described(
        1.0,
        "How long one Envoy by itself keeps an engine out; grows by as much each time in a row, up to cooldown.",
        why="the control plane keeps out what must stay out; an ejection that outlasts the fault costs capacity",
        unit="duration",
        ge=0.1,
        le=86400,
    )
    cut_hung: bool = described(
        True,
        "Whether requests that a hung engine holds are ended at once, and tried elsewhere where nothing was sent.",
        why="they hold places in the ceiling until the caller gives up; only proxies that can are told to",
    )
    capacity_floor_engines: int = described(
        1, "Engines of the pool that soft evidence always leaves in.", unit="engines", ge=0, le=20_000
    )
    capacity_floor_percent: Percent = described(
        50.0,
        "Share of the pool's engines that soft evidence (errors, slowness) never ejects.",
        why="half a fleet that sometimes fails serves more than none; a dead or hung engine always leaves",
        unit="%",
    )
    count_statuses: tuple[ErrorStatus, ...] = described(
        (500, 502, 504),
        "HTTP statuses that count as failures; 503 and 429 are an engine shedding load, not failing.",
        max_length=32,
    )


class Straggler(Spec):
    """When an engine that is clearly slower than its peers is taken out."""

    mode: Mode | None = _mode_of_part("taking out stragglers")
    enabled: bool = described(True, "Whether slowness alone takes an engine out.")
    slower_than: float = described(
        3.0,
        "Times slower than the median of its peers from which an engine is out.",
        why="low weights kept the 99th percentile at 6-8 s; out of the pool it fell to 1.2-3.7 s",
        ge=1.2,
        le=1000,
    )
    after: Duration = described(
        1.0, "How long it must be that slow, without a break.", unit="duration", ge=0.1, le=600
    )
    min_peers: int = described(
        3, "Engines with enough traffic to compare, itself included.", unit="engines", ge=2, le=20_000
    )


WAIT_SHARE: Final = 0.6
"""Of deadline minus longest service: what a request may wait. Measured: at 0.8 nothing was lost, at 1.2 everything
that was admitted late; a service time guessed too low by a third is between the two."""


class ClassLimits(Spec):
    """How one priority class shares the ceiling of a pool that serves both."""

    share_percent: Percent = described(
        50.0,
        "Share of the pool's ceiling this class is sure of; what it leaves free the other class may use.",
        unit="%",
    )


class PriorityLimits(Spec):
    """Ceiling shares per priority class; they matter only for pools that serve both, when both want more."""

    interactive: ClassLimits = described(ClassLimits(share_percent=90.0), "Share of interactive requests.")
    batch: ClassLimits = described(
        ClassLimits(share_percent=10.0),
        "Share of batch requests.",
        why="the lowest class is shed first, and never starved altogether",
    )


class Limits(Spec):
    """How much is let in. One of three ways; the first one given wins: absolute, per slot, by wait."""

    mode: Mode | None = _mode_of_part("the admission ceiling")
    learn: bool = described(
        True,
        "Whether slots and service time follow what is measured, with the pool's own numbers as start and bound.",
        why="a wrong service time by k stretches or shrinks the promised wait by k",
    )
    max_wait: Duration = described(
        2.0,
        "How long a request may wait for a slot; sets the ceiling to slots x (1 + maxWait / serviceTime).",
        why="two seconds were measured to keep every answer within its promise at any capacity",
        unit="duration",
        le=3600,
    )
    concurrent_per_slot: float | None = described(
        None, "Ceiling as a multiple of the slots, instead of maxWait.", gt=0, le=1000
    )
    max_concurrent: int | None = described(
        None,
        "Ceiling as a number of requests for the whole pool, instead of maxWait.",
        unit="requests",
        ge=1,
        le=10_000_000,
    )
    priorities: PriorityLimits = described(PriorityLimits, "Shares per priority class.")
    max_connections: int = described(
        100_000,
        "Connections and pending requests of one Envoy; not the admission limit.",
        why="Envoy's pending limit also counts connections being opened, so a low one rejects cold bursts",
        ge=1,
        le=4_000_000_000,
    )


class Backoff(Spec):
    """Wait before a retry, with full jitter."""

    base: Duration = described(0.025, "First back-off.", unit="duration", gt=0, le=60)
    max: Duration = described(0.25, "Longest back-off.", unit="duration", gt=0, le=600)


class RetryAfter(Spec):
    """What to do with an engine's own Retry-After header."""

    honour: bool = described(True, "Wait as long as the engine asks.")
    max: Duration = described(
        2.0,
        "Longest wait honoured; a longer request is answered by the normal back-off on another engine.",
        why="a sleeping retry holds a place in the retry budget",
        unit="duration",
        gt=0,
        le=600,
    )


SAID_BEFORE_WORK: Final[tuple[int, ...]] = (503,)
"""Derived statuses that are always retried: an engine that sheds has not begun."""

ENGINE_FAILED: Final[tuple[int, ...]] = (500, *SAID_BEFORE_WORK)
"""Derived statuses while failures look like an engine's: vLLM answers 500 when its core has died."""


class Retries(Spec):
    """Second tries, never on an engine that was already tried."""

    attempts: int = described(
        3,
        "Retries after the first try; 0 turns them off.",
        why="when half a fleet dies one retry finds another corpse: 1/2/3 retries gave 97/98.7/99.6 %",
        ge=0,
        le=10,
    )
    conditions: tuple[RetryCondition, ...] = described(
        (
            RetryCondition.CONNECT_FAILURE,
            RetryCondition.REFUSED_STREAM,
            RetryCondition.RESET,
        ),
        "When to retry.",
        why="`5xx` would tour a prompt that breaks the engine round the whole fleet; `reset` rescues requests "
        "of a crashed or hung engine at the price that one in progress is generated twice",
        max_length=16,
    )
    statuses: tuple[ErrorStatus, ...] | None = described(
        None,
        "Statuses that are retried; derived when absent.",
        why="derived: 503, an engine that has not begun, always; 500 unless nearly all engines fail at once, for "
        "then it is the requests: one engine of many that answers 500 cost 1.5 points of goodput at half load",
        max_length=32,
    )
    backoff: Backoff = described(Backoff, "Wait between tries.")
    retry_after: RetryAfter = described(RetryAfter, "The engine's own wish.")

    @property
    def statuses_in_force(self) -> tuple[int, ...]:
        """What is said, and where nothing is, what holds until something else is decided."""
        return ENGINE_FAILED if self.statuses is None else self.statuses


class RetryBudget(Spec):
    """Ceiling on retries in flight over the whole fleet of proxies."""

    percent: Percent | None = described(
        None,
        "Retries in flight as a share of requests in flight; derived when absent.",
        why="derived: 100 % under an admission ceiling, where an open budget cost nothing and 20 % lost 3 points; "
        "20 % where no ceiling is in force",
        unit="%",
    )
    min_concurrency: int = described(
        12,
        "Retries always allowed at once, for the whole fleet of proxies.",
        why="a retry that waits as long as Retry-After asks holds its place; with 3 over three gateways one "
        "engine that shed lost 4 of 218 requests while eight were idle",
        unit="requests",
        ge=0,
        le=100_000,
    )

    @property
    def percent_under_ceiling(self) -> float:
        """The budget where an admission ceiling is in force."""
        return 100.0 if self.percent is None else self.percent

    @property
    def percent_without_ceiling(self) -> float:
        """The budget where none is: retries are then the only thing that could make a storm of them."""
        return 20.0 if self.percent is None else self.percent


class StreamTimeouts(Spec):
    """Limits on streaming requests. Off at 0s; derived from measured tails, or off, when absent."""

    first_token: Duration | None = described(
        None,
        "Longest wait for the first token before the request is tried elsewhere.",
        why="absent: the allowed wait plus three times the longest first byte lately, behind the first-token "
        "gate; off where nothing is measured, as it must exceed allowed wait plus longest prefill",
        unit="duration",
        le=86400,
    )
    between_tokens: Duration | None = described(
        30.0,
        "Longest silence inside a stream before it is cut; raised where firstToken or hedging.delay need longer.",
        why="no healthy stream was seen to pause this long; without the first-token gate the wait in the engine's "
        "queue counts as silence too, so keep it above allowed wait plus longest prefill",
        unit="duration",
        le=86400,
    )
    total: Duration = described(900.0, "Longest a stream may last.", unit="duration", le=86400)


class UnaryTimeouts(Spec):
    """Limits on non-streaming requests. Nothing arrives before the whole answer exists."""

    per_try: Duration | None = described(
        None,
        "Longest one try may take before the request is tried elsewhere.",
        why="absent: the allowed wait plus one and a half times the longest answer lately; off where nothing is "
        "measured, as below allowed wait plus longest service it turned 86 % goodput into 62 %",
        unit="duration",
        le=86400,
    )
    total: Duration = described(
        300.0, "Longest a request may take, all tries together.", unit="duration", le=86400
    )


class Timeouts(Spec):
    """Time limits; streaming and non-streaming apart, because only a stream shows progress."""

    adaptive: bool = described(
        True,
        "Whether limits that are not given follow the measured tail of healthy requests.",
        why="a limit below allowed wait plus longest service kills work that would have succeeded; nobody knows "
        "that sum at design time",
    )

    connect: Duration = described(
        0.25,
        "Longest wait for a TCP connection.",
        why="0.25 s found a black hole in 0.34 s",
        unit="duration",
        gt=0,
        le=60,
    )
    streaming: StreamTimeouts = described(StreamTimeouts, "Streaming requests.")
    non_streaming: UnaryTimeouts = described(UnaryTimeouts, "Non-streaming requests.")


class Hedging(Spec):
    """A second try while the first still runs. Doubles GPU work until one of them wins."""

    mode: Mode | None = _mode_of_part("hedging")
    enabled: bool = described(False, "Whether to hedge at all.", why="spare capacity is not a given")
    delay_quantile_percent: float = described(
        95.0,
        "Where delay is absent: the quantile of measured waits for the first token that it follows.",
        why="at the 95th percentile one request in twenty is hedged",
        unit="%",
        ge=50,
        lt=100,
    )
    delay: Duration | None = described(
        None,
        "How long to wait for the first token (not streaming: for the whole answer) before starting another try; "
        "takes the place of firstToken and perTry.",
        unit="duration",
        gt=0,
        le=3600,
    )
    max_percent: Percent = described(
        5.0,
        "Hedges and retries in flight, together, as a share of requests in flight, where hedging is on.",
        why="Envoy has one budget for both; where retryBudget.percent is smaller, that one holds",
        unit="%",
    )
    below_utilization_percent: Percent = described(
        60.0,
        "Hedge only while the pool's slots are used less than this; again from 10 points below it.",
        why="hedging a full pool feeds the queue. Where use is not known, only a delay that is given goes on",
        unit="%",
    )


class Zones(Spec):
    """How callers of one zone share the engines of all zones."""

    mode: Mode | None = _mode_of_part("sharing between zones")
    prefer_local: bool = described(True, "Fill the caller's own zone first.")
    spill: bool = described(True, "Send what the own zone cannot hold to others by their spare capacity.")
    max_cross_zone_percent: Percent = described(
        100.0, "Largest share of a zone's requests that may leave it while it has a ready engine.", unit="%"
    )


class Drain(Spec):
    """How long an engine that leaves may take to finish."""

    deadline: Duration = described(
        900.0,
        "Longest wait for requests in flight.",
        why="the longest stream allowed",
        unit="duration",
        le=86400,
    )


class SlowStart(Spec):
    """How traffic returns to an engine that was away."""

    window: Duration = described(
        0.0,
        "Time over which an engine's share grows; 0s sends its full share at once.",
        why="ramping up over 5 s brought nothing under an admission ceiling; cold caches may want it",
        unit="duration",
        le=3600,
    )
    min_weight_percent: Percent = described(10.0, "Share it starts with.", unit="%")


class Step(Spec):
    """When one level of degradation is entered. Pressure: what is asked, in % of what the pool can serve."""

    enabled: bool = described(True, "Whether this level does anything.")
    above_pressure_percent: float = described(
        100.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )


class FallbackStep(Step):
    """Level 2: send what does not fit to the route's fallback pool."""

    above_pressure_percent: float = described(
        100.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    max_share_percent: Percent = described(
        100.0, "Largest share of a route's requests that the fallback gets because its pools are full.", unit="%"
    )


class ShedStep(Step):
    """Level 3: refuse batch requests, and long answers where a length is named."""

    above_pressure_percent: float = described(
        130.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    max_tokens: int | None = described(
        None, "Requests that ask for more tokens than this are refused; absent: none is.", unit="tokens", ge=1
    )


class MaintenanceStep(Step):
    """Level 4: one answer for everyone."""

    enabled: bool = described(
        False, "Whether this level does anything.", why="to answer nobody is an operator's decision"
    )
    above_pressure_percent: float = described(
        1000.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    message: str = described(
        "This model is under maintenance.", "What callers are told.", min_length=1, max_length=1000
    )


class Degradation(Spec):
    """The ladder: four levels, entered one after another and left in reverse."""

    mode: Mode | None = _mode_of_part("the ladder")
    enter_after: Duration = described(
        1.0, "How long the pressure must last before the next level is entered.", unit="duration", le=600
    )
    leave_after: Duration = described(
        5.0, "How long it must be gone before a level is left.", unit="duration", le=3600
    )
    margin_percent: Percent = described(
        10.0, "How far below its threshold the pressure must be before a level is left.", unit="%"
    )
    no_hedging: Step = described(
        Step(above_pressure_percent=100.0),
        "Level 1: no hedging, retries at their minimum.",
        why="not below 100 %: one of eight engines restarting at 80 % load makes 91 %, and there retries lose "
        "nothing; hedges end at their own limit before that",
    )
    fallback: FallbackStep = described(FallbackStep, "Level 2: the fallback pool takes what does not fit.")
    shed: ShedStep = described(ShedStep, "Level 3: batch requests and long answers are refused.")
    maintenance: MaintenanceStep = described(MaintenanceStep, "Level 4: one answer for everyone.")


class ResilienceSpec(Spec):
    """Everything a pool does about failure."""

    mode: Mode = described(
        Mode.ENFORCE,
        "enforce, or shadow: decisions are made, recorded and reported, and nothing is done.",
    )

    pools: tuple[Name, ...] = described(
        (),
        "Pools this policy is for; empty only in the policy named default, which is for all.",
        max_length=10_000,
    )
    breaker: Breaker = described(Breaker, "Taking failing engines out.")
    straggler: Straggler = described(Straggler, "Taking slow engines out.")
    limits: Limits = described(Limits, "How much is let in.")
    retries: Retries = described(Retries, "Second tries.")
    retry_budget: RetryBudget = described(RetryBudget, "Ceiling on second tries.")
    timeouts: Timeouts = described(Timeouts, "Time limits.")
    hedging: Hedging = described(Hedging, "Parallel second tries.")
    zones: Zones = described(Zones, "Sharing between zones.")
    drain: Drain = described(Drain, "Leaving.")
    slow_start: SlowStart = described(SlowStart, "Coming back.")
    degradation: Degradation = described(Degradation, "Serving less before serving nobody.")

    def shadowed(self, part: Mode | None) -> bool:
        """Whether decisions of a part with this ``mode`` are only recorded."""
        return (self.mode if part is None else part) is Mode.SHADOW


class ResiliencePolicy(Spec):
    """A named resilience policy."""

    api_version: Literal["switchgear.dev/v1alpha1"] = Field(API_VERSION, description="Version of the document.")
    kind: Literal["ResiliencePolicy"] = Field("ResiliencePolicy", description="Kind of the document.")
    metadata: Metadata = described(..., "Name and labels.")
    spec: ResilienceSpec = described(ResilienceSpec, "What the pools do about failure.")
