"""Requests in prefill get places of their own, but none that would fill the decode engines beyond their limit."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.resilience import Limits
from tests.xds_server.decide.admission.eight_engines import POOL, Pool, decided, engine
from xds_server.decide.admission.pool_limit import TotalCeiling, ready_capacity, total_ceiling
from xds_server.decide.admission.requests_in_prefill import (
    PrefillLoad,
    prefill_load,
    prefill_places,
    settled_places,
    traffic_in_decode,
)
from xds_server.decide.decisions import EngineCapacity, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic

TRAFFIC = PoolTraffic(
    engines={
        "e0": EngineTraffic(busy=6.0, in_flight=6, done_per_s=3.0),
        "e1": EngineTraffic(busy=2.0, in_flight=4),
    }
)


@given(st.floats(0, 500), st.floats(0, 100), st.integers(0, 500), st.integers(1, 100), st.floats(0.1, 100))
def test_places_are_some_of_the_requests_in_prefill(
    held: float, per_s: float, whole: int, slots: int, ends_per_s: float
) -> None:
    places = prefill_places(PrefillLoad(in_flight=held, per_s=per_s), whole, (slots, ends_per_s))
    assert 0 <= places <= min(held, whole)


def test_slow_prefill_gets_all_places_and_idle_decode_engines_none() -> None:
    # 12 of 20 requests are in prefill, which completes 10 a second; 8 of 16 slots end 16 a second.
    assert prefill_places(PrefillLoad(in_flight=12, per_s=10), 20, (16, 32)) == 12
    # It completes 20 a second: decode engines end 16 meanwhile.
    assert prefill_places(PrefillLoad(in_flight=12, per_s=20), 20, (16, 32)) == pytest.approx(12 * 16 / 20)
    # A burst: all will come at once.
    assert prefill_places(PrefillLoad(in_flight=12, per_s=10), 12, (16, 32)) == 0
    assert prefill_places(None, 12, (16, 32)) == 0
    # No prompt ends: they hold no decode engine.
    assert prefill_places(PrefillLoad(in_flight=12, per_s=0), 20, (16, 32)) == 12


@given(
    slots=st.integers(4, 60),
    service_s=st.floats(0.2, 5),
    prefill_slots=st.integers(1, 60),
    prefill_s=st.floats(0.05, 8),
    wait_s=st.floats(0.2, 3),
    arrivals_per_s=st.floats(1, 400),
)
@example(slots=64, service_s=5, prefill_slots=100, prefill_s=5, wait_s=0.5, arrivals_per_s=200)
@settings(max_examples=60)
def test_full_decode_engines_stop_prefill_and_never_fill_beyond_their_limit(
    *, slots: int, service_s: float, prefill_slots: int, prefill_s: float, wait_s: float, arrivals_per_s: float
) -> None:
    """As a flow: both stages take what they can, and callers ask for any amount."""
    limit = slots * (1 + wait_s / service_s)
    admitted = 0.0
    decode_per_s, step_s = slots / service_s, min(prefill_s, service_s) / 40
    waiting = decoding = 0.0
    for _ in range(3000):
        prefill_per_s = min(waiting, prefill_slots) / prefill_s
        load = PrefillLoad(in_flight=waiting, per_s=prefill_per_s)
        ends_per_s = decode_per_s * min(1.0, decoding / slots)
        places = prefill_places(load, waiting + decoding, (slots, decode_per_s))
        room = max(0.0, limit + places - waiting - decoding)
        waiting += min(room, arrivals_per_s * step_s) - prefill_per_s * step_s
        decoding += (prefill_per_s - ends_per_s) * step_s
        admitted += min(room, arrivals_per_s * step_s)
        assert decoding <= 1.02 * limit
    # What both stages and the callers allow is used, after the queues have filled.
    able_per_s = min(arrivals_per_s, decode_per_s, prefill_slots / prefill_s)
    assert admitted >= 0.8 * able_per_s * 3000 * step_s


@given(
    slots=st.integers(4, 60),
    service_s=st.floats(0.2, 5),
    prefill_slots=st.integers(1, 60),
    prefill_s=st.floats(0.2, 8),
    wait_s=st.floats(0.2, 3),
    arrivals_per_s=st.floats(1, 400),
)
@example(slots=60, service_s=0.2, prefill_slots=60, prefill_s=8, wait_s=3, arrivals_per_s=400)
@example(slots=15, service_s=0.25, prefill_slots=23, prefill_s=0.25, wait_s=1.0, arrivals_per_s=97.0)
@settings(max_examples=60)
def test_settled_places_lose_no_request_and_fill_decode_engines_by_about_a_step_more(
    *, slots: int, service_s: float, prefill_slots: int, prefill_s: float, wait_s: float, arrivals_per_s: float
) -> None:
    """The flow of above for some seconds, with places as they are pushed."""
    limit = slots * (1 + wait_s / service_s)
    decode_per_s, step_s = slots / service_s, min(prefill_s, service_s) / 40
    waiting = decoding = admitted = 0.0
    places, moved_at_s, moves = 0, float("-inf"), 0
    for number in range(3000):
        prefill_per_s = min(waiting, prefill_slots) / prefill_s
        load = PrefillLoad(in_flight=waiting, per_s=prefill_per_s)
        held, now_s = waiting + decoding, number * step_s
        wanted = prefill_places(load, held, (slots, decode_per_s))
        fresh = settled_places(
            wanted, places, round(limit), decoding=decoding, held=held, age_s=now_s - moved_at_s
        )
        if fresh != places:
            places, moved_at_s, moves = fresh, now_s, moves + 1
        entered = min(max(0.0, limit + places - held), arrivals_per_s * step_s)
        waiting += entered - prefill_per_s * step_s
        decoding += (prefill_per_s - decode_per_s * min(1.0, decoding / slots)) * step_s
        admitted += entered
        assert decoding <= 1.3 * limit
    able_per_s = min(arrivals_per_s, decode_per_s, prefill_slots / prefill_s)
    assert admitted >= 0.8 * able_per_s * 3000 * step_s
    assert moves <= 3000 * step_s + 1


def test_service_time_leaves_out_the_share_in_prefill() -> None:
    seen = traffic_in_decode(TRAFFIC, PrefillLoad(in_flight=4, per_s=10))
    assert seen is not None
    assert {name: (one.busy, one.in_flight) for name, one in seen.engines.items()} == {
        "e0": (pytest.approx(3.6), None),
        "e1": (pytest.approx(1.2), None),
    }
    assert traffic_in_decode(TRAFFIC, None) is TRAFFIC
    more = traffic_in_decode(TRAFFIC, PrefillLoad(in_flight=40, per_s=10))
    assert more is not None
    assert {one.busy for one in more.engines.values()} == {0.0}, "reports are of different moments"


def settled(places: float, before: int, **more: float) -> int:
    """Of a ceiling of 64, with little in decode and the pool as full as its places allow."""
    given = {"decoding": 10.0, "held": 64.0 + before, "age_s": 60.0, **more}
    return settled_places(places, before, 64, **given)


def test_places_grow_in_steps_when_requests_may_need_them() -> None:
    assert settled(3.2, 0) == 0, "a few have room anyway"
    assert settled(12.3, 0) == 16
    assert settled(20.0, 16) == 32
    assert settled(20.0, 16, held=60) == 16, "a quarter is free"
    assert settled(20.0, 16, held=65) == 32
    assert settled(20.0, 16, decoding=58) == 20, "decode engines are full"


def test_places_fall_by_halves_later_or_at_once_if_decode_engines_are_full() -> None:
    assert settled(17.0, 32) == 32
    assert settled(16.0, 32) == 16
    assert settled(16.0, 32, age_s=4) == 32
    assert settled(0.0, 16) == 0
    assert settled(17.0, 32, decoding=58) == 17
    assert settled(17.0, 32, decoding=58, age_s=2) == 17
    assert settled(17.0, 32, decoding=58, age_s=0.9) == 32, "reports are as old"


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=40), st.integers(1, 200))
@example(counts=[(50, 50), (0, 50)] * 20, ceiling=50)
def test_places_move_once_a_second_at_most(counts: list[tuple[int, int]], ceiling: int) -> None:
    """Whatever proxies and prefill engines report, in four rounds a second."""
    places, moved_at_s, moves = 0, float("-inf"), 0
    for number, (waiting, decoding) in enumerate(counts):
        now_s = number / 4
        found = settled_places(
            waiting, places, ceiling, decoding=decoding, held=waiting + decoding, age_s=now_s - moved_at_s
        )
        if found != places:
            places, moved_at_s, moves = found, now_s, moves + 1
    assert moves <= len(counts) / 4 + 1


NOW_S = 100.0


def prefiller(name: str, held: int | None, *, age_s: float = 1.0) -> Engine:
    report = EngineReport(
        pool="first",
        engine=name,
        verdict=Verdict.READY,
        evidence="",
        observed_at_s=NOW_S - age_s,
        requests_in_flight=held,
    )
    return replace(engine(0), id=EngineId("first", name), report=report, received_at_s=NOW_S - age_s)


def test_load_counts_fresh_reports_and_completes_no_prompt_on_ejected_engines() -> None:
    engines = [prefiller("a", 1), prefiller("b", 6), prefiller("c", 8), prefiller("old", 9, age_s=60)]
    capacities = {one.id: EngineCapacity(slots=2.0, service_s=0.5, source="") for one in engines}
    decisions = {one.id: decided() for one in engines} | {engines[2].id: decided(Health.UNHEALTHY)}
    load = prefill_load(engines, decisions, capacities, part=0.5, now_s=NOW_S)
    # Of 4 a second each: a half busy, b whole, c out.
    assert load == PrefillLoad(in_flight=0.5 * 15, per_s=0.5 * (2 + 4))
    assert prefill_load([prefiller("a", 0), prefiller("b", None)], {}, {}, part=1.0, now_s=NOW_S) is None


def test_ceiling_grows_by_the_requests_in_prefill_and_names_them() -> None:
    pool = Pool()
    before = pool.decide().total
    engines = PoolEngines(engines=pool.engines, decisions=pool.decisions, capacities=pool.capacities)
    ready = ready_capacity(POOL, engines, None)

    def ceiling(prefill: PrefillLoad | None, **limits: object) -> TotalCeiling:
        return total_ceiling(Limits.model_validate(limits), POOL, ready, None, prefill=prefill, whole=320)

    load = PrefillLoad(in_flight=100, per_s=50)
    assert ceiling(None).total == before
    assert (ceiling(load).total, ceiling(load).prefill_places) == (before + 160, 160)
    assert "+ 160 in prefill" in ceiling(load).how
    assert ceiling(load, maxConcurrent=50).total == 50, "the written limit"
