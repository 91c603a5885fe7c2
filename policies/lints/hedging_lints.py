"""Lint: hedges that cost more than they save or never come, and limits that say nothing where hedging is on."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule

_HEDGES_WITH_A_CAP: Final = 20.0
"""Percent. Above it, hedging alone asks for a fifth more GPUs."""


def _hedging_without_cap(one: LintContext) -> Iterator[Finding]:
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


def _hedging_that_never_comes(one: LintContext) -> Iterator[Finding]:
    hedging = one.spec.hedging
    if not hedging.enabled:
        return
    for name, percent, why in (
        ("belowUtilizationPercent", hedging.below_utilization_percent, "no pool is used less than 0 %"),
        (
            "maxPercent",
            hedging.max_percent,
            "0 % of the requests may be hedged, and only the fewest retries are left",
        ),
    ):
        if not percent:
            yield one.policy(
                "SG114",
                f"spec.hedging.{name}",
                f"hedging is enabled but never comes: {why}",
                "say belowUtilizationPercent 60 and maxPercent 5, or turn hedging off",
            )


def _hedging_cannot_see_streams(one: LintContext) -> Iterator[Finding]:
    if one.spec.hedging.enabled and not one.pool.first_token_gate:
        yield one.policy(
            "SG117",
            "spec.hedging.enabled",
            "without the first-token gate a stream's headers come at once, and Envoy never hedges it; "
            "only non-streaming requests are hedged, and those double the whole generation",
            "install the gate and say firstTokenGate: true in the pool, or turn hedging off",
        )


def _hedging_in_the_place_of_others(one: LintContext) -> Iterator[Finding]:
    hedging, timeouts = one.spec.hedging, one.spec.timeouts
    if not hedging.enabled:
        return
    remove = "remove it, or turn hedging off"
    rests = f"it holds only while hedging rests, from {hedging.below_utilization_percent:g} % of the slots in use"
    # A hedge runs on Envoy's timer of one try, and to Envoy is a retry after a local failure.
    if timeouts.non_streaming.per_try:
        yield one.policy(
            "SG118",
            "spec.timeouts.nonStreaming.perTry",
            f"while hedging is on no try is given up, another one runs beside it; {rests}",
            remove,
        )
    if timeouts.streaming.first_token and one.pool.first_token_gate:
        yield one.policy(
            "SG118",
            "spec.timeouts.streaming.firstToken",
            "while hedging is on no try is given up for a late first token, another one runs beside it, and the "
            f"longer of firstToken and betweenTokens ends the request; {rests}",
            remove,
        )
    if one.declares("spec.breaker.consecutiveLocalErrors") and one.spec.breaker.consecutive_local_errors:
        yield one.policy(
            "SG118",
            "spec.breaker.consecutiveLocalErrors",
            "where hedging is enabled connection failures in a row eject no engine: to Envoy a hedge is one",
            remove,
        )
    if (
        one.declares("spec.retryBudget.percent")
        and one.spec.retry_budget.percent_under_ceiling > hedging.max_percent
    ):
        yield one.policy(
            "SG118",
            "spec.retryBudget.percent",
            f"retries and hedges share one budget in Envoy, so hedging.maxPercent, {hedging.max_percent:g} %, "
            "holds for retries, too, while it is on",
            "raise hedging.maxPercent, or say the same here",
        )


HEDGING_RULES: Final[tuple[PoolRule, ...]] = (
    _hedging_without_cap,
    _hedging_that_never_comes,
    _hedging_cannot_see_streams,
    _hedging_in_the_place_of_others,
)
