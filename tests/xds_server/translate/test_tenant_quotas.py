"""A proxy's part of a quota as a token bucket."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.route import Listener
from policies.tenants import PeriodQuota, Quota, QuotaUnit, Tenants
from xds_server.translate.tenant_quotas import QUOTA_FILTER, quota_filters, tenant_quotas

MIN_FILL_S = 0.05
"""Envoy refuses shorter fill intervals."""


def limits(quota: Quota, proxies: int) -> Any:
    tenants = Tenants(header="x-tenant", trust_header=True, others=quota)
    return tenant_quotas(Listener(port=80, tenants=tenants), proxies)[QUOTA_FILTER].unpack()


@given(
    st.integers(1, 1_000_000_000),
    st.sampled_from(QuotaUnit),
    st.integers(1, 16_384),
    st.integers(1, 1_000_000_000),
)
def test_all_proxies_together_keep_the_limit(requests: int, unit: QuotaUnit, proxies: int, burst: int) -> None:
    quota = Quota(requests=requests, per=unit, burst=burst, tokens=requests, tokens_burst=burst)
    made = limits(quota, proxies)
    for found in (made.token_bucket, made.descriptors[0].token_bucket):
        interval_s = found.fill_interval.total_seconds()
        together_per_s = proxies * found.tokens_per_fill / interval_s
        assert 0.998 * quota.per_s <= together_per_s <= quota.per_s * (1 + 1e-6)
        assert interval_s >= MIN_FILL_S
        assert 1 <= found.max_tokens <= max(1, burst / proxies)


def test_request_counts_as_no_more_than_a_bucket_holds() -> None:
    [_, counted] = limits(Quota(requests=1, tokens=600, per=QuotaUnit.MINUTE), 3).rate_limits
    assert "< 200.0 ? " in counted.hits_addend.format


def test_period_that_is_not_used_up_changes_no_byte() -> None:
    plain = Quota(requests=1)
    limited = Quota(requests=1, per_day=PeriodQuota(requests=9), per_month=PeriodQuota(requests=99))
    assert limits(plain, 3) == limits(limited, 3)


def test_quota_of_a_day_alone_is_enforced_with_fair_shares() -> None:
    day_only = Quota(per_day=PeriodQuota(requests=9))
    tenants = Tenants(header="x-tenant", trust_header=True, fair_shares=True, others=day_only)
    assert QUOTA_FILTER in {one.name for one in quota_filters(tenants)}
    assert QUOTA_FILTER in tenant_quotas(Listener(port=80, tenants=tenants), 3)
    none = Tenants(header="x-tenant", trust_header=True, fair_shares=True, others=Quota())
    assert list(quota_filters(none)) == []


def test_tenants_off_have_no_buckets() -> None:
    assert tenant_quotas(Listener(port=80), 3) == {}
