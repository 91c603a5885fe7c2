"""An engine counts, and gets a share, as far as it yields good answers."""

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import PROBE_READING, PROBE_THRESHOLD, EngineReport, Evidence, ReportSource, Verdict
from policies.resilience import Straggler
from tests.xds_server.decide.ejection.ejection_simulation import World
from tests.xds_server.decide.ejection.engine_predicates import said, still
from xds_server.decide.decision_memory import BreakerState, StragglerState
from xds_server.decide.decisions import AdmissionDecision, BreakerPhase, Ejector, Health
from xds_server.decide.ejection import circuit_breaker
from xds_server.decide.ejection.arbitration import (
    NEGLIGIBLE,
    NEGLIGIBLE_OUTSIDE,
    CapacityFloor,
    ZoneRelief,
    granted_requests,
)
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.decide.ejection.slowness import NOT_SLOW
from xds_server.decide.ejection.straggler import SpeedEvidence, next_straggler_state
from xds_server.model.fleet import Engine, EngineId, with_report
from xds_server.model.pool_traffic import EngineTraffic

HARD = -1.0
PER_S = 4.0


def engines(zones: str) -> list[Engine]:
    return [
        Engine(
            id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone=zone, region="", slots=8,
            weight=1, tensor_parallel_group="", labels={},
        )
        for place, zone in enumerate(zones)
    ]  # fmt: skip


def request(ability: float, ejector: Ejector = Ejector.ERRORS) -> EjectionRequest:
    """Hard evidence, or soft evidence that measured this ability."""
    soft = ability != HARD
    return EjectionRequest(
        health=Health.UNHEALTHY,
        reason="a test",
        verdict=None,
        until_s=10.0,
        soft=soft,
        ejector=ejector if soft else Ejector.VERDICT,
        severity=1 - ability if soft else 0.0,
        ability=ability if soft else 1.0,
    )


def granted(
    zones: str,
    abilities: Mapping[int, float],
    *,
    percent: float = 50.0,
    asked_per_s: float | None = None,
    out: frozenset[int] = frozenset(),
    ejector: Ejector = Ejector.ERRORS,
) -> dict[int, EjectionRequest]:
    fleet = engines(zones)
    relief = None
    if asked_per_s is not None:
        relief = ZoneRelief(per_s={one.id: PER_S for one in fleet}, asked_per_s=asked_per_s)
    gone = {f"e{place}" for place in out}
    return granted_requests(
        fleet,
        {place: request(able, ejector) for place, able in abilities.items()},
        CapacityFloor(percent=percent, engines=1, relief=relief),
        lambda key: key.engine in gone,
    )


def ejected(found: Mapping[int, EjectionRequest]) -> set[int]:
    return {place for place, one in found.items() if one.health is Health.UNHEALTHY}


def kept(found: Mapping[int, EjectionRequest]) -> dict[int, float]:
    return {place: one.traffic_percent for place, one in found.items() if one.floor}


def test_slow_engines_stay_out_while_others_restart_below_the_floor() -> None:
    found = granted("aaaaaaaa", {0: HARD, 1: 0.1, 2: 0.1, 3: HARD, 4: HARD}, out=frozenset({1, 2}))
    assert ejected(found) == {0, 1, 2, 3, 4}


def slow_majority(count: int, load: float | None, out: frozenset[int] = frozenset()) -> dict[int, EjectionRequest]:
    """``count`` of 8 engines ten times slower; ``load`` of the others."""
    asked_per_s = None if load is None else load * (8 - count) * PER_S
    slow = dict.fromkeys(range(count), 0.1)
    return granted("aaaaaaaa", slow, asked_per_s=asked_per_s, out=out, ejector=Ejector.SLOWNESS)


@pytest.mark.parametrize(
    ("count", "load", "out"),
    [
        (4, None, True),  # together they yield a tenth of the yield of the others
        (5, None, False),
        (5, 0.75, True),  # the good ones have room
        (7, 0.75, True),
        (5, 1.0, False),
        (7, 1.0, False),
    ],
)
def test_slow_majority_goes_only_where_it_yields_little_or_the_others_have_room(
    count: int, load: float | None, out: bool
) -> None:
    found = slow_majority(count, load)
    assert ejected(found) == (set(range(count)) if out else set())
    if not out:
        assert kept(found) == dict.fromkeys(range(count), 10.0)


def test_slow_majority_stays_out_until_the_others_are_full() -> None:
    assert ejected(slow_majority(5, 0.99, frozenset(range(5)))) == set(range(5))
    assert ejected(slow_majority(5, 1.01, frozenset(range(5)))) == set()


def test_engines_that_fail_every_call_are_ejected_below_the_floor() -> None:
    assert ejected(granted("aaaaaaaa", dict.fromkeys(range(6), 0.0))) == set(range(6))


def test_pool_that_fails_alike_keeps_its_floor_with_full_shares() -> None:
    for ability in (0.0, 0.3):
        found = granted("aaaaaaaa", dict.fromkeys(range(8), ability))
        assert len(ejected(found)) == 4
        assert set(kept(found).values()) == {100.0}


