"""What a process that has just started knows of engines."""

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from engine.report import ReportSource, Verdict
from istio.live.istio_sync import UnprovenEngines
from policies.load import load_contents
from policies.model import PolicySet
from tests.istio.live.conftest import POLICY
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.decide.ejection.report_evidence import out_for_s
from xds_server.model.fleet import EngineId

ENGINE = EngineId("chat", "a")
READY = EngineDecision(health=Health.HEALTHY, reason="no report yet: counted as ready", since_s=0.0)


def policies(text: str = POLICY) -> PolicySet:
    return load_contents({Path("policy.yaml"): text.encode()})


def decisions(one: EngineDecision) -> Decisions:
    return Decisions(engines=MappingProxyType({ENGINE: one}), zone_weights={}, ceilings={})


@pytest.mark.parametrize(
    ("decision", "unproven"),
    [
        (READY, True),
        (replace(READY, verdict=Verdict.HUNG), True),
        (replace(READY, verdict=Verdict.READY), False),
        (replace(READY, verdict=Verdict.HUNG, health=Health.UNHEALTHY), False),
        (replace(READY, verdict=Verdict.HUNG, floor=True), False),
        (replace(READY, verdict=Verdict.HUNG, shadow=READY), False),
        (replace(READY, verdict=Verdict.HUNG, traffic_percent=50.0), False),
    ],
    ids=["no report", "failed once", "ready", "ejected", "kept by the floor", "shadow", "reduced share"],
)
def test_engine_is_unproven_until_a_decision_rests_on_something(decision: EngineDecision, unproven: bool) -> None:
    found = UnprovenEngines(lambda: 0.0).of(policies(), decisions(decision))
    assert found == (frozenset({ENGINE}) if unproven else frozenset())


def test_proven_engine_stays_proven_and_a_new_one_of_its_name_is_not() -> None:
    seen = UnprovenEngines(lambda: 0.0)
    assert not seen.of(policies(), decisions(replace(READY, verdict=Verdict.READY)))
    assert not seen.of(policies(), decisions(READY))
    assert not seen.of(policies(), Decisions(engines={}, zone_weights={}, ceilings={}))
    assert seen.of(policies(), decisions(READY)) == {ENGINE}


def test_wait_for_evidence_ends() -> None:
    now_s = 0.0
    seen = UnprovenEngines(lambda: now_s)
    assert seen.of(policies(), decisions(READY)) is seen.of(policies(), decisions(READY))
    now_s = out_for_s(ReportSource.PROBE, policies().pools["chat"].spec.probe)
    assert not seen.of(policies(), decisions(READY))


def test_engine_that_is_not_probed_needs_no_evidence() -> None:
    text = POLICY.replace("  model: m\n", "  model: m\n  probe: {enabled: false}\n", 1)
    assert not UnprovenEngines(lambda: 0.0).of(policies(text), decisions(READY))
