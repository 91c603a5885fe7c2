"""Explanations: in sentences, with numbers and the policy line, for every decision."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Evidence, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from tests.xds_server.admin_api import rows
from tests.xds_server.ledger.conftest import POLICIES, decided, scene, seen, with_pool
from xds_server.admin.views.context import UnknownNameError, subject_named
from xds_server.admin.views.get_tables import pool_rows
from xds_server.admin.views.pool_metrics import pool_metrics
from xds_server.admin.views.why_subject import why
from xds_server.admin_api.status_types import Explanation
from xds_server.decide.decisions import (
    AdmissionDecision,
    Ceiling,
    Decisions,
    DegradationState,
    Ejector,
    EngineDecision,
    Health,
    PoolDecisions,
    RetryDecision,
    ShareRamp,
)
from xds_server.ledger.ledger import Ledger
from xds_server.model.fleet import EngineId, Fleet, declared, with_pod_states, with_report, with_traffic
from xds_server.model.order import Order, OrderAction
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import EngineTraffic, LatencyTail, PoolTraffic, PrefillUse, ProxyTraffic

WELL = EngineDecision(health=Health.HEALTHY, reason="ready: tokens move", since_s=40.0)
HUNG = EngineReport(
    pool="chat",
    engine="r1",
    verdict=Verdict.HUNG,
    evidence="no token for 3.2 s",
    observed_at_s=99.0,
    reasons=(Evidence(reading="tokens", sentence="no token for 3.2 s", threshold="2 s"),),
)


def told(one: Explanation) -> str:
    return "\n".join((one.now, *one.because, *one.why_not, one.returns))


def test_why_hung_engine_names_verdict_limit_and_line(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(
        health=Health.UNHEALTHY,
        reason="hung: no token for 3.2 s",
        since_s=59.0,
        verdict=Verdict.HUNG,
        ejector=Ejector.VERDICT,
        cut=True,
        until_s=160.0,
    )
    found = why("r1", scene(policies, with_report(fleet, HUNG, 99.5), decided(fleet, r1=out)))
    assert not found.well
    assert found.now.startswith("chat/r1 (zone a) has been ejected for 41 s, because it is hung")
    assert "(limit: 2 s)" in told(found)
    (rule,) = found.ruled_by
    assert (rule.field, rule.value) == ("spec.probe.stallAfter", "2s")
    assert rule.place.endswith("chat.yaml:6")
    assert found.until_in_s == 60.0


def test_why_of_engine_with_cut_requests_reports_none(policies: PolicySet, fleet: Fleet) -> None:
    cut = EngineDecision(
        health=Health.UNHEALTHY,
        reason="hung: idle, but produced no token for 3.2 s",
        since_s=59.0,
        verdict=Verdict.HUNG,
        ejector=Ejector.VERDICT,
        cut=True,
    )
    reported = with_report(fleet, HUNG, 99.5)
    busy = seen(reported, {"r1": EngineTraffic(in_flight=4)})
    assert "its requests are being cut" in why("r1", scene(policies, busy, decided(fleet, r1=cut))).now
    quiet = seen(reported, {"r1": EngineTraffic(in_flight=0)})
    found = why("r1", scene(policies, quiet, decided(fleet, r1=cut)))
    assert found.now.endswith("; no proxy has requests on it.")
    assert any("an idle report is not evidence of recovery" in one for one in found.because)
    kept = why("r1", scene(policies, quiet, decided(fleet, r1=replace(cut, cut=False))))
    assert not any("an idle report is not evidence of recovery" in one for one in kept.because)


def test_why_deleted_pod_never_recovers(policies: PolicySet, fleet: Fleet) -> None:
    word = PodState(standing=PodPhase.LEAVING, reason="its pod is being deleted")
    out = EngineDecision(
        health=Health.DRAINING,
        reason="leaving: its pod is being deleted",
        since_s=98.0,
        pod_state=word,
        ejector=Ejector.ORCHESTRATOR,
        returns="nothing: the pod is being deleted",
    )
    spoken = with_pod_states(fleet, {EngineId("chat", "r1"): word})
    found = why("r1", scene(policies, spoken, decided(fleet, r1=out)))
    assert not found.well
    assert "draining" in found.now
    assert found.now.endswith("because its pod is being deleted.")
    assert "Orchestrator state: leaving: its pod is being deleted." in found.because
    assert (found.returns, found.ruled_by) == ("nothing: the pod is being deleted", ())


def test_why_unfit_node_kept_by_floor_names_both(policies: PolicySet, fleet: Fleet) -> None:
    word = PodState(standing=PodPhase.UNFIT, reason="node gpu-7 has taint gpu-broken")
    kept = EngineDecision(
        health=Health.HEALTHY,
        reason="kept in rotation: too few; unfit: node gpu-7 has taint gpu-broken",
        since_s=0.0,
        pod_state=word,
        ejector=Ejector.ORCHESTRATOR,
        floor=True,
    )
    spoken = with_pod_states(fleet, {EngineId("chat", "r1"): word})
    found = why("r1", scene(policies, spoken, decided(fleet, r1=kept)))
    assert "on an unfit node: node gpu-7 has taint gpu-broken" in told(found)
    assert "Kept in rotation by the capacity floor although its orchestrator reports it unavailable" in told(found)
    assert [rule.field for rule in found.ruled_by] == ["spec.breaker.capacityFloorPercent"]
    # Ignored as doubtful: in rotation without the floor.
    doubted = replace(kept, floor=False, reason="kept in rotation: all 4 engines are unready at once")
    found = why("r1", scene(policies, spoken, decided(fleet, r1=doubted)))
    assert "In rotation although its orchestrator reports it unavailable" in told(found)


def test_why_failing_engine_below_limit_is_in_rotation(policies: PolicySet, fleet: Fleet) -> None:
    busy = seen(
        fleet, {"r1": EngineTraffic(succeeded=15, failed=5, window_calls=20, window_failures=5, in_flight=3)}
    )
    found = why("r1", scene(policies, busy, decided(fleet, r1=WELL)))
    assert found.well
    assert "5 of the last 20 calls failed (25 %; the breaker opens at 30 %); 3 in flight." in found.because
    assert found.why_not == ("Some calls fail, but 25 % is below errorRatePercent 30 %.",)


def test_why_reports_too_few_calls(policies: PolicySet, fleet: Fleet) -> None:
    busy = seen(fleet, {"r1": EngineTraffic(window_calls=4, window_failures=4)})
    found = why("r1", scene(policies, busy, decided(fleet, r1=WELL)))
    assert found.why_not == ("Some calls fail, but 4 calls are too few (minCalls 8).",)


def test_why_engine_kept_by_floor_names_both_fields(policies: PolicySet, fleet: Fleet) -> None:
    kept = replace(WELL, reason="without it the pool has 25 %", ejector=Ejector.ERRORS, floor=True)
    found = why("r1", scene(policies, fleet, decided(fleet, r1=kept)))
    assert not found.well
    assert "its calls fail" in found.why_not[0]
    assert "by the capacity floor" in found.why_not[0]
    assert [rule.field for rule in found.ruled_by] == [
        "spec.breaker.capacityFloorPercent",
        "spec.breaker.errorRatePercent",
        "spec.breaker.consecutiveErrors",
    ]
    assert found.ruled_by[0].place == "built-in default"
    assert found.ruled_by[1].place.endswith("chat.yaml:19")


def test_why_engine_ejected_by_envoy_only(policies: PolicySet, fleet: Fleet) -> None:
    traffic = seen(fleet, {"r1": EngineTraffic()}, **{"gw-1": ProxyTraffic(silent={"r1": 34})})
    found = why("r1", scene(policies, traffic, decided(fleet, r1=WELL)))
    assert "gw-1 sends it no requests (its peers got 34)" in told(found)
    assert "Envoy's outlier detection" in told(found)


def test_why_shadow_reports_hypothetical_health(policies: PolicySet, fleet: Fleet) -> None:
    would = EngineDecision(health=Health.UNHEALTHY, reason="12 of 20 calls failed", since_s=90.0)
    found = why("r1", scene(policies, fleet, decided(fleet, r1=replace(WELL, shadow=would))))
    assert found.why_not == ("Without shadow mode it would be UNHEALTHY: 12 of 20 calls failed.",)


def test_why_order_names_author_reason_and_duration(policies: PolicySet, fleet: Fleet) -> None:
    order = Order(
        engine=EngineId("chat", "r1"), action=OrderAction.EJECT, until_s=820.0, reason="bad NVLink", by="ann"
    )
    out = EngineDecision(
        health=Health.UNHEALTHY, reason="eject: bad NVLink", since_s=99.0, ejector=Ejector.OPERATOR
    )
    view = replace(scene(policies, fleet, decided(fleet, r1=out)), orders={order.engine: order})
    found = why("chat/r1", view)
    assert "Operator order by ann in force for 12m: eject (bad NVLink)." in found.why_not
    assert "switchgear restore" in found.returns
    assert found.ruled_by == ()


def test_why_pool_reports_limit_refusals_and_level(policies: PolicySet, fleet: Fleet) -> None:
    admission = AdmissionDecision(
        total=48,
        interactive=43,
        batch=5,
        held=8,
        slots=24.0,
        wait_s=2.0,
        pressure=1.4,
        utilization=1.0,
        in_force=True,
        by_proxy={
            "gw-1": Ceiling(interactive=40, batch=5, retry_percent=100, retry_min_concurrency=1, reason="share")
        },
        capacities={},
        reason="24 slots x (1 + 2 s / 2 s)",
    )
    out = EngineDecision(health=Health.UNHEALTHY, reason="dead", since_s=0.0)
    level = DegradationState(level=1, reason="pressure 140 %", since_s=90.0)
    decisions = with_pool(decided(fleet, r1=out), admission=admission, degradation=level)
    traffic = seen(fleet, {}, **{"gw-1": ProxyTraffic(shed_per_s={"interactive": 3.25})})
    found = why("chat", scene(policies, traffic, decisions))
    assert found.now == "3 of 4 engines of pool chat are in rotation; degradation level 1; demand above capacity."
    assert "Admission limit: 56 requests in flight (48 for engines in rotation, 8 held" in told(found)
    assert "- gw-1: 40 interactive, 5 batch; refusing 3.2 interactive per second." in found.because
    assert "Demand: 140 %" in told(found)


def test_why_pool_names_missed_objectives_of_its_routes(policies: PolicySet, fleet: Fleet) -> None:
    missed = rows.objective_status()
    others = (rows.objective_status(route="quiet", state="met"), rows.objective_status(route="far", pools=("x",)))
    seen_now = replace(scene(policies, fleet, decided(fleet)), objectives=lambda: (missed, *others))
    sentences = [one for one in why("chat", seen_now).because if "objective" in one]
    assert sentences == [
        "Route talk, objective total-p99: 84 % of calls within 2 s over 1 h, target 99 %; burn rate 16.0, "
        "-150 % of the error budget of 6 h left."
    ]


def test_why_pool_reports_retried_statuses(policies: PolicySet, fleet: Fleet) -> None:
    retries = RetryDecision(statuses=(503,), reason="500 not retried: all fail", since_s=0.0)
    found = why("chat", scene(policies, fleet, with_pool(decided(fleet), retries=retries)))
    assert "Retried statuses: 503 (500 not retried: all fail)." in found.because


def test_why_zone_counts_engines(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(health=Health.UNHEALTHY, reason="dead", since_s=0.0)
    found = why("a", scene(policies, fleet, decided(fleet, r1=out)))
    assert found.now == "1 of 2 engines of zone a are in rotation."
    assert found.because == ("Pool chat: 1 of 2 engines in rotation; not in rotation: r1.",)


@pytest.mark.parametrize(
    ("name", "hint"), [("r9", "did you mean"), ("chta", "did you mean chat"), ("???", "switchgear get engines")]
)
def test_unknown_name_suggests_similar_names(policies: PolicySet, fleet: Fleet, name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match="no engine, zone or pool") as error:
        subject_named(name, scene(policies, fleet, decided(fleet)))
    assert hint in str(error.value)


def test_ambiguous_name_lists_candidates(fleet: Fleet, policies: PolicySet) -> None:
    engines = fleet.pools["chat"]
    both = replace(fleet, pools={"a": engines, **fleet.pools})
    view = scene(policies, both, decided(fleet))
    with pytest.raises(UnknownNameError, match="is ambiguous: use pool:a or zone:a"):
        subject_named("a", view)
    assert subject_named("zone:a", view).zone == "a"
    assert subject_named("pool:a", view).pool == "a"


decisions_of_any_kind = st.builds(
    EngineDecision,
    health=st.sampled_from(Health),
    reason=st.text(max_size=20),
    since_s=st.floats(0, 200),
    verdict=st.none() | st.sampled_from(Verdict),
    ejector=st.none() | st.sampled_from(Ejector),
    floor=st.booleans(),
    traffic_percent=st.sampled_from([100.0, 25.0, 0.0]),
    cut=st.booleans(),
    until_s=st.none() | st.floats(0, 1000),
    returns=st.sampled_from(["", "soon"]),
    shadow=st.none()
    | st.builds(EngineDecision, health=st.sampled_from(Health), reason=st.just("x"), since_s=st.just(1.0)),
)


@given(
    decision=decisions_of_any_kind,
    verdict=st.none() | st.sampled_from(Verdict),
    traffic=st.none()
    | st.builds(
        EngineTraffic,
        window_calls=st.integers(0, 30),
        window_failures=st.integers(0, 30),
        in_flight=st.none() | st.integers(0, 9),
    ),
)
def test_why_explains_every_decision(
    policies: PolicySet, decision: EngineDecision, verdict: Verdict | None, traffic: EngineTraffic | None
) -> None:
    from xds_server.model.fleet import declared  # noqa: PLC0415 - fixtures of a function do not mix with hypothesis

    fleet = declared(policies)
    if verdict is not None:
        fleet = with_report(fleet, replace(HUNG, verdict=verdict), 99.0)
    if traffic is not None:
        fleet = seen(fleet, {"r1": traffic})
    found = why("r1", scene(policies, fleet, decided(fleet, r1=decision)))
    assert found.now.startswith("chat/r1 (zone a) ")
    assert found.now.endswith(".")
    assert found.because
    assert all(found.because)
    # Ejected without a recovery condition: the question at 3 a.m.
    assert found.returns or decision.health is Health.HEALTHY
    if decision.floor and decision.health is Health.HEALTHY:
        assert found.why_not


def test_why_ejected_engine_names_failed_requests(policies: PolicySet, fleet: Fleet) -> None:
    out = EngineDecision(health=Health.UNHEALTHY, reason="12 of 25", since_s=59.0, ejector=Ejector.ERRORS)
    ledger = Ledger(clock=lambda: 100.0, wall=lambda: 1_000_100.0)
    ledger.observe(policies, fleet, decided(fleet))
    ledger.observe(policies, fleet, decided(fleet, r1=out), failed_requests=lambda *_: ("id-2", "id-1"))
    found = why("r1", scene(policies, fleet, decided(fleet, r1=out), ledger.book))
    assert "Failed requests before that: id-2, id-1." in found.because
    assert found.past[0].requests == ("id-2", "id-1")
    back = why("r1", scene(policies, fleet, decided(fleet, r1=WELL), ledger.book))
    assert "id-2" not in told(back)
    # Ejected again for another reason without a failed request: those of the last time are not shown.
    again = replace(out, reason="dead", ejector=Ejector.VERDICT, since_s=160.0)
    assert not [
        one
        for one in why("r1", scene(policies, fleet, decided(fleet, r1=again), ledger.book)).because
        if "id-2" in one
    ]


def test_why_engine_states_its_slow_start(policies: PolicySet, fleet: Fleet) -> None:
    ramps = {EngineId("chat", "r1"): ShareRamp(percent=35.0, full_at_s=112.0)}
    used = seen(fleet, {"r1": EngineTraffic(succeeded=1)})
    found = why("r1", scene(policies, used, with_pool(decided(fleet, r1=WELL), ramps=ramps)))
    assert found.well
    assert found.now.endswith("; slow start: 35 % of its share, full in 12s.")


POOL_OF_SQL = """---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 80}]}
"""
SQL = """
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: sql}
spec: {listener: {port: 8091}, match: {model: sql}, pools: [{pool: chat}], adapter: true}
"""


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        (None, "It has not listed its models yet: it gets requests for every adapter."),
        (("sql",), "Adapters: sql."),
        (("other",), "No requests for sql: the engine does not list it."),
        ((), "No requests for sql: the engine does not list it."),
        (tuple(f"a{number}" for number in range(10)), "Adapters: a0, a1, a2, a3, a4, a5, a6, a7 and 2 more."),
    ],
)
def test_why_names_the_adapters_of_an_engine(
    policies: PolicySet, fleet: Fleet, adapters: tuple[str, ...] | None, said: str
) -> None:
    sql = next(iter(load_contents({Path("sql.yaml"): (SQL + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "sql": sql})
    ready = replace(HUNG, verdict=Verdict.READY, reasons=(), adapters=adapters)
    known = with_report(fleet, ready, 99.5)
    assert said in why("r1", scene(routed, known, decided(fleet, r1=WELL))).because
    plain = why("r1", scene(policies, known, decided(fleet, r1=WELL))).because
    assert not [one for one in plain if "No requests for" in one or "not listed" in one]


def test_why_counts_the_engines_of_an_adapter(policies: PolicySet, fleet: Fleet) -> None:
    sql = next(iter(load_contents({Path("sql.yaml"): (SQL + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "sql": sql})
    total = len(fleet.pools["chat"])
    lacks = with_report(fleet, replace(HUNG, verdict=Verdict.READY, reasons=(), adapters=()), 99.5)
    found = why("pool:chat", scene(routed, lacks, decided(fleet, r1=WELL))).because
    assert f"Adapter sql: on {total - 1} of {total} engines." in found


KEYED = """
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: keyed}
spec: {listener: {port: 8092}, pools: [{pool: chat}], affinity: {header: x-session, slackPercent: 25}}
"""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "Affinity: it has its keys, 25 % of the pool's by weight; beyond 25 % above its share of the "),
        ({"traffic_percent": 20.0}, "Affinity: it has about 20 % of its keys, 8.33 % of the pool's by weight; "),
        ({"health": Health.UNHEALTHY}, "Affinity: its keys are with other engines until it returns."),
        ({"health": Health.DRAINING}, "Affinity: its keys are with other engines until it returns."),
    ],
)
def test_why_states_what_becomes_of_the_keys(
    policies: PolicySet, fleet: Fleet, changes: dict[str, object], said: str
) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (KEYED + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    decisions = decided(fleet, r1=replace(WELL, **changes))
    [found] = [one for one in why("r1", scene(routed, fleet, decisions)).because if "Affinity" in one]
    assert found.startswith(said)
    assert not [one for one in why("r1", scene(policies, fleet, decisions)).because if "Affinity" in one]


def test_why_counts_slow_start_in_the_keys(policies: PolicySet, fleet: Fleet) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (KEYED + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    ramps = {EngineId("chat", "r1"): ShareRamp(percent=35.0, full_at_s=112.0)}
    found = why("r1", scene(routed, fleet, with_pool(decided(fleet, r1=WELL), ramps=ramps)))
    said = "it has about 35 % of its keys, 13 % of the pool's by weight; the others return with its share."
    assert f"Affinity: {said}" in found.because


def test_why_and_get_pools_state_the_keys_that_are_away(policies: PolicySet, fleet: Fleet) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (KEYED + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    out = decided(fleet, r1=replace(WELL, health=Health.UNHEALTHY))
    said = "Affinity: about 25 % of the keys are with other engines than usual: those of r1."
    assert said in why("pool:chat", scene(routed, fleet, out)).because
    all_well = why("pool:chat", scene(routed, fleet, decided(fleet, r1=WELL))).because
    assert "Affinity: all keys are with their engines." in all_well
    assert not [one for one in why("pool:chat", scene(policies, fleet, out)).because if "Affinity" in one]
    assert [one.keys_away_percent for one in pool_rows(scene(routed, fleet, out))] == [25.0]
    assert [one.keys_away_percent for one in pool_rows(scene(policies, fleet, out))] == [None]


PREFILLING = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: first}
spec:
  model: m
  stage: prefill
  endpoints:
    - {address: 127.0.0.2, port: 1, name: p1, zone: a}
    - {address: 127.0.0.2, port: 2, name: p2, zone: a}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec: {listener: {port: 8080}, pools: [{pool: chat}], prefill: {pool: first}}
"""


