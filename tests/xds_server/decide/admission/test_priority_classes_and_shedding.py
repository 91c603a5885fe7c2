"""Priority classes, degradation and shadow mode: who gets unused places."""

import itertools

import pytest

from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from tests.xds_server.decide.admission.eight_engines import (
    BATCH,
    BOTH,
    INTERACTIVE,
    ONE,
    POOL,
    Pool,
    gateway,
    parts,
)
from xds_server.decide.admission.ceiling import admission_decision, ceiling_for_role, classes_by_pool
from xds_server.decide.admission.retry_budget import retry_budget
from xds_server.decide.decisions import DegradationState
from xds_server.decide.pool_inputs import ConnectedProxies, PoolEngines, PoolPolicy
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic


def test_priority_class_borrows_unused_share_and_keeps_its_guarantee() -> None:
    pool = Pool(classes=BOTH)
    calm = pool.decide(a=pool.told(20, 20), b=pool.told(0))
    assert calm.interactive + calm.batch == pytest.approx(320, abs=1)
    pool.memory = None
    mostly_batch = pool.decide(a=pool.told(20, 300), b=pool.told(0))
    assert mostly_batch.batch >= 220
    assert mostly_batch.interactive >= 20 * 2.5
    pool.memory = None
    too_much = pool.decide(a=pool.told(300, 300), b=pool.told(0))
    assert (too_much.interactive, too_much.batch) == (288, 32)


def test_priority_class_that_sheds_gets_its_share_in_the_next_round() -> None:
    pool = Pool(classes=BOTH)
    for _ in range(30):
        before = pool.decide(a=pool.told(0, 300, shed_per_s={BATCH: 150.0}), b=pool.told(0))
    assert before.batch >= 280
    assert before.interactive >= 20
    shed = {BATCH: 150.0, INTERACTIVE: 0.5}
    after = pool.decide(a=pool.told(30, 300, shed_per_s=shed), b=pool.told(0))
    assert (after.interactive, after.batch) == (288, 32)
    assert after.by_proxy["a"].interactive >= 250


def test_degradation_sheds_batch_and_narrows_the_retry_budget() -> None:
    pool = Pool(classes=BOTH)
    wants = {INTERACTIVE: 150.0}
    pool.decide(a=pool.told(150, 20, shed_per_s=wants), b=pool.told(0))
    pool.ladder = DegradationState(level=3, reason="", since_s=0, shed_batch=True, retries_minimum=True)
    shed = pool.decide(a=pool.told(150, 20, shed_per_s=wants), b=pool.told(0))
    assert (shed.interactive, shed.batch) == (320, 0)
    assert {limit.batch for limit in shed.by_proxy.values()} == {0}
    assert {(one.retry_percent, one.retry_min_concurrency) for one in shed.by_proxy.values()} == {(0.0, 1)}
    assert pool.memory is not None
    other = ceiling_for_role(pool.memory, pool.resilience, "sidecar", {"gateway": 2, "sidecar": 1})
    assert (other.batch, other.retry_percent) == (0, 0.0)


@pytest.mark.parametrize(
    ("budget", "crowded", "total", "allowed"),
    [
        ({}, True, 1000, (0.0, 2)),
        ({}, True, 100_000, (0.0, 6)),
        ({}, True, 320, (0.0, 1)),
        ({"minConcurrency": 4}, True, 3200, (0.0, 2)),
        ({"minConcurrency": 0}, True, 3200, (0.0, 0)),
        ({"percent": 30}, True, 3200, (30.0, 6)),
        ({}, False, 3200, (20.0, 6)),
    ],
)
def test_crowded_pool_allows_few_second_waits(
    budget: dict[str, object], crowded: bool, total: int, allowed: tuple[float, int]
) -> None:
    """A retry displaces a new request there; a declared percentage, and errors in a pool with room, are kept."""
    resilience = ResilienceSpec.model_validate({"retryBudget": budget})
    level = DegradationState(level=1, reason="", since_s=0, retries_minimum=True)
    found = retry_budget(resilience, total, {"gateway": 2}, level, in_force=True, crowded=crowded)
    assert found == allowed


