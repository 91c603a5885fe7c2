"""Hedging: off at once, on after a calm time, with a stable delay."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.resilience import Hedging
from xds_server.decide.decision_memory import HedgeMemory
from xds_server.decide.decisions import DegradationState, HedgeCause
from xds_server.decide.routing.hedge_decision import (
    CALM_S,
    DELAY_INTERVAL_S,
    MIN_CALLS,
    MIN_DELAY_S,
    ON_INTERVAL_S,
    hedge_decision,
    hedge_due_s,
    quantile,
)
from xds_server.model.pool_traffic import STALE_S, LatencyTail, PoolTraffic

FORBIDS = DegradationState(level=1, reason="level 1: 95 % asked", since_s=0.0, hedging_off=True)
ALLOWS = DegradationState(level=0, reason="", since_s=0.0)


def policy(**said: Any) -> Hedging:
    return Hedging.model_validate({"enabled": True, **said})


def tail(p95_s: float, calls: int = 1000) -> LatencyTail:
    return LatencyTail(p50_s=p95_s / 3, p95_s=p95_s, p99_s=2 * p95_s, calls=calls, longest_s=3 * p95_s)


def told(first_byte_s: float = 0.3, answer_s: float = 4.0, *, at_s: float, calls: int = 1000) -> PoolTraffic:
    return PoolTraffic(first_byte=tail(first_byte_s, calls), answer=tail(answer_s, calls), heard_at_s=at_s)


def decided(
    before: HedgeMemory | None = None,
    said: Hedging | None = None,
    *,
    used: float | None = 0.3,
    traffic: PoolTraffic | None = None,
    ladder: DegradationState | None = ALLOWS,
    gated: bool = True,
    shadow: bool = False,
    now_s: float = 100.0,
) -> HedgeMemory:
    return hedge_decision(
        said or policy(delay="1s"),
        before,
        traffic=traffic,
        utilization=used,
        degradation=ladder,
        gated=gated,
        shadow=shadow,
        now_s=now_s,
    )


@pytest.mark.parametrize(
    ("said", "used", "ladder", "cause"),
    [
        ({"delay": "1s"}, 0.3, None, HedgeCause.ROOM),
        ({"delay": "1s"}, 0.59, ALLOWS, HedgeCause.ROOM),
        ({"delay": "1s"}, 0.6, ALLOWS, HedgeCause.FULL),
        ({"delay": "1s"}, 0.3, FORBIDS, HedgeCause.LADDER),
        ({"delay": "1s"}, None, FORBIDS, HedgeCause.LADDER),
        ({"delay": "1s"}, None, ALLOWS, HedgeCause.ROOM),  # a policy delay needs no measurement
        ({}, None, ALLOWS, HedgeCause.DELAY),
        ({}, 0.3, ALLOWS, HedgeCause.DELAY),
        ({"delay": "1s", "enabled": False}, 0.3, ALLOWS, HedgeCause.POLICY),
    ],
)
def test_hedging_cause(
    said: dict[str, Any], used: float | None, ladder: DegradationState | None, cause: HedgeCause
) -> None:
    decision = decided(None, policy(**said), used=used, ladder=ladder)
    assert decision.decided.cause is cause
    assert decision.decided.on is (cause is HedgeCause.ROOM)
    assert decision.decided.reason.startswith("on" if decision.decided.on else "off")


def test_hedging_turns_off_at_once_and_on_with_hysteresis() -> None:
    on = decided(used=0.3, now_s=0.0)
    off = decided(on, used=0.61, now_s=50.0)
    assert not off.decided.on
    assert "61 % of slots in use (limit 60 %)" in off.decided.reason
    still = decided(off, used=0.55, now_s=70.0)
    assert (still.decided.on, still.calm_since_s) == (False, None)
    calm = decided(still, used=0.49, now_s=80.0)
    assert (calm.decided.on, calm.calm_since_s) == (False, 80.0)
    assert hedge_due_s(calm, 80.0) == 80.0 + CALM_S
    assert not decided(calm, used=0.49, now_s=80.0 + CALM_S - 0.01).decided.on
    assert decided(calm, used=0.49, now_s=80.0 + CALM_S).decided.on
    broken = decided(calm, used=0.51, now_s=82.0)
    assert broken.calm_since_s is None


def test_hedging_cooldown_holds_when_the_pool_empties() -> None:
    off = decided(decided(now_s=49.0), used=0.9, now_s=50.0)
    calm = decided(off, used=0.1, now_s=50.1)
    assert hedge_due_s(calm, 50.1) == 50.0 + ON_INTERVAL_S
    assert not decided(calm, used=0.1, now_s=50.0 + ON_INTERVAL_S - 0.01).decided.on
    assert decided(calm, used=0.1, now_s=50.0 + ON_INTERVAL_S).decided.on


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.integers(1, 30)), max_size=30),
    st.sampled_from([0.0, 5.0, 60.0, 100.0]),
)
def test_hedging_cooldown_between_activations(spells: list[tuple[float, bool, int]], limit_percent: float) -> None:
    said = policy(delay="1s", belowUtilizationPercent=limit_percent)
    decision: HedgeMemory | None = None
    began, now_s = [], 0.0
    for used, forbidden in [(used, forbidden) for used, forbidden, long in spells for _ in range(long)]:
        ladder, now_s = FORBIDS if forbidden else ALLOWS, now_s + 0.5
        before, decision = decision, decided(decision, said, used=used, ladder=ladder, now_s=now_s)
        assert not (decision.decided.on and (forbidden or used * 100 >= limit_percent))  # off at once
        if decision.decided.on and not (before is not None and before.decided.on):
            began.append(now_s)
    assert all(later - earlier >= ON_INTERVAL_S for earlier, later in pairwise(began))


@settings(deadline=None)
@given(st.lists(st.floats(0.501, 0.599), max_size=100))
def test_hedging_hysteresis_margin(used: list[float]) -> None:
    for start in (0.3, 0.9):
        decision = decided(decided(used=0.3, now_s=-100.0), used=start, now_s=0.0)
        was = decision.decided.on
        for number, one in enumerate(used):
            decision = decided(decision, used=one, now_s=float(number))
            assert decision.decided.on is was


# The delay


def test_policy_hedging_delay_is_kept_and_needs_the_gate_for_streams() -> None:
    gated = decided(gated=True)
    assert (gated.decided.delay_s, gated.decided.answer_delay_s) == (1.0, 1.0)
    blind = decided(gated=False)
    assert (blind.decided.delay_s, blind.decided.answer_delay_s) == (None, 1.0)


def test_hedging_delay_is_measured_per_kind_if_unset() -> None:
    decision = decided(None, policy(), traffic=told(at_s=100.0))
    assert decision.decided.on
    assert decision.decided.delay_s == pytest.approx(0.3)
    assert decision.decided.answer_delay_s == pytest.approx(4.0)
    assert decided(None, policy(), traffic=told(at_s=100.0), gated=False).decided.delay_s is None
    assert decided(None, policy(), traffic=told(0.001, at_s=100.0)).decided.delay_s == MIN_DELAY_S


def test_too_few_calls_keep_the_hedging_delay() -> None:
    few = decided(None, policy(), traffic=told(at_s=100.0, calls=MIN_CALLS - 1))
    assert (few.decided.on, few.decided.cause) == (False, HedgeCause.DELAY)
    known = decided(None, policy(), traffic=told(at_s=100.0))
    quiet = decided(known, policy(), traffic=told(9.0, at_s=200.0, calls=3), now_s=200.0)
    assert (quiet.decided.on, quiet.decided.delay_s) == (True, known.decided.delay_s)


def test_measured_hedging_delay_ends_without_telemetry() -> None:
    measured = decided(None, policy(), traffic=told(at_s=100.0))
    assert decided(measured, policy(), traffic=told(at_s=100.0), now_s=100.0 + STALE_S).decided.on
    assert not decided(measured, policy(), traffic=told(at_s=100.0), now_s=100.1 + STALE_S).decided.on
    assert not decided(measured, policy(), traffic=None).decided.on
    assert decided(decided(), used=None, traffic=None, now_s=500.0).decided.on


@settings(deadline=None)
@given(st.lists(st.floats(0.06, 5), min_size=1, max_size=100))
def test_hedging_delay_updates_are_damped(p95_s: list[float]) -> None:
    decision: HedgeMemory | None = None
    moved: list[float] = []
    for number, one in enumerate(p95_s):
        now_s = 100.0 + 2 * number
        before = decision
        decision = decided(before, policy(), traffic=told(one, at_s=now_s), now_s=now_s)
        assert decision.decided.delay_s is not None
        if (
            before is not None
            and before.decided.delay_s is not None
            and decision.decided.delay_s != before.decided.delay_s
        ):
            assert abs(decision.decided.delay_s - before.decided.delay_s) > 0.2 * before.decided.delay_s
            moved.append(now_s)
    assert all(later - earlier >= DELAY_INTERVAL_S for earlier, later in pairwise(moved))


@settings(deadline=None)
@given(st.floats(50, 99.9), st.floats(50, 99.9), st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 5)))
def test_quantiles_rise_and_match_known_points(
    one: float, other: float, parts: tuple[float, float, float]
) -> None:
    known = LatencyTail(p50_s=parts[0], p95_s=parts[0] + parts[1], p99_s=sum(parts), calls=100)
    low, high = sorted((one, other))
    assert quantile(known, low) <= quantile(known, high) + 1e-9
    for percent, time_s in ((50, known.p50_s), (95, known.p95_s), (99, known.p99_s)):
        assert quantile(known, percent) == pytest.approx(time_s)


def test_quantiles_match_an_exponential_tail() -> None:
    known = LatencyTail(p50_s=-math.log(0.5), p95_s=-math.log(0.05), p99_s=-math.log(0.01), calls=100)
    for percent in (60.0, 90.0, 97.0, 99.5):
        assert quantile(known, percent) == pytest.approx(-math.log(1 - percent / 100))


# Shadow and identity


def test_shadow_mode_hedges_nothing() -> None:
    shadow = decided(shadow=True)
    assert (shadow.decided.on, shadow.decided.delay_s, shadow.decided.answer_delay_s) == (False, None, None)
    assert shadow.decided.shadow == decided().decided
    assert shadow.decided.reason.startswith("shadow")
    later = decided(decided(shadow, used=0.9, shadow=True, now_s=101.0), used=0.3, shadow=True, now_s=102.0)
    assert later.decided.shadow is not None
    assert not later.decided.shadow.on  # after the same calm time


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("used", [0.3, 0.9])
def test_unchanged_decision_is_the_same_object(used: float, shadow: bool) -> None:
    before = decided(used=used, shadow=shadow)
    assert decided(before, used=used + 0.01, shadow=shadow, now_s=101.0).decided is before.decided