def staged() -> PolicySet:
    decode = POLICIES.replace("  model: m\n", "  model: m\n  stage: decode\n")
    return load_contents({Path("staged.yaml"): f"{decode}---\n{PREFILLING}".encode()})


def test_why_states_for_how_many_requests_prefill_engines_are_named() -> None:
    given = staged()
    fleet = declared(given)
    tail = LatencyTail(p50_s=0.31, p95_s=1.0, p99_s=2.0, calls=40)
    use = PrefillUse(named=90, local=10, named_first_byte=tail)
    fleet = with_traffic(fleet, {"chat": PoolTraffic(heard_at_s=100.0, prefill=use)})
    seen_now = scene(given, fleet, decided(fleet))
    said = (
        "prefill engine was named for 90 % of 100 requests of the last minute; median first byte 0.31 s with a "
        "name (40 streams)."
    )
    assert f"A {said}" in why("pool:chat", seen_now).because
    assert f"Pool chat: a {said}" in why("pool:first", seen_now).because
    assert {one.pool: one.prefilled_percent for one in pool_rows(seen_now)} == {"chat": 90.0, "first": None}
    gauges = [one for one in pool_metrics(seen_now) if one.name == "switchgear_pool_prefilled_ratio"]
    assert [(sample.labels, sample.value) for one in gauges for sample in one.samples] == [({"pool": "chat"}, 0.9)]


