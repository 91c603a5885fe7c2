"""Lint: hedges that cost more than they save, and limits that say nothing where hedging is on."""

from collections.abc import Iterator
from typing import Final

from policies.advice import Advised, PoolRule
from policies.findings import Finding

_HEDGES_WITH_A_CAP: Final = 20.0
"""Percent. Above it, hedging alone asks for a fifth more GPUs."""


def _hedging_without_cap(one: Advised) -> Iterator[Finding]:
    hedging = one.spec.hedging
    if hedging.enabled and hedging.max_percent > _HEDGES_WITH_A_CAP:
        yield one.policy(
            "SG115",
            "spec.hedging.maxPercent",
            f"up to {hedging.max_percent:g} % of the requests may be run twice",
            "5 catches most of the slowest requests; above 20 hedging needs GPUs of its own",
        )
    if hedging.enabled and hedging.below_utilization_percent >= 100:
        yield one.policy(
            "SG115",
            "spec.hedging.belowUtilizationPercent",
            "hedging goes on when every slot is taken, and each hedge lengthens the queue it hopes to pass",
            "say 60: hedge only where there is spare capacity",
        )


def _hedging_without_delay(one: Advised) -> Iterator[Finding]:
    if one.spec.hedging.enabled and one.spec.hedging.delay is None:
        yield one.policy(
            "SG116",
            "spec.hedging.enabled",
            "hedging is on but has no delay, so there is no moment at which a second try would begin",
            "say hedging.delay: about the time that 95 % of the first tokens need",
        )


def _hedging_cannot_see_streams(one: Advised) -> Iterator[Finding]:
    if one.spec.hedging.enabled and not one.pool.first_token_gate:
        yield one.policy(
            "SG117",
            "spec.hedging.enabled",
            "without the first-token gate a stream's headers come at once, and Envoy never hedges it; "
            "only non-streaming requests are hedged, and those double the whole generation",
            "install the gate and say firstTokenGate: true in the pool, or turn hedging off",
        )


def _hedging_in_the_place_of_others(one: Advised) -> Iterator[Finding]:
    hedging, timeouts = one.spec.hedging, one.spec.timeouts
    if not hedging.enabled or hedging.delay is None:
        return
    remove = "remove it, or turn hedging off"
    # A hedge runs on Envoy's timer of one try, and to Envoy is a retry after a local failure.
    if timeouts.non_streaming.per_try:
        yield one.policy(
            "SG118",
            "spec.timeouts.nonStreaming.perTry",
            "where hedging is on no try is given up: after hedging.delay another one runs beside it",
            remove,
        )
    if timeouts.streaming.first_token and one.pool.first_token_gate:
        yield one.policy(
            "SG118",
            "spec.timeouts.streaming.firstToken",
            "where hedging is on no try is given up for a late first token: after hedging.delay another one runs "
            "beside it, and the longer of firstToken and betweenTokens ends the request",
            remove,
        )
    if one.says("spec.breaker.consecutiveLocalErrors") and one.spec.breaker.consecutive_local_errors:
        yield one.policy(
            "SG118",
            "spec.breaker.consecutiveLocalErrors",
            "where hedging is on connection failures in a row eject no engine: to Envoy a hedge is one of them",
            remove,
        )
    if one.says("spec.retryBudget.percent") and one.spec.retry_budget.percent_under_ceiling > hedging.max_percent:
        yield one.policy(
            "SG118",
            "spec.retryBudget.percent",
            f"retries and hedges share one budget in Envoy, so hedging.maxPercent, {hedging.max_percent:g} %, "
            "holds for retries, too",
            "raise hedging.maxPercent, or say the same here",
        )


def _hedging_at_any_utilization(one: Advised) -> Iterator[Finding]:
    path = "spec.hedging.belowUtilizationPercent"
    if one.spec.hedging.enabled and one.spec.hedging.below_utilization_percent < 100 and one.says(path):
        yield one.policy(
            "SG119",
            path,
            "has no effect yet, as utilization is not measured: requests are hedged however full the pool is, "
            f"up to maxPercent, {one.spec.hedging.max_percent:g} %",
            "choose maxPercent so that a full pool can bear it",
        )


HEDGING_RULES: Final[tuple[PoolRule, ...]] = (
    _hedging_without_cap,
    _hedging_without_delay,
    _hedging_cannot_see_streams,
    _hedging_in_the_place_of_others,
    _hedging_at_any_utilization,
)
