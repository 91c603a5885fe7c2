"""Retries after a failure, and hedges in parallel to a slow try. One budget limits both."""

from enum import StrEnum
from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_checks import ordered_durations
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, ErrorStatus, Percent
from policies.resilience.mode import Mode, mode_of_part

_NO_RETRY_AFTER: Final = lost("Retry-After of an engine is ignored")
_NO_HEDGES: Final = lost("Envoy Gateway has no hedging")
_NO_SIZES: Final = lost("nothing there estimates tokens; requests of any size have the same retries")


class RetryCondition(StrEnum):
    """When a request may be retried on another engine; Envoy's names."""

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
        "First backoff.",
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
        "Longest backoff.",
        unit="duration",
        checks=(ordered_durations("base", "max", code="SG041", message="max is at least base"),),
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retry_back_off.max_interval", "EnvoyFilter"),
            gateway_api=kept("retry.perRetry.backOff.maxInterval", "BackendTrafficPolicy"),
        ),
        gt=0,
        le=600,
    )


class RetryAfter(Spec):
    """Handling of an engine's Retry-After header."""

    honour: bool = documented_field(
        True,
        "Wait as long as Retry-After says.",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("rate_limited_retry_back_off", "EnvoyFilter"),
            gateway_api=_NO_RETRY_AFTER,
        ),
    )
    max: Duration = documented_field(
        2.0,
        "Longest wait honoured; above it the normal backoff applies.",
        why="a waiting retry occupies a place in the retry budget",
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
"""Derived statuses that are always retried: an engine that sheds has not started."""

ENGINE_FAILED: Final[tuple[int, ...]] = (500, *REPORTED_BEFORE_WORK)
"""Derived statuses while failures look like an engine's: vLLM answers 500 when its core died."""


class LargeRetries(Spec):
    """Fewer retries of requests that ask for many tokens: each repeats as much work."""

    tokens_above: int | None = documented_field(
        None,
        "Requests of more estimated tokens than this get fewer retries; none are large when absent.",
        unit="tokens",
        targets=exported_alike(Xds.RDS | Xds.LDS, _NO_SIZES),
        ge=1,
        le=100_000_000,
    )
    attempts: int = documented_field(
        1,
        "Their retries, also in place of hedging.perRequest; 0: a try is repeated only if no engine has seen it.",
        targets=exported_alike(Xds.RDS, _NO_SIZES),
        ge=0,
        le=10,
    )
    below_utilization_percent: Percent = documented_field(
        85.0,
        "From this utilization of the pool's slots on, they are retried only if no engine has seen them; again "
        "below it less 10 points.",
        why="a repeated large request takes the slots of many short ones; up to 85 % waiting adds little. With "
        "unknown utilization only attempts applies",
        unit="%",
        targets=exported_alike(Xds.RTDS, _NO_SIZES),
    )


class Retries(Spec):
    """Retries, never on an engine that was already tried."""

    attempts: int = documented_field(
        3,
        "Retries after the first try; 0 disables them.",
        why="when half a fleet fails, one retry often meets another dead engine: 1/2/3 retries gave 97/98.7/99.6 "
        "%",
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
        "of a crashed or hung engine, but generates those in progress twice",
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
        why="derived: 503 always, as the engine has not started; 500 unless nearly all engines fail at once, "
        "because "
        "then the requests are at fault; one of many engines answering 500 cost 1.5 points of goodput at half "
        "load",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=kept("retries.retryOn; statuses without a name by a patch", "VirtualService"),
            gateway_api=kept("retry.retryOn.httpStatusCodes", "BackendTrafficPolicy"),
        ),
        max_length=32,
    )
    backoff: Backoff = documented_field(Backoff, "Backoff between tries.")
    retry_after: RetryAfter = documented_field(RetryAfter, "Retry-After of engines.")
    large: LargeRetries = documented_field(LargeRetries, "Large requests.")

    @property
    def statuses_in_force(self) -> tuple[int, ...]:
        """The written statuses, else the derived ones that apply until another decision."""
        return ENGINE_FAILED if self.statuses is None else self.statuses