def test_degradation_sheds_no_batch_while_capacity_is_idle() -> None:
    pool = Pool(classes=BOTH)
    pool.ladder = DegradationState(level=3, reason="", since_s=0, shed_batch=True)
    flooded = {"shed_per_s": {BATCH: 250.0}}
    left = pool.decide(a=pool.told(20, 300, **flooded), b=pool.told(0))
    assert left.interactive + left.batch == pytest.approx(320, abs=2)
    assert left.interactive > 2.5 * 20
    assert left.batch > 128, "batch fills the slots that interactive requests leave idle"
    alone = Pool(classes=frozenset({BATCH}))
    alone.ladder = pool.ladder
    assert alone.decide(a=alone.told(0, 300, **flooded), b=alone.told(0)).batch == 320
    shadow = Pool(classes=BOTH, limits={"mode": "shadow"})
    shadow.ladder = pool.ladder
    assert shadow.decide(a=shadow.told(20, 300), b=shadow.told(0)).by_proxy["a"].batch == 0


def test_shadow_mode_sheds_nothing_and_keeps_the_strict_retry_budget() -> None:
    pool = Pool(limits={"mode": "shadow"})
    shadow = pool.decide(a=pool.told(500), b=pool.told(0))
    assert not shadow.in_force
    assert shadow.total == 320
    assert set(parts(shadow).values()) == {100_000}
    assert shadow.retry_percent == 20
    assert pool.memory is not None
    assert ceiling_for_role(pool.memory, pool.resilience, "gateway", {"gateway": 2}).interactive == 100_000


# -- pressure and utilization ---------------------------------------------------------------------------------


def test_pressure_is_demand_and_utilization_is_slots_in_use() -> None:
    pool = Pool()
    busy = {f"e{place}": EngineTraffic(in_flight=4 if place else 20, busy=1.0) for place in range(8)}
    one = admission_decision(
        PoolPolicy(spec=POOL, resilience=pool.resilience, classes=ONE),
        PoolEngines(engines=pool.engines, decisions=pool.decisions, capacities=pool.capacities),
        traffic=PoolTraffic(engines=busy, proxies={"a": pool.told(96)}),
        proxies=ConnectedProxies(by_node={"a": gateway("a")}, by_role={"gateway": 1}),
        degradation=None,
        before=None,
        now_s=100.0,
    ).decided
    assert one.pressure == pytest.approx(0.75)
    assert one.utilization == pytest.approx((8 + 7 * 4) / 64)
    silent = pool.decide()
    assert (silent.pressure, silent.utilization) == (None, None)


def test_round_without_news_keeps_the_decision() -> None:
    pool = Pool()
    for _ in range(40):
        pool.decide(a=pool.told(50), b=pool.told(20))
    first, second = itertools.islice(iter(lambda: pool.decide(a=pool.told(50), b=pool.told(20)), None), 2)
    assert first == second
    assert first.by_proxy is second.by_proxy


# -- classes of a pool ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fallback", [True, False])
def test_classes_by_pool_follow_routes(fallback: bool) -> None:
    def route(name: str, pool: str, priority: str) -> ModelRoute:
        spec: dict[str, object] = {"listener": {"port": 80}, "pools": [{"pool": pool}], "priority": priority}
        return ModelRoute.model_validate({"metadata": {"name": name}, "spec": spec})

    def document(name: str) -> EnginePool:
        return EnginePool.model_validate({"metadata": {"name": name}, "spec": {"model": "m"}})

    batch = route("r1", "big", "batch")
    if fallback:
        batch = batch.model_copy(update={"spec": batch.spec.model_copy(update={"fallbacks": ("small",)})})
    routes = {"r0": route("r0", "small", "interactive"), "r1": batch}
    setup = PolicySet(
        pools={name: document(name) for name in ("big", "small", "idle")}, routes=routes, policies={}, effective={}
    )
    assert classes_by_pool(setup) == {
        "big": {PriorityClass.BATCH},
        "small": BOTH if fallback else {PriorityClass.INTERACTIVE},
    }
