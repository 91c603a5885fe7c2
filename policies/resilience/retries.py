"""Second tries: after a failure, and beside a first one that is slow. One budget bounds both."""

from enum import StrEnum
from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_checks import ordered_durations
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, ErrorStatus, Percent
from policies.resilience.mode import Mode, mode_of_part

_NO_RETRY_AFTER: Final = lost("Retry-After of an engine is not looked at")
_NO_HEDGES: Final = lost("there are no hedges in Envoy Gateway")


class RetryCondition(StrEnum):
    """When a request may be tried on another engine. Names are Envoy's."""

    CONNECT_FAILURE = "connect-failure"
    REFUSED_STREAM = "refused-stream"
    RESET_BEFORE_REQUEST = "reset-before-request"
    RESET = "reset"
    GATEWAY_ERROR = "gateway-error"
    SERVER_ERROR = "5xx"
    RETRIABLE_4XX = "retriable-4xx"


class Backoff(Spec):
    """Wait before a retry, with full jitter."""

    base: Duration = documented_field(
        0.025,
        "First back-off.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.backoff", "VirtualService"),
            gateway_api=kept("retry.perRetry.backOff.baseInterval", "BackendTrafficPolicy"),
        ),
        gt=0,
        le=60,
    )
    max: Duration = documented_field(
        0.25,
        "Longest back-off.",
        unit="duration",
        checks=(
            ordered_durations(
                "base", "max", code="SG041", message="the longest back-off is at least the first, base"
            ),
        ),
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retry_back_off.max_interval", "EnvoyFilter"),
            gateway_api=kept("retry.perRetry.backOff.maxInterval", "BackendTrafficPolicy"),
        ),
        gt=0,
        le=600,
    )


class RetryAfter(Spec):
    """What to do with an engine's own Retry-After header."""

    honour: bool = documented_field(
        True,
        "Wait as long as the engine asks.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("rate_limited_retry_back_off", "EnvoyFilter"),
            gateway_api=_NO_RETRY_AFTER,
        ),
    )
    max: Duration = documented_field(
        2.0,
        "Longest wait honoured; a longer request is answered by the normal back-off on another engine.",
        why="a sleeping retry holds a place in the retry budget",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("rate_limited_retry_back_off.max_interval", "EnvoyFilter"),
            gateway_api=_NO_RETRY_AFTER,
        ),
        gt=0,
        le=600,
    )


REPORTED_BEFORE_WORK: Final[tuple[int, ...]] = (503,)
"""Derived statuses that are always retried: an engine that sheds has not begun."""

ENGINE_FAILED: Final[tuple[int, ...]] = (500, *REPORTED_BEFORE_WORK)
"""Derived statuses while failures look like an engine's: vLLM answers 500 when its core has died."""


class Retries(Spec):
    """Second tries, never on an engine that was already tried."""

    attempts: int = documented_field(
        3,
        "Retries after the first try; 0 turns them off.",
        why="when half a fleet dies one retry finds another corpse: 1/2/3 retries gave 97/98.7/99.6 %",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.attempts", "VirtualService"),
            gateway_api=kept("retry.numRetries", "BackendTrafficPolicy"),
        ),
        ge=0,
        le=10,
    )
    conditions: tuple[RetryCondition, ...] = documented_field(
        (
            RetryCondition.CONNECT_FAILURE,
            RetryCondition.REFUSED_STREAM,
            RetryCondition.RESET,
        ),
        "When to retry.",
        why="`5xx` would tour a prompt that breaks the engine round the whole fleet; `reset` rescues requests "
        "of a crashed or hung engine at the price that one in progress is generated twice",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RDS | Xds.CDS,
            istio=kept("retries.retryOn", "VirtualService"),
            gateway_api=kept("retry.retryOn.triggers", "BackendTrafficPolicy"),
        ),
        max_length=16,
    )
    statuses: tuple[ErrorStatus, ...] | None = documented_field(
        None,
        "Statuses that are retried; derived when absent.",
        why="derived: 503, an engine that has not begun, always; 500 unless nearly all engines fail at once, for "
        "then it is the requests: one engine of many that answers 500 cost 1.5 points of goodput at half load",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.retryOn; nameless ones by a patch", "VirtualService"),
            gateway_api=kept("retry.retryOn.httpStatusCodes", "BackendTrafficPolicy"),
        ),
        max_length=32,
    )
    backoff: Backoff = documented_field(Backoff, "Wait between tries.")
    retry_after: RetryAfter = documented_field(RetryAfter, "The engine's own wish.")

    @property
    def statuses_in_force(self) -> tuple[int, ...]:
        """What is said, and where nothing is, what holds until something else is decided."""
        return ENGINE_FAILED if self.statuses is None else self.statuses


