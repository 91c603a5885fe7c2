"""Lint: degradation levels out of order, without effect, or faster than the pressure they follow."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule
from policies.quantity import format_duration as text
from policies.resilience import Degradation
from policies.resilience.degradation import LongAnswers
from policies.route import ModelRoute, PriorityClass

_STEPS: Final = (
    ("noHedging", "no_hedging"),
    ("fallback", "fallback"),
    ("shed", "shed"),
    ("maintenance", "maintenance"),
)

_PRESSURE_WINDOW_S: Final = 2.0
"""Seconds over which pressure is averaged; shorter delays react to old values."""

_STILL_SERVES_PERCENT: Final = 200.0
"""Pressure up to which a pool serves at least half of the requests."""


def _routes(one: LintContext) -> Iterator[ModelRoute]:
    """The routes that have the pool as a target."""
    for route in one.policies.routes.values():
        if any(share.pool == one.name and share.weight for share in route.spec.pools):
            yield route


def _wanted(one: LintContext, block: str) -> str:
    """A field of the level that the operator changed; empty where the level is as built in."""
    step, built_in = getattr(one.spec.degradation, block), getattr(Degradation(), block)
    for name, field in type(step).model_fields.items():
        path = f"spec.degradation.{block}.{field.alias or name}"
        if getattr(step, name) != getattr(built_in, name) and one.declares(path):
            return path
    return ""


def _steps_out_of_order(one: LintContext) -> Iterator[Finding]:
    highest, below = 0.0, ""
    for name, field in _STEPS:
        step = getattr(one.spec.degradation, field)
        if not step.enabled:
            continue
        if step.above_pressure_percent < highest:
            path = f"spec.degradation.{name}.abovePressurePercent"
            if not one.declares(path):
                path = f"spec.degradation.{below}.abovePressurePercent"
            yield one.policy(
                "SG140",
                path,
                f"{name} begins at {step.above_pressure_percent:g} %, below {below} ({highest:g} %): levels are "
                f"entered in order, so {name} begins at {highest:g} % too",
                "raise abovePressurePercent from noHedging to fallback, shed and maintenance",
            )
        else:
            highest, below = step.above_pressure_percent, name


def _fallback_without_one(one: LintContext) -> Iterator[Finding]:
    path = _wanted(one, "fallback")
    if not path or not one.spec.degradation.fallback.enabled:
        return
    if not any(route.spec.fallbacks for route in _routes(one)):
        yield one.policy(
            "SG141",
            path,
            "no route to this pool has a fallback: level 2 cannot send overflow anywhere",
            "set spec.fallbacks in the route, or remove this",
        )


def _nothing_to_shed(one: LintContext) -> Iterator[Finding]:
    path, step = _wanted(one, "shed"), one.spec.degradation.shed
    if not path or not step.enabled or step.max_tokens is not None:
        return
    if step.long_answers is LongAnswers.REDUCE:
        yield one.policy(
            "SG142",
            "spec.degradation.shed.longAnswers",
            "shed.maxTokens is not set: level 3 shortens no answer",
            "set shed.maxTokens",
        )
        return
    if not any(route.spec.priority is PriorityClass.BATCH for route in _routes(one)):
        yield one.policy(
            "SG142",
            path,
            "no batch route leads to this pool and shed.maxTokens is not set: level 3 sheds nothing",
            "set shed.maxTokens, or priority: batch in routes that can wait",
        )


def _maintenance_too_early(one: LintContext) -> Iterator[Finding]:
    step = one.spec.degradation.maintenance
    if step.enabled and step.above_pressure_percent < _STILL_SERVES_PERCENT:
        yield one.policy(
            "SG143",
            "spec.degradation.maintenance.abovePressurePercent",
            f"at {step.above_pressure_percent:g} % all requests are refused, although the pool could still serve "
            f"{min(100.0, 100 * 100 / step.above_pressure_percent):.0f} of 100",
            "write 1000, or leave maintenance to operators",
            causes=("spec.degradation.maintenance.enabled",),
        )


def _oscillation(one: LintContext) -> Iterator[Finding]:
    ladder = one.spec.degradation
    if ladder.leave_after < max(ladder.enter_after, _PRESSURE_WINDOW_S):
        path = "spec.degradation.leaveAfter"
        yield one.policy(
            "SG144",
            path
            if one.declares(path) or not one.declares("spec.degradation.enterAfter")
            else "spec.degradation.enterAfter",
            f"a level is left after {text(ladder.leave_after)}, but pressure is a mean over "
            f"{text(_PRESSURE_WINDOW_S)} and a level is entered after {text(ladder.enter_after)}: "
            "levels oscillate",
            "raise leaveAfter to 5s or above enterAfter",
        )


DEGRADATION_RULES: Final[tuple[PoolRule, ...]] = (
    _steps_out_of_order,
    _fallback_without_one,
    _nothing_to_shed,
    _maintenance_too_early,
    _oscillation,
)
