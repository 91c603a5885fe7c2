"""Time limits: those of the policy are kept, and derived ones cut no healthy work."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, Quantiles, Verdict
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import TimeLimitMemory
from xds_server.decide.decisions import AdmissionDecision, HedgeCause, HedgeDecision, TimeLimits, TokenTimeLimit
from xds_server.decide.routing.time_limits import (
    DOWN_INTERVAL_S,
    MIN_CALLS,
    MOVE,
    REMEMBER_S,
    limits_due_s,
    limits_for_cutting_proxies,
    time_limits,
)
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import STALE_S, EngineTraffic, LatencyTail, PoolTraffic

HEDGING = HedgeDecision(on=True, delay_s=1.0, reason="", since_s=0.0, cause=HedgeCause.ROOM)
SHORT = EnginePoolSpec.model_validate(
    {"model": "m", "serviceTime": "500ms", "longestServiceTime": "720ms", "firstTokenGate": True}
)


def admitted(
    used: float | None = 0.5, *, wait_s: float = 2.0, in_force: bool = True, slots: float = 64
) -> AdmissionDecision:
    return AdmissionDecision(
        total=320,
        interactive=320,
        batch=320,
        held=0,
        slots=slots,
        wait_s=wait_s,
        pressure=used,
        utilization=used,
        in_force=in_force,
        by_proxy={},
        capacities={},
        reason="",
    )


def tail(longest_s: float, p99_s: float | None = None, calls: int = 1000) -> LatencyTail:
    p99_s = longest_s if p99_s is None else p99_s
    return LatencyTail(p50_s=p99_s / 2, p95_s=p99_s * 0.9, p99_s=p99_s, calls=calls, longest_s=longest_s)


def told(
    answer: LatencyTail | None,
    first_byte: LatencyTail | None = None,
    *,
    at_s: float,
    failing: int = 0,
    engines: int = 8,
) -> PoolTraffic:
    return PoolTraffic(
        engines={
            f"r{number}": EngineTraffic(window_calls=25, window_failures=1 if number < failing else 0)
            for number in range(engines)
        },
        answer=answer,
        first_byte=first_byte,
        heard_at_s=at_s,
    )


class Pool:
    """A pool evaluated round by round."""

    def __init__(self, pool: EnginePoolSpec = SHORT, **said: Any) -> None:
        self.pool, self.said = pool, ResilienceSpec.model_validate(said)
        self.now_s = 100.0
        self.memory: TimeLimitMemory | None = None

    def step(
        self,
        seconds: float,
        answer: LatencyTail | None = None,
        first_byte: LatencyTail | None = None,
        *,
        used: float | None = 0.5,
        in_force: bool = True,
        wait_s: float = 2.0,
        slots: float = 64,
        failing: int = 0,
        hedge: HedgeDecision | None = None,
        engines: tuple[Engine, ...] = (),
        silent: bool = False,
    ) -> TimeLimits:
        self.now_s += seconds
        self.memory = time_limits(
            self.pool,
            self.said,
            self.memory,
            traffic=None if silent else told(answer, first_byte, at_s=self.now_s, failing=failing),
            engines=engines,
            admission=admitted(used, in_force=in_force, wait_s=wait_s, slots=slots),
            hedge=hedge,
            now_s=self.now_s,
        )
        return self.memory.decided

    def settled(
        self, answer: LatencyTail | None, first_byte: LatencyTail | None = None, **more: Any
    ) -> TimeLimits:
        self.step(0, answer, first_byte, **more)
        return self.step(DOWN_INTERVAL_S, answer, first_byte, **more)


def test_policy_timeouts_are_kept_and_zero_is_off() -> None:
    said = {"streaming": {"firstToken": "7s", "betweenTokens": "9s", "total": "90s"}}
    limits = Pool(timeouts={**said, "nonStreaming": {"perTry": "3s", "total": "20s"}}).settled(
        tail(0.7), tail(0.1)
    )
    assert (limits.first_token_s, limits.between_tokens_s, limits.stream_total_s) == (7, 9, 90)
    assert (limits.per_try_s, limits.total_s) == (3, 20)
    off = {
        "streaming": {"firstToken": "0s", "betweenTokens": "0s", "total": "0s"},
        "nonStreaming": {"perTry": "0s"},
    }
    limits = Pool(timeouts=off).settled(tail(0.7), tail(0.1))
    assert (limits.first_token_s, limits.between_tokens_s, limits.stream_total_s) == (None, None, 0)
    assert limits.per_try_s is None


def test_derived_timeouts_follow_the_longest_healthy_calls() -> None:
    limits = Pool().settled(tail(0.8), tail(0.2))
    assert limits.per_try_s == pytest.approx(3.2)  # 2 s wait + 1.5 x 0.8 s
    assert limits.first_token_s == pytest.approx(3.0)  # 2 s wait + 1 s
    assert limits.between_tokens_s == 30  # the default counts as the policy's
    assert Pool().settled(tail(0.8), tail(2.0)).first_token_s == pytest.approx(8.0)  # 2 s + 3 x 2 s
    assert Pool().settled(tail(0.3)).per_try_s == pytest.approx(3.0)  # 1.1 x (2 s + 720 ms), as declared


def test_default_longest_service_is_four_times_the_mean() -> None:
    pool = EnginePoolSpec.model_validate({"model": "m", "serviceTime": "1s"})
    limits = Pool(pool).settled(tail(0.3), tail(0.1))
    assert limits.per_try_s == pytest.approx(6.6)
    assert limits.first_token_s is None  # without the gate Envoy sees none


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"silent": True}, "no call durations reported"),
        ({"answer": None}, "fewer than 200"),
        ({"answer": tail(0.8, calls=MIN_CALLS - 1)}, "fewer than 200"),
        ({"answer": tail(0.8), "in_force": False}, "the wait is unbounded"),
        ({"answer": tail(500.0)}, "the total is shorter"),
    ],
)
def test_unknown_durations_turn_derived_timeouts_off(more: dict[str, Any], why: str) -> None:
    pool = Pool()
    limits = pool.settled(**{"answer": None, **more})
    assert limits.per_try_s is None
    assert why in limits.reason


def test_lost_telemetry_turns_derived_timeouts_off() -> None:
    pool = Pool(timeouts={"streaming": {"firstToken": "7s"}})
    assert pool.settled(tail(0.8)).per_try_s is not None
    pool.step(1, silent=True)
    assert pool.memory is not None
    assert (pool.memory.decided.per_try_s, pool.memory.decided.first_token_s) == (None, 7)
    stale = told(tail(0.8), at_s=pool.now_s - STALE_S - 1)
    limits = time_limits(
        SHORT, pool.said, None, traffic=stale, engines=(), admission=admitted(), hedge=None, now_s=pool.now_s
    )
    assert "no call durations reported" in limits.decided.reason


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.05, 20), st.floats(0, 1), st.floats(0.1, 20)), min_size=1, max_size=80),
    st.floats(0, 10),
)
def test_derived_timeout_exceeds_wait_service_and_healthy_calls(
    rounds: list[tuple[float, float, float]], wait_s: float
) -> None:
    pool = Pool()
    for service_s, used, seconds in rounds:
        queued_s = wait_s if used >= 0.9 else 0.0
        limits = pool.step(
            seconds, tail(service_s + queued_s), tail(service_s / 5 + queued_s), used=used, wait_s=wait_s
        )
        if limits.per_try_s is not None:
            assert limits.per_try_s >= wait_s + 0.72
            assert limits.per_try_s >= (service_s + queued_s) * 1.1 / (1 + MOVE) - 1e-6
        if limits.first_token_s is not None:
            assert limits.first_token_s >= (wait_s + 1) / (1 + MOVE)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 30), st.floats(0.1, 10)), min_size=1, max_size=100))
def test_derived_timeout_shrinks_rarely(rounds: list[tuple[float, float]]) -> None:
    pool = Pool()
    seen: list[tuple[float, float]] = []
    for longest_s, seconds in rounds:
        limits = pool.step(seconds, tail(longest_s))
        if limits.per_try_s is not None and (not seen or seen[-1][1] != limits.per_try_s):
            seen.append((pool.now_s, limits.per_try_s))
    for (earlier_s, old_s), (later_s, new_s) in pairwise(seen):
        assert abs(new_s - old_s) > MOVE * old_s
        assert new_s > old_s or later_s - earlier_s >= DOWN_INTERVAL_S - 1e-6


def test_derived_timeout_grows_at_once_and_shrinks_late() -> None:
    pool = Pool()
    assert pool.settled(tail(1.0)).per_try_s == pytest.approx(3.5)
    assert pool.step(0.1, tail(4.0)).per_try_s == pytest.approx(8.0)
    assert pool.step(REMEMBER_S - 1, tail(1.0)).per_try_s == pytest.approx(8.0)
    assert pool.step(1, tail(1.0)).per_try_s == pytest.approx(3.5)


def test_overload_does_not_lengthen_derived_timeouts() -> None:
    pool = Pool()
    calm = pool.settled(tail(0.8))
    for _ in range(100):
        full = pool.step(1, tail(2.8, p99_s=2.7), used=1.0)
    assert full.per_try_s == calm.per_try_s


def test_broken_wait_promise_makes_timeouts_follow_the_tail() -> None:
    pool = Pool()
    assert pool.settled(tail(0.8)).per_try_s == pytest.approx(3.2)
    assert pool.step(1, tail(3.15, p99_s=3.1), used=1.0).per_try_s == pytest.approx(4.7)
    assert pool.step(1, tail(6.0, p99_s=5.5), used=1.0).per_try_s == pytest.approx(8.3)


def test_timeout_does_not_shrink_without_an_engine() -> None:
    pool = Pool()
    assert pool.settled(tail(0.8)).per_try_s == pytest.approx(3.2)
    assert pool.step(60, tail(0.8), used=None, wait_s=0.0, slots=0.0).per_try_s == pytest.approx(3.2)


def test_hedged_pool_remembers_longest_calls() -> None:
    pool = Pool()
    assert pool.settled(tail(4.0)).per_try_s == pytest.approx(8.0)
    assert pool.step(2 * REMEMBER_S, tail(0.8), hedge=HEDGING).per_try_s == pytest.approx(8.0)
    assert pool.step(1, tail(8.0), hedge=HEDGING).per_try_s == pytest.approx(14.0)


def test_derived_per_try_timeout_missed_by_most_engines_is_widened() -> None:
    pool = Pool()
    assert pool.settled(tail(0.8)).per_try_s == pytest.approx(3.2)
    assert pool.step(1, tail(0.8), failing=4).per_try_s == pytest.approx(3.2)  # half is not most
    assert pool.step(1, tail(0.8), failing=5).per_try_s == pytest.approx(6.4)
    assert pool.step(1, tail(0.8), failing=8).per_try_s == pytest.approx(6.4)  # after time to take effect
    assert pool.step(30, tail(0.8), failing=8).per_try_s == pytest.approx(12.8)
    assert pool.step(REMEMBER_S, tail(0.8)).per_try_s == pytest.approx(3.2)


@settings(deadline=None)
@given(st.integers(1, 60))
def test_timeout_widening_stops_at_the_total_or_a_bound(rounds: int) -> None:
    for total in ("300s", "0s"):
        pool = Pool(timeouts={"nonStreaming": {"total": total}})
        pool.settled(tail(0.8))
        for _ in range(rounds):
            limits = pool.step(31, tail(0.8), failing=8)
            assert limits.per_try_s is None or limits.per_try_s <= 3.2 * 32 + 0.1


def test_policy_timeout_is_never_widened() -> None:
    pool = Pool(timeouts={"nonStreaming": {"perTry": "3s"}}, mode="enforce")
    pool.settled(tail(0.8))
    assert pool.step(1, tail(0.8), failing=8).per_try_s == 3


def reporting(name: str, at_s: float, **times: Quantiles) -> Engine:
    """A ready engine with these times in its report of this moment."""
    return Engine(
        id=EngineId("p", name),
        address="127.0.0.1",
        port=1,
        zone="",
        region="",
        slots=8,
        weight=1,
        tensor_parallel_group="",
        labels={},
        received_at_s=at_s,
        report=EngineReport(
            pool="p", engine=name, verdict=Verdict.READY, evidence="", observed_at_s=at_s, **times
        ),
    )


def test_reported_time_to_first_token_lengthens_the_timeout() -> None:
    engine = reporting("r0", 130.0, time_to_first_token=Quantiles(p50_s=1.0, p99_s=4.0))
    assert Pool().settled(tail(0.8), tail(0.2), engines=(engine,)).first_token_s == pytest.approx(14.0)
    old = replace(engine, received_at_s=130.0 - STALE_S - 1)
    assert Pool().settled(tail(0.8), tail(0.2), engines=(old,)).first_token_s == pytest.approx(3.0)


def test_shadow_and_non_adaptive_policies_keep_policy_timeouts() -> None:
    shadow = Pool(mode="shadow").settled(tail(0.8), tail(0.2))
    assert (shadow.per_try_s, shadow.first_token_s) == (None, None)
    assert shadow.shadow is not None
    assert shadow.shadow.per_try_s == pytest.approx(3.2)
    fixed = Pool(timeouts={"adaptive": False}).settled(tail(0.8), tail(0.2))
    assert (fixed.per_try_s, fixed.first_token_s, fixed.shadow) == (None, None, None)


@pytest.mark.parametrize("said", [{}, {"mode": "shadow"}, {"timeouts": {"adaptive": False}}])
def test_unchanged_decision_is_the_same_object(said: dict[str, Any]) -> None:
    pool = Pool(**said)
    before = pool.settled(tail(0.8), tail(0.2))
    assert pool.memory is not None
    assert limits_due_s(pool.memory, pool.now_s) in (pool.now_s + DOWN_INTERVAL_S, float("inf"))
    assert pool.step(1, tail(0.81), tail(0.21)) is before


def test_proxy_with_internal_listeners_gets_longer_derived_timeouts() -> None:
    pool = Pool(timeouts={"nonStreaming": {"total": "9.7s"}})
    cut = limits_for_cutting_proxies(pool.settled(tail(0.8), tail(0.2)), pool.said.timeouts)
    assert (cut.per_try_s, cut.first_token_s) == (pytest.approx(9.6), pytest.approx(9.0))
    short = Pool(timeouts={"nonStreaming": {"total": "9s"}})
    assert limits_for_cutting_proxies(short.settled(tail(0.8)), short.said.timeouts).per_try_s is None
    given = Pool(timeouts={"nonStreaming": {"perTry": "3s"}, "streaming": {"firstToken": "0s"}})
    kept = limits_for_cutting_proxies(given.settled(tail(0.8), tail(0.2)), given.said.timeouts)
    assert (kept.per_try_s, kept.first_token_s) == (3, None)


def test_declared_longest_service_is_the_least_silence_where_proxies_cut() -> None:
    pool = Pool()
    settled = pool.settled(tail(0.8), tail(0.2))
    cut = limits_for_cutting_proxies(settled, pool.said.timeouts, longest_s=120.0)
    assert (cut.first_token_s, cut.between_tokens_s) == (120.0, 120.0)
    assert limits_for_cutting_proxies(settled, pool.said.timeouts, longest_s=20.0).between_tokens_s == 30.0
    given = Pool(timeouts={"streaming": {"firstToken": "5s", "betweenTokens": "30s"}})
    kept = limits_for_cutting_proxies(given.settled(tail(0.8), tail(0.2)), given.said.timeouts, longest_s=120.0)
    assert (kept.first_token_s, kept.between_tokens_s) == (5.0, 30.0)


def by_tokens(**said: str) -> dict[str, Any]:
    return {"nonStreaming": {"byTokens": {"enabled": True, **said}}}


def paced(*paces: tuple[float, float], at_s: float) -> tuple[Engine, ...]:
    """Engines with these medians and 99th percentiles of the time between tokens."""
    return tuple(
        reporting(f"r{number}", at_s, time_per_output_token=Quantiles(p50_s=p50_s, p99_s=p99_s))
        for number, (p50_s, p99_s) in enumerate(paces)
    )


def test_time_by_tokens_is_that_of_the_engine_in_the_middle() -> None:
    pool = Pool(timeouts=by_tokens())
    assert pool.step(0, tail(0.7)).by_tokens is None
    # One slow engine of three does not lengthen it; stalls between tokens do.
    engines = paced((0.01, 0.02), (0.01, 0.05), (0.2, 0.4), at_s=pool.now_s)
    limits = pool.step(0, tail(0.7), engines=engines)
    assert limits.by_tokens == TokenTimeLimit(wait_s=2.0, per_token_s=0.05)
    assert "byTokens 2 s + 50 ms a token (measured)" in limits.reason
    slower = paced((0.02, 0.03), (0.03, 0.03), at_s=pool.now_s)
    assert pool.step(0, tail(0.7), engines=slower).by_tokens == TokenTimeLimit(wait_s=2.0, per_token_s=0.09)


def test_time_by_tokens_grows_at_once_shrinks_later_and_outlives_silence() -> None:
    pool = Pool(timeouts=by_tokens())
    slow = pool.step(0, tail(0.7), engines=paced((0.02, 0.02), at_s=pool.now_s)).by_tokens
    assert pool.step(1, tail(0.7), engines=paced((0.01, 0.01), at_s=pool.now_s + 1)).by_tokens == slow
    assert pool.step(1, tail(0.7)).by_tokens == slow
    fast = paced((0.01, 0.01), at_s=pool.now_s + DOWN_INTERVAL_S)
    shrunk = pool.step(DOWN_INTERVAL_S, tail(0.7), engines=fast).by_tokens
    assert shrunk == TokenTimeLimit(wait_s=2.0, per_token_s=0.03)
    assert pool.step(0, tail(0.7), engines=fast, in_force=False).by_tokens is None


def test_declared_time_by_tokens_needs_no_reports_and_is_kept_by_cutting_proxies() -> None:
    pool = Pool(timeouts=by_tokens(perToken="20ms"))
    limits = pool.step(0, None, silent=True)
    assert limits.by_tokens == TokenTimeLimit(wait_s=2.0, per_token_s=0.02)
    assert limits_for_cutting_proxies(limits, pool.said.timeouts).by_tokens == limits.by_tokens
    learned = Pool(timeouts=by_tokens())
    limits = learned.step(0, tail(0.7), engines=paced((0.01, 0.01), at_s=learned.now_s))
    longer = limits_for_cutting_proxies(limits, learned.said.timeouts).by_tokens
    assert longer == TokenTimeLimit(wait_s=2.0, per_token_s=pytest.approx(0.09))


def test_time_by_tokens_is_only_reported_in_shadow_mode() -> None:
    pool = Pool(timeouts=by_tokens(), mode="shadow")
    limits = pool.step(0, tail(0.7), engines=paced((0.01, 0.01), at_s=pool.now_s))
    assert limits.by_tokens is None
    assert limits.shadow is not None
    assert limits.shadow.by_tokens is not None
