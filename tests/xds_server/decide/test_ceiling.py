"""Ceilings: the formula, how it is shared, and its bounds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.model import PolicySet
from policies.pool import EnginePool, EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import ModelRoute, PriorityClass
from xds_server.decide.ceiling import ceiling, classes_in_use
from xds_server.decide.decisions import Ceiling

BOTH = frozenset(PriorityClass)


def limit(
    slots: int = 72,
    *,
    role: str = "gateway",
    gateways: int = 1,
    sidecars: int = 0,
    classes: frozenset[PriorityClass] = frozenset({PriorityClass.INTERACTIVE}),
    service_time: str = "2s",
    **resilience: Any,
) -> Ceiling:
    pool = EnginePoolSpec.model_validate({"model": "m", "serviceTime": service_time})
    return ceiling(
        pool,
        ResilienceSpec.model_validate(resilience),
        slots=slots,
        classes=classes,
        role=role,
        proxies_by_role={"gateway": gateways, "sidecar": sidecars},
    )


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
    assert (both.interactive, both.batch) == (101, 44)
    assert "70 % interactive" in both.reason


def test_a_share_of_nothing_lets_nothing_in() -> None:
    shut = limit(classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0}}})
    assert (shut.interactive, shut.batch) == (101, 0)
    tiny = limit(slots=1, classes=BOTH, limits={"priorities": {"batch": {"sharePercent": 0.1}}})
    assert tiny.batch == 1


def test_the_retry_budgets_floor_is_divided_and_its_percentage_is_not() -> None:
    assert (limit().retry_percent, limit().retry_min_concurrency) == (100.0, 12)
    assert limit(gateways=2, sidecars=4, retryBudget={"minConcurrency": 60}).retry_min_concurrency == 10
    assert limit(gateways=100).retry_min_concurrency == 1
    assert limit(retryBudget={"minConcurrency": 0}).retry_min_concurrency == 0


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
    assert classes_in_use(setup, "big") == {PriorityClass.BATCH}
    assert classes_in_use(setup, "small") == (BOTH if fallback else {PriorityClass.INTERACTIVE})
    assert classes_in_use(setup, "idle") == frozenset()
