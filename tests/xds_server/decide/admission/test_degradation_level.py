"""Degradation levels: in order, with dwell times, never without telemetry, and without overfull fallbacks."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policies.resilience import Degradation
from xds_server.decide.admission.degradation_level import (
    SHARE_INTERVAL_S,
    FallbackView,
    degradation_due_s,
    degradation_state,
    level_thresholds,
    ordered_level,
)
from xds_server.decide.admission.pool_strain import PoolStrain
from xds_server.decide.decision_memory import DegradationMemory
from xds_server.decide.decisions import DegradationState
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction, pool_key
from xds_server.model.pool_traffic import STALE_S

TICK_S = 0.1
READY = FallbackView(ready=True, pressure=0.2, relative_capacity=2.0)


def policy(**said: Any) -> Degradation:
    return Degradation.model_validate(said)


def climb(
    pressures: Iterable[float | None],
    said: Degradation | None = None,
    *,
    state: DegradationMemory | None = None,
    fallback: FallbackView | None = None,
    capacity: bool = True,
    shadow: bool = False,
    ordered: Order | None = None,
    signs: Mapping[str, float | None] = MappingProxyType({}),
    start_s: float = 100.0,
) -> list[DegradationMemory]:
    """The state after each round; rounds are a tick apart."""
    states = []
    for number, pressure in enumerate(pressures):
        state = degradation_state(
            said or policy(),
            state,
            strain=PoolStrain(pressure=pressure, **signs),
            lost="" if capacity else "no engine in rotation",
            fallback=fallback,
            ordered=ordered,
            shadow=shadow,
            now_s=start_s + number * TICK_S,
        )
        states.append(state)
    return states


def rounds(seconds: float) -> int:
    return round(seconds / TICK_S)


def held(pressure: float | None, seconds: float) -> list[float | None]:
    return [pressure] * rounds(seconds)


def first(states: Sequence[DegradationMemory], level: int) -> float:
    """Seconds from the first round to the first at this level."""
    return next(number for number, state in enumerate(states) if state.decided.level == level) * TICK_S


def test_degradation_levels_are_entered_in_order_and_left_in_reverse() -> None:
    up = climb(held(20.0, 10), policy(maintenance={"enabled": True}))
    assert [first(up, level) for level in (1, 2, 3, 4)] == pytest.approx([1, 2, 3, 4], abs=0.11)
    down = climb(held(0.1, 30), policy(maintenance={"enabled": True}), state=up[-1], start_s=200.0)
    assert [first(down, level) for level in (3, 2, 1, 0)] == pytest.approx([5, 10, 15, 20], abs=0.11)


def test_degradation_keeps_actions_of_lower_levels() -> None:
    said = policy(maintenance={"enabled": True, "message": "Back at noon."}, shed={"maxTokens": 512})
    done = {state.decided.level: state for state in climb(held(20.0, 10), said)}
    assert not done[0].decided.hedging_off
    assert done[0].decided.maintenance == ""
    assert done[1].decided.hedging_off
    assert done[1].decided.retries_minimum
    assert not done[1].decided.shed_batch
    assert done[3].decided.shed_batch
    assert done[3].decided.max_tokens == 512
    assert done[3].decided.hedging_off
    assert done[3].decided.maintenance == ""
    assert done[4].decided.maintenance == "Back at noon."
    assert done[4].decided.shed_batch


@pytest.mark.parametrize(
    ("shed", "reduces", "sentence"),
    [
        ({"maxTokens": 512}, False, "requests for more than 512 tokens are refused"),
        ({"maxTokens": 512, "longAnswers": "reduce"}, True, "answers get at most 512 tokens"),
        ({"longAnswers": "reduce"}, False, "batch gets only idle capacity"),
    ],
)
def test_long_answers_are_refused_or_reduced_at_level_3(
    shed: dict[str, Any], reduces: bool, sentence: str
) -> None:
    done = {state.decided.level: state.decided for state in climb(held(20.0, 10), policy(shed=shed))}
    assert done[3].reduces_answers is reduces
    assert sentence in done[3].reason
    assert not done[2].reduces_answers


def test_disabled_degradation_level_has_no_action() -> None:
    states = climb(held(20.0, 20), policy(noHedging={"enabled": False}))
    assert states[-1].decided.level == 3
    assert not any(state.decided.hedging_off for state in states)
    assert states[-1].decided.shed_batch
    assert {state.decided.level for state in states} == {0, 1, 2, 3}
    nothing = {"enabled": False}
    off = climb(held(20.0, 20), policy(noHedging=nothing, fallback=nothing, shed=nothing))
    assert {state.decided.level for state in off} == {0}


def test_non_rising_thresholds_are_raised() -> None:
    said = policy(fallback={"abovePressurePercent": 150}, shed={"abovePressurePercent": 120})
    assert level_thresholds(said)[:3] == (100, 150, 150)
    assert climb(held(1.3, 10), said)[-1].decided.level == 1


@settings(deadline=None)
@given(st.lists(st.floats(0, 3), min_size=1, max_size=150), st.lists(st.floats(0, 2), min_size=150, max_size=150))
def test_degradation_is_monotone_in_pressure(low: list[float], more: list[float]) -> None:
    top = {"enabled": True, "abovePressurePercent": 250}
    said = policy(enterAfter="300ms", leaveAfter="700ms", maintenance=top)
    below = climb(low, said)
    above = climb([one + extra for one, extra in zip(low, more, strict=False)], said)
    assert all(one.decided.level <= other.decided.level for one, other in zip(below, above, strict=True))


@settings(deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 3)), min_size=1, max_size=200),
    st.sampled_from([None, READY, FallbackView(ready=True, pressure=1.2)]),
)
def test_degradation_changes_one_level_at_a_time_and_dwells(
    pressures: list[float | None], fallback: FallbackView | None
) -> None:
    states = climb(pressures, policy(enterAfter="500ms", leaveAfter="1s"), fallback=fallback)
    changed_s = 0.0
    for number, (before, after) in enumerate(pairwise(states), start=1):
        assert abs(after.decided.level - before.decided.level) <= 1
        if after.decided.level != before.decided.level:
            least_s = 0.5 if after.decided.level > before.decided.level else 1.0
            assert number * TICK_S - changed_s >= least_s - 1e-6
            changed_s = number * TICK_S


@settings(deadline=None)
@given(
    st.sampled_from([1.0, 1.3]),
    st.floats(0.001, 0.099),
    st.lists(st.tuples(st.floats(0, 0.099), st.integers(1, 8)), min_size=2, max_size=40),
    st.integers(0, 3),
)
def test_degradation_hysteresis_prevents_flapping(
    threshold: float, below: float, wobble: list[tuple[float, int]], level: int
) -> None:
    state = DegradationMemory(decided=DegradationState(level=level, reason="", since_s=0.0))
    said = policy(enterAfter="200ms", leaveAfter="200ms")
    pressures = [threshold - below + more for more, long in wobble for _ in range(long)]
    levels = [level, *(one.decided.level for one in climb(pressures, said, state=state))]
    assert levels in (sorted(levels), sorted(levels, reverse=True))


@settings(deadline=None)
@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), max_size=100), st.booleans())
def test_degradation_ends_at_level_zero(pressures: list[float | None], with_fallback: bool) -> None:
    states = climb([*pressures, *held(0.3, 25)], fallback=READY if with_fallback else None)
    assert states[-1].decided.level == 0
    assert states[-1].decided.fallback_percent == 0


def test_level_with_threshold_below_the_margin_ends() -> None:
    said = policy(noHedging={"abovePressurePercent": 5})
    assert climb([*held(0.07, 3), *held(0.0, 6)], said)[-1].decided.level == 0


@settings(deadline=None)
@given(st.lists(st.floats(0, 3), max_size=60), st.integers(1, 100))
def test_degradation_level_holds_without_telemetry(known: list[float], silent: int) -> None:
    states = climb([*known, *([None] * silent)])
    before = states[len(known) - 1].decided.level if known else 0
    after = states[len(known) :]
    assert all(state.decided.level <= before for state in after)
    assert all(state.decided.level == before for state in after[: rounds(STALE_S) - 1])


def test_degradation_steps_down_after_holding() -> None:
    state = climb(held(2.0, 5))[-1]
    states = climb(held(None, 30), state=state, start_s=200.0)
    assert [first(states, level) for level in (2, 1, 0)] == pytest.approx([10, 15, 20], abs=0.21)


# The fallback


def served(
    asked: float | Sequence[float],
    seconds: float,
    fallback: float,
    relative: float = 1.0,
    error: float = 1.0,
    elsewhere: float = 0.0,
) -> list[DegradationMemory]:
    """A pool with demand ``asked`` and a fallback that is ``fallback`` full without it; returns the pressures.

    ``elsewhere`` is the demand of routes without a fallback. Each of several demands lasts ``seconds``.
    """
    state: DegradationMemory | None = None
    states: list[DegradationMemory] = []
    history: list[float] = []
    smooth = 0.0
    demands = [asked] if isinstance(asked, float) else asked
    for number in range(rounds(seconds) * len(demands)):
        demand = demands[number // rounds(seconds)]
        history.append(0.0 if state is None else state.decided.fallback_percent / 100)
        window = history[-20:]  # pressure is a mean over two seconds
        smooth += 0.1 * (sum(window) / len(window) - smooth)  # and smoothed over one more
        state = degradation_state(
            policy(),
            state,
            strain=PoolStrain(pressure=elsewhere + demand * (1 - smooth)),
            lost="",
            fallback=FallbackView(
                ready=True, pressure=fallback + demand * smooth / relative, relative_capacity=relative * error
            ),
            ordered=None,
            shadow=False,
            now_s=100.0 + number * TICK_S,
        )
        states.append(state)
    return states


@settings(deadline=None, max_examples=50)
@given(st.floats(1.02, 5), st.floats(0, 0.9), st.floats(0.3, 4), st.floats(0.9, 1.4))
def test_fallback_gets_the_overflow_up_to_its_capacity(
    asked: float, other: float, relative: float, error: float
) -> None:
    states = served(asked, 90, other, relative, error)
    share = states[-1].decided.fallback_percent / 100
    assert share == states[-200].decided.fallback_percent / 100  # it came to rest
    step = 0.05 * asked / relative  # of the fallback's capacity
    filled = other + asked * share / relative
    assert filled <= 1.05 + 1e-6
    assert asked * (1 - share) <= 1 + 1e-6 or filled >= 1.0 - 2.2 * step  # one of the two is full
    moves = sum(one.decided.fallback_percent != two.decided.fallback_percent for one, two in pairwise(states))
    assert moves <= 15


def test_overflow_goes_to_the_fallback_before_degradation_level_three() -> None:
    states = served(1.5, 30, 0.1, relative=2.0)
    assert states[-1].decided.level == 2
    assert states[-1].decided.fallback_percent in (
        35,
        40,
    )  # a third, and the next step where it seemed a little more
    assert {state.decided.level for state in states} == {0, 1, 2}
    assert f"{states[-1].decided.fallback_percent:g} % of requests go to the fallback" in states[-1].decided.reason
    assert any(state.decided.shed_batch for state in climb(held(1.5, 10)))  # without a fallback it is reached


def test_fallback_share_counts_other_routes_and_ends_with_room() -> None:
    states = served([0.8, 0.1], 120, 0.1, relative=2.0, elsewhere=0.6)
    full, room = states[rounds(120) - 1], states[-1]
    assert full.decided.level == 2
    assert 0.6 + 0.8 * (1 - full.decided.fallback_percent / 100) <= 1.0 + 1e-6
    assert (room.decided.level, room.decided.fallback_percent) == (0, 0)


@settings(deadline=None, max_examples=30)
@given(st.floats(1.1, 10), st.floats(0, 0.85), st.floats(0, 0.9), st.floats(0.3, 4))
def test_unusable_fallback_does_not_hold_the_level(
    much: float, little: float, other: float, relative: float
) -> None:
    # All of the fallback's load could have come from here: with a large load and little room here, the share has
    # to stay, because a fallback in use looks the same.
    assume(little <= 0.65 or other * relative <= 1.3)
    states = climb(held(much, 40), fallback=FallbackView(ready=True, pressure=other, relative_capacity=relative))
    below = FallbackView(ready=True, pressure=other, relative_capacity=relative)
    states = climb(held(little, 200), fallback=below, state=states[-1], start_s=200.0)
    assert (states[-1].decided.level, states[-1].decided.fallback_percent) == (0, 0)


def test_fallback_share_stays_until_its_effect_is_measurable() -> None:
    states = served(3.0, 60, 0.0, relative=1.0)
    moved = [n for n, (one, two) in enumerate(pairwise(states), start=1)
             if one.decided.fallback_percent != two.decided.fallback_percent]  # fmt: skip
    assert all((two - one) * TICK_S >= SHARE_INTERVAL_S - 0.11 for one, two in pairwise(moved))


@pytest.mark.parametrize(
    "fallback",
    [None, FallbackView(ready=False, pressure=0.1), FallbackView(ready=True, pressure=1.0)],
    ids=["none", "not ready", "full itself"],
)
def test_pool_without_fallback_diverts_nothing(fallback: FallbackView | None) -> None:
    assert {state.decided.fallback_percent for state in climb(held(2.0, 8), fallback=fallback)} == {0.0}


def test_lost_fallback_gets_nothing_at_once() -> None:
    state = climb(held(2.0, 4), fallback=READY)[-1]
    assert state.decided.fallback_percent == 50
    gone = FallbackView(ready=False, pressure=0.5)
    assert climb([2.0], state=state, fallback=gone, start_s=104.0)[-1].decided.fallback_percent == 0


def test_fallback_share_is_bounded_by_the_policy() -> None:
    said = policy(fallback={"maxSharePercent": 20})
    assert climb(held(2.0, 4), said, fallback=READY)[-1].decided.fallback_percent == 20
    assert (
        climb(held(2.0, 8), policy(fallback={"enabled": False}), fallback=READY)[-1].decided.fallback_percent == 0
    )


def test_fallback_takes_all_while_no_engine_is_in_rotation() -> None:
    state = climb([0.5, None], capacity=False, fallback=READY)[-1]
    assert (state.decided.level, state.decided.fallback_percent) == (0, 100.0)
    assert (
        climb([None], capacity=True, fallback=READY, state=state, start_s=100.2)[-1].decided.fallback_percent == 0
    )
    alone = climb([None], capacity=False)[-1]
    assert (alone.decided.level, alone.decided.fallback_percent) == (0, 0.0)


# Shadow, identity, time


def test_shadow_mode_degradation_has_no_action() -> None:
    real = climb(held(2.0, 8), fallback=READY)[-1]
    shadow = climb(held(2.0, 8), fallback=READY, shadow=True)[-1]
    assert shadow.decided.level == real.decided.level
    assert shadow.decided.shadow == real.decided
    assert real.decided.hedging_off
    assert not shadow.decided.hedging_off
    assert not shadow.decided.fallback_percent
    assert not shadow.decided.shed_batch
    assert not shadow.decided.retries_minimum
    back = climb([2.0], fallback=READY, state=shadow, start_s=108.0)[-1]
    assert back.decided.shadow is None
    assert back.decided.level == real.decided.level


@pytest.mark.parametrize("shadow", [False, True])
def test_unchanged_decision_is_the_same_object(shadow: bool) -> None:
    states = climb([0.5, 0.51, 0.52], shadow=shadow)
    assert states[0].decided is states[1].decided is states[2].decided


def test_degradation_states_its_next_decision_time() -> None:
    said = policy()
    assert degradation_due_s(said, climb([0.5])[-1], 100.0) == float("inf")
    assert degradation_due_s(said, climb([1.05])[-1], 100.0) == 101.0
    state = climb(held(2.0, 5))[-1]
    assert degradation_due_s(said, climb([0.1], state=state, start_s=110.0)[-1], 110.0) == 115.0
    assert degradation_due_s(said, climb([None], state=state, start_s=110.0)[-1], 110.0) == 110.0 + STALE_S


def test_degradation_reason_has_the_numbers() -> None:
    reason = climb(held(1.1, 1.2))[-1].decided.reason
    assert reason == ("pressure 110 %, entered at 100 %; no hedging, minimal retries; level 2 at 100 %")


def test_degradation_reason_follows_returning_telemetry() -> None:
    silent, told = climb([None, 0.5])
    assert "pressure unknown" in silent.decided.reason
    assert "50 %" in told.decided.reason
    assert "pressure unknown" not in told.decided.reason


def degrade_order(level: int) -> Order:
    return Order(
        engine=pool_key("chat"), action=OrderAction.DEGRADE, until_s=1e9, reason="GPU swap", by="ann", level=level
    )


def test_ordered_level_holds_at_any_pressure_and_falls_at_once_when_it_ends() -> None:
    up = climb(held(0.1, 3), ordered=degrade_order(3))
    assert {state.decided.level for state in up} == {3}
    assert up[-1].decided.shed_batch
    assert up[-1].decided.since_s == 100.0
    assert up[-1].decided.reason.startswith("pressure 10 %; level ordered by ann: GPU swap; no hedging")
    after = climb(held(0.1, 1), state=up[-1], start_s=200.0)
    assert after[0].decided.level == 0
    assert after[0].decided.reason.startswith("pressure 10 %; the order for the level ended")
    assert not after[0].decided.shed_batch
    busy = climb(held(20.0, 1), state=up[-1], start_s=200.0)
    assert busy[0].decided.level == 3
    none = climb(held(20.0, 10), ordered=degrade_order(0))
    assert {state.decided.level for state in none} == {0}


@pytest.mark.parametrize("pressure", [None, 0.1])
def test_ordered_level_acts_although_the_policy_turned_it_off(pressure: float | None) -> None:
    off = {"enabled": False}
    said = policy(noHedging=off, shed=off, maintenance={**off, "message": "Back at noon."})
    for shadow in (False, True):
        top = climb(held(pressure, 1), said, shadow=shadow, ordered=degrade_order(4))[-1].decided
        assert (top.maintenance, top.shed_batch, top.hedging_off) == ("Back at noon.", False, False)
    third = climb(held(pressure, 1), said, ordered=degrade_order(3))[-1].decided
    assert (third.maintenance, third.shed_batch, third.hedging_off) == ("", True, False)


def test_ordered_level_2_sends_only_overflow_to_the_fallback() -> None:
    assert climb(held(2.0, 10), ordered=degrade_order(2), fallback=READY)[-1].decided.fallback_percent >= 50
    assert climb(held(0.5, 10), ordered=degrade_order(2), fallback=READY)[-1].decided.fallback_percent == 0


def test_ordered_level_is_found_among_orders_for_engines() -> None:
    eject = Order(engine=EngineId("chat", "r0"), action=OrderAction.EJECT, until_s=1e9, reason="x")
    assert ordered_level([eject]) is None
    assert ordered_level([eject, degrade_order(2)]) == degrade_order(2)


SIGNS = {
    "failed_percent": ("aboveFailedPercent", 20, 30.0, "30 % of calls fail (limit 20 %)"),
    "ejected_percent": ("aboveEjectedPercent", 20, 25.0, "25 % of slots are ejected (limit 20 %)"),
    "kv_cache_percent": ("aboveKvCachePercent", 90, 95.0, "KV cache 95 % used (limit 90 %)"),
    "throttled_percent": ("aboveThrottledPercent", 20, 50.0, "50 % of engines throttled (limit 20 %)"),
    "first_token_s": ("aboveFirstToken", "2s", 3.0, "first token after 3.0 s (limit 2 s)"),
}


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("pressure", [None, 0.1])
def test_sign_enters_its_level_through_those_below_and_leaves_it(sign: str, pressure: float | None) -> None:
    field, threshold, value, sentence = SIGNS[sign]
    said = policy(shed={field: threshold})
    limit = 2.0 if threshold == "2s" else float(threshold)
    up = climb(held(pressure, 10), said, signs={sign: value})
    assert [first(up, level) for level in (1, 2, 3)] == pytest.approx([1, 2, 3], abs=0.11)
    assert up[-1].decided.level == 3
    assert sentence in up[-1].decided.reason
    near = climb(held(pressure, 60), said, state=up[-1], start_s=200.0, signs={sign: 0.95 * limit})
    assert near[-1].decided.level == 3
    down = climb(held(pressure, 60), said, state=near[-1], start_s=300.0, signs={sign: 0.5 * limit})
    assert down[-1].decided.level == 0
    assert sentence not in down[-1].decided.reason
    unknown = climb(held(pressure, 10), said, signs={sign: None})
    assert unknown[-1].decided.level == 0


def test_sign_of_a_disabled_level_enters_none() -> None:
    said = policy(shed={"enabled": False, "aboveFailedPercent": 5})
    assert climb(held(0.1, 10), said, signs={"failed_percent": 100.0})[-1].decided.level == 0


def test_sign_of_level_1_does_not_enter_level_2() -> None:
    said = policy(noHedging={"aboveFailedPercent": 5})
    assert climb(held(0.1, 20), said, signs={"failed_percent": 100.0})[-1].decided.level == 1


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 3), min_size=1, max_size=150),
    st.lists(st.floats(0, 100), min_size=150, max_size=150),
)
def test_a_sign_never_lowers_the_level(pressures: list[float], failed: list[float]) -> None:
    said = policy(enterAfter="300ms", leaveAfter="700ms", shed={"aboveFailedPercent": 50})
    without = with_sign = None
    for number, (pressure, value) in enumerate(zip(pressures, failed, strict=False)):
        start_s = 100.0 + number * TICK_S
        (without,) = climb([pressure], said, state=without, start_s=start_s)
        (with_sign,) = climb([pressure], said, state=with_sign, start_s=start_s, signs={"failed_percent": value})
        assert with_sign.decided.level >= without.decided.level
