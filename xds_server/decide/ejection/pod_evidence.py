"""Ejection requests from the orchestrator, which knows of an engine's end before the engine does.

A deleted engine is a fact: it gets no new requests, whatever the floor, and in shadow mode, too. An unfit node or
an unready pod is ordinary evidence: it may be wrong, and the pool may need the engine anyway. If all engines of a
pool are unready at once, the observer has more likely lost sight of them: lost kubelets must not eject a fleet.
"""

from collections.abc import Sequence
from typing import Final

from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.model.fleet import Engine
from xds_server.model.pod_state import PodPhase, PodState

_NEVER: Final = float("inf")

# Below silence (0.95), because something did look; above an unfit node, which may serve for longer.
_NOT_READY: Final = 0.7
_UNFIT: Final = 0.55

_DOUBTED_FROM: Final = 2
"""Engines needed for doubt: with one alone, "all of them" does not say what is to blame."""


def orchestrator_requests(engines: Sequence[Engine]) -> dict[int, EjectionRequest]:
    """Requests for the engines of a pool, by place; none for engines that are present."""
    spoken = [(place, engine, engine.pod_state) for place, engine in enumerate(engines) if engine.pod_state]
    if not spoken:
        return {}
    there = sum(not engine.pod_phase.final for engine in engines)
    denied = sum(word.standing is PodPhase.NOT_READY for _, _, word in spoken)
    doubt = f"all {there} engines are unready at once, so suspect the observer"
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
            health, ordered, returns = Health.DRAINING, True, "nothing: the pod is being deleted"
        case PodPhase.GONE:
            health, returns = Health.UNHEALTHY, "nothing: the pod is gone"
        case PodPhase.UNFIT:
            health, soft, severity = Health.DRAINING, True, _UNFIT
            returns = "its node recovers"
        case _ if in_doubt:
            said = f"kept in rotation: {in_doubt}; {said}"
        case _:
            health, soft, severity = Health.UNHEALTHY, True, _NOT_READY
            returns = "its pod is ready again"
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
