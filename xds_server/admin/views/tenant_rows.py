"""Rows of ``get tenants``."""

from collections.abc import Iterator, Mapping

from policies.model import PolicySet
from policies.tenants import Quota
from xds_server.admin_api.tenant_types import PoolShareStatus, TenantPeriod, TenantStatus, TenantTraffic
from xds_server.decide.decisions import NO_PORT_PARTS, Decisions
from xds_server.model.pool_traffic import TenantId
from xds_server.model.tenant_usage import NO_USAGE, TenantUsage, period_end_unix_s

_NO_TRAFFIC = TenantTraffic()
_SHOWN = 16


def _shares(decisions: Decisions, tenant: TenantId) -> Iterator[PoolShareStatus]:
    for pool, decided in sorted(decisions.pools.items()):
        shares = decided.fair_shares
        if shares is not None and tenant in shares.tenants:
            one = shares.tenants[tenant]
            yield PoolShareStatus(
                pool=pool,
                share_per_s=one.share_per_s,
                demand_per_s=one.demand_per_s,
                allowed_per_s=one.allowed_per_s,
                refused_percent=one.refused_percent,
                pressure=shares.on,
            )


def tenant_rows(
    policies: PolicySet,
    decisions: Decisions,
    traffic: Mapping[TenantId, TenantTraffic],
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
            shares=tuple(_shares(decisions, (port, name))),
            parts=_largest(decisions.quota_parts.get(port, NO_PORT_PARTS).by_tenant.get(name, {})),
        )
        for port in sorted(listeners)
        if (tenants := listeners[port].tenants) is not None
        for name, quota in tenants.quotas().items()
    )


def _largest(parts: Mapping[str, float]) -> Mapping[str, float]:
    """The largest of these parts, in this order."""
    return {node: round(parts[node], 6) for node in sorted(parts, key=lambda one: (-parts[one], one))[:_SHOWN]}


def _periods(quota: Quota, key: TenantId, usage: TenantUsage) -> Iterator[TenantPeriod]:
    for period, limits in quota.periods.items():
        used = usage.of(key, period)
        limited = ((limits.requests, used.requests), (limits.tokens, used.tokens))
        yield TenantPeriod(
            period=period.value,
            requests=limits.requests,
            tokens=limits.tokens,
            used_requests=used.requests,
            used_tokens=used.tokens,
            corrected_tokens=used.corrected,
            used_ratio=max(count / limit for limit, count in limited if limit is not None),
            ends_at_unix_s=period_end_unix_s(usage.today, period),
        )
