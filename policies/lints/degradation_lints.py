"""Lint: ladders of degradation with steps out of order, without effect, or quicker than what they go by."""

from collections.abc import Iterator
from typing import Final

from policies.findings import Finding
from policies.lints.lint_context import LintContext, PoolRule
from policies.quantity import format_duration as text
from policies.resilience import Degradation
from policies.route import ModelRoute, PriorityClass

_STEPS: Final = (
    ("noHedging", "no_hedging"),
    ("fallback", "fallback"),
    ("shed", "shed"),
    ("maintenance", "maintenance"),
)

_PRESSURE_WINDOW_S: Final = 2.0
"""Pressure is a mean over so long: what is judged sooner is judged by what was before it."""

_STILL_SERVES_PERCENT: Final = 200.0
"""Pressure up to which a pool serves at least every other request."""


def _routes(one: LintContext) -> Iterator[ModelRoute]:
    """The routes that have the pool as a target."""
    for route in one.policies.routes.values():
        if any(share.pool == one.name and share.weight for share in route.spec.pools):
            yield route


def _wanted(one: LintContext, block: str) -> str:
    """A field of a step that the operator set to something of their own; "" where the step is as built in."""
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
                f"{name} is to begin at {step.above_pressure_percent:g} %, but levels are entered one after "
                f"another, and {below} before it begins at {highest:g} %: so does {name}",
                "let the levels rise: noHedging, fallback, shed, maintenance",
            )
        else:
            highest, below = step.above_pressure_percent, name


def _fallback_without_one(one: LintContext) -> Iterator[Finding]:
    path = _wanted(one, "fallback")
    if not path or not one.spec.degradation.fallback.enabled:
        return
    if not any(route.spec.fallback for route in _routes(one)):
        yield one.policy(
            "SG141",
            path,
            "no route to this pool has a fallback, so level 2 has nowhere to send what does not fit",
            "name a fallback in the route, or leave this out",
        )


def _nothing_to_shed(one: LintContext) -> Iterator[Finding]:
    path, step = _wanted(one, "shed"), one.spec.degradation.shed
    if not path or not step.enabled or step.max_tokens is not None:
        return
    if not any(route.spec.priority is PriorityClass.BATCH for route in _routes(one)):
        yield one.policy(
            "SG142",
            path,
            "no route of the batch class leads to this pool, and no length of answers is named: "
            "level 3 sheds nothing",
            "say shed.maxTokens, or priority: batch in the routes that can wait",
        )


def _maintenance_too_early(one: LintContext) -> Iterator[Finding]:
    step = one.spec.degradation.maintenance
    if step.enabled and step.above_pressure_percent < _STILL_SERVES_PERCENT:
        yield one.policy(
            "SG143",
            "spec.degradation.maintenance.abovePressurePercent",
            f"at {step.above_pressure_percent:g} % nobody is served any more, although the pool could still serve "
            f"{min(100.0, 100 * 100 / step.above_pressure_percent):.0f} of 100 requests",
            "say 1000, or leave maintenance to an operator",
        )


def _to_and_fro(one: LintContext) -> Iterator[Finding]:
    ladder = one.spec.degradation
    if ladder.leave_after < max(ladder.enter_after, _PRESSURE_WINDOW_S):
        path = "spec.degradation.leaveAfter"
        yield one.policy(
            "SG144",
            path
            if one.declares(path) or not one.declares("spec.degradation.enterAfter")
            else "spec.degradation.enterAfter",
            f"a level is left after {text(ladder.leave_after)}, but the pressure is a mean over "
            f"{text(_PRESSURE_WINDOW_S)}, and a level is entered after {text(ladder.enter_after)}: "
            "levels come and go with the noise",
            "let leaveAfter be 5s, or longer than enterAfter",
        )


DEGRADATION_RULES: Final[tuple[PoolRule, ...]] = (
    _steps_out_of_order,
    _fallback_without_one,
    _nothing_to_shed,
    _maintenance_too_early,
    _to_and_fro,
)
