"""Strict sessions of a draining engine: which engines keep some, how fast they leave, and when rounds are due."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, ReportSource, Verdict
from policies.load import load_contents
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Ejector, EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.decide.routing.session_drain import MIN_STEP_S, kept_sessions, session_drain_due_s
from xds_server.model.fleet import Engine, EngineId, declared
from xds_server.model.order import Order, OrderAction

POLICY = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{name: a, address: 10.0.0.1, port: 80}, {name: b, address: 10.0.0.2, port: 80}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: r}
spec:
  listener: {port: 80}
  pools: [{pool: chat}]
  affinity: {mode: strict, header: x-session, moveWithin: 40s}
"""
A = EngineId("chat", "a")
WINDOW_S = 40.0
POLICIES = load_contents({Path("p.yaml"): POLICY.encode()})
FLEET = declared(POLICIES)


def engines(source: ReportSource | None = None) -> tuple[Engine, ...]:
    first, *others = FLEET.pools["chat"]
    if source is None:
        return (first, *others)
    report = EngineReport(
        pool="chat", engine="a", verdict=Verdict.DRAINING, evidence="", observed_at_s=0.0, source=source
    )
    return (replace(first, report=report), *others)


def decision(health: Health, ejector: Ejector | None, since_s: float = 0.0) -> dict[EngineId, EngineDecision]:
    return {A: EngineDecision(health=health, reason="", since_s=since_s, ejector=ejector)}


@pytest.mark.parametrize(
    ("health", "ejector", "source", "keeps"),
    [
        (Health.DRAINING, Ejector.OPERATOR, None, True),
        (Health.DRAINING, Ejector.VERDICT, ReportSource.AGENT, True),
        (Health.DRAINING, Ejector.ORCHESTRATOR, ReportSource.AGENT, True),
        (Health.DRAINING, Ejector.VERDICT, ReportSource.PROBE, False),
        (Health.DRAINING, Ejector.ORCHESTRATOR, None, False),
        (Health.UNHEALTHY, Ejector.OPERATOR, ReportSource.AGENT, False),
        (Health.HEALTHY, None, ReportSource.AGENT, False),
    ],
)
def test_only_an_engine_that_serves_on_keeps_sessions(
    health: Health, ejector: Ejector | None, source: ReportSource | None, keeps: bool
) -> None:
    found = kept_sessions(WINDOW_S, engines(source), decision(health, ejector), 0.0)
    assert found == ({A: 100.0} if keeps else {})


@given(window_s=st.floats(0.1, 86400), passed=st.floats(0, 1))
def test_sessions_leave_in_proportion_to_time(window_s: float, passed: float) -> None:
    draining = decision(Health.DRAINING, Ejector.OPERATOR)
    found = kept_sessions(window_s, engines(), draining, passed * window_s).get(A, 0.0)
    step_percent = max(5.0, 100 * MIN_STEP_S / window_s)
    assert 100 * (1 - passed) - 0.1 <= found <= 100 * (1 - passed) + step_percent + 0.1


@given(window_s=st.floats(0.1, 86400), since_s=st.floats(0, 1e6))
def test_each_due_time_brings_the_next_step_until_none_is_left(window_s: float, since_s: float) -> None:
    draining, now_s, last = decision(Health.DRAINING, Ejector.OPERATOR, since_s), since_s, 101.0
    for _ in range(22):
        percent = kept_sessions(window_s, engines(), draining, now_s).get(A, 0.0)
        assert percent < last
        due_s = session_drain_due_s(window_s, engines(), draining, now_s)
        if math.isinf(due_s):
            break
        assert due_s > now_s
        last, now_s = percent, due_s
    assert not kept_sessions(window_s, engines(), draining, now_s)


def test_zero_moves_all_at_once() -> None:
    draining = decision(Health.DRAINING, Ejector.OPERATOR)
    assert kept_sessions(0.0, engines(), draining, 0.0) == {}
    assert math.isinf(session_drain_due_s(0.0, engines(), draining, 0.0))


def test_ordered_drain_moves_sessions_round_by_round() -> None:
    memory, found = NO_MEMORY, []
    order = Order(engine=A, action=OrderAction.DRAIN, reason="maintenance", until_s=1000.0)
    for now_s in (100.0, 120.0, 139.0, 141.0):
        decisions, memory = decide(
            POLICIES, FLEET, memory, proxies=ConnectedProxies(by_role={}), now_s=now_s, orders={A: order}
        )
        assert decisions.engines[A].health is Health.DRAINING
        found.append(decisions.pools["chat"].sessions.get(A, 0.0))
    assert found == [100.0, 50.0, 5.0, 0.0]
