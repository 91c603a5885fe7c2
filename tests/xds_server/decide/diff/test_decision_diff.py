"""Each transition is reported once, with subject, values and policy field; drift is not reported."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import Verdict
from xds_server.decide.decisions import (
    AFTER_WAIT,
    AdmissionDecision,
    BreakerPhase,
    BreakerStatus,
    Decisions,
    DegradationState,
    Ejector,
    EngineCapacity,
    EngineDecision,
    Health,
    HedgeDecision,
    PoolDecisions,
    RetryDecision,
    TimeLimits,
)
from xds_server.decide.diff.decision_diff import Change, ChangeKind, diff_decisions
from xds_server.decide.diff.policy_fields import FLOOR, HEALTHY_AFTER, engine_rule
from xds_server.model.fleet import Engine, EngineId

WELL = EngineDecision(health=Health.HEALTHY, reason="ready", since_s=0.0, verdict=Verdict.READY)
OUT = EngineDecision(
    health=Health.UNHEALTHY, reason="hung", since_s=1.0, verdict=Verdict.HUNG, ejector=Ejector.VERDICT
)
KEYS = [EngineId("chat", f"r{number}") for number in range(4)]
ENGINES = tuple(
    Engine(
        id=key,
        address="127.0.0.1",
        port=1,
        zone="ab"[number // 2],
        region="",
        slots=8,
        weight=1,
        tensor_parallel_group="",
        labels={},
    )
    for number, key in enumerate(KEYS)
)
ADMISSION = AdmissionDecision(
    total=64,
    interactive=64,
    batch=64,
    held=0,
    slots=32.0,
    wait_s=2.0,
    pressure=0.5,
    utilization=0.5,
    in_force=True,
    by_proxy={},
    capacities={key: EngineCapacity(slots=8.0, service_s=2.0, source="policy") for key in KEYS},
    reason="64 = 32 slots x 2",
)


def pool(*engines: EngineDecision, **parts: object) -> Decisions:
    every = [*engines, *[WELL] * (4 - len(engines))]
    values: dict[str, object] = {"zones": {}, "ceilings": {}, **parts}
    one = PoolDecisions(engines=dict(zip(KEYS, every, strict=True)), declared=ENGINES, **values)  # type: ignore[arg-type]
    return Decisions(engines=one.engines, zone_weights={}, ceilings={}, pools={"chat": one})


def told(before: Decisions | None, now: Decisions) -> list[tuple[str, str, str, str]]:
    return [(one.kind.value, str(one.subject), one.before, one.after) for one in diff_decisions(before, now)]


def only(kind: ChangeKind, before: Decisions, now: Decisions) -> Change:
    (found,) = [one for one in diff_decisions(before, now) if one.kind is kind]
    return found


@pytest.mark.parametrize(
    ("now", "rule"),
    [
        (replace(OUT, verdict=Verdict.READY, returns=AFTER_WAIT), ""),
        (replace(OUT, verdict=Verdict.READY, ejector=Ejector.ERRORS, returns=AFTER_WAIT), ""),
        (replace(OUT, verdict=Verdict.READY, returns="2 successful probes in a row"), HEALTHY_AFTER),
        (OUT, "EnginePool.spec.probe.stallAfter"),
        (replace(OUT, ejector=Ejector.ORCHESTRATOR), FLOOR),
    ],
)
def test_wait_before_a_return_names_no_wrong_field(now: EngineDecision, rule: str) -> None:
    assert engine_rule(now) == rule


def test_first_round_reports_only_deviations() -> None:
    assert told(None, pool()) == []
    assert told(None, pool(OUT)) == [("health", "chat/r0", "", "UNHEALTHY")]


def test_ejection_and_readmission_events_name_the_ruling_field() -> None:
    left = only(ChangeKind.HEALTH, pool(), pool(OUT))
    assert (left.rule, left.alarm) == ("EnginePool.spec.probe.stallAfter", True)
    back = only(ChangeKind.HEALTH, pool(OUT), pool())
    assert (back.rule, back.alarm) == ("EnginePool.spec.probe.healthyAfter", False)
    failing = replace(OUT, ejector=Ejector.ERRORS, verdict=Verdict.READY)
    assert only(ChangeKind.HEALTH, pool(), pool(failing)).rule == "ResiliencePolicy.spec.breaker.errorRatePercent"
    assert only(ChangeKind.HEALTH, pool(failing), pool()).rule == "ResiliencePolicy.spec.breaker.trialCalls"


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (replace(WELL, ejector=Ejector.ERRORS, floor=True), ("kept", "chat/r0", "ejectable", "kept in rotation")),
        (replace(WELL, traffic_percent=25.0), ("trial", "chat/r0", "100 %", "25 %")),
        (replace(WELL, shadow=OUT), ("shadow", "chat/r0", "as decided", "would be UNHEALTHY")),
        (replace(WELL, verdict=Verdict.HUNG), ("verdict", "chat/r0", "producing", "hung")),
    ],
)
def test_every_engine_flag_change_is_an_event_both_ways(
    decision: EngineDecision, expected: tuple[str, str, str, str]
) -> None:
    kind, subject, before, after = expected
    assert told(pool(), pool(decision)) == [expected]
    assert told(pool(decision), pool()) == [(kind, subject, after, before)]


def test_cut_and_changed_ejector_are_events() -> None:
    assert told(pool(OUT), pool(replace(OUT, cut=True))) == [("cut", "chat/r0", "off", "on")]
    assert told(pool(OUT), pool(replace(OUT, ejector=Ejector.OPERATOR))) == [
        ("ejector", "chat/r0", "verdict", "operator")
    ]


def test_circuit_breaker_and_straggler_phases_are_events() -> None:
    is_open = BreakerStatus(phase=BreakerPhase.OPEN, until_s=61.0, opens=2)
    found = only(ChangeKind.BREAKER, pool(), pool(breakers={KEYS[0]: is_open}))
    assert (found.after, found.until_s, found.numbers["opens"]) == ("open", 61.0, 2)
    again = replace(is_open, opens=3)
    assert told(pool(breakers={KEYS[0]: is_open}), pool(breakers={KEYS[0]: again})) == []
    slow, recovered = pool(slow={KEYS[1]: True}), pool(slow={KEYS[1]: False})
    assert told(pool(), slow) == [("straggler", "chat/r1", "normal", "slow")]
    assert told(slow, recovered) == [("straggler", "chat/r1", "slow", "normal")]
    assert told(slow, pool()) == told(recovered, recovered) == []


def test_zone_loss_event_precedes_its_engines() -> None:
    found = told(pool(), pool(OUT, OUT))
    assert found[0] == ("zone", "chat a", "available", "lost")
    assert len(found) == 3
    assert told(pool(OUT, OUT), pool())[0] == ("zone", "chat a", "lost", "available")
    assert [kind for kind, *_ in told(pool(), pool(OUT))] == ["health"]  # half of a zone is not most of it


def test_max_requests_event_for_capacity_steps_not_for_drift() -> None:
    now = pool(admission=ADMISSION)
    drifted = pool(admission=replace(ADMISSION, total=66, slots=32.4))
    assert told(now, drifted) == []
    fewer = pool(admission=replace(ADMISSION, total=59, slots=24.0))
    assert told(now, fewer) == [("ceiling", "chat", "64", "59")]
    far = pool(admission=replace(ADMISSION, total=75))
    assert told(now, far) == [("ceiling", "chat", "64", "75")]


def test_accumulated_ceiling_drift_is_an_event() -> None:
    before, now = replace(ADMISSION, total=70), replace(ADMISSION, total=71)
    assert diff_decisions(pool(admission=before), pool(admission=now)) == ()
    (found,) = diff_decisions(pool(admission=before), pool(admission=now), {"chat": ADMISSION})
    assert (found.before, found.after) == ("64", "71")


def test_pressure_degradation_hedging_and_time_limit_events() -> None:
    full = replace(ADMISSION, pressure=1.2, crowded=True)
    assert told(pool(admission=ADMISSION), pool(admission=full)) == [
        ("demand", "chat", "below capacity", "above capacity")
    ]
    assert told(pool(admission=full), pool(admission=replace(full, pressure=None, crowded=False))) == [
        ("demand", "chat", "above capacity", "below capacity")
    ]
    level = only(
        ChangeKind.LADDER,
        pool(),
        pool(degradation=DegradationState(level=2, reason="pressure 120 %", since_s=0.0)),
    )
    assert (level.before, level.after, level.alarm) == ("level 0", "level 2", True)
    assert level.rule == "ResiliencePolicy.spec.degradation.fallback"
    both = RetryDecision(statuses=(500, 503), reason="", since_s=0.0)
    one = replace(both, statuses=(503,), sign_at_s=1.0)
    assert told(pool(), pool(retries=both)) == []
    assert told(pool(retries=both), pool(retries=one)) == [("retries", "chat", "500, 503", "503")]
    assert only(ChangeKind.RETRIES, pool(retries=both), pool(retries=one)).alarm
    hedging = HedgeDecision(on=True, delay_s=0.4, reason="calm", since_s=0.0)
    assert told(pool(), pool(hedge=hedging)) == [("hedging", "chat", "off", "on")]
    limits = TimeLimits(
        first_token_s=None,
        between_tokens_s=30.0,
        stream_total_s=900.0,
        per_try_s=None,
        total_s=300.0,
        reason="",
        since_s=0.0,
    )
    assert told(pool(), pool(limits=limits)) == []  # limits of the policy are the start
    found = only(ChangeKind.LIMITS, pool(limits=limits), pool(limits=replace(limits, per_try_s=12.5)))
    assert "try off" in found.before
    assert "try 12.5 s" in found.after


@given(
    rounds=st.lists(
        st.lists(
            st.builds(
                EngineDecision,
                health=st.sampled_from(Health),
                reason=st.sampled_from("ab"),
                since_s=st.just(0.0),
                verdict=st.none() | st.sampled_from(Verdict),
                ejector=st.none() | st.sampled_from(Ejector),
                floor=st.booleans(),
                traffic_percent=st.sampled_from([25.0, 100.0]),
                cut=st.booleans(),
            ),
            min_size=4,
            max_size=4,
        ),
        max_size=6,
    )
)
def test_health_events_form_a_chain(rounds: list[list[EngineDecision]]) -> None:
    before: Decisions | None = None
    last = dict.fromkeys((str(key) for key in KEYS), "HEALTHY")
    for engines in rounds:
        now = pool(*engines)
        for one in diff_decisions(before, now):
            if one.kind is ChangeKind.HEALTH:
                assert one.before in {last[str(one.subject)], ""}
                assert one.before != one.after
                last[str(one.subject)] = one.after
        assert last == {str(key): decision.health.value for key, decision in now.engines.items()}
        assert diff_decisions(now, now) == ()
        before = now
