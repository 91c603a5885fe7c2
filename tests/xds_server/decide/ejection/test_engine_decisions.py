"""Which engines are in rotation: hard verdicts, floors, orders, and invariants."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import ReportSource, Verdict
from tests.xds_server.decide.ejection.ejection_simulation import World, key
from tests.xds_server.decide.ejection.engine_predicates import IN, OUT, is_back, said, still
from xds_server.decide.decisions import (
    AS_PEERS,
    MEASURED,
    AdmissionDecision,
    Ejector,
    EngineCapacity,
    EngineDecision,
    Health,
    TimeLimits,
)
from xds_server.decide.ejection.flap_damping import RECONNECT_DELAY_S
from xds_server.decide.ejection.lost_contact import longest_try_s
from xds_server.model.order import Order, OrderAction

# -- cut, crash, flapping -------------------------------------------------------------------------------------


def test_hung_engine_is_cut_at_once_and_readmitted_in_two_steps() -> None:
    world = World().run(4)
    world.engines["e0"].hung = True
    world.run(4)
    decision = world.decision("e0")
    assert (decision.health, decision.cut, decision.ejector) == (OUT, True, Ejector.VERDICT)
    assert world.engines["e0"].calls == []
    world.engines["e0"].hung = False
    healed_s = world.now_s
    world.run(3)
    opened_s = world.first_s(healed_s, lambda one: not one["e0"].cut)
    back_s = world.first_s(healed_s, is_back("e0"))
    assert RECONNECT_DELAY_S == 0.3
    assert RECONNECT_DELAY_S <= back_s - opened_s + 1e-6 < RECONNECT_DELAY_S + 0.2
    assert back_s < 1.0, "cut calls are not evidence for the breaker"


def test_policy_may_disable_cutting_hung_requests() -> None:
    world = said(still("aa", breaker={"cutHung": False}), "e0", Verdict.HUNG)
    world.decide()
    assert world.decision("e0").health is OUT
    assert not world.decision("e0").cut


@pytest.mark.parametrize(
    ("trouble", "source", "resilience", "cut"),
    [
        ("unreached", ReportSource.AGENT, {}, True),
        ("unreached", ReportSource.PROBE, {}, True),
        ("unreached", ReportSource.AGENT, {"breaker": {"cutHung": False}}, False),
        ("unreached", ReportSource.AGENT, {"straggler": {"mode": "shadow"}}, False),
        ("stopped", ReportSource.AGENT, {}, True),
        ("stopped", ReportSource.PROBE, {}, False),  # our own network path may be broken
        ("slow", ReportSource.AGENT, {}, False),
    ],
)
def test_ejected_engine_is_cut_after_the_per_try_timeout(
    trouble: str, source: ReportSource, resilience: dict[str, object], cut: bool
) -> None:
    world = World(resilience=resilience)
    world.source, world.limits = source, limits(per_try_s=4.0)
    world.run(4)
    began_s, engine = world.now_s, world.engines["e0"]
    engine.unreached, engine.stopped = trouble == "unreached", trouble == "stopped"
    engine.slower = 100.0 if trouble == "slow" else 1.0
    world.run(10)
    old = [call for call in engine.calls if call.began_s <= began_s + 2.0]
    assert (old == []) is cut
    if cut:
        assert world.first_s(began_s, lambda one: one["e0"].cut) >= 4.0
        engine.unreached = engine.stopped = False
        healed_s = world.now_s
        assert world.run(25).first_s(healed_s, is_back("e0")) < 25


def limits(per_try_s: float | None) -> TimeLimits:
    """The limit of a try, and ten seconds in total."""
    return TimeLimits(
        first_token_s=None,
        between_tokens_s=None,
        stream_total_s=0.0,
        per_try_s=per_try_s,
        total_s=10.0,
        reason="",
        since_s=0.0,
    )


def test_without_per_try_timeout_the_longest_service_time_delays_the_cut() -> None:
    spec = World().spec.model_copy(update={"service_time": 2.0, "longest_service_time": None})
    declared = spec.model_copy(update={"longest_service_time": 5.0})
    assert longest_try_s(spec, limits(3.0), None) == 3.0
    assert [longest_try_s(one, limits(None), None) for one in (spec, declared)] == [8.0, 5.0]
    assert longest_try_s(spec, limits(0.1), None) == 2.0, "counts of different moments differ this long"


@pytest.mark.parametrize(
    ("service_s", "source", "expected_s"),
    [(0.5, MEASURED, 4.0), (0.5, AS_PEERS, 10.0), (4.0, MEASURED, 10.0), (2.0, MEASURED, 10.0)],
)
def test_measured_service_time_shortens_the_wait_for_a_cut(
    service_s: float, source: str, expected_s: float
) -> None:
    """Callers of two stopped engines waited 10 s, the declared times, while calls took half a second."""
    spec = World().spec.model_copy(update={"service_time": 2.0, "longest_service_time": None})
    admission = AdmissionDecision(
        total=16,
        interactive=16,
        batch=16,
        held=0,
        slots=8.0,
        wait_s=2.0,
        pressure=None,
        utilization=None,
        in_force=True,
        by_proxy={},
        capacities={key("e0"): EngineCapacity(slots=8.0, service_s=service_s, source=source)},
        reason="",
    )
    assert longest_try_s(spec, limits(None), admission) == expected_s
    assert longest_try_s(spec, limits(12.0), admission) == expected_s


def test_new_boot_id_clears_a_crash() -> None:
    world = World().run(4)
    world.engines["e0"].dead = True
    world.run(3)
    assert world.decision("e0").gone
    world.engines["e0"].dead, world.engines["e0"].boot = False, "2"
    healed_s = world.now_s
    assert world.run(3).first_s(healed_s, is_back("e0")) < 0.5


def test_flap_damping_ejection_time_backs_off() -> None:
    world = still("aaaa")
    waits = []
    for _ in range(7):
        said(world, "e0", Verdict.DEAD)
        world.run(0.2)
        said(world, "e0", Verdict.READY)
        well_s = world.now_s
        world.run(0.1)
        while world.decision("e0").health is not IN:
            assert "it flaps" in world.decision("e0").reason
            world.run(0.1)
        waits.append(round(world.now_s - well_s - 0.1))
    assert waits == [0, 0, 0, 1, 2, 4, 8]
    world.run(61)
    said(world, "e0", Verdict.DEAD).run(0.1)
    said(world, "e0", Verdict.READY).run(0.1)
    assert world.decision("e0").health is IN, "a healthy minute clears flapping"


# -- arbitration ----------------------------------------------------------------------------------------------


def test_max_ejection_percent_ejects_the_worst_first() -> None:
    world = still("aaaa")
    for engine in ("e0", "e1"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    said(world, "e2", Verdict.DEGRADED).decide()
    assert world.letters() == "UUHH"
    kept = world.decision("e2")
    assert (kept.floor, kept.ejector, kept.health) == (True, Ejector.VERDICT, IN)
    assert "25 % of its slots (floor: 50 %)" in kept.reason
    assert kept.returns


def test_failed_zone_may_be_ejected_down_to_the_pool_floor() -> None:
    world = still("aaabbb")
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    assert world.letters() == "UUUHHH"
    assert "3 of 3 engines of zone a at once: zone event" in world.decision("e1").reason
    said(world, "e3", Verdict.DEGRADED).decide()
    assert world.letters() == "UUUHHH", "the floor of the pool holds"
    apart = still("aaabbb")
    for engine in ("e0", "e1", "e3", "e4"):
        said(apart, engine, Verdict.DEGRADED)
    apart.decide()
    assert apart.letters() == "UHHUHH", "two zones at once are not a zone event"


def test_min_healthy_floor_in_engines_and_in_percent() -> None:
    world = still("aaa", breaker={"capacityFloorPercent": 0, "capacityFloorEngines": 2})
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEGRADED)
    world.decide()
    assert world.letters() == "UHH"
    for engine in ("e0", "e1", "e2"):
        said(world, engine, Verdict.DEAD)
    world.decide()
    assert world.letters() == "UUU", "hard evidence ignores the floor"


def test_engine_kept_by_the_floor_has_no_half_open_trial() -> None:
    world = World("a", rate_per_engine=12.0).run(4)
    world.engines["e0"].fails = 0.5
    world.run(6)
    assert world.decision("e0").floor
    world.engines["e0"].fails = 0.0
    world.run(20)
    assert all(decided["e0"].traffic_percent == 100 for _, decided in world.history)
    assert not world.decision("e0").floor


# -- orders and shadow ----------------------------------------------------------------------------------------


def order(world: World, engine: str, action: OrderAction, *, seconds: float = 60.0, force: bool = False) -> None:
    world.overrides = {
        **world.overrides,
        key(engine): Order(
            engine=key(engine),
            action=action,
            until_s=world.now_s + seconds,
            reason="a test",
            by="ada",
            force=force,
        ),
    }
    world.decide()


def test_orders_are_in_force_until_they_expire() -> None:
    world = still("aaaa")
    order(world, "e0", OrderAction.EJECT, seconds=5)
    order(world, "e1", OrderAction.DRAIN, seconds=5)
    assert world.letters() == "UDHH"
    assert "operator order by ada: eject (a test)" in world.decision("e0").reason
    assert world.decision("e0").ejector is Ejector.OPERATOR
    world.run(5.1)
    assert world.letters() == "HHHH"


def test_eject_order_crosses_the_floor_only_by_force() -> None:
    world = still("aa")
    order(world, "e0", OrderAction.EJECT)
    order(world, "e1", OrderAction.EJECT)
    assert world.letters() == "UH"
    assert world.decision("e1").floor
    order(world, "e1", OrderAction.EJECT, force=True)
    assert world.letters() == "UU"


def test_restore_order_overrides_soft_evidence_never_hard() -> None:
    world = still("aaaa")
    said(world, "e0", Verdict.DEGRADED)
    said(world, "e1", Verdict.DEAD)
    order(world, "e0", OrderAction.RESTORE)
    order(world, "e1", OrderAction.RESTORE)
    assert world.letters() == "HUHH"
    assert "overruled: degraded" in world.decision("e0").reason
    world.run(61)
    said(world, "e0", Verdict.DEGRADED).decide()
    assert world.letters()[0] == "U"


def test_shadow_mode_policy_decides_and_does_nothing() -> None:
    world = World(resilience={"mode": "shadow"}).run(4)
    world.engines["e0"].fails = 1.0
    world.engines["e1"].hung = True
    world.engines["e2"].slower = 10.0
    world.run(3)
    assert world.out() == set()
    shadows = {engine: world.decision(engine).shadow for engine in ("e0", "e1", "e2", "e3")}
    assert [one is not None and one.health is OUT for one in shadows.values()] == [True, True, True, False]
    assert shadows["e1"] is not None
    assert shadows["e1"].cut
    assert not world.decision("e1").cut
    said(world, "e4", Verdict.DRAINING).decide()
    assert world.decision("e4").health is Health.DRAINING, "that is an order"


def test_shadow_mode_circuit_breaker_leaves_the_verdict_in_force() -> None:
    world = World(resilience={"breaker": {"mode": "shadow"}}).run(4)
    world.probing = False
    world.engines["e0"].fails = 1.0
    world.run(2)
    shadow = world.decision("e0").shadow
    assert world.decision("e0").health is IN
    assert shadow is not None
    assert (shadow.health, shadow.ejector) == (OUT, Ejector.ERRORS)
    said(world, "e1", Verdict.DEAD).decide()
    assert world.decision("e1").health is OUT


# -- invariants -----------------------------------------------------------------------------------------------


def test_unchanged_decisions_are_the_same_object() -> None:
    world = World().run(6)
    world.engines["e0"].fails = 1.0
    world.run(3)
    world.probing = False
    first = world.decide()
    again = world.decide()
    assert all(again.engines[one] is first.engines[one] for one in first.engines)
    assert again.breakers == first.breakers


TROUBLES = st.lists(
    st.tuples(
        st.integers(0, 7),
        st.sampled_from(["fails", "slower", "hung", "dead", "well", "deaf"]),
        st.floats(0.1, 4.0),
    ),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(TROUBLES, st.sampled_from(["aaaaaaaa", "aaaabbbb", "aaabbbcc"]), st.integers(0, 99))
def test_ejection_invariants(troubles: list[tuple[int, str, float]], zones: str, seed: int) -> None:
    world = World(zones, seed=seed)
    for place, trouble, seconds in troubles:
        one = world.engines[f"e{place}"]
        one.fails, one.slower = (0.7 if trouble == "fails" else 0.0), (8.0 if trouble == "slower" else 1.0)
        one.hung, one.dead = trouble == "hung", trouble == "dead"
        world.telemetry = trouble != "deaf"
        world.run(seconds)
        for at_s, decided in world.history[-round(seconds * 10) :]:
            _check(at_s, decided)
    for one in world.engines.values():
        one.fails, one.slower, one.hung, one.dead = 0.0, 1.0, False, False
    world.telemetry = True
    world.run(45)
    assert world.letters() == "H" * 8, "all healthy engines are back"
    assert {one.traffic_percent for one in world.history[-1][1].values()} == {100.0}


def _check(at_s: float, decided: dict[str, EngineDecision]) -> None:
    softly = 0
    for one in decided.values():
        assert one.reason
        assert one.since_s <= at_s
        assert 0 < one.traffic_percent <= 100
        assert not one.cut or one.health is OUT
        assert one.until_s is None or one.until_s < math.inf
        if one.health is not IN:
            assert one.ejector is not None
            assert one.returns
            softly += one.ejector in {Ejector.ERRORS, Ejector.SLOWNESS}
    healthy = sum(one.health is IN for one in decided.values())
    assert not softly or healthy or all(one.verdict in {Verdict.DEAD, Verdict.HUNG} for one in decided.values())


def test_straggler_that_hangs_is_cut() -> None:
    world = World().run(4)
    world.engines["e0"].slower = 30.0
    world.run(3)
    assert world.decision("e0").ejector is Ejector.SLOWNESS
    assert not world.decision("e0").cut
    world.engines["e0"].hung = True
    world.run(0.5)
    assert world.decision("e0").cut
    assert world.decision("e0").ejector is Ejector.VERDICT
