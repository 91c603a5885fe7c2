"""Runtime layers of proxies: own admission limits, else those of the role; equal layers share one item."""

import gc
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from policies.model import PolicySet
from xds_server.decide.decisions import AdmissionDecision, Ceiling, Decisions, HedgeDecision, PoolDecisions
from xds_server.model.fleet import Fleet, declared
from xds_server.model.memo import Memo
from xds_server.model.type_urls import RUNTIME
from xds_server.model.view import View
from xds_server.translate.runtime_layers import proxy_runtime_resources, runtime_resource
from xds_server.translate.view_resources import translate

POOLS = """kind: EnginePool
metadata: {name: p}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 1, name: e, zone: a}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: q}
spec: {model: m, endpoints: [{address: 10.0.0.1, port: 2, name: f, zone: a}]}"""
VIEW = View()


def limit(requests: int, reason: str = "") -> Ceiling:
    return Ceiling(interactive=requests, batch=requests, retry_percent=50, retry_min_concurrency=3, reason=reason)


def admission(by_proxy: Mapping[str, Ceiling]) -> AdmissionDecision:
    return AdmissionDecision(
        total=0,
        interactive=0,
        batch=0,
        held=0,
        slots=0,
        wait_s=0,
        pressure=None,
        utilization=None,
        in_force=True,
        by_proxy=by_proxy,
        capacities={},
        reason="",
    )


class Case:
    def __init__(self, policies: PolicySet, decided: Callable[..., Decisions]) -> None:
        self.policies = policies
        self.fleet: Fleet = declared(policies)
        self.decisions = decided(self.fleet, ceiling=10)
        self.memo = Memo()

    def admit(self, hedge: HedgeDecision | None = None, **by_pool: Mapping[str, Ceiling]) -> None:
        self.decisions = replace(
            self.decisions,
            pools={
                pool: PoolDecisions(
                    engines={},
                    zones={},
                    ceilings={},
                    declared=self.fleet.pools[pool],
                    admission=admission(by_proxy),
                    hedge=hedge,
                )
                for pool, by_proxy in by_pool.items()
            },
        )

    def item(self, node: str = "", **more: Any) -> Any:
        return runtime_resource(self.policies, self.fleet, self.decisions, VIEW, node, memo=self.memo, **more)

    def values(self, node: str = "", **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.item(node, **more).message.layer.to_dict()
        return found

    def ceilings(self, node: str = "") -> tuple[int, int]:
        values = self.values(node)
        return tuple(int(values[f"circuit_breakers.{pool}.high.max_requests"]) for pool in "pq")  # type: ignore[return-value]


@pytest.fixture
def case(policies: Callable[..., PolicySet], decided: Callable[..., Decisions]) -> Case:
    return Case(policies(POOLS), decided)


def test_rtds_layer_has_per_proxy_max_requests(case: Case) -> None:
    case.admit(p={"n1": limit(7)}, q={"n2": limit(3)})
    assert case.ceilings("n1") == (7, 10)
    assert case.ceilings("n2") == (10, 3)
    assert case.ceilings("not heard of") == case.ceilings() == (10, 10)


def test_equal_numbers_share_one_item(case: Case) -> None:
    case.admit(p={"n1": limit(7, "asks for much"), "n2": limit(7, "asks for little"), "n3": limit(8)})
    first = case.item("n1")
    assert case.item("n2") is first
    assert case.item("n3") is not first
    view_item = next(
        item
        for item in translate(case.policies, case.fleet, case.decisions, VIEW, case.memo)
        if item.type_url == RUNTIME
    )
    assert case.item("not heard of") is view_item


def test_per_proxy_rtds_layer_only_for_proxies_with_their_own_decision(case: Case) -> None:
    case.admit(p={"n1": limit(7), "gone": limit(7), "grpc": limit(7)})
    views = {"n1": VIEW, "n2": VIEW, "grpc": View(role="grpc")}
    items = proxy_runtime_resources(case.policies, case.fleet, case.decisions, views, memo=case.memo)
    assert items == {"n1": case.item("n1")}


def test_unchanged_layer_survives_a_round(case: Case) -> None:
    views = {"n1": VIEW, "n2": VIEW}
    case.admit(p={"n1": limit(7), "n2": limit(8)})
    before = id(proxy_runtime_resources(case.policies, case.fleet, case.decisions, views, memo=case.memo)["n1"])
    gc.collect()
    case.admit(p={"n1": limit(7), "n2": limit(9)})
    after = proxy_runtime_resources(case.policies, case.fleet, case.decisions, views, memo=case.memo)
    assert id(after["n1"]) == before
    assert len(case.memo._alike) == len({id(item) for item in after.values()})


def test_hedging_budget_overrides_the_retry_budget(case: Case) -> None:
    hedges = HedgeDecision(on=True, delay_s=0.1, reason="", since_s=0)
    key = "circuit_breakers.p.high.retry_budget.budget_percent"
    case.admit(hedge=hedges, p={})
    assert case.values()[key] == 5
    case.admit(hedge=replace(hedges, on=False), p={})
    assert case.values()[key] == 50


@pytest.mark.parametrize(("percent", "parts"), [(50.0, 500_000), (0.5, 5_000), (0.0, 0)])
def test_access_log_sampling_is_a_fraction_of_a_million(case: Case, percent: float, parts: int) -> None:
    values = case.values(access_log_percent=percent)
    assert values["switchgear.access_log.percent"] == {"numerator": parts, "denominator": "MILLION"}


def test_full_sampling_sets_no_key(case: Case) -> None:
    assert not [key for key in case.values() if "access_log" in key]


@pytest.mark.parametrize("percent", [-1.0, 100.5, float("nan")])
def test_invalid_sampling_share_is_refused(case: Case, percent: float) -> None:
    with pytest.raises(ValueError, match="access logs"):
        case.item(access_log_percent=percent)
