"""What the orchestrator's word asks for: the one asker that knows of an engine's end before the engine does.

An engine that is being ended, or has been, is no question of evidence: nothing new goes there, whatever the
floor, and in shadow mode too. That its node is unfit, or that it is not ready, is evidence like any other: it may
be wrong, and the pool may need the engine all the same. Where every engine of a pool is said not to be ready at
once, it is more likely that whoever says so cannot see them: kubelets that are lost must not take a fleet away.
"""

from collections.abc import Sequence
from typing import Final

from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.model.fleet import Engine
from xds_server.model.pod_state import PodPhase, PodState

_NEVER: Final = float("inf")

# Beside what else is soft: less than silence (0.95), for somebody did look; and an unfit node may do for longer.
_NOT_READY: Final = 0.7
_UNFIT: Final = 0.55

_DOUBTED_FROM: Final = 2
"""Engines it takes for doubt: with one alone, "all of them" says nothing about who is to blame."""


def orchestrator_requests(engines: Sequence[Engine]) -> dict[int, EjectionRequest]:
    """What is asked for the engines of a pool, by place; nothing for those that are present."""
    spoken = [(place, engine, engine.pod_state) for place, engine in enumerate(engines) if engine.pod_state]
    if not spoken:
        return {}
    there = sum(not engine.pod_phase.final for engine in engines)
    denied = sum(word.standing is PodPhase.NOT_READY for _, _, word in spoken)
    doubt = f"all {there} engines are said not to be ready at once, so that is in doubt"
    in_doubt = doubt if denied == there >= _DOUBTED_FROM else ""
    return {
        place: _ejection_request(engine, word, in_doubt)
        for place, engine, word in spoken
        if word.standing is not PodPhase.PRESENT
    }


def _ejection_request(engine: Engine, word: PodState, in_doubt: str) -> EjectionRequest:
    said = f"{word.standing}: {word.reason}"
    health, soft, severity, ordered, returns = Health.HEALTHY, False, 0.0, False, ""
    match word.standing:
        case PodPhase.LEAVING:
            health, ordered, returns = Health.DRAINING, True, "nothing, for it ends"
        case PodPhase.GONE:
            health, returns = Health.UNHEALTHY, "nothing, for it ends"
        case PodPhase.UNFIT:
            health, soft, severity = Health.DRAINING, True, _UNFIT
            returns = "its node is fit again"
        case _ if in_doubt:
            said = f"kept: {in_doubt}; {said}"
        case _:
            health, soft, severity = Health.UNHEALTHY, True, _NOT_READY
            returns = "it is said to be ready again"
    return EjectionRequest(
        health=health,
        reason=said,
        verdict=None if engine.report is None else engine.report.verdict,
        until_s=_NEVER,
        soft=soft,
        ejector=Ejector.ORCHESTRATOR,
        severity=severity,
        ordered=ordered,
        returns=returns,
    )
