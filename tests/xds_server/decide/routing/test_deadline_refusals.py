"""Refused deadlines: from the shortest answers without a wait, and the present wait for a slot."""

from dataclasses import replace
from itertools import pairwise

import pytest

from xds_server.decide.decision_memory import DeadlineMemory
from xds_server.decide.decisions import EngineCapacity, EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.decide.routing.deadline_refusals import BASE_INTERVAL_S, MIN_CALLS, QUIET_S, deadline_refusals
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import LatencyTail, PoolTraffic

SLOTS, SERVICE_S = 4.0, 2.0


def fleet(*in_flight: int, out: tuple[int, ...] = ()) -> PoolEngines:
    engines = tuple(
        Engine(
            id=EngineId("p", f"e{number}"),
            address=f"10.0.0.{number + 1}",
            port=8000,
            zone="",
            region="",
            slots=4,
            weight=1,
            tensor_parallel_group="",
            labels={},
        )
        for number in range(len(in_flight))
    )
    return PoolEngines(
        engines=engines,
        decisions={
            one.id: EngineDecision(
                health=Health.UNHEALTHY if number in out else Health.HEALTHY, reason="", since_s=0.0
            )
            for number, one in enumerate(engines)
        },
        capacities={one.id: EngineCapacity(slots=SLOTS, service_s=SERVICE_S, source="") for one in engines},
        in_flight={one.id.engine: count for one, count in zip(engines, in_flight, strict=True)},
    )


def seen(shortest_s: float, now_s: float, calls: int = MIN_CALLS) -> PoolTraffic:
    tail = LatencyTail(
        p50_s=4 * shortest_s, p95_s=8 * shortest_s, p99_s=9 * shortest_s, calls=calls, shortest_s=shortest_s
    )
    return PoolTraffic(answer=tail, heard_at_s=now_s)


def after(
    before: DeadlineMemory | None, engines: PoolEngines, traffic: PoolTraffic | None, now_s: float
) -> DeadlineMemory:
    memory = deadline_refusals(before, stated=True, traffic=traffic, engines=engines, now_s=now_s)
    assert memory is not None
    return memory


def refused_below_s(memory: DeadlineMemory) -> float | None:
    steps = memory.decided.answer
    return None if steps is None else steps.refused_below_s


IDLE = fleet(1, 1)


def test_pool_whose_routes_read_no_deadline_decides_nothing() -> None:
    assert deadline_refusals(None, stated=False, traffic=seen(1.0, 0.0), engines=IDLE, now_s=0.0) is None


def test_nothing_is_refused_before_enough_answers_were_seen() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0, calls=MIN_CALLS - 1), 0.0)
    assert memory.decided.answer is None
    assert "fewer than 20 answers" in memory.decided.reason


def test_without_a_wait_only_less_than_the_shortest_answer_is_refused() -> None:
    assert refused_below_s(after(None, IDLE, seen(1.0, 0.0), 0.0)) == pytest.approx(1.0)


def test_present_wait_adds_to_it_and_leaves_with_it() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    # 4 slots in 2 s are 2 answers a second: 5 requests beyond the slots wait 2.5 s. With the answer, 3.5 s.
    memory = after(memory, fleet(9, 20), seen(3.0, 1.0), 1.0)
    assert refused_below_s(memory) == pytest.approx(2.0)
    assert "the wait for a slot is 2.5 s" in memory.decided.reason
    # Answers of the last minute contain waits: what is known stays.
    memory = after(memory, IDLE, seen(3.0, 2.0), 2.0)
    assert refused_below_s(memory) == pytest.approx(1.0)


def test_least_wait_of_engines_in_rotation_counts() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    assert refused_below_s(after(memory, fleet(20, 0), seen(1.0, 1.0), 1.0)) == pytest.approx(1.0)
    assert refused_below_s(after(memory, fleet(20, 0, out=(1,)), seen(1.0, 1.0), 1.0)) == pytest.approx(8.0)


def test_no_engine_in_rotation_refuses_no_deadline() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    memory = after(memory, fleet(0, 0, out=(0, 1)), seen(1.0, 1.0), 1.0)
    assert refused_below_s(memory) is None
    assert memory.decided.reason == "no engine in rotation"


def test_faster_answers_count_at_once_also_under_load() -> None:
    memory = after(None, IDLE, seen(4.0, 0.0), 0.0)
    memory = after(memory, fleet(5, 5), seen(0.5, 1.0), 1.0)
    # 0.5 s for the shortest answer and 0.5 s of wait, which no step above the base of 4 s stands for.
    assert refused_below_s(memory) is None


def test_shortest_answer_a_little_below_the_base_still_refuses() -> None:
    """The shortest of 20 answers is not the shortest of a hundred: refusals must not end when that is seen."""
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    memory = after(memory, IDLE, seen(0.9, 1.0), 1.0)
    assert refused_below_s(memory) == pytest.approx(2 / 3)
    memory = after(memory, IDLE, seen(0.7, 2.0), 2.0)
    assert refused_below_s(memory) == pytest.approx(2 / 3)


def test_slower_answers_count_only_after_a_minute_without_a_wait() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    memory = after(memory, fleet(9, 9), seen(1.0, 1.0), 1.0)
    memory = after(memory, IDLE, seen(9.0, 1.0 + QUIET_S - 1), 1.0 + QUIET_S - 1)
    assert refused_below_s(memory) == pytest.approx(1.0)
    memory = after(memory, IDLE, seen(9.0, 1.0 + QUIET_S), 1.0 + QUIET_S)
    assert refused_below_s(memory) == pytest.approx(9.0)


def test_base_of_the_steps_moves_rarely() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    bases = []
    for second in range(1, 90):
        memory = after(memory, IDLE, seen(1.0 if second % 2 else 3.0, float(second)), float(second))
        assert memory.decided.answer is not None
        bases.append(memory.decided.answer.base_s)
    assert sum(one != other for one, other in pairwise(bases)) <= 90 / BASE_INTERVAL_S


def test_shortest_time_first_seen_under_load_does_not_count_the_wait_twice() -> None:
    memory = after(None, fleet(9, 9), seen(3.0, 0.0), 0.0)
    # 3.0 s contained 2.5 s of wait.
    assert memory.answer is not None
    assert memory.answer.time_s == pytest.approx(0.5)


def test_same_steps_keep_the_decision_object() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    assert after(memory, IDLE, replace(seen(1.0, 1.0)), 1.0).decided is memory.decided


def test_stale_telemetry_teaches_nothing() -> None:
    memory = after(None, IDLE, seen(1.0, 0.0), 0.0)
    assert after(memory, IDLE, seen(0.1, 0.0), 60.0).answer == memory.answer
