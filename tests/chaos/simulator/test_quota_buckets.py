"""Simulated buckets of tenants, from the generated configuration, with Envoy's arithmetic."""

from pathlib import Path

import pytest

from chaos.simulator.quota_buckets import QuotaParts, SimulatedQuotaBuckets, quota_config
from policies.load import load_contents
from xds_server.decide.decisions import PortParts
from xds_server.translate.tenant_parts import tenant_costs
from xds_server.translate.tenant_quotas import QUOTA_FILTER, tenant_quotas

POLICY = """
apiVersion: switchgear.dev/v1beta1
kind: EnginePool
metadata: {{name: p}}
spec: {{model: m, endpoints: [{{address: 127.0.0.1, port: 8000}}]}}
---
apiVersion: switchgear.dev/v1beta1
kind: ModelRoute
metadata: {{name: r}}
spec:
  pools: [{{pool: p}}]
  listener:
    port: 8080
    tenants:
      header: x-tenant
      trustHeader: true
      {mode}
      named:
      - {{name: many, requests: 10, burst: 4}}
      - {{name: long, requests: 10, tokens: 6000, per: minute, burst: 10, tokensBurst: 1000}}
      others: {{requests: 2}}
"""


class SimulatedQuotas:
    """The buckets of one proxy, with its parts of the quotas."""

    def __init__(self, proxies: int = 1, mode: str = "") -> None:
        policies = load_contents({Path("p.yaml"): POLICY.format(mode=mode and f"mode: {mode}").encode()})
        self._listener = policies.routes["r"].spec.listener
        self._of = SimulatedQuotaBuckets(quota_config(tenant_quotas(self._listener, proxies)[QUOTA_FILTER]), 0.0)
        self.set_parts(PortParts(count=proxies))

    def set_parts(self, parts: PortParts) -> None:
        tenants = self._listener.tenants
        assert tenants is not None
        self._parts = QuotaParts(header=tenants.header, costs=tenant_costs(tenants, parts, "here"))

    def admits(self, headers: dict[str, str], tokens: float, now_s: float) -> bool:
        return self._of.admits(self._parts.metadata(headers, tokens), now_s)


def admitted(
    of: SimulatedQuotas, name: str, *, seconds: float, per_s: float = 100.0, begins_s: float = 0.0
) -> int:
    return sum(
        of.admits({"x-tenant": name}, 1.0, begins_s + number / per_s)
        for number in range(1, round(seconds * per_s) + 1)
    )


def test_burst_and_then_the_quota_is_admitted() -> None:
    # 4 at once, and 10 a second.
    assert admitted(SimulatedQuotas(), "many", seconds=5.0) == pytest.approx(54, abs=1)


def test_proxies_have_parts() -> None:
    # Of two proxies: 2 at once, and 5 a second.
    assert admitted(SimulatedQuotas(proxies=2), "many", seconds=5.0) == pytest.approx(27, abs=1)


def test_part_of_a_proxy_moves_without_filling_its_bucket() -> None:
    of = SimulatedQuotas(proxies=2)
    assert admitted(of, "many", seconds=5.0) == pytest.approx(27, abs=1)
    of.set_parts(PortParts(count=2, proxies=("here", "there"), by_tenant={"many": {"here": 0.9, "there": 0.1}}))
    assert admitted(of, "many", seconds=5.0, begins_s=5.0) == pytest.approx(45, abs=1)


def test_proxy_with_a_small_part_admits_some_from_a_larger_bucket() -> None:
    of = SimulatedQuotas(proxies=2)
    of.set_parts(PortParts(count=2, proxies=("here", "there"), by_tenant={"many": {"here": 0.05, "there": 0.95}}))
    # Half a request a second. One takes as much as 20 of the quota, so the bucket of 256 holds twelve.
    assert admitted(of, "many", seconds=20.0) == pytest.approx(22, abs=1)


def test_unknown_names_and_callers_without_one_share_a_bucket() -> None:
    of = SimulatedQuotas()
    assert [of.admits(headers, 1.0, 0.0) for headers in ({"x-tenant": "made-up"}, {}, {"x-tenant": "other"})] == [
        True,
        True,
        False,
    ]


def test_tokens_are_a_second_bucket() -> None:
    of = SimulatedQuotas()
    # 1000 tokens at once, 100 a second; requests have 10 at once.
    assert [of.admits({"x-tenant": "long"}, 400, 0.0) for _ in range(3)] == [True, True, False]
    assert not of.admits({"x-tenant": "long"}, 400, 1.0)
    assert of.admits({"x-tenant": "long"}, 400, 2.1)


def test_request_of_more_than_the_bucket_counts_as_the_bucket() -> None:
    of = SimulatedQuotas()
    assert of.admits({"x-tenant": "long"}, 50_000, 0.0)
    assert not of.admits({"x-tenant": "long"}, 1, 0.0)


def test_request_refused_for_its_tokens_takes_from_the_quota_of_requests() -> None:
    of = SimulatedQuotas()
    # The bucket of requests fills more slowly, so it comes first.
    assert [of.admits({"x-tenant": "long"}, 1000, 0.0) for _ in range(11)].count(True) == 1
    # At 10 s there are tokens again, and a request and a half.
    assert [of.admits({"x-tenant": "long"}, 1, 10.0) for _ in range(3)].count(True) == 1


def test_shadow_refuses_nothing() -> None:
    assert admitted(SimulatedQuotas(mode="shadow"), "many", seconds=1.0) == 100
