"""Broken engines are avoided, healed ones return to rotation, and the floor is kept."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checks.check_finding import CheckResult
from chaos.checks.check_input import check_input
from chaos.checks.ejection_checks import bad_engines_avoided, engine_floor, no_stuck_ejection, traffic_restored
from chaos.history.history_events import AttemptRecord
from chaos.history.recorded_history import History
from tests.chaos import history_builders

LIMITS = {"leftAloneWithin": "1s", "backWithin": "2s", "floorEnginesPercent": 50}


def every(engine: str, from_s: float, to_s: float, first: int) -> list[AttemptRecord]:
    """Five calls a second."""
    return [
        history_builders.attempt(first + place, engine, from_s + place / 5)
        for place in range(round(5 * (to_s - from_s)))
    ]


def seen(*until: tuple[float, float], fault: dict[str, Any] | None = None, **more: Any) -> History:
    """Two engines with five calls a second; e0 hangs from 10 s to 20 s and gets calls only in these spans."""
    began = history_builders.began(hypothesis=LIMITS, engines=history_builders.engines(2), rate_per_s=10.0)
    calls = [call for place, span in enumerate(until) for call in every("e0", *span, first=10_000 * (place + 1))]
    return history_builders.history(
        history_builders.outage("e0", fault=fault),
        began=began,
        requests=[history_builders.request(1, 12.0)],
        attempts=[*every("e1", 0.0, 30.0, first=0), *calls],
        **more,
    )


def test_prompt_ejection_and_readmission_passes() -> None:
    case = check_input(seen((0.0, 10.6), (20.4, 30.0)))
    for check in (bad_engines_avoided, traffic_restored, no_stuck_ejection):
        found = check(case)
        assert found is not None
        assert found.answer is CheckResult.YES, found.why


def test_requests_to_a_faulty_engine_after_ejection_deadline_are_reported() -> None:
    found = bad_engines_avoided(check_input(seen((0.0, 14.0), (20.4, 30.0))))
    assert found is not None
    assert found.answer is CheckResult.NO
    assert found.at_s == pytest.approx(11.2)
    assert "e0 got 14 requests" in found.why
    assert "at 13.8 s" in found.why


def test_half_open_trial_requests_are_tolerated_and_a_trickle_is_not() -> None:
    trial = seen((0.0, 10.6), (15.0, 15.4), (20.4, 30.0))
    trickle = seen((0.0, 10.6), (15.0, 16.0), (20.4, 30.0))
    found = [bad_engines_avoided(check_input(one)) for one in (trial, trickle)]
    assert [one.answer for one in found if one] == [CheckResult.YES, CheckResult.NO]


def test_engine_kept_in_rotation_by_the_floor_is_excused() -> None:
    kept = history_builders.decided(
        10.5, "e0", out=None, kind="kept", before="ejectable", after="kept in rotation"
    )
    found = bad_engines_avoided(check_input(seen((0.0, 30.0), decided=[kept])))
    assert found is not None
    assert found.answer is CheckResult.YES
    assert "kept in rotation by the capacity floor" in found.why


def test_slow_engine_need_not_be_ejected() -> None:
    assert bad_engines_avoided(check_input(seen((0.0, 30.0), fault={"kind": "slow"}))) is None


@pytest.mark.parametrize(
    ("back_s", "expected"), [(21.5, CheckResult.YES), (23.0, CheckResult.NO), (30.0, CheckResult.NO)]
)
def test_readmission_must_be_prompt(back_s: float, expected: CheckResult) -> None:
    found = traffic_restored(check_input(seen((0.0, 10.6), (back_s, 30.0))))
    assert found is not None
    assert found.answer is expected
    assert found.at_s == (22.0 if expected is CheckResult.NO else None)


@pytest.mark.parametrize("check", [bad_engines_avoided, traffic_restored])
def test_request_destinations_are_unknown_without_engine_logs(check: Any) -> None:
    history = history_builders.history(
        history_builders.outage("e0"),
        began=history_builders.began(hypothesis=LIMITS),
        requests=[history_builders.request(1, 12.0)],
    )
    assert check(check_input(history)).answer is CheckResult.UNKNOWN


def test_engine_ejected_in_the_ledger_long_after_healing_is_stuck() -> None:
    out = history_builders.decided(10.8, "e0", out=True)
    found = no_stuck_ejection(check_input(seen((0.0, 10.6), decided=[out])))
    assert found is not None
    assert found.answer is CheckResult.NO
    assert "e0 from 20.0 s to 30.0 s: ejected by the control plane at 10.8 s: 4 calls hang" in found.why


def test_engine_ejected_at_one_proxy_is_stuck_regardless_of_the_ledger() -> None:
    samples = [
        history_builders.sample(at_s / 2, {}, proxy=proxy, ejected=("e0",) if proxy == "p1" and at_s > 22 else ())
        for at_s in range(60)
        for proxy in ("p0", "p1")
    ]
    found = no_stuck_ejection(check_input(seen((0.0, 10.6), (20.4, 30.0), samples=samples)))
    assert found is not None
    assert found.answer is CheckResult.NO
    assert "ejected by outlier detection at p1 since 11.5 s" in found.why


def test_engine_without_traffic_or_ejection_reason_is_stuck() -> None:
    found = no_stuck_ejection(check_input(seen((0.0, 10.6))))
    assert found is not None
    assert found.answer is CheckResult.NO
    assert "no request after 20.0 s, while other engines got 50" in found.why


def test_engine_of_a_zone_without_callers_may_be_idle() -> None:
    case = check_input(seen((0.0, 10.6)))
    began = case.history.began
    engines = tuple(replace(one, zone="b" if one.name == "e0" else "a") for one in began.engines)
    proxies = tuple(replace(one, zone="a") for one in began.proxies)
    history = replace(case.history, began=replace(began, engines=engines, proxies=proxies))
    found = no_stuck_ejection(replace(case, history=history))
    assert found is not None
    assert found.answer is CheckResult.YES


def test_false_positive_ejection_must_be_short() -> None:
    lines = [history_builders.decided(5.0, "e1", out=True), history_builders.decided(15.0, "e1", out=False)]
    found = no_stuck_ejection(check_input(seen((0.0, 10.6), (20.4, 30.0), decided=lines)))
    assert found is not None
    assert (found.answer, found.at_s) == (CheckResult.NO, 13.0)


def test_ejection_just_before_the_end_is_inconclusive() -> None:
    late = history_builders.decided(27.0, "e0", out=True)
    found = no_stuck_ejection(check_input(seen((0.0, 10.6), (20.4, 27.0), decided=[late])))
    assert found is not None
    assert found.answer is CheckResult.UNKNOWN


def test_ejection_during_faults_is_not_stuck() -> None:
    out = history_builders.decided(10.8, "e0", out=True)
    dead = history_builders.outage(
        "control-plane",
        fault={"kind": "control_plane_killed", "staysDead": True},
        start_s=10.9,
        end_s=25.0,
        name="x",
    )
    history = seen((0.0, 10.6), decided=[out])
    gone = history_builders.history(
        history_builders.outage("e0"), dead, began=history.began, decided=[out], attempts=history.attempts
    )
    killed = seen((0.0, 10.6), decided=[out], fault={"kind": "oom_kill", "staysDead": True})
    for one in (gone, killed):
        found = no_stuck_ejection(check_input(one))
        assert found is not None
        assert found.answer is CheckResult.YES, found.why


def test_max_ejection_floor_comes_from_the_ledger() -> None:
    lines = [history_builders.decided(11.0, "e0", out=True), history_builders.decided(12.0, "e1", out=True)]
    found = engine_floor(check_input(seen((0.0, 10.6), decided=lines)))
    assert found is not None
    assert (found.answer, found.at_s, found.numbers["fewest"]) == (CheckResult.NO, 12.0, 0)
    found = engine_floor(check_input(seen((0.0, 10.6), decided=lines[:1])))
    assert found is not None
    assert found.answer is CheckResult.YES


def test_without_control_plane_the_floor_is_envoys_max_ejection_percent() -> None:
    history = seen((0.0, 10.6), samples=[history_builders.sample(12.0, {}, ejected=("e0",), unhealthy=("e1",))])
    static = history_builders.began(hypothesis=LIMITS, engines=history_builders.engines(2), policies="")
    found = engine_floor(check_input(history_builders.history(began=static, samples=history.samples)))
    assert found is not None
    assert found.answer is CheckResult.NO
    assert found.why.startswith("p0 kept as few as 0 of 2 engines")
