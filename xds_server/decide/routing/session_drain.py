"""Strict sessions leave a draining engine at a rate, so that others compute few lost prompts at a time.

Only where the engine is known to serve on: an operator ordered the drain, or its agent did and waits for requests.
Any other reason to drain, such as a pod that is being deleted, moves all sessions at once.

**Rate.** The kept part falls from 100 % to nothing over ``affinity.moveWithin`` of the routes to the pool, the
shortest of them, in ``STEPS`` steps counted from the begin of the drain. Each step is one push of routes.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from engine.report import ReportSource, Verdict
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId

STEPS: Final = 20
MIN_STEP_S: Final = 0.5

_EARLY: Final = 1e-6
"""Part of a step by which a round may be early: without it, rounding could leave a step without a next one."""


def kept_sessions(
    move_within_s: float, engines: Iterable[Engine], decisions: Mapping[EngineId, EngineDecision], now_s: float
) -> dict[EngineId, float]:
    """Percent of its sessions that each draining engine keeps at ``now_s`` (monotonic); none: absent."""
    kept = {}
    for key, since_s in _draining(move_within_s, engines, decisions):
        percent = _percent(now_s - since_s, move_within_s)
        if percent > 0:
            kept[key] = percent
    return kept


def session_drain_due_s(
    move_within_s: float, engines: Iterable[Engine], decisions: Mapping[EngineId, EngineDecision], now_s: float
) -> float:
    """When the next step is due; infinite while no draining engine has sessions."""
    step_s = _step_s(move_within_s)
    return min(
        (
            since_s + (_steps(now_s - since_s, step_s) + 1) * step_s
            for _, since_s in _draining(move_within_s, engines, decisions)
            if _percent(now_s - since_s, move_within_s) > 0
        ),
        default=math.inf,
    )


def _draining(
    move_within_s: float, engines: Iterable[Engine], decisions: Mapping[EngineId, EngineDecision]
) -> Iterable[tuple[EngineId, float]]:
    for engine in engines if move_within_s else ():
        decision = decisions.get(engine.id)
        if decision is not None and decision.health is Health.DRAINING and _serves_on(engine, decision):
            yield engine.id, decision.since_s


def _serves_on(engine: Engine, decision: EngineDecision) -> bool:
    report = engine.report
    by_agent = report is not None and report.source is ReportSource.AGENT and report.verdict is Verdict.DRAINING
    return by_agent or decision.ejector is Ejector.OPERATOR


def _percent(elapsed_s: float, move_within_s: float) -> float:
    step_s = _step_s(move_within_s)
    # Rounded before it is compared: the last step leaves no rest.
    return round(100.0 * (1 - _steps(elapsed_s, step_s) * step_s / move_within_s), 1)


def _step_s(move_within_s: float) -> float:
    return max(MIN_STEP_S, move_within_s / STEPS)


def _steps(elapsed_s: float, step_s: float) -> int:
    return math.floor(elapsed_s / step_s + _EARLY)