class RetryBudget(Spec):
    """Ceiling on retries in flight over the whole fleet of proxies."""

    percent: Percent | None = documented_field(
        None,
        "Retries in flight as a share of requests in flight; derived when absent.",
        why="derived: 100 % under an admission ceiling, where an open budget cost nothing and 20 % lost 3 points; "
        "20 % where no ceiling is in force",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "retryBudget.percent; each proxy has its own; nobody divides it by what they ask",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "circuitBreaker.retryBudget.percent; each proxy has its own for each route; nobody "
                "divides it by what they ask",
                "BackendTrafficPolicy",
            ),
        ),
    )
    min_concurrency: int = documented_field(
        12,
        "Retries always allowed at once, for the whole fleet of proxies.",
        why="a retry that waits as long as Retry-After asks holds its place; with 3 over three gateways one "
        "engine that shed lost 4 of 218 requests while eight were idle",
        unit="requests",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "retryBudget.minRetryConcurrency, at least 1, shared by --proxies; each proxy has its"
                " own; nobody divides it by what they ask",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "circuitBreaker.retryBudget.minRetryConcurrency; each proxy has its own for each "
                "route; nobody divides it by what they ask",
                "BackendTrafficPolicy",
            ),
        ),
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


class Hedging(Spec):
    """A second try while the first still runs. Doubles GPU work until one of them wins."""

    mode: Mode | None = mode_of_part(
        "hedging",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated("hedges are exported where hedging is enabled, in either mode", "EnvoyFilter"),
            gateway_api=kept("there are no hedges"),
        ),
    )
    enabled: bool = documented_field(
        False,
        "Whether to hedge at all.",
        why="spare capacity is not a given",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("hedge_policy, where hedging.delay is given", "EnvoyFilter"),
            gateway_api=_NO_HEDGES,
        ),
    )
    delay_quantile_percent: float = documented_field(
        95.0,
        "Where delay is absent: the quantile of measured waits for the first token that it follows.",
        why="at the 95th percentile one request in twenty is hedged",
        unit="%",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("no delay follows what is measured; give hedging.delay"),
            gateway_api=_NO_HEDGES,
        ),
        ge=50,
        lt=100,
    )
    delay: Duration | None = documented_field(
        None,
        "How long to wait for the first token (not streaming: for the whole answer) before starting another try; "
        "takes the place of firstToken and perTry.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated(
                "perTryTimeout with hedge_on_per_try_timeout; streams only where they say so by a header",
                "EnvoyFilter",
            ),
            gateway_api=_NO_HEDGES,
        ),
        gt=0,
        le=3600,
    )
    per_request: int = documented_field(
        1,
        "Hedges and retries of one request, together, while hedging is on.",
        why="Envoy counts both alike: with 3, a request that finds slow engines runs on four of them at once",
        unit="requests",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.attempts, where hedging.delay is given", "VirtualService"),
            gateway_api=_NO_HEDGES,
        ),
        ge=1,
        le=10,
    )
    max_percent: Percent = documented_field(
        5.0,
        "Hedges and retries in flight, together, as a share of requests in flight, while hedging is on; "
        "each proxy always allows one.",
        why="Envoy has one budget for both; where retryBudget.percent is smaller, that one holds. "
        "retryBudget.minConcurrency does not raise it: 12 requests in flight got 36 hedges",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "the smaller of both budgets; each proxy has its own; nobody divides it by what they ask",
                "DestinationRule",
            ),
            gateway_api=_NO_HEDGES,
        ),
    )
    below_utilization_percent: Percent = documented_field(
        60.0,
        "Hedge only while the pool's slots are used less than this; again from 10 points below it.",
        why="hedging a full pool feeds the queue. Where use is not known, only a delay that is given goes on",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=lost("hedges go on however full the pool is"),
            gateway_api=_NO_HEDGES,
        ),
    )
