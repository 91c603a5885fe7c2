"""Rows of ``get tenants``."""

from collections.abc import Iterator, Mapping

from policies.model import PolicySet
from policies.tenants import Quota
from xds_server.admin_api.tenant_types import TenantPeriod, TenantStatus, TenantTraffic
from xds_server.decide.decisions import Decisions
from xds_server.model.tenant_usage import NO_USAGE, TenantKey, TenantUsage, period_end_unix_s

_NO_TRAFFIC = TenantTraffic()


def tenant_rows(
    policies: PolicySet,
    decisions: Decisions,
    traffic: Mapping[TenantKey, TenantTraffic],
    usage: TenantUsage = NO_USAGE,
) -> tuple[TenantStatus, ...]:
    """Tenants by port, in the order of the policy, others last."""
    listeners = {route.spec.listener.port: route.spec.listener for route in policies.routes.values()}
    return tuple(
        TenantStatus(
            port=port,
            tenant=name,
            requests=quota.requests,
            per=quota.per.value,
            quota_per_s=quota.per_s,
            mode=tenants.mode.value,
            proxies=decisions.quota_proxies.get(port, 1),
            traffic=traffic.get((port, name), _NO_TRAFFIC),
            tokens=quota.tokens,
            periods=tuple(_periods(quota, (port, name), usage)),
        )
        for port in sorted(listeners)
        if (tenants := listeners[port].tenants) is not None
        for name, quota in tenants.quotas().items()
    )


def _periods(quota: Quota, key: TenantKey, usage: TenantUsage) -> Iterator[TenantPeriod]:
    for period, limits in quota.periods.items():
        used = usage.of(key, period)
        limited = ((limits.requests, used.requests), (limits.tokens, used.tokens))
        yield TenantPeriod(
            period=period.value,
            requests=limits.requests,
            tokens=limits.tokens,
            used_requests=used.requests,
            used_tokens=used.tokens,
            used_ratio=max(count / limit for limit, count in limited if limit is not None),
            ends_at_unix_s=period_end_unix_s(usage.today, period),
        )