class RetryBudget(Spec):
    """Limit of retries in flight across all proxies."""

    percent: Percent | None = documented_field(
        None,
        "Retries in flight as a share of requests in flight; derived when absent.",
        why="derived: 100 % under an admission limit, where an open budget cost nothing and 20 % lost 3 points; "
        "20 % where no ceiling is in force, and from degradation level 1; in a full pool 0.5 % of the limit",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "retryBudget.percent; each proxy has its own, whatever its demand",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "circuitBreaker.retryBudget.percent; each proxy has its own for each route, whatever its demand",
                "BackendTrafficPolicy",
            ),
        ),
    )
    min_concurrency: int = documented_field(
        12,
        "Retries always allowed in parallel, for all proxies together.",
        why="a retry that waits for Retry-After occupies its place; with 3 for three gateways, one shedding "
        "engine lost 4 of 218 requests while eight were idle",
        unit="requests",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "retryBudget.minRetryConcurrency, at least 1, shared by --proxies; each proxy has its "
                "own, whatever its demand",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "circuitBreaker.retryBudget.minRetryConcurrency; each proxy has its own for each route, "
                "whatever its demand",
                "BackendTrafficPolicy",
            ),
        ),
        ge=0,
        le=100_000,
    )

    @property
    def percent_under_ceiling(self) -> float:
        """The budget under an admission limit."""
        return 100.0 if self.percent is None else self.percent

    @property
    def percent_without_ceiling(self) -> float:
        """The budget without an admission limit, where only the budget stops a retry storm."""
        return 20.0 if self.percent is None else self.percent


class Hedging(Spec):
    """A second try while the first still runs. Doubles GPU work until one of them answers."""

    mode: Mode | None = mode_of_part(
        "hedging",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated("hedges are exported where hedging is enabled, in either mode", "EnvoyFilter"),
            gateway_api=kept("there is no hedging"),
        ),
    )
    enabled: bool = documented_field(
        False,
        "Enable hedging.",
        why="hedging needs spare capacity",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("hedge_policy, where hedging.delay is given", "EnvoyFilter"),
            gateway_api=_NO_HEDGES,
        ),
    )
    delay_quantile_percent: float = documented_field(
        95.0,
        "Without delay: the quantile of measured waits for the first token that starts a hedge.",
        why="at the 95th percentile one request in twenty is hedged",
        unit="%",
        targets=FieldTargets(
            live=Xds.RDS,
            istio=lost("no delay follows measurements; set hedging.delay"),
            gateway_api=_NO_HEDGES,
        ),
        ge=50,
        lt=100,
    )
    delay: Duration | None = documented_field(
        None,
        "Wait for the first token (non-streaming: for the whole answer) before a second try starts; replaces "
        "firstToken and perTry.",
        unit="duration",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=approximated(
                "perTryTimeout with hedge_on_per_try_timeout; streams only with a header that marks them",
                "EnvoyFilter",
            ),
            gateway_api=_NO_HEDGES,
        ),
        gt=0,
        le=3600,
    )
    per_request: int = documented_field(
        1,
        "Hedges and retries of one request in total, while hedging is active.",
        why="Envoy counts both alike: with 3, a request on slow engines runs on four at once",
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
        "Hedges and retries in flight as a share of requests in flight, while hedging is active; each proxy "
        "always allows one.",
        why="Envoy has one budget for both; a smaller retryBudget.percent applies instead. "
        "retryBudget.minConcurrency does not raise it: 12 requests in flight got 36 hedges",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS,
            istio=approximated(
                "the smaller of both budgets; each proxy has its own, whatever its demand",
                "DestinationRule",
            ),
            gateway_api=_NO_HEDGES,
        ),
    )
    max_tokens: int | None = documented_field(
        None,
        "Requests of more estimated tokens than this are not hedged; any size is when absent.",
        why="a hedge of a long request takes the slot of many short ones; it may be slow only because it is long",
        unit="tokens",
        targets=FieldTargets(
            live=Xds.RDS | Xds.LDS,
            istio=lost("nothing there estimates tokens; requests of any size are hedged"),
            gateway_api=_NO_HEDGES,
        ),
        ge=1,
        le=100_000_000,
    )
    below_utilization_percent: Percent = documented_field(
        60.0,
        "Hedge only below this utilization of the pool's slots; resume 10 points below it.",
        why="hedging a full pool lengthens the queue. With unknown utilization only a written delay applies",
        unit="%",
        targets=FieldTargets(
            live=Xds.RTDS | Xds.RDS,
            istio=lost("hedges continue even if the pool is full"),
            gateway_api=_NO_HEDGES,
        ),
    )