def test_kept_engine_counts_and_gets_a_share_by_its_ability() -> None:
    found = granted("aaaaaaaa", {0: HARD, 1: HARD, 2: HARD, 3: HARD, 4: 0.5, 5: 0.33})
    assert kept(found) == {4: 50.0, 5: 35.0}
    # Three full engines and two halves are the floor of eight: three of five halves may go.
    assert len(ejected(granted("aaaaaaaa", dict.fromkeys(range(1, 6), 0.5)))) == 3


def test_floor_of_100_percent_keeps_every_engine() -> None:
    assert kept(granted("aaaaaaaa", {0: 0.0, 1: 0.1}, percent=100)) == {0: 5.0, 1: 10.0}


def test_useless_engine_alone_in_its_zone_is_ejected_only_if_others_may_help() -> None:
    assert kept(granted("abc", {0: 0.0})) == {0: 5.0}
    assert ejected(granted("abc", {0: 0.0}, asked_per_s=4.0)) == {0}


def test_engine_on_trial_does_not_let_the_rest_go() -> None:
    fleet, trial = engines("aaaa"), EjectionRequest(
        health=Health.HEALTHY, reason="on trial", verdict=None, until_s=10.0, traffic_percent=25.0
    )  # fmt: skip
    wishes = {0: trial, **{place: request(0.0) for place in (1, 2, 3)}}
    found = granted_requests(fleet, wishes, CapacityFloor(percent=50.0, engines=1), lambda _key: False)
    assert len(ejected(found)) < 3


def test_noise_does_not_return_an_ejected_engine() -> None:
    able = (NEGLIGIBLE + NEGLIGIBLE_OUTSIDE) / 2
    bad = {0: HARD, 1: HARD, 2: HARD, 3: HARD, 4: able}
    assert 4 in kept(granted("aaaaaaaa", bad))
    assert 4 in ejected(granted("aaaaaaaa", bad, out=frozenset({4})))


def test_breaker_learns_ability_after_it_opened() -> None:
    state = BreakerState(phase=BreakerPhase.OPEN, failing=0.6, succeeded=20, failed=30)
    assert circuit_breaker.ability(state, None) == pytest.approx(0.4)
    worse = EngineTraffic(succeeded=20, failed=46)
    assert circuit_breaker.ability(state, worse) < 0.1
    better = EngineTraffic(succeeded=60, failed=30)
    assert circuit_breaker.ability(state, better) > 0.9


@pytest.mark.parametrize(("answers", "share"), [([True] * 20, None), ([], None), ([False] * 8, 90.0)])
def test_engine_that_fails_its_probe_counts_by_its_calls(answers: list[bool], share: float | None) -> None:
    """Four of eight engines are dead, so the floor would keep the fifth, whole, while it fails every call."""
    world = still("aaaaaaaa")
    for place in range(4):
        said(world, f"e{place}", Verdict.DEAD)
    world.engines["e4"].ended.extend((world.now_s, failed, 0.5) for failed in answers)
    report = EngineReport(
        pool="pool",
        engine="e4",
        verdict=Verdict.DEGRADED,
        evidence="probe answered without a token: status 500",
        observed_at_s=world.now_s,
        sequence=world.sequence(),
        source=ReportSource.AGENT,
        reasons=(Evidence(reading=PROBE_READING, threshold=PROBE_THRESHOLD, sentence="status 500"),),
    )
    world.fleet = with_report(world.fleet, report, world.now_s)
    world.decide()
    found = world.decision("e4")
    assert (found.health is Health.HEALTHY, found.floor) == (share is not None, share is not None)
    assert found.traffic_percent == (share or 100.0)


@pytest.mark.parametrize(
    ("fails", "slower", "streams", "resilience", "cut"),
    [
        (1.0, 1.0, False, {}, True),
        (1.0, 1.0, True, {}, False),
        (1.0, 1.0, False, {"breaker": {"cutHung": False}}, False),
        (1.0, 1.0, False, {"retries": {"attempts": 0}}, False),
        (1.0, 1.0, False, {"breaker": {"mode": "shadow"}}, False),
        (0.6, 1.0, False, {}, False),
        (0.0, 20.0, False, {}, False),
    ],
)
def test_engine_that_fails_every_call_is_cut(
    fails: float, slower: float, streams: bool, resilience: dict[str, object], cut: bool
) -> None:
    """Its queue would fail, call by call. Answers of a slow engine arrive, and a stream may have begun."""
    world = World(resilience=resilience)
    world.streams = streams
    world.run(4)
    world.engines["e0"].fails, world.engines["e0"].slower = fails, slower
    for call in world.engines["e0"].calls:
        call.fails = fails == 1
    world.run(1.5)
    since_s = 104.0
    out = [one["e0"] for at_s, one in world.history if at_s > since_s and one["e0"].health is Health.UNHEALTHY]
    assert any(one.cut for one in out) == cut
    if cut:
        assert out[0].cut, "at its ejection"
        world.engines["e0"].fails = 0.0
        world.run(6)
        assert world.decision("e0").health is Health.HEALTHY


