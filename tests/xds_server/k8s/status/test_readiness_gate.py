"""A readiness gate closes only on fresh, accepted evidence of no tokens."""

import pytest

from engine.report import Verdict
from tests.xds_server.k8s.status.status_fixtures import NOW_S, UNIX_S, decided, engine, fleet, pod
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.k8s.status.object_status import rfc3339
from xds_server.k8s.status.readiness_gate import (
    FRESH_S,
    GATE,
    ReadinessGate,
    condition_patch,
    is_current,
    readiness_gates,
)
from xds_server.model.fleet import EngineId

E1 = EngineId("pool", "e1")


def found(
    verdict: Verdict | None, health: Health | None, *, age_s: float = 0.5, gate: bool = True
) -> tuple[bool, str] | None:
    decisions: dict[EngineId, EngineDecision] = {} if health is None else {E1: decided(verdict, health)}
    gates = readiness_gates(fleet(engine("e1", verdict, age_s=age_s)), decisions, {E1: pod(gate=gate)}, NOW_S)
    return (gates[0].ready, gates[0].reason) if gates else None


@pytest.mark.parametrize("verdict", [Verdict.READY, Verdict.BUSY])
def test_readiness_gate_is_true_for_producing_engines(verdict: Verdict) -> None:
    assert found(verdict, Health.HEALTHY) == (True, "Producing")
    # Also if errors or an order eject it: that concerns only us and the proxies.
    assert found(verdict, Health.UNHEALTHY) == (True, "Producing")
    assert found(verdict, None) == (True, "Producing")


@pytest.mark.parametrize("verdict", [Verdict.STARTING, Verdict.HUNG, Verdict.DEAD])
def test_readiness_gate_closes_on_confirmed_hard_evidence(verdict: Verdict) -> None:
    assert found(verdict, Health.UNHEALTHY) == (False, verdict.value.capitalize())


def test_readiness_gate_stays_open_without_hard_evidence() -> None:
    assert found(Verdict.HUNG, Health.HEALTHY) is None  # the whole pool reports it: the judge is in doubt
    assert found(Verdict.HUNG, None) is None
    assert found(Verdict.HUNG, Health.UNHEALTHY, age_s=FRESH_S + 1) is None
    assert found(Verdict.DEGRADED, Health.UNHEALTHY) is None
    assert found(Verdict.DRAINING, Health.DRAINING) is None
    assert found(None, Health.HEALTHY) is None
    assert found(Verdict.READY, Health.HEALTHY, age_s=FRESH_S + 1) is None


def test_readiness_gate_is_unchanged_when_reports_are_stale() -> None:
    engines = [engine(f"e{number}", Verdict.READY, age_s=60) for number in range(5)]
    pods = {one.id: pod(one.id.engine) for one in engines}
    out = {one.id: decided(Verdict.DEAD, Health.UNHEALTHY) for one in engines}
    assert readiness_gates(fleet(*engines), out, pods, NOW_S) == ()


def test_readiness_gate_only_for_pods_that_declare_it() -> None:
    assert found(Verdict.READY, Health.HEALTHY, gate=False) is None
    assert readiness_gates(fleet(engine("e1", Verdict.READY)), {}, {}, NOW_S) == ()


def test_readiness_gate_patch_has_one_condition_and_keeps_transition_time() -> None:
    gate = ReadinessGate(pod=pod(), ready=False, reason="Hung", message="m")
    assert not is_current(gate, {})
    first = condition_patch(gate, {}, UNIX_S)
    assert first["metadata"] == {"uid": "uid of e1"}
    assert is_current(gate, first)
    later = ReadinessGate(pod=pod(), ready=False, reason="Dead", message="m")
    assert not is_current(later, first)
    (condition,) = condition_patch(later, first, UNIX_S + 60)["status"]["conditions"]
    assert condition["lastTransitionTime"] == rfc3339(UNIX_S)
    ready = ReadinessGate(pod=pod(), ready=True, reason="Producing", message="m")
    (condition,) = condition_patch(ready, first, UNIX_S + 60)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (GATE, "True")
    assert condition["lastTransitionTime"] == rfc3339(UNIX_S + 60)
