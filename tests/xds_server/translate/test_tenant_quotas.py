"""A proxy's part of a quota as a token bucket."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.listener import Listener
from policies.tenants import PeriodQuota, Quota, QuotaUnit, Tenants
from xds_server.decide.admission.quota_parts import FLOOR
from xds_server.translate.quota_buckets import FEW, HOLDS, MOST_BURST, STEP, request_buckets
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
    st.floats(0, 1),
)
def test_part_of_a_quota_is_what_its_buckets_admit(
    requests: int, unit: QuotaUnit, proxies: int, burst: int, busy: float
) -> None:
    quota = Quota(requests=requests, per=unit, burst=burst)
    buckets = request_buckets(quota, proxies)
    assert buckets is not None
    part = FLOOR / proxies + (1 - FLOOR) * busy
    cost, size = math.ceil(buckets.cost(part)), buckets.sizes[buckets.place(part)]
    assert cost <= size, "each proxy can admit a request"
    most = STEP * HOLDS if part * FEW < 1 else STEP
    assert size / cost <= max(min(burst, MOST_BURST) * part, most) * (1 + 1e-6)
    admits_per_s = buckets.per_s / cost
    exact = 0.01 if requests / unit.seconds < 1e7 else 1.0
    assert (1 - exact) * quota.per_s * part <= admits_per_s <= quota.per_s * part * (1 + 1e-6)


@given(st.integers(1, 1_000_000_000), st.sampled_from(QuotaUnit), st.integers(1, 16_384), st.integers(1, 10**9))
def test_envoy_takes_the_buckets(limit: int, unit: QuotaUnit, proxies: int, burst: int) -> None:
    quota = Quota(requests=limit, per=unit, burst=burst, tokens=limit, tokens_burst=burst)
    made = limits(quota, proxies)
    sizes = [one.token_bucket.max_tokens for one in made.descriptors]
    assert len(set(sizes)) == len(sizes), "the size tells the bucket"
    for bucket in (made.token_bucket, *(one.token_bucket for one in made.descriptors)):
        assert bucket.fill_interval.total_seconds() >= MIN_FILL_S
        assert 1 <= bucket.max_tokens < 2**32
        assert 1 <= bucket.tokens_per_fill < 2**32


def test_buckets_change_only_when_there_are_many_more_proxies() -> None:
    quota = Quota(requests=12, tokens=100)
    assert limits(quota, 5) == limits(quota, 16) != limits(quota, 17)


def test_period_that_is_not_used_up_changes_no_byte() -> None:
    plain = Quota(requests=1)
    limited = Quota(requests=1, per_day=PeriodQuota(requests=9), per_month=PeriodQuota(requests=99))
    assert limits(plain, 3) == limits(limited, 3)


def test_quota_of_a_day_alone_is_enforced_with_fair_shares() -> None:
    day_only = Quota(per_day=PeriodQuota(requests=9))
    tenants = Tenants(header="x-tenant", trust_header=True, fair_shares=True, others=day_only)
    assert QUOTA_FILTER in {one.name for one in quota_filters(80, tenants)}
    assert QUOTA_FILTER in tenant_quotas(Listener(port=80, tenants=tenants), 3)
    none = Tenants(header="x-tenant", trust_header=True, fair_shares=True, others=Quota())
    assert list(quota_filters(80, none)) == []


def test_tenants_off_have_no_buckets() -> None:
    assert tenant_quotas(Listener(port=80), 3) == {}
