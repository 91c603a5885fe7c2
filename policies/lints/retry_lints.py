"""Lint: retries that cost more than they save."""

import math
from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule
from policies.resilience import RetryCondition

_TRIES_UNREMARKED: Final = 4
"""The default: three retries measured best when half a fleet fails at once."""

_CEILING_PER_SLOT: Final = 20.0
"""Requests per slot above which most admitted requests miss their deadline."""

_BUDGET_WITHOUT_CEILING: Final = 20.0
"""Percent: Envoy's default, for pools where nothing else stops a retry storm."""

# `reset` can repeat work too, but it rescues requests of a hung or crashed engine and is a documented default.
_REPEATS_WORK: Final = {
    RetryCondition.SERVER_ERROR: "any 5xx answer, after the GPU did the work",
    RetryCondition.GATEWAY_ERROR: "any 502, 503 or 504, even after the engine started",
    RetryCondition.RETRIABLE_4XX: "409, which an engine sends after reading the request",
}
_BEFORE_WORK: Final = frozenset({429, 503})  # an engine that sheds has not started


def worst_load(one: LintContext) -> float:
    """Upper bound of calls over requests in flight through one proxy that fills the pool.

    Envoy gives a place of the budget to each request with a retry or hedge: ``minConcurrency`` places, or a
    percentage of all calls in flight if that is more. Source: Envoy, ``RetryBudgetImpl``.
    """
    budget, hedging = one.spec.retry_budget, one.spec.hedging
    percent = _budget_percent(one)
    worst = _bound(one, percent, budget.min_concurrency, 1, one.spec.retries.attempts)
    if hedging.enabled:
        most = min(percent, hedging.max_percent)
        worst = max(worst, _bound(one, most, 1, hedging.per_request, hedging.per_request))
    return worst


def _bound(one: LintContext, percent: float, places: int, calls_per_place: int, most: int) -> float:
    """The bound for one budget; ``most`` is the number of extra calls of one request."""
    share = calls_per_place * percent / 100
    grown = 1 / (1 - share) if share < 1 else math.inf
    return min(1 + most, max(grown, 1 + calls_per_place * places / one.slots if one.slots else 1.0))


def _amplification(one: LintContext) -> Iterator[Finding]:
    hedging, attempts = one.spec.hedging, one.spec.retries.attempts
    if hedging.enabled and hedging.per_request > 1:
        tries = 1 + hedging.per_request
        yield one.policy(
            "SG110",
            "spec.hedging.perRequest",
            f"worst case: one request runs on {tries} engines at the same time ({tries}x GPU work)",
            "set hedging.perRequest: 1",
        )
    if attempts >= _TRIES_UNREMARKED:
        yield one.policy(
            "SG110",
            "spec.retries.attempts",
            f"worst case: one request runs on {1 + attempts} engines ({1 + attempts}x GPU work), "
            f"and a full pool gets {worst_load(one):.2g}x its load",
            f"lower retries.attempts to {_TRIES_UNREMARKED - 1}",
        )


def _repeats_work(one: LintContext) -> Iterator[Finding]:
    for number, condition in enumerate(one.spec.retries.conditions):
        if condition in _REPEATS_WORK and one.tries > 1:
            yield one.policy(
                "SG111",
                f"spec.retries.conditions[{number}]",
                f"{condition.value} retries on {_REPEATS_WORK[condition]}: GPU work is repeated, and a "
                "prompt that crashes engines reaches the next one",
                "remove it; connect-failure, refused-stream, reset and derived statuses suffice",
            )
    # Derived statuses stop by themselves where requests are at fault.
    for number, status in enumerate(one.spec.retries.statuses or ()):
        if status not in _BEFORE_WORK and one.tries > 1:
            yield one.policy(
                "SG111",
                f"spec.retries.statuses[{number}]",
                f"an engine may send {status} after the GPU did the work, which a retry repeats",
                "remove statuses (500 is then retried unless requests are at fault), or use only 503, and 429 if "
                "engines shed with it",
            )


def _budget_shut(one: LintContext) -> Iterator[Finding]:
    budget = one.spec.retry_budget
    if one.tries > 1 and budget.percent == 0 and budget.min_concurrency == 0:
        yield one.policy(
            "SG112",
            "spec.retryBudget.percent",
            f"the budget allows no retries: the {one.spec.retries.attempts} attempts never happen",
            "raise percent or minConcurrency, or set retries.attempts: 0",
            causes=("spec.retryBudget.minConcurrency",),
        )


def _budget_without_ceiling(one: LintContext) -> Iterator[Finding]:
    per_slot, percent = 1 + one.wait_s / one.pool.service_time, _budget_percent(one)
    if one.tries > 1 and per_slot > _CEILING_PER_SLOT and percent > _BUDGET_WITHOUT_CEILING:
        written = one.spec.retry_budget.percent is not None
        yield one.policy(
            "SG113",
            "spec.retryBudget.percent" if written else one.limit_path,
            f"the limits admit {per_slot:.3g} requests per slot, which stops no retry storm, and the retry budget "
            f"of {percent:g} %{'' if written else ' (derived from the admission limit)'} allows "
            f"{one.spec.retries.attempts} retries for each",
            f"lower the limits, or set retryBudget.percent: {_BUDGET_WITHOUT_CEILING:g}",
            causes=("spec.serviceTime",),
        )


def _budget_percent(one: LintContext) -> float:
    """The effective budget: derived from the admission limit where it is not set."""
    budget = one.spec.retry_budget
    in_force = not one.spec.shadowed(one.spec.limits.mode)
    return budget.percent_under_ceiling if in_force else budget.percent_without_ceiling


RETRY_RULES: Final[tuple[PoolRule, ...]] = (
    _amplification,
    _repeats_work,
    _budget_shut,
    _budget_without_ceiling,
)
