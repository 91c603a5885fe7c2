"""Readiness gate of a pod: a condition that states whether its engine produces tokens.

Only for pods that request it. Kubernetes removes a pod from its Services while the condition is not True. So it
becomes False only on a fresh report of no tokens, and only if the decision accepted that report: if a whole pool
reports at once, the judge may be at fault, and the engines stay in rotation. Unknown states leave the condition
unchanged: a blind control plane removes no endpoints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from xds_server.decide.decisions import EngineDecision, Health
from xds_server.k8s.status.object_status import rfc3339
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.model.pod_state import PodRef

GATE: Final = "switchgear.dev/engine-ready"

FRESH_S: Final = 10.0
"""Older reports are ignored. Agents report every second, probes every few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessGate:
    """Desired condition of the pod."""

    pod: PodRef
    ready: bool
    reason: str
    message: str


def readiness_gates(
    fleet: Fleet, engines: Mapping[EngineId, EngineDecision], pods: Mapping[EngineId, PodRef], now_s: float
) -> tuple[ReadinessGate, ...]:
    """Gates with a known state, in fleet order."""
    return tuple(
        gate
        for pool in fleet.pools.values()
        for engine in pool
        if (pod := pods.get(engine.id)) is not None
        and pod.has_gate
        and (gate := _gate(engine, engines.get(engine.id), pod, now_s)) is not None
    )


def _gate(engine: Engine, decision: EngineDecision | None, pod: PodRef, now_s: float) -> ReadinessGate | None:
    report = engine.report
    if report is None or engine.received_at_s is None or now_s - engine.received_at_s > FRESH_S:
        return None
    if report.verdict.good:
        return ReadinessGate(pod=pod, ready=True, reason="Producing", message="the engine produces tokens")
    out = decision is not None and decision.health is not Health.HEALTHY
    if not out or not report.verdict.hard:
        return None
    reason = report.verdict.value.capitalize()
    return ReadinessGate(pod=pod, ready=False, reason=reason, message=report.evidence or report.verdict.value)


def is_current(gate: ReadinessGate, pod: Mapping[str, Any]) -> bool:
    """Whether the pod's condition has this status already; a different message is not a change."""
    known = gate_condition(pod)
    return known is not None and known.get("status") == _status(gate) and known.get("reason") == gate.reason


def condition_patch(gate: ReadinessGate, pod: Mapping[str, Any], unix_s: float) -> Mapping[str, Any]:
    """Strategic merge patch (conditions by type) for the pod's condition."""
    known = gate_condition(pod)
    same = known is not None and known.get("status") == _status(gate)
    since = known.get("lastTransitionTime") if known is not None and same else None
    return {
        # Of a new pod with that name nothing is known.
        "metadata": {"uid": gate.pod.uid},
        "status": {
            "conditions": [
                {
                    "type": GATE,
                    "status": _status(gate),
                    "reason": gate.reason,
                    "message": gate.message[:500],
                    "lastTransitionTime": since or rfc3339(unix_s),
                }
            ]
        },
    }


def gate_condition(pod: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The pod's present condition."""
    status = pod.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    for one in conditions if isinstance(conditions, list) else ():
        if isinstance(one, Mapping) and one.get("type") == GATE:
            return one
    return None


def _status(gate: ReadinessGate) -> str:
    return "True" if gate.ready else "False"
