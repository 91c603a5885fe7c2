"""Capacity: learned slots and service times, and their bounds."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, ReportSource, Verdict
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.admission.engine_capacity import engine_capacities
from xds_server.decide.decision_memory import CapacityEstimate, CapacityMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import RATE_S, EngineTraffic, PoolTraffic

POOL = EnginePoolSpec.model_validate({"model": "m", "serviceTime": "1s"})


class Watched:
    """Engines of eight slots and a declared second, evaluated every second."""

    def __init__(self, count: int = 4, **limits: Any) -> None:
        self.resilience = ResilienceSpec.model_validate({"limits": limits})
        self.engines = [
            Engine(
                id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone="", region="", slots=8,
                weight=1, tensor_parallel_group="", labels={},
            )
            for place in range(count)
        ]  # fmt: skip
        self.decisions: dict[EngineId, EngineDecision] = {}
        self.known = CapacityMemory()
        self.now_s = 100.0

    def look(self, passed_s: float = 1.0, **seen: EngineTraffic) -> "Watched":
        self.now_s += passed_s
        engines = {name: replace(one, heard_at_s=self.now_s) for name, one in seen.items()}
        self.known = engine_capacities(
            POOL,
            self.resilience,
            self.engines,
            PoolTraffic(engines=engines) if engines else None,
            decisions=self.decisions,
            before=self.known,
            now_s=self.now_s,
        )
        return self

    def report(self, place: int, **fields: Any) -> "Watched":
        said = EngineReport(
            **{
                "pool": "pool",
                "engine": f"e{place}",
                "verdict": Verdict.READY,
                "evidence": "",
                "observed_at_s": 0,
                **fields,
            }
        )
        self.engines[place] = replace(self.engines[place], report=said, received_at_s=self.now_s)
        return self

    def of(self, place: int) -> EngineCapacity:
        return self.known.capacities[EngineId("pool", f"e{place}")]


def calls(per_s: float, duration_s: float, **fields: Any) -> EngineTraffic:
    return EngineTraffic(done_per_s=per_s, busy=per_s * duration_s, service_s=duration_s, **fields)


def test_declared_capacity_holds_without_telemetry_or_learning() -> None:
    assert Watched().look().of(0) == EngineCapacity(slots=8, service_s=1, source="as declared")
    off = Watched(learn=False)
    for _ in range(10):
        off.look(e0=calls(10, 0.3))
    assert off.of(0).service_s == 1


def test_restart_does_not_turn_declared_into_measured_capacity() -> None:
    watched = Watched(1)
    # As restored from a file: equal, but another object.
    source = " ".join(watched.look().of(0).source.split())
    key, estimate = EngineId("pool", "e0"), CapacityEstimate(done=1.0, busy=0.5, at_s=watched.now_s)
    capacity = EngineCapacity(slots=8, service_s=0.5, source=source)
    watched.known = CapacityMemory(capacities={key: capacity}, estimates={key: estimate})
    assert watched.look().of(0).service_s == 1


def test_service_time_uses_durations_or_throughput_under_a_queue() -> None:
    watched = Watched()
    for _ in range(10):
        # e1 serves 16/s with eight slots: half a second each, and two and a half of waiting.
        watched.look(e0=calls(10, 0.5), e1=calls(16, 3.0))
    assert watched.of(0).service_s == pytest.approx(0.5, rel=0.03)
    assert watched.of(1).service_s == pytest.approx(0.5, rel=0.03)


def test_engine_with_few_calls_gets_its_peers_service_time() -> None:
    watched = Watched().look(e0=calls(5, 0.5))
    assert watched.of(0).source == "as declared"
    for _ in range(10):
        watched.look(e0=calls(5, 0.5), e1=calls(5, 0.7), e2=calls(5, 0.6))
    assert (watched.of(3).service_s, watched.of(3).source) == (pytest.approx(0.6, rel=0.03), "as its peers")
    sparse = Watched(40)
    for _ in range(3):
        sparse.look(**{f"e{place}": calls(0.5, 0.4) for place in range(40)})
    assert sparse.of(7).service_s == pytest.approx(0.4, rel=0.03)


def paced(decision: EngineDecision | None) -> Watched:
    """Engines at half a second, then e0 at a tenth of its pace, and with this decision."""
    watched = Watched()
    for step in range(12):
        rate = 120.0 if step < 8 else 12.0
        if step >= 8 and decision is not None:
            watched.decisions[EngineId("pool", "e0")] = decision
        for place in range(4):
            watched.report(
                place,
                observed_at_s=watched.now_s + 1,
                source=ReportSource.AGENT,
                requests_in_flight=8,
                requests_waiting=0,
                tokens_per_s=8 * (rate if place == 0 else 120.0),
            )
        slow = calls(1.6, 5.0) if step >= 8 else calls(16, 0.5)
        watched.look(e0=slow, e1=calls(16, 0.5), e2=calls(16, 0.5), e3=calls(16, 0.5))
    return watched


def test_engine_that_makes_tokens_more_slowly_takes_longer_by_as_much() -> None:
    watched = paced(None)
    assert watched.of(0).service_s == pytest.approx(5.0, rel=0.2)
    assert watched.of(0).usual_s == pytest.approx(0.5, rel=0.2)
    assert watched.of(1).service_s == pytest.approx(0.5, rel=0.03)


def test_share_of_a_paced_engine_is_not_counted_twice() -> None:
    share = EngineDecision(health=Health.HEALTHY, reason="", since_s=0, traffic_percent=20, paced=True)
    watched = paced(share)
    assert watched.of(0).per_s * 0.2 == pytest.approx(1.6, rel=0.2)
    out = replace(share, traffic_percent=5)
    assert paced(out).of(0).service_s == pytest.approx(0.5, rel=0.03)


def slowing(ended_per_s: float) -> list[float]:
    """Service times of a pool, for 3 s, each quarter of a second after its calls began to end this rarely."""
    watched, done, found = Watched(), 0.0, []
    healthy = EngineDecision(health=Health.HEALTHY, reason="", since_s=0)
    watched.decisions = {one.id: healthy for one in watched.engines}
    for step in range(72):
        per_s = 16.0 if step < 60 else ended_per_s
        done += per_s / 4
        watched.look(
            0.25,
            **{
                f"e{place}": EngineTraffic(
                    done_per_s=per_s, busy=8.0, service_s=8 / per_s, in_flight=8, succeeded=int(done)
                )
                for place in range(4)
            },
        )
        found.append(watched.of(0).service_s)
    return found[60:]


def test_pool_that_slows_down_keeps_what_its_few_calls_show() -> None:
    """Too few calls for an estimate of their own: the declared second would be five times too fast."""
    assert min(slowing(1.6)[8:]) >= 2.0


def test_implausible_service_times_are_ignored() -> None:
    watched = Watched()
    for _ in range(10):
        watched.look(e0=calls(500, 0.01), e1=calls(3, 7.9), e2=calls(20, 0.4), e3=calls(20, 0.4))
    assert watched.of(0).service_s == pytest.approx(0.4, rel=0.05)
    assert watched.of(1).service_s == pytest.approx(8 / 3, rel=0.03)
    slow = Watched(1)
    for _ in range(60):
        slow.look(e0=calls(1.5, 7.9))
    assert slow.of(0).service_s == 4
    alone = Watched(1)
    for _ in range(10):
        alone.look(e0=calls(500, 0.01))
    assert alone.of(0).service_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    "bad",
    [
        {"decision": EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0)},
        {"decision": EngineDecision(health=Health.HEALTHY, reason="", since_s=0, traffic_percent=25)},
        {"window_calls": 20, "window_failures": 10},
    ],
)
def test_ejected_half_open_or_failing_engine_teaches_no_capacity(bad: dict[str, Any]) -> None:
    watched = Watched()
    for _ in range(10):
        watched.look(e0=calls(10, 0.5))
    if "decision" in bad:
        watched.decisions[EngineId("pool", "e0")] = bad.pop("decision")
    for _ in range(20):
        watched.look(e0=calls(10, 0.1, **bad))
    assert watched.of(0).service_s == pytest.approx(0.5, rel=0.03)


def test_small_capacity_moves_are_ignored() -> None:
    watched = Watched()
    for _ in range(30):
        watched.look(e0=calls(10, 0.5))
    before = watched.of(0)
    assert watched.look(0.1).of(0) is before
    for _ in range(30):
        watched.look(e0=calls(10, 0.51))
    assert watched.of(0) == before
    for _ in range(30):
        watched.look(e0=calls(10, 0.53))
    assert watched.of(0).service_s > before.service_s


def test_learned_capacity_outlives_lost_telemetry_for_minutes() -> None:
    watched = Watched()
    for _ in range(10):
        watched.look(e0=calls(10, 0.5))
    assert watched.look(300).of(0).service_s == pytest.approx(0.5, rel=0.03)
    assert watched.look(400).of(0).source == "as declared"


def test_agent_may_lower_slots_and_never_raise_them() -> None:
    assert Watched().report(0, slots=6).look().of(0).slots == 6
    assert Watched().report(0, slots=600).look().of(0).slots == 8


def test_kv_bound_engine_has_as_many_slots_as_it_runs() -> None:
    watched = Watched()
    for _ in range(15):
        watched.report(0, requests_in_flight=9, requests_waiting=6, kv_cache_usage_ratio=0.97).look()
    assert watched.of(0).slots == pytest.approx(3, abs=0.5)
    for _ in range(5):
        watched.report(0, requests_in_flight=3, requests_waiting=0, kv_cache_usage_ratio=0.9).look()
    assert watched.of(0).slots < 4.5, "it grows slowly, to avoid swings"
    for _ in range(300):
        watched.report(0, requests_in_flight=3, requests_waiting=0, kv_cache_usage_ratio=0.5).look()
    assert watched.of(0).slots == 8
    full = Watched()
    for _ in range(15):
        full.report(0, requests_in_flight=20, requests_waiting=12, kv_cache_usage_ratio=0.97).look()
    assert full.of(0).slots == 8, "all slots are in use, so none are taken away"


def test_more_waiting_than_in_flight_requests_count_as_none_running() -> None:
    watched = Watched()
    for _ in range(15):
        watched.report(0, requests_in_flight=0, requests_waiting=300, kv_cache_usage_ratio=0.97).look()
    assert watched.of(0).slots == 1
    learned = watched.known.estimates.get(EngineId("pool", "e0"))
    assert learned is not None
    assert learned.slots is not None
    assert learned.slots >= 0
    for _ in range(60):
        watched.report(0, requests_in_flight=1, requests_waiting=0, kv_cache_usage_ratio=0.5).look()
    assert watched.of(0).slots > 1.5, "it recovers as fast as any other"


@given(
    st.lists(
        st.tuples(st.floats(0, 200), st.floats(0, 50), st.integers(0, 40), st.integers(0, 40), st.floats(0, 1)),
        max_size=30,
    )
)
def test_learned_capacity_stays_within_bounds(
    told: list[tuple[float, float, int, int, float]],
) -> None:
    watched = Watched(2)
    for per_s, duration_s, in_flight, waiting, kv in told:
        watched.report(0, requests_in_flight=in_flight, requests_waiting=waiting, kv_cache_usage_ratio=kv).look(
            e0=calls(per_s, duration_s)
        )
        for place in (0, 1):
            assert 1 <= watched.of(place).slots <= 8
            assert 0.1 <= watched.of(place).service_s <= 4


@pytest.mark.parametrize("open_calls", [6, 8, 20])
def test_service_time_of_calls_longer_than_the_rate_window(open_calls: int) -> None:
    """At most eight slots work; each call takes three seconds, and all end at once."""
    watched, running = Watched(count=1), min(open_calls, 8)
    for step in range(240):
        since_s = step * 0.25 % 3.0
        ended = since_s < RATE_S and step >= 12
        watched.look(
            0.25,
            e0=EngineTraffic(
                done_per_s=running / RATE_S if ended else 0.0,
                busy=running * 3.0 / RATE_S if ended else 0.0,
                service_s=3.0 if ended else None,
                in_flight=open_calls,
            ),
        )
    assert watched.of(0).service_s == pytest.approx(3.0, rel=0.1)


def test_warm_up_calls_do_not_change_the_declared_service_time() -> None:
    """24 calls of a few tokens raised a ceiling from 321 to 704."""
    watched = Watched(1)
    for _ in range(6):
        watched.look(e0=calls(24, 0.02))
    assert watched.of(0).service_s == 1
    for _ in range(6):
        watched.look(e0=calls(24, 0.1))
    assert watched.of(0).service_s < 0.3, "work proves it"
