"""Ceilings: the formula, how it is shared, and its bounds."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report import EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool, EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from xds_server.decide.admission.ceiling import admission, ceiling_for_role, classes_by_pool
from xds_server.decide.decisions import Admission, Capacity, Ceiling, EngineDecision, Health, LadderState
from xds_server.fleet import Engine, EngineId
from xds_server.traffic import EngineTraffic, PoolTraffic, Proxy, ProxyTraffic

BOTH = frozenset(PriorityClass)
ONE = frozenset({PriorityClass.INTERACTIVE})
INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH
POOL = EnginePoolSpec.model_validate({"model": "m", "serviceTime": "500ms"})


def engine(place: int, slots: int = 8) -> Engine:
    return Engine(
        id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000, zone="", region="", slots=slots, weight=1,
        tensor_parallel_group="", labels={},
    )  # fmt: skip


def decided(health: Health = Health.HEALTHY, **fields: Any) -> EngineDecision:
    return EngineDecision(**{"health": health, "reason": "", "since_s": 100.0, **fields})


class Pool:
    """Eight engines of eight slots and half a second, and the admission of one moment after another."""

    def __init__(self, *, classes: frozenset[PriorityClass] = ONE, **resilience: Any) -> None:
        self.engines = [engine(place) for place in range(8)]
        self.decisions = {one.id: decided() for one in self.engines}
        self.capacities = {
            one.id: Capacity(slots=float(one.slots), service_s=0.5, source="") for one in self.engines
        }
        self.resilience = ResilienceSpec.model_validate(resilience)
        self.classes = classes
        self.proxies = {"a": gateway("a"), "b": gateway("b")}
        self.roles: Mapping[str, int] | None = None
        self.ladder: LadderState | None = None
        self.now_s = 100.0
        self.last: Admission | None = None

    def decide(self, passed_s: float = 0.1, **seen: ProxyTraffic) -> Admission:
        """After ``passed_s``; ``seen`` is what the proxies tell, none where nothing is given."""
        self.now_s += passed_s
        roles = {"gateway": 0, "sidecar": 0}
        for one in self.proxies.values():
            roles[one.role] += 1
        self.last = admission(
            POOL,
            self.resilience,
            self.engines,
            self.decisions,
            self.capacities,
            traffic=PoolTraffic(proxies=seen) if seen else None,
            classes=self.classes,
            proxies=self.proxies,
            proxies_by_role=self.roles or roles,
            ladder=self.ladder,
            before=self.last,
            now_s=self.now_s,
        )
        return self.last

    def told(self, interactive: float, batch: float = 0.0, shed: float = 0.0, **fields: Any) -> ProxyTraffic:
        """What a proxy tells that was asked so much per second and sheds so much of it, of the class it has."""
        shedding = {INTERACTIVE: shed} if interactive else {BATCH: shed}
        return ProxyTraffic(
            arrivals_per_s={INTERACTIVE: interactive, BATCH: batch},
            shed_per_s=fields.pop("shed_per_s", shedding),
            heard_at_s=fields.pop("heard_at_s", self.now_s + 0.1),
            **fields,
        )

    def out(self, *places: int, **fields: Any) -> None:
        for place in places:
            self.decisions[EngineId("pool", f"e{place}")] = decided(
                Health.UNHEALTHY, **{"since_s": self.now_s, **fields}
            )


def gateway(node: str, **fields: Any) -> Proxy:
    return Proxy(**{"node": node, "zone": "", "role": "gateway", **fields})


def parts(one: Admission) -> dict[str, int]:
    return {node: limit.interactive for node, limit in one.by_proxy.items()}


def limit(
    slots: int = 72,
    *,
    role: str = "gateway",
    gateways: int = 1,
    sidecars: int = 0,
    classes: frozenset[PriorityClass] = ONE,
    service_time: str = "2s",
    **resilience: Any,
) -> Ceiling:
    """The ceiling of a proxy of ``role`` where no proxy tells anything."""
    pool = EnginePoolSpec.model_validate({"model": "m", "serviceTime": service_time})
    spec = ResilienceSpec.model_validate(resilience)
    engines = [engine(0, slots)] if slots else []
    roles = {"gateway": gateways, "sidecar": sidecars}
    admitted = admission(
        pool,
        spec,
        engines,
        {one.id: decided() for one in engines},
        {one.id: Capacity(slots=float(slots), service_s=pool.service_time, source="") for one in engines},
        traffic=None,
        classes=classes,
        proxies={},
        proxies_by_role=roles,
        ladder=None,
        before=None,
        now_s=0.0,
    )
    return ceiling_for_role(admitted, spec, role, roles)


def test_slots_wait_and_service_time_make_the_ceiling() -> None:
    assert limit().interactive == 144
    assert limit(service_time="500ms").interactive == 360
    assert limit(limits={"maxWait": "0s"}).interactive == 72
    assert "72 slots x (1 + 2 s wait / 2 s service)" in limit().reason


def test_per_slot_and_absolute_limits_win_in_that_order() -> None:
    assert limit(limits={"concurrentPerSlot": 1.5}).interactive == 108
    assert limit(limits={"concurrentPerSlot": 1.5, "maxConcurrent": 7}).interactive == 7


def test_gateways_share_and_sidecars_do_not() -> None:
    assert limit(gateways=3).interactive == 48
    assert limit(gateways=3, sidecars=500, role="sidecar").interactive == 144
    assert limit(gateways=0).interactive == 144


def test_classes_share_only_where_both_are_in_use() -> None:
    one, both = limit(), limit(classes=BOTH)
    assert (one.interactive, one.batch) == (144, 144)
    assert (both.interactive, both.batch) == (130, 15)


def test_a_share_of_nothing_lets_nothing_in() -> None:
    shut = limit(classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0}}})
    assert (shut.interactive, shut.batch) == (130, 0)
    tiny = limit(slots=1, classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0.1}}})
    assert tiny.batch == 1


def test_the_retry_budgets_floor_is_divided_and_its_percentage_is_not() -> None:
    said = limit(retryBudget={"percent": 30})
    assert (said.retry_percent, said.retry_min_concurrency) == (30.0, 12)
    shared = limit(gateways=2, sidecars=4, retryBudget={"percent": 30, "minConcurrency": 60})
    assert (shared.retry_percent, shared.retry_min_concurrency) == (30.0, 10)
    assert limit(gateways=100, retryBudget={"percent": 30}).retry_min_concurrency == 1
    assert limit(retryBudget={"percent": 30, "minConcurrency": 0}).retry_min_concurrency == 0


def test_a_derived_retry_budget_is_as_wide_as_the_ceiling_so_that_all_that_is_cut_can_be_tried_again() -> None:
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


def test_only_engines_that_are_in_count_and_one_on_trial_by_its_share() -> None:
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


def test_learned_numbers_move_the_ceiling_in_steps_and_capacity_at_once() -> None:
    pool = Pool()
    assert pool.decide().total == 320

    def all_take(service_s: float) -> None:
        pool.capacities = {key: Capacity(slots=8, service_s=service_s, source="") for key in pool.capacities}

    all_take(0.505)
    assert pool.decide().total == 320
    all_take(0.6)
    assert pool.decide().total == 278
    # One engine of two hundred is less than the step, and counts all the same.
    pool.engines = [engine(place) for place in range(200)]
    pool.decisions = {one.id: decided() for one in pool.engines}
    pool.capacities = {one.id: Capacity(slots=8, service_s=0.5, source="") for one in pool.engines}
    assert pool.decide().total == 8000
    pool.out(0)
    assert pool.decide().total == 7960


def test_engines_of_unequal_speed_count_for_what_they_do() -> None:
    pool = Pool()
    pool.capacities[EngineId("pool", "e0")] = Capacity(slots=4, service_s=1.0, source="")
    assert pool.decide().total == 7 * 40 + 4 * 3


# -- what is stuck --------------------------------------------------------------------------------------------


def test_what_engines_that_are_out_hold_is_added_to_the_proxy_that_holds_it() -> None:
    pool = Pool()
    pool.out(0)
    loaded = {"in_flight_on": {"e0": 9, "e1": 5}, "load_at_s": pool.now_s}
    free = parts(pool.decide(a=pool.told(50), b=pool.told(50)))
    held = pool.decide(a=pool.told(50, **loaded), b=pool.told(50))
    assert held.held == 9
    assert parts(held) == {"a": free["a"] + 9, "b": free["b"]}
    assert "9 that engines hold" in held.by_proxy["a"].reason
    stale = {**loaded, "load_at_s": pool.now_s - 10}
    assert pool.decide(a=pool.told(50, **stale), b=pool.told(50)).held == 0


@pytest.mark.parametrize(
    ("cuts", "load_after_s", "held"), [(True, 0.0, 0), (True, 0.2, 0), (True, 0.4, 9), (False, 0.0, 9)]
)
def test_what_was_cut_holds_nothing_until_a_later_report_says_so(
    cuts: bool, load_after_s: float, held: int
) -> None:
    pool = Pool()
    pool.proxies["a"] = gateway("a", cuts=cuts)
    pool.out(0, cut=True)
    loaded = pool.told(50, in_flight_on={"e0": 9}, load_at_s=pool.now_s + load_after_s)
    assert pool.decide(a=loaded, b=pool.told(50)).held == held


def test_without_load_reports_the_engines_own_count_is_shared_and_the_dead_hold_nothing() -> None:
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


def test_a_shortage_is_divided_by_what_arrives_refused_or_not() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    short = pool.decide(a=pool.told(90, shed=40), b=pool.told(30, shed=14))
    assert short.pressure == pytest.approx(120 / 64)
    assert parts(short) == {"a": 120, "b": 40}


def test_demand_that_changes_sides_is_followed_within_seconds() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    for _ in range(20):
        pool.decide(a=pool.told(90), b=pool.told(30))
    for _ in range(20):
        after = pool.decide(a=pool.told(30), b=pool.told(90))
    assert parts(after) == pytest.approx({"a": 40, "b": 120}, abs=16)


def test_who_refuses_callers_while_there_is_room_gets_it_in_the_next_round() -> None:
    pool = Pool(limits={"maxWait": "0s"})
    for _ in range(30):
        before = pool.decide(a=pool.told(60), b=pool.told(3))
    after = pool.decide(a=pool.told(60), b=pool.told(9, shed=0.5))
    assert parts(after)["b"] >= 2 * parts(before)["b"]
    assert sum(parts(after).values()) <= 64 + 2


def test_lost_telemetry_keeps_an_even_part_and_who_is_away_does_too() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    pool.decide(a=pool.told(90), b=pool.told(30))
    lost = pool.decide(0.3, a=pool.told(90), b=pool.told(30, heard_at_s=pool.now_s - 6))
    assert parts(lost) == {"a": 80, "b": 80}
    assert lost.pressure == pytest.approx(180 / 64)
    pool.roles = {"gateway": 3}
    assert sum(parts(pool.decide(a=pool.told(90), b=pool.told(30))).values()) == pytest.approx(107, abs=1)
    pool.roles = None
    del pool.proxies["b"]
    assert parts(pool.decide(a=pool.told(90))) == {"a": 160}


def test_a_gateway_that_stands_by_takes_nothing_from_the_one_that_works() -> None:
    pool = Pool()
    pool.out(0, 1, 2, 3)
    assert parts(pool.decide(a=pool.told(90, shed=30))) == {"a": 160, "b": 80}


def test_what_was_asked_before_a_long_silence_does_not_divide_an_idle_pool() -> None:
    pool = Pool()
    for _ in range(30):
        pool.decide(a=pool.told(0), b=pool.told(100))
    busy = parts(pool.decide(a=pool.told(0), b=pool.told(100)))
    assert busy["b"] > 5 * busy["a"]
    for _ in range(60):
        pool.decide(1.0, a=pool.told(0), b=pool.told(0))
    quiet = parts(pool.decide(a=pool.told(0), b=pool.told(0)))
    assert quiet["a"] == pytest.approx(quiet["b"], rel=0.1), "whoever is asked first has room"


def test_drift_moves_a_part_at_most_five_times_a_second_and_trifles_do_not() -> None:
    pool = Pool()
    for _ in range(30):
        pool.decide(a=pool.told(50), b=pool.told(50))
    still = pool.last
    moved = pool.decide(a=pool.told(51), b=pool.told(50))
    assert still is not None
    assert moved.by_proxy is still.by_proxy
    moves = 0
    for place in range(50):
        known = pool.last
        now = pool.decide(a=pool.told(50 + 4 * place), b=pool.told(50))
        moves += known is not None and now.by_proxy["a"] is not known.by_proxy["a"]
    assert 5 <= moves <= 5 * 5 + 1


def test_sidecars_have_room_for_bursts_until_the_pool_is_full() -> None:
    pool = Pool()
    pool.proxies = {f"s{place}": gateway(f"s{place}", role="sidecar") for place in range(100)}
    calm = pool.decide(**{node: pool.told(1.0) for node in pool.proxies})
    assert set(parts(calm).values()) == {6}
    full = pool.decide(**{node: pool.told(2.0, shed=0.5) for node in pool.proxies})
    assert full.crowded
    assert set(parts(full).values()) == {4}
    pool.last = None
    quiet = pool.decide(**{node: pool.told(1.0 if node == "s0" else 0.0) for node in pool.proxies})
    assert min(parts(quiet).values()) >= 2
    assert ceiling_for_role(quiet, pool.resilience, "sidecar", {"sidecar": 100}).interactive == 4


def test_chance_moves_few_parts_of_many_sidecars_and_a_refused_caller_moves_one_at_once() -> None:
    rng, pool = random.Random(1), Pool()
    pool.proxies = {f"s{place}": gateway(f"s{place}", role="sidecar") for place in range(100)}

    def noisy() -> dict[str, ProxyTraffic]:
        return {node: pool.told(0.8 * rng.uniform(0.7, 1.3)) for node in pool.proxies}

    for _ in range(50):
        before = pool.decide(**noisy())
    moves = 0
    for _ in range(50):
        now = pool.decide(**noisy())
        moves += sum(now.by_proxy[node] is not one for node, one in before.by_proxy.items())
        before = now
    assert not before.crowded
    assert moves <= 25, "of 5 000"
    woken = pool.decide(**{**noisy(), "s7": pool.told(8.0, shed=1.0)})
    assert woken.by_proxy["s7"].interactive >= 1.5 * before.by_proxy["s7"].interactive


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_gateways_never_have_more_than_the_total_together(data: st.DataObject) -> None:
    wait = data.draw(st.sampled_from(["0s", "250ms", "2s"]))
    pool = Pool(classes=data.draw(st.sampled_from([ONE, BOTH])), limits={"maxWait": wait})
    names = [f"g{place}" for place in range(data.draw(st.integers(1, 6)))]
    pool.proxies = {name: gateway(name) for name in names}
    rate = st.one_of(st.just(0.0), st.floats(0, 300))
    for _ in range(data.draw(st.integers(1, 8))):
        pool.decisions = {one.id: decided() for one in pool.engines}
        pool.out(*data.draw(st.sets(st.integers(0, 7))))
        loaded = {"in_flight_on": {"e0": 3, "e1": 4}, "load_at_s": pool.now_s}
        seen = {
            name: pool.told(
                data.draw(rate),
                data.draw(rate),
                shed_per_s={of: data.draw(st.sampled_from([0.0, 5.0])) for of in PriorityClass},
                **loaded,
            )
            for name in names
        }
        one = pool.decide(data.draw(st.floats(0.05, 1.0)), **seen)
        assert one.held == sum(one.held_by.values())
        # Each part may be rounded up by one; with two classes both parts of it.
        if pool.classes == ONE:
            whole = sum(limit.interactive for limit in one.by_proxy.values())
            assert one.total + one.held <= whole + 1e-6
            assert whole <= one.total + one.held + len(names)
        else:
            whole = sum(limit.interactive + limit.batch for limit in one.by_proxy.values())
            assert whole <= one.total + one.held + 2 * len(names)
        assert all(limit.interactive >= 1 and limit.batch >= 1 for limit in one.by_proxy.values())


# -- classes --------------------------------------------------------------------------------------------------


def test_a_class_gets_what_the_other_leaves_free_and_is_sure_of_its_share() -> None:
    pool = Pool(classes=BOTH)
    calm = pool.decide(a=pool.told(20, 20), b=pool.told(0))
    assert calm.interactive + calm.batch == pytest.approx(320, abs=1)
    pool.last = None
    mostly_batch = pool.decide(a=pool.told(20, 300), b=pool.told(0))
    assert mostly_batch.batch >= 220
    assert mostly_batch.interactive >= 20 * 2.5
    pool.last = None
    too_much = pool.decide(a=pool.told(300, 300), b=pool.told(0))
    assert (too_much.interactive, too_much.batch) == (288, 32)


def test_a_class_that_begins_to_refuse_gets_its_share_in_the_next_round() -> None:
    pool = Pool(classes=BOTH)
    for _ in range(30):
        before = pool.decide(a=pool.told(0, 300, shed_per_s={BATCH: 150.0}), b=pool.told(0))
    assert before.batch >= 280
    assert before.interactive >= 20
    shed = {BATCH: 150.0, INTERACTIVE: 0.5}
    after = pool.decide(a=pool.told(30, 300, shed_per_s=shed), b=pool.told(0))
    assert (after.interactive, after.batch) == (288, 32)
    assert after.by_proxy["a"].interactive >= 250


def test_the_ladder_sheds_batch_and_closes_the_retry_budget() -> None:
    pool = Pool(classes=BOTH)
    wants = {INTERACTIVE: 150.0}
    pool.decide(a=pool.told(150, 20, shed_per_s=wants), b=pool.told(0))
    pool.ladder = LadderState(level=3, reason="", since_s=0, shed_batch=True, retries_minimum=True)
    shed = pool.decide(a=pool.told(150, 20, shed_per_s=wants), b=pool.told(0))
    assert (shed.interactive, shed.batch) == (320, 0)
    assert {limit.batch for limit in shed.by_proxy.values()} == {0}
    assert {(one.retry_percent, one.retry_min_concurrency) for one in shed.by_proxy.values()} == {(0.0, 6)}
    other = ceiling_for_role(shed, pool.resilience, "sidecar", {"gateway": 2, "sidecar": 1})
    assert (other.batch, other.retry_percent) == (0, 0.0)


def test_the_ladder_sheds_no_batch_where_capacity_would_idle() -> None:
    pool = Pool(classes=BOTH)
    pool.ladder = LadderState(level=3, reason="", since_s=0, shed_batch=True)
    flooded = {"shed_per_s": {BATCH: 250.0}}
    left = pool.decide(a=pool.told(20, 300, **flooded), b=pool.told(0))
    assert left.interactive + left.batch == pytest.approx(320, abs=2)
    assert left.interactive > 2.5 * 20
    assert left.batch > 128, "what fills the slots that interactive requests leave idle"
    alone = Pool(classes=frozenset({BATCH}))
    alone.ladder = pool.ladder
    assert alone.decide(a=alone.told(0, 300, **flooded), b=alone.told(0)).batch == 320
    shadow = Pool(classes=BOTH, limits={"mode": "shadow"})
    shadow.ladder = pool.ladder
    assert shadow.decide(a=shadow.told(20, 300), b=shadow.told(0)).by_proxy["a"].batch == 0


def test_in_shadow_mode_nothing_is_refused_and_retries_keep_the_strict_budget() -> None:
    pool = Pool(limits={"mode": "shadow"})
    shadow = pool.decide(a=pool.told(500), b=pool.told(0))
    assert not shadow.in_force
    assert shadow.total == 320
    assert set(parts(shadow).values()) == {100_000}
    assert shadow.retry_percent == 20
    assert ceiling_for_role(shadow, pool.resilience, "gateway", {"gateway": 2}).interactive == 100_000


# -- numbers to go by -----------------------------------------------------------------------------------------


def test_pressure_is_what_is_asked_and_utilization_what_is_in_use() -> None:
    pool = Pool()
    busy = {f"e{place}": EngineTraffic(in_flight=4 if place else 20, busy=1.0) for place in range(8)}
    one = admission(
        POOL,
        pool.resilience,
        pool.engines,
        pool.decisions,
        pool.capacities,
        traffic=PoolTraffic(engines=busy, proxies={"a": pool.told(96)}),
        classes=ONE,
        proxies={"a": gateway("a")},
        proxies_by_role={"gateway": 1},
        ladder=None,
        before=None,
        now_s=100.0,
    )
    assert one.pressure == pytest.approx(0.75)
    assert one.utilization == pytest.approx((8 + 7 * 4) / 64)
    silent = pool.decide()
    assert (silent.pressure, silent.utilization) == (None, None)


def test_a_round_without_news_changes_nothing() -> None:
    pool = Pool()
    for _ in range(40):
        pool.decide(a=pool.told(50), b=pool.told(20))
    first, second = itertools.islice(iter(lambda: pool.decide(a=pool.told(50), b=pool.told(20)), None), 2)
    assert first == second
    assert first.by_proxy is second.by_proxy


# -- classes of a pool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", [True, False])
def test_a_pool_knows_the_classes_that_reach_it(fallback: bool) -> None:
    def route(name: str, pool: str, priority: str) -> ModelRoute:
        spec: dict[str, object] = {"listener": {"port": 80}, "pools": [{"pool": pool}], "priority": priority}
        return ModelRoute.model_validate({"metadata": {"name": name}, "spec": spec})

    def document(name: str) -> EnginePool:
        return EnginePool.model_validate({"metadata": {"name": name}, "spec": {"model": "m"}})

    batch = route("r1", "big", "batch")
    if fallback:
        batch = batch.model_copy(update={"spec": batch.spec.model_copy(update={"fallback": "small"})})
    routes = {"r0": route("r0", "small", "interactive"), "r1": batch}
    setup = PolicySet(
        pools={name: document(name) for name in ("big", "small", "idle")}, routes=routes, policies={}, effective={}
    )
    assert classes_by_pool(setup) == {
        "big": {PriorityClass.BATCH},
        "small": BOTH if fallback else {PriorityClass.INTERACTIVE},
    }