def test_why_states_how_a_prefill_engine_is_named_or_why_not() -> None:
    given = staged()
    fleet = declared(given)
    out = scene(
        given,
        fleet,
        decided(fleet, p1=replace(WELL, health=Health.DRAINING), r4=replace(WELL, health=Health.UNHEALTHY)),
    )
    assert "Prefill: not named to decode engines: draining." in why("first/p1", out).because
    said = "named by 3 of 3 engines in rotation of pool chat, for 100 % of the requests that get a name."
    assert f"Prefill: {said}" in why("first/p2", out).because
    assert not [one for one in why("chat/r1", out).because if "Prefill" in one]


RETURNS = KEYED.replace("slackPercent: 25", "returnAfter: 1m")


def test_why_states_why_and_how_long_keys_are_held_back(policies: PolicySet, fleet: Fleet) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (RETURNS + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    ramps = {EngineId("chat", "r1"): ShareRamp(percent=5.0, full_at_s=112.0, held_until_s=112.0)}
    found = why("r1", scene(routed, fleet, with_pool(decided(fleet, r1=WELL), ramps=ramps)))
    assert (
        "Affinity: it returned and has about 5 % of its keys, 2.38 % of the pool's by weight; the others stay "
        "elsewhere for 12s more (affinity.returnAfter), or until the other engines have little room."
    ) in found.because
    assert "slow start" not in found.now
    out = why("r1", scene(routed, fleet, decided(fleet, r1=replace(WELL, health=Health.UNHEALTHY))))
    assert "Affinity: its keys are with other engines until it returns and is healthy for 60 s." in out.because


@pytest.mark.parametrize(("in_flight", "above"), [(14, True), (13, False), (2, False)])
def test_why_states_that_an_engine_is_above_its_bound(
    policies: PolicySet, fleet: Fleet, in_flight: int, above: bool
) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (KEYED + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    others = [one.id.engine for one in fleet.pools["chat"] if one.id.engine != "r1"]
    calls = {name: EngineTraffic(in_flight=in_flight if name == "r1" else 10) for name in (*others, "r1")}
    busy = with_traffic(fleet, {"chat": PoolTraffic(engines=calls, heard_at_s=99.9)})
    [found] = [one for one in why("r1", scene(routed, busy, decided(fleet, r1=WELL))).because if "Affinity" in one]
    assert ("times its share of the requests in flight" in found) is above


def test_why_states_the_range_of_the_share_over_calling_zones(policies: PolicySet, fleet: Fleet) -> None:
    keyed = next(iter(load_contents({Path("keyed.yaml"): (KEYED + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "keyed": keyed})
    zones = {("chat", "a"): {"a": 900, "b": 100}, ("chat", "b"): {"a": 100, "b": 900}}
    decisions = replace(decided(fleet, r1=WELL), zone_weights=zones)
    [found] = [one for one in why("r1", scene(routed, fleet, decisions)).because if "Affinity" in one]
    assert "it has its keys, 5 to 45 % of the pool's by weight and the caller's zone; " in found


STRICT = """
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: strict}
spec: {listener: {port: 8093}, pools: [{pool: chat}], affinity: {mode: strict, header: x-session}}
"""


@pytest.mark.parametrize(
    ("health", "kept", "said"),
    [
        (Health.HEALTHY, {}, "its sessions stay, and new ones come by load."),
        (Health.UNHEALTHY, {}, "its sessions move with their next request, and stay where they are then."),
        (Health.DRAINING, {}, "its sessions move with their next request, and stay where they are then."),
        (Health.DRAINING, {EngineId("chat", "r1"): 40.0}, "it keeps 40 % of its sessions; the others have moved"),
    ],
)
def test_why_states_what_becomes_of_strict_sessions(
    policies: PolicySet, fleet: Fleet, health: Health, kept: dict[EngineId, float], said: str
) -> None:
    strict = next(iter(load_contents({Path("strict.yaml"): (STRICT + POOL_OF_SQL).encode()}).routes.values()))
    routed = replace(policies, routes={**policies.routes, "strict": strict})
    decisions = with_pool(decided(fleet, r1=replace(WELL, health=health)), sessions=kept)
    [found] = [one for one in why("r1", scene(routed, fleet, decisions)).because if "affinity" in one]
    assert found.startswith(f"Strict affinity: {said}")


STAGES = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: first}
spec:
  model: llama
  stage: prefill
  endpoints: [{name: p1, address: 10.9.0.1, port: 80}, {name: p2, address: 10.9.0.2, port: 80}]
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: last}
spec: {model: llama, stage: decode, endpoints: [{name: d1, address: 10.9.0.3, port: 80}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: last}
spec: {listener: {port: 8093}, pools: [{pool: last}], prefill: {pool: first}}
"""


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ((), ["Prefill: 2 of 2 engines of pool first are named to decode engines."]),
        (
            ("p1",),
            [
                "Prefill: 1 of 2 engines of pool first are named to decode engines.",
                "- p1 is not named: ejected.",
            ],
        ),
        (
            ("p1", "p2"),
            [
                "Prefill: 0 of 2 engines of pool first are named to decode engines; decode engines prefill "
                "themselves.",
                "- p1 is not named: ejected.",
                "- p2 is not named: ejected.",
            ],
        ),
    ],
)
def test_why_names_the_prefill_engines_of_a_pool(lost: tuple[str, ...], said: list[str]) -> None:
    policies = load_contents({Path("stages.yaml"): STAGES.encode()})
    fleet = declared(policies)
    out = replace(WELL, health=Health.UNHEALTHY)
    engines = {
        engine.id: out if engine.id.engine in lost else WELL for some in fleet.pools.values() for engine in some
    }
    pools = {
        name: PoolDecisions(
            engines={key: one for key, one in engines.items() if key.pool == name}, zones={}, ceilings={}
        )
        for name in fleet.pools
    }
    now = scene(policies, fleet, Decisions(engines=engines, zone_weights={}, ceilings={}, pools=pools))
    about_decode, about_prefill = (why(f"pool:{name}", now).because for name in ("last", "first"))
    assert [one for one in about_decode if one in said] == said
    assert [one for one in about_prefill if one in said] == said
    assert "Prefills for pool last." in about_prefill
