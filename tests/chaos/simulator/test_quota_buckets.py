"""Simulated buckets of tenants, from the generated configuration, with Envoy's arithmetic."""

from pathlib import Path

import pytest

from chaos.simulator.quota_buckets import QuotaBuckets, quota_config
from policies.load import load_contents
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


def buckets(proxies: int = 1, mode: str = "") -> QuotaBuckets:
    policies = load_contents({Path("p.yaml"): POLICY.format(mode=mode and f"mode: {mode}").encode()})
    packed = tenant_quotas(policies.routes["r"].spec.listener, proxies)
    return QuotaBuckets(quota_config(packed[QUOTA_FILTER]), 0.0)


def admitted(of: QuotaBuckets, name: str, *, seconds: float, per_s: float = 100.0, tokens: float = 1.0) -> int:
    return sum(
        of.admits({"x-tenant": name}, tokens, number / per_s) for number in range(1, round(seconds * per_s) + 1)
    )


def test_burst_and_then_the_quota_is_admitted() -> None:
    # 4 at once, and 10 a second.
    assert admitted(buckets(), "many", seconds=5.0) == pytest.approx(54, abs=1)


def test_proxies_have_parts() -> None:
    # Of two proxies: 2 at once, and 5 a second.
    assert admitted(buckets(proxies=2), "many", seconds=5.0) == pytest.approx(27, abs=1)


def test_unknown_names_and_callers_without_one_share_a_bucket() -> None:
    of = buckets()
    assert [of.admits(headers, 1.0, 0.0) for headers in ({"x-tenant": "made-up"}, {}, {"x-tenant": "other"})] == [
        True,
        True,
        False,
    ]


def test_tokens_are_a_second_bucket() -> None:
    of = buckets()
    # 1000 tokens at once, 100 a second; requests have 10 at once.
    assert [of.admits({"x-tenant": "long"}, 400, 0.0) for _ in range(3)] == [True, True, False]
    assert not of.admits({"x-tenant": "long"}, 400, 1.0)
    assert of.admits({"x-tenant": "long"}, 400, 2.1)


def test_request_of_more_than_the_bucket_counts_as_the_bucket() -> None:
    of = buckets()
    assert of.admits({"x-tenant": "long"}, 50_000, 0.0)
    assert not of.admits({"x-tenant": "long"}, 1, 0.0)


def test_request_refused_for_its_tokens_takes_from_the_quota_of_requests() -> None:
    of = buckets()
    # The bucket of requests fills more slowly, so it comes first.
    assert [of.admits({"x-tenant": "long"}, 1000, 0.0) for _ in range(11)].count(True) == 1
    # At 10 s there are tokens again, and a request and a half.
    assert [of.admits({"x-tenant": "long"}, 1, 10.0) for _ in range(3)].count(True) == 1


def test_shadow_refuses_nothing() -> None:
    assert admitted(buckets(mode="shadow"), "many", seconds=1.0) == 100
