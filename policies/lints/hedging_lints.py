"""Lint: hedges that cost too much or never happen, and limits without effect under hedging."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule

_ENABLED: Final = ("spec.hedging.enabled",)

_HEDGES_WITH_A_CAP: Final = 20.0
"""Percent. Above it, hedging alone needs a fifth more GPUs."""


def _hedging_without_cap(one: LintContext) -> Iterator[Finding]:
    hedging = one.spec.hedging
    if hedging.enabled and hedging.max_percent > _HEDGES_WITH_A_CAP:
        yield one.policy(
            "SG115",
            "spec.hedging.maxPercent",
            f"up to {hedging.max_percent:g} % of the requests may run twice",
            "write 5, which catches most slow requests",
            causes=_ENABLED,
        )
    if hedging.enabled and hedging.below_utilization_percent >= 100:
        yield one.policy(
            "SG115",
            "spec.hedging.belowUtilizationPercent",
            "hedging continues when every slot is in use, and each hedge lengthens the queue",
            "write 60, to hedge only with spare capacity",
            causes=_ENABLED,
        )


def _hedging_that_never_comes(one: LintContext) -> Iterator[Finding]:
    hedging = one.spec.hedging
    if not hedging.enabled:
        return
    for name, percent, why in (
        ("belowUtilizationPercent", hedging.below_utilization_percent, "utilization is never below 0 %"),
        (
            "maxPercent",
            hedging.max_percent,
            "0 % of the requests may be hedged",
        ),
    ):
        if not percent:
            yield one.policy(
                "SG114",
                f"spec.hedging.{name}",
                f"hedging is enabled but never happens: {why}",
                f"write {60 if name == 'belowUtilizationPercent' else 5}, or disable hedging",
                causes=_ENABLED,
            )


def _hedging_cannot_see_streams(one: LintContext) -> Iterator[Finding]:
    if one.spec.hedging.enabled and not one.pool.first_token_gate:
        yield one.policy(
            "SG117",
            "spec.hedging.enabled",
            "without the first-token gate a stream's headers arrive at once, so Envoy never hedges streams, only "
            "non-streaming requests, which run twice to the end",
            "install the gate and set firstTokenGate: true in the pool, or disable hedging",
        )


def _limits_replaced_by_hedging(one: LintContext) -> Iterator[Finding]:
    hedging, timeouts = one.spec.hedging, one.spec.timeouts
    if not hedging.enabled:
        return
    remove = "remove it, or disable hedging"
    rests = f"it applies only while hedging pauses, from {hedging.below_utilization_percent:g} % utilization"
    # A hedge runs on Envoy's timer of one try, and to Envoy is a retry after a local failure.
    if timeouts.non_streaming.per_try:
        yield one.policy(
            "SG118",
            "spec.timeouts.nonStreaming.perTry",
            f"while hedging is active no try is aborted, a second one runs in parallel; {rests}",
            remove,
        )
    if timeouts.streaming.first_token and one.pool.first_token_gate:
        yield one.policy(
            "SG118",
            "spec.timeouts.streaming.firstToken",
            "while hedging is active a late first token aborts no try, a second one runs in parallel, and the "
            f"longer of firstToken and betweenTokens ends the request; {rests}",
            remove,
        )
    if one.declares("spec.breaker.consecutiveLocalErrors") and one.spec.breaker.consecutive_local_errors:
        yield one.policy(
            "SG118",
            "spec.breaker.consecutiveLocalErrors",
            "no effect with hedging: Envoy counts a hedge as a connection failure",
            remove,
        )
    if (
        one.declares("spec.retryBudget.percent")
        and one.spec.retry_budget.percent_under_ceiling > hedging.max_percent
    ):
        yield one.policy(
            "SG118",
            "spec.retryBudget.percent",
            f"retries and hedges share one budget in Envoy: while hedging is active, hedging.maxPercent "
            f"({hedging.max_percent:g} %) limits retries too",
            f"write {hedging.max_percent:g} here, or raise hedging.maxPercent",
        )


HEDGING_RULES: Final[tuple[PoolRule, ...]] = (
    _hedging_without_cap,
    _hedging_that_never_comes,
    _hedging_cannot_see_streams,
    _limits_replaced_by_hedging,
)
