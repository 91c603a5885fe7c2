"""A readiness gate closes on fresh and believed evidence that no token comes out, and on nothing less."""

import pytest

from engine.report import Verdict
from tests.xds_server.writeback.scenes import NOW_S, UNIX_S, decided, engine, fleet, pod
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.fleet import EngineId
from xds_server.writeback.gates import FRESH_S, GATE, Gate, gates, patch, says
from xds_server.writeback.statuses import rfc3339

E1 = EngineId("pool", "e1")


def found(
    verdict: Verdict | None, health: Health | None, *, age_s: float = 0.5, gate: bool = True
) -> tuple[bool, str] | None:
    decisions: dict[EngineId, EngineDecision] = {} if health is None else {E1: decided(verdict, health)}
    said = gates(fleet(engine("e1", verdict, age_s=age_s)), decisions, {E1: pod(gate=gate)}, NOW_S)
    return (said[0].ready, said[0].reason) if said else None


@pytest.mark.parametrize("verdict", [Verdict.READY, Verdict.BUSY])
def test_who_produces_is_ready(verdict: Verdict) -> None:
    assert found(verdict, Health.HEALTHY) == (True, "Producing")
    # Also where its answers, or an order, keep it out: that is between us and the proxies.
    assert found(verdict, Health.UNHEALTHY) == (True, "Producing")
    assert found(verdict, None) == (True, "Producing")


@pytest.mark.parametrize("verdict", [Verdict.STARTING, Verdict.HUNG, Verdict.DEAD])
def test_hard_evidence_that_was_believed_closes_it(verdict: Verdict) -> None:
    assert found(verdict, Health.UNHEALTHY) == (False, verdict.value.capitalize())


def test_nothing_less_closes_it() -> None:
    assert found(Verdict.HUNG, Health.HEALTHY) is None  # all of the pool says so: the judge is in doubt
    assert found(Verdict.HUNG, None) is None
    assert found(Verdict.HUNG, Health.UNHEALTHY, age_s=FRESH_S + 1) is None
    assert found(Verdict.DEGRADED, Health.UNHEALTHY) is None
    assert found(Verdict.DRAINING, Health.DRAINING) is None
    assert found(None, Health.HEALTHY) is None
    assert found(Verdict.READY, Health.HEALTHY, age_s=FRESH_S + 1) is None


def test_a_control_plane_that_goes_blind_says_nothing_of_anybody() -> None:
    engines = [engine(f"e{number}", Verdict.READY, age_s=60) for number in range(5)]
    pods = {one.id: pod(one.id.engine) for one in engines}
    out = {one.id: decided(Verdict.DEAD, Health.UNHEALTHY) for one in engines}
    assert gates(fleet(*engines), out, pods, NOW_S) == ()


def test_only_pods_that_ask_for_it_have_one() -> None:
    assert found(Verdict.READY, Health.HEALTHY, gate=False) is None
    assert gates(fleet(engine("e1", Verdict.READY)), {}, {}, NOW_S) == ()


def test_the_patch_names_one_condition_of_one_pod_and_keeps_the_time_of_its_status() -> None:
    gate = Gate(pod=pod(), ready=False, reason="Hung", message="m")
    assert not says(gate, {})
    first = patch(gate, {}, UNIX_S)
    assert first["metadata"] == {"uid": "uid of e1"}
    assert says(gate, first)
    later = Gate(pod=pod(), ready=False, reason="Dead", message="m")
    assert not says(later, first)
    (condition,) = patch(later, first, UNIX_S + 60)["status"]["conditions"]
    assert condition["lastTransitionTime"] == rfc3339(UNIX_S)
    ready = Gate(pod=pod(), ready=True, reason="Producing", message="m")
    (condition,) = patch(ready, first, UNIX_S + 60)["status"]["conditions"]
    assert (condition["type"], condition["status"]) == (GATE, "True")
    assert condition["lastTransitionTime"] == rfc3339(UNIX_S + 60)
