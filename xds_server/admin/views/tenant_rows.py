"""Rows of ``get tenants``."""

from collections.abc import Mapping

from policies.model import PolicySet
from xds_server.admin_api.tenant_types import TenantStatus, TenantTraffic
from xds_server.decide.decisions import Decisions

_NO_TRAFFIC = TenantTraffic()


def tenant_rows(
    policies: PolicySet, decisions: Decisions, traffic: Mapping[tuple[int, str], TenantTraffic]
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
        )
        for port in sorted(listeners)
        if (tenants := listeners[port].tenants) is not None
        for name, quota in tenants.quotas().items()
    )
