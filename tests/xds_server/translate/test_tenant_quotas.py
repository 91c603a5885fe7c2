"""A proxy's part of a quota as a token bucket."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.tenants import Quota, QuotaUnit, Tenants
from xds_server.translate.tenant_quotas import QUOTA_FILTER, tenant_quotas

MIN_FILL_S = 0.05
"""Envoy refuses shorter fill intervals."""


def bucket(quota: Quota, proxies: int) -> Any:
    tenants = Tenants(header="x-tenant", trust_header=True, others=quota)
    return tenant_quotas(tenants, proxies)[QUOTA_FILTER].unpack().token_bucket


@given(
    st.integers(1, 1_000_000_000),
    st.sampled_from(QuotaUnit),
    st.integers(1, 16_384),
    st.integers(1, 1_000_000_000),
)
def test_all_proxies_together_keep_the_limit(requests: int, unit: QuotaUnit, proxies: int, burst: int) -> None:
    quota = Quota(requests=requests, per=unit, burst=burst)
    found = bucket(quota, proxies)
    interval_s = found.fill_interval.total_seconds()
    together_per_s = proxies * found.tokens_per_fill / interval_s
    assert 0.998 * quota.per_s <= together_per_s <= quota.per_s * (1 + 1e-6)
    assert interval_s >= MIN_FILL_S
    assert 1 <= found.max_tokens <= max(1, burst / proxies)


def test_tenants_off_have_no_buckets() -> None:
    assert tenant_quotas(None, 3) == {}