def overloaded(pressure: float | None) -> AdmissionDecision:
    return AdmissionDecision(
        total=320, interactive=320, batch=0, held=0, slots=64.0, wait_s=2.0, pressure=pressure,
        utilization=1.0, in_force=True, by_proxy={}, capacities={}, reason="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pressure", "slower", "streams", "cut"),
    [
        (1.3, 20.0, False, True),
        (1.1, 20.0, False, False),
        (None, 20.0, False, False),
        (1.3, 20.0, True, False),
        (1.3, 4.0, False, False),
    ],
)
def test_few_very_slow_engines_are_cut_while_many_callers_are_refused(
    pressure: float | None, slower: float, streams: bool, cut: bool
) -> None:
    """Late answers are then worth no more than those of refused callers, and they make p99."""
    world = World()
    world.streams = streams
    world.run(4)
    world.admission = overloaded(pressure)
    for name in ("e0", "e1"):
        world.engines[name].slower = slower
    world.run(4)
    out = [one["e0"] for at_s, one in world.history if at_s > 104.0 and one["e0"].health is Health.UNHEALTHY]
    assert out
    assert any(one.cut for one in out) == cut
    if cut:
        world.admission = overloaded(1.1)
        world.decide()
        assert world.decision("e0").cut, "until it returns"


def test_pool_without_a_good_engine_cuts_none() -> None:
    world = World("aaaa").run(4)
    for engine in world.engines.values():
        engine.fails = 1.0
    world.run(6)
    assert not any(one.cut for one in world.history[-1][1].values())


def test_ejected_straggler_is_measured_again() -> None:
    state: StragglerState | None = StragglerState(ejected=True, ejections=1, since_s=1.0, until_s=11.0, times=3.9)
    for second in range(2, 10):
        state = next_straggler_state(
            state, slow=NOT_SLOW, book=None, kept_out=False, policy=Straggler(), now_s=float(second),
            speed=SpeedEvidence(at_s=float(second), times=10.0, fast=False),
        )  # fmt: skip
    assert state is not None
    assert 8.0 <= state.times <= 10.0
    same = next_straggler_state(
        state, slow=NOT_SLOW, book=None, kept_out=False, policy=Straggler(), now_s=10.0,
        speed=SpeedEvidence(at_s=10.0, times=9.0, fast=False),
    )  # fmt: skip
    assert same is not None
    assert same.times == state.times, "noise moves no share"


@settings(max_examples=300, deadline=None)
@given(
    zones=st.text("abc", min_size=1, max_size=10),
    drawn=st.dictionaries(st.integers(0, 9), st.sampled_from([HARD, 0.0, 0.1, 0.2, 0.33, 0.5, 0.9]), max_size=10),
    percent=st.sampled_from([0.0, 30.0, 50.0, 80.0, 100.0]),
    asked_per_s=st.none() | st.floats(0, 40),
)
def test_floor_invariants_by_ability(
    zones: str, drawn: dict[int, float], percent: float, asked_per_s: float | None
) -> None:
    abilities = {place: able for place, able in drawn.items() if place < len(zones)}
    found = granted(zones, abilities, percent=percent, asked_per_s=asked_per_s)
    out, in_rotation = ejected(found), kept(found)
    good = set(range(len(zones))) - abilities.keys()
    soft = {place: able for place, able in abilities.items() if able != HARD}
    best = 1.0 if good else max(abilities.values(), default=1.0)
    assert all(place in out for place, able in abilities.items() if able == HARD), "hard evidence always ejects"
    assert not soft or good or in_rotation, "soft evidence alone empties no pool"
    if not good and best > 0 and len(soft) == len(zones):
        assert max(in_rotation.values()) > NEGLIGIBLE * 100, "the best of a bad pool serve"
    if percent == 100 and asked_per_s is None:
        assert not out & soft.keys()
    for place in out & soft.keys():
        able = soft[place] / best if best > 0 else 1.0
        if able <= NEGLIGIBLE and percent < 100:
            continue  # it yields next to nothing
        left = sum(
            1.0 if one in good else (soft[one] / best if best > 0 else 1.0)
            for one in range(len(zones))
            if one in good or one in in_rotation
        )
        assert 100 * left / len(zones) >= percent - 1e-6, "the floor's ability is left"
    if asked_per_s is None and percent < 100:
        served = {zones[place] for place in good}
        assert not any(zones[place] in served and soft[place] <= NEGLIGIBLE for place in in_rotation if good), (
            "no engine that yields next to nothing serves next to good ones"
        )
    again = granted(zones, abilities, percent=percent, asked_per_s=asked_per_s, out=frozenset(out))
    assert (ejected(again), kept(again)) == (out, in_rotation), "decided again, nothing changes"
