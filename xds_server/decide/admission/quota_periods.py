"""Tenants whose quota of a day or a month is used up: proxies refuse them until the period ends.

The control plane counts, so a quota is exceeded by what is answered until it knows and proxies have the decision,
and by requests in flight.
"""

from collections.abc import Mapping

from policies.model import PolicySet
from policies.tenants import PeriodQuota
from xds_server.decide.decisions import UsedUpQuota
from xds_server.model.tenant_usage import NO_USAGE, TenantUsage, Used, period_end_unix_s


def used_up_quotas(policies: PolicySet, usage: TenantUsage) -> dict[int, Mapping[str, UsedUpQuota]]:
    """By port and tenant, the used up quota that ends last; ports without any are absent."""
    found: dict[int, Mapping[str, UsedUpQuota]] = {}
    if usage is NO_USAGE:
        return found
    for route in policies.routes.values():
        listener = route.spec.listener
        if listener.tenants is None or listener.port in found:
            continue
        used_up = {
            name: UsedUpQuota(period=period, limit=limit, until_unix_s=period_end_unix_s(usage.today, period))
            for name, quota in listener.tenants.quotas().items()
            for period, limits in quota.periods.items()
            if (limit := _used_up(limits, usage.of((listener.port, name), period))) is not None
        }
        if used_up:
            found[listener.port] = used_up
    return found


def _used_up(limits: PeriodQuota, used: Used) -> int | None:
    """The limit that is used up."""
    if limits.requests is not None and used.requests >= limits.requests:
        return limits.requests
    if limits.tokens is not None and used.tokens >= limits.tokens:
        return limits.tokens
    return None
