"""Ceilings: the formula, its division, and its bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from tests.xds_server.decide.admission.eight_engines import BOTH, Pool, decided, engine, gateway, limit, parts
from xds_server.decide.admission.stuck_requests import StuckRequests
from xds_server.decide.decisions import Ejector, EngineCapacity, Health
from xds_server.model.fleet import Engine, EngineId


def test_max_requests_follows_slots_wait_and_service_time() -> None:
    assert limit().interactive == 144
    assert limit(service_time="500ms").interactive == 360
    assert limit(limits={"maxWait": "0s"}).interactive == 72
    assert "72 slots x (1 + 2 s wait / 2 s service)" in limit().reason


def test_per_slot_and_absolute_limits_win_in_that_order() -> None:
    assert limit(limits={"concurrentPerSlot": 1.5}).interactive == 108
    assert limit(limits={"concurrentPerSlot": 1.5, "maxConcurrent": 7}).interactive == 7


def test_gateways_share_max_requests_and_sidecars_do_not() -> None:
    assert limit(gateways=3).interactive == 48
    assert limit(gateways=3, sidecars=500, role="sidecar").interactive == 144
    assert limit(gateways=0).interactive == 144


def test_classes_share_only_where_both_are_in_use() -> None:
    one, both = limit(), limit(classes=BOTH)
    assert (one.interactive, one.batch) == (144, 144)
    assert (both.interactive, both.batch) == (130, 15)


def test_zero_share_sheds_everything() -> None:
    shut = limit(classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0}}})
    assert (shut.interactive, shut.batch) == (130, 0)
    tiny = limit(slots=1, classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0.1}}})
    assert tiny.batch == 1


def test_retry_budget_min_concurrency_is_divided_and_its_percentage_is_not() -> None:
    said = limit(retryBudget={"percent": 30})
    assert (said.retry_percent, said.retry_min_concurrency) == (30.0, 12)
    shared = limit(gateways=2, sidecars=4, retryBudget={"percent": 30, "minConcurrency": 60})
    assert (shared.retry_percent, shared.retry_min_concurrency) == (30.0, 10)
    assert limit(gateways=100, retryBudget={"percent": 30}).retry_min_concurrency == 1
    assert limit(retryBudget={"percent": 30, "minConcurrency": 0}).retry_min_concurrency == 0


def test_derived_retry_budget_covers_all_cut_requests() -> None:
    derived = limit()
    assert derived.retry_percent == 100.0
    assert derived.interactive <= derived.retry_min_concurrency < 2 * derived.interactive
    hedged = limit(hedging={"enabled": True, "delay": "1s"})
    assert hedged.retry_min_concurrency == 12


@given(st.integers(0, 5000), st.integers(0, 500), st.integers(0, 40), st.sampled_from([BOTH, frozenset()]))
def test_ceilings_grow_with_slots_fall_with_gateways_and_lose_nothing(
    slots: int, more: int, gateways: int, classes: frozenset[PriorityClass]
) -> None:
    small, large = (limit(count, gateways=gateways, classes=classes) for count in (slots, slots + more))
    assert 1 <= small.interactive <= large.interactive
    assert 1 <= small.batch <= large.batch
    fewer = limit(slots, gateways=max(1, gateways - 1), classes=classes)
    assert fewer.interactive >= small.interactive
    whole = limit(slots, classes=classes)
    assert whole.interactive <= small.interactive * max(1, gateways) <= whole.interactive + max(1, gateways)


# -- following capacity ---------------------------------------------------------------------------------------


def test_max_requests_counts_admitted_engines_and_half_open_ones_by_share() -> None:
    pool = Pool()
    assert pool.decide().total == 320
    pool.out(0, 1)
    assert pool.decide().total == 240
    pool.decisions[EngineId("pool", "e2")] = decided(Health.DRAINING)
    pool.decisions[EngineId("pool", "e3")] = decided(traffic_percent=25)
    assert pool.decide().total == 170
    assert "4.25" not in pool.decide().reason
    assert "5 of 8 engines in" in pool.decide().reason
    pool.out(*range(8))
    none = pool.decide()
    assert none.total == 1
    assert none.pressure is None
    assert min(parts(none).values()) == 1


def test_ceiling_follows_estimates_in_steps_and_capacity_at_once() -> None:
    pool = Pool()
    assert pool.decide().total == 320

    def all_take(service_s: float) -> None:
        pool.capacities = {key: EngineCapacity(slots=8, service_s=service_s, source="") for key in pool.capacities}

    all_take(0.505)
    assert pool.decide().total == 320
    all_take(0.6)
    assert pool.decide().total == 278
    # One engine of two hundred is less than the step, but still counts.
    pool.engines = [engine(place) for place in range(200)]
    pool.decisions = {one.id: decided() for one in pool.engines}
    pool.capacities = {one.id: EngineCapacity(slots=8, service_s=0.5, source="") for one in pool.engines}
    assert pool.decide().total == 8000
    pool.out(0)
    assert pool.decide().total == 7960


def test_ceiling_counts_engines_by_speed() -> None:
    pool = Pool()
    pool.capacities[EngineId("pool", "e0")] = EngineCapacity(slots=4, service_s=1.0, source="")
    assert pool.decide().total == 7 * 40 + 4 * 3


# -- stuck requests -------------------------------------------------------------------------------------------


def test_requests_stuck_on_ejected_engines_raise_max_requests_of_their_proxy() -> None:
    pool = Pool()
    pool.out(0)
    loaded = {"in_flight_on": {"e0": 9, "e1": 5}, "load_at_s": pool.now_s}
    free = parts(pool.decide(a=pool.told(50), b=pool.told(50)))
    held = pool.decide(a=pool.told(50, **loaded), b=pool.told(50))
    assert held.held == 9
    assert parts(held) == {"a": free["a"] + 9, "b": free["b"]}
    assert "9 held by ejected engines" in held.by_proxy["a"].reason
    stale = {**loaded, "load_at_s": pool.now_s - 10}
    assert pool.decide(a=pool.told(50, **stale), b=pool.told(50)).held == 0


@pytest.mark.parametrize(
    ("cuts", "load_after_s", "held"), [(True, 0.0, 0), (True, 0.2, 0), (True, 0.4, 9), (False, 0.0, 9)]
)
def test_cut_requests_do_not_count_as_stuck(cuts: bool, load_after_s: float, held: int) -> None:
    pool = Pool()
    pool.proxies["a"] = gateway("a", cuts=cuts)
    pool.out(0, cut=True)
    loaded = pool.told(50, in_flight_on={"e0": 9}, load_at_s=pool.now_s + load_after_s)
    assert pool.decide(a=loaded, b=pool.told(50)).held == held


def test_requests_that_will_fail_keep_places_below_the_ceiling_for_their_retries() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3, ejector=Ejector.ERRORS)
    free = pool.decide(a=pool.told(50), b=pool.told(50))
    assert free.total == 160, "32 of them are slots"
    failing = {"in_flight_on": {"e0": 50, "e1": 50, "e4": 20}, "load_at_s": pool.now_s}
    some = pool.decide(a=pool.told(50, **failing), b=pool.told(50))
    assert (some.held, parts(some)) == (0, parts(free))
    failing["in_flight_on"] = {"e0": 140, "e1": 20}
    more = pool.decide(a=pool.told(50, **failing), b=pool.told(50))
    assert more.held == 160 - (160 - 32), "other requests still fill the slots"
    pool.resilience = ResilienceSpec.model_validate({"retries": {"attempts": 0}})
    assert pool.decide(a=pool.told(50, **failing), b=pool.told(50)).held == 160


@given(
    stuck=st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 200), st.integers(0, 200))),
    ceiling=st.integers(1, 400),
    slots=st.floats(0, 400),
)
def test_stuck_requests_leave_the_slots_to_others(
    stuck: dict[str, tuple[int, int]], ceiling: int, slots: float
) -> None:
    requests = StuckRequests(
        all={node: max(one) for node, one in stuck.items()},
        failing={node: min(one) for node, one in stuck.items() if min(one)},
    )
    above = requests.above(ceiling, slots)
    for node, count in requests.all.items():
        assert count - requests.failing.get(node, 0) <= above.get(node, 0) <= count
    below = sum(requests.all.values()) - sum(above.values())
    assert below <= max(0.0, ceiling - slots) + 1e-6
    assert below >= min(sum(requests.failing.values()), ceiling - slots) - len(stuck) - 1e-6


def test_requests_beyond_a_reduced_share_leave_room_for_the_other_engines() -> None:
    """An engine became slower: what it holds from before must not refuse callers of the others."""
    pool = Pool()
    pool.decisions[EngineId("pool", "e0")] = decided(traffic_percent=25, paced=True)
    loads = {"in_flight_on": {"e0": 15, "e1": 40}, "load_at_s": pool.now_s}, {
        "in_flight_on": {"e0": 15}, "load_at_s": pool.now_s
    }  # fmt: skip
    held = pool.decide(a=pool.told(50, **loads[0]), b=pool.told(50, **loads[1]))
    assert (held.total, held.held) == (290, 20), "10 of 30 are its part"
    within = {"in_flight_on": {"e0": 10, "e1": 40}, "load_at_s": pool.now_s}
    assert pool.decide(a=pool.told(50, **within), b=pool.told(50)).held == 0
    stale = {**loads[1], "load_at_s": pool.now_s - 10}
    assert pool.decide(a=pool.told(50, **loads[0]), b=pool.told(50, **stale)).held == 5


def test_stuck_requests_without_load_reports_use_engine_counts() -> None:
    pool = Pool()
    hung = EngineReport(
        pool="pool", engine="e0", verdict=Verdict.HUNG, evidence="", observed_at_s=0, requests_in_flight=20
    )
    pool.engines[0] = Engine(
        **{name: getattr(pool.engines[0], name) for name in Engine.__slots__} | {"report": hung}
    )
    pool.out(0, verdict=Verdict.HUNG)
    pool.out(1)
    assert pool.decide().held == 20
    pool.out(0, verdict=Verdict.DEAD)
    assert pool.decide().held == 0


# -- shares of the proxies ------------------------------------------------------------------------------------
