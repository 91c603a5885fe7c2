"""Recent requests of tenants by proxy, and the quotas that are divided by them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from xds_server.decide.admission.quota_parts import divided
from xds_server.telemetry.tenant_demand import DemandByProxy

TENANT = (8080, "a")
STEP_S = 0.25


def poisson(chance: random.Random, mean: float) -> int:
    if mean > 50:
        return max(0, round(chance.gauss(mean, mean**0.5)))
    count, passed = 0, chance.expovariate(1.0)
    while passed < mean:
        count, passed = count + 1, passed + chance.expovariate(1.0)
    return count


def admitted_ratio(
    rates_at: Callable[[float], Mapping[str, float]], limit_per_s: float, *, until_s: float, from_s: float
) -> float:
    """Requests that buckets with the parts of each moment admit from ``from_s`` on, over the limit."""
    chance, book, total = random.Random(5), DemandByProxy(), 0.0
    book.retain([TENANT])
    parts: Mapping[str, float] = {}
    moved_s = now_s = 0.0
    while now_s < until_s:
        rates = rates_at(now_s)
        if not parts or now_s >= moved_s + 2.0:
            demand = book.demand(now_s, rates).by_tenant.get(TENANT, {})
            parts, moved_s = divided(demand, list(rates), count=len(rates)), now_s
        if now_s >= from_s:
            total += STEP_S * sum(min(rate, limit_per_s * parts[node]) for node, rate in rates.items())
        now_s += STEP_S
        for node, rate in rates.items():
            if count := poisson(chance, rate * STEP_S):
                book.add(TENANT, node, weight=count, at_s=now_s)
    return total / (limit_per_s * (until_s - from_s))


@pytest.mark.parametrize(("limit_per_s", "over"), [(1000.0, 2.0), (10_000.0, 1.5), (100_000.0, 10.0)])
def test_thousand_proxies_with_uneven_callers_admit_the_limit(limit_per_s: float, over: float) -> None:
    """Zipf: the busiest proxy has a seventh of all requests, and half of them a thousandth of that or less."""
    weights = [1 / rank for rank in range(1, 1001)]
    rates = {f"n{rank}": limit_per_s * over * one / sum(weights) for rank, one in enumerate(weights)}
    assert 0.98 <= admitted_ratio(lambda _: rates, limit_per_s, until_s=60.0, from_s=40.0) <= 1.0 + 1e-9


@pytest.mark.parametrize("busy", [{"n0": 1.0, "n1": 0.0, "n2": 0.0}, {"n0": 1 / 3, "n1": 1 / 3, "n2": 1 / 3}])
@pytest.mark.parametrize(("limit_per_s", "over"), [(12.0, 1.5), (100.0, 1.3), (100.0, 10.0)])
def test_three_proxies_admit_the_limit(busy: Mapping[str, float], limit_per_s: float, over: float) -> None:
    rates = {node: share * limit_per_s * over for node, share in busy.items()}
    assert 0.98 <= admitted_ratio(lambda _: rates, limit_per_s, until_s=60.0, from_s=20.0) <= 1.0 + 1e-9


@pytest.mark.parametrize(("limit_per_s", "within_s"), [(100.0, 9.0), (12.0, 10.0), (3.0, 12.0)])
def test_parts_follow_traffic_that_moves(limit_per_s: float, within_s: float) -> None:
    def rates(now_s: float) -> Mapping[str, float]:
        busy = "n0" if now_s < 30.0 else "n1"
        return {node: 1.5 * limit_per_s * (node == busy) for node in ("n0", "n1", "n2")}

    found = admitted_ratio(rates, limit_per_s, until_s=90.0, from_s=30.0 + within_s)
    assert 0.98 <= found <= 1.0 + 1e-9


def test_only_tenants_of_the_policies_are_counted_and_counts_end() -> None:
    book = DemandByProxy()
    book.retain([TENANT])
    book.add(TENANT, "n0", weight=4.0, at_s=1.0)
    book.add((8080, "b"), "n0", weight=4.0, at_s=1.0)
    assert book.demand(1.0, ["n0"]).by_tenant == {TENANT: {"n0": 4.0}}
    assert book.demand(1000.0, ["n0"]).by_tenant == {}
    book.add(TENANT, "n0", weight=4.0, at_s=1000.0)
    book.retain([])
    assert book.demand(1000.0, ["n0"]).by_tenant == {}


def test_rounds_within_half_a_second_share_a_reading() -> None:
    book = DemandByProxy()
    book.retain([TENANT])
    book.add(TENANT, "n0", weight=4.0, at_s=1.0)
    first = book.demand(1.0, ["n0"])
    book.add(TENANT, "n0", weight=4.0, at_s=1.2)
    assert book.demand(1.4, ["n0", "n1"]) == replace(first, nodes=["n0", "n1"])
    assert book.demand(1.5, ["n0"]).by_tenant[TENANT]["n0"] > 4.0
