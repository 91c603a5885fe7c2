"""The policy field behind a decision, so that an operator can be shown the line to edit.

A rule is written ``Kind.path.to.field``, such as ``ResiliencePolicy.spec.breaker.errorRatePercent``. The policies
know where that field was set for a pool (``ledger.event.place_of``).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from engine.report import Verdict
from xds_server.decide.decisions import AFTER_WAIT, Ejector, EngineDecision, Health

FLOOR: Final = "ResiliencePolicy.spec.breaker.capacityFloorPercent"
ERROR_RATE: Final = "ResiliencePolicy.spec.breaker.errorRatePercent"
CONSECUTIVE_ERRORS: Final = "ResiliencePolicy.spec.breaker.consecutiveErrors"
TRIAL_CALLS: Final = "ResiliencePolicy.spec.breaker.trialCalls"
TRIAL_SHARE: Final = "ResiliencePolicy.spec.breaker.trialSharePercent"
CUT_HUNG: Final = "ResiliencePolicy.spec.breaker.cutHung"
SLOWER_THAN: Final = "ResiliencePolicy.spec.straggler.slowerThan"
MAX_WAIT: Final = "ResiliencePolicy.spec.limits.maxWait"
HEDGE: Final = "ResiliencePolicy.spec.hedging"
RETRY_STATUSES: Final = "ResiliencePolicy.spec.retries.statuses"
ADAPTIVE_TIMEOUTS: Final = "ResiliencePolicy.spec.timeouts.adaptive"
DEGRADATION: Final = "ResiliencePolicy.spec.degradation"
ZONES: Final = "ResiliencePolicy.spec.zones"
MODE: Final = "ResiliencePolicy.spec.mode"
HEALTHY_AFTER: Final = "EnginePool.spec.probe.healthyAfter"

_OF_VERDICT: Final[Mapping[Verdict, str]] = MappingProxyType(
    {
        Verdict.STARTING: "EnginePool.spec.probe.timeout",
        Verdict.HUNG: "EnginePool.spec.probe.stallAfter",
        Verdict.DEAD: "EnginePool.spec.probe.unhealthyAfter",
        Verdict.DRAINING: "ResiliencePolicy.spec.drain.deadline",
        Verdict.DEGRADED: FLOOR,
        Verdict.PAUSED: "EnginePool.spec.probe.stallAfter",
        Verdict.MISCONFIGURED: "EnginePool.spec.probe.path",
    }
)
_OF_EJECTOR: Final[Mapping[Ejector | None, str]] = MappingProxyType(
    {
        Ejector.OPERATOR: "",
        Ejector.ORCHESTRATOR: FLOOR,
        Ejector.ERRORS: ERROR_RATE,
        Ejector.SLOWNESS: SLOWER_THAN,
    }
)
_READMISSION_RULES: Final[Mapping[Ejector, str]] = MappingProxyType(
    {
        Ejector.OPERATOR: "",
        Ejector.ORCHESTRATOR: "",
        Ejector.ERRORS: TRIAL_CALLS,
        Ejector.SLOWNESS: SLOWER_THAN,
    }
)
_DEGRADATION_STEPS: Final = ("noHedging", "fallback", "shed", "maintenance")


def engine_rule(now: EngineDecision, before: EngineDecision | None = None) -> str:
    """The field behind ``now``; for a returned engine, the one that allowed its return.

    The wait of a recovered engine has no field.
    """
    if now.floor:
        return FLOOR
    if now.health is Health.HEALTHY and now.ejector is None and before is not None:
        return _readmission_rule(before)
    if now.returns == AFTER_WAIT or (now.ejector is Ejector.ORCHESTRATOR and now.pod_phase.final):
        return ""
    if now.ejector in _OF_EJECTOR:
        return _OF_EJECTOR[now.ejector]
    if now.health is Health.HEALTHY or (now.verdict is not None and now.verdict.good):
        return HEALTHY_AFTER
    return FLOOR if now.verdict is None else _OF_VERDICT.get(now.verdict, FLOOR)


def _readmission_rule(before: EngineDecision) -> str:
    return _READMISSION_RULES.get(before.ejector, HEALTHY_AFTER) if before.ejector is not None else HEALTHY_AFTER


def degradation_rule(level: int) -> str:
    """The degradation step behind this level, 0 to 4."""
    return (
        f"{DEGRADATION}.{_DEGRADATION_STEPS[level - 1]}"
        if 1 <= level <= len(_DEGRADATION_STEPS)
        else f"{DEGRADATION}.leaveAfter"
    )
