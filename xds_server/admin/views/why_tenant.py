"""Explanation of a tenant: its quota, what it uses of it, and why requests are refused."""

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime

from policies.model import PolicySet
from policies.resilience.mode import Mode
from policies.tenants import OTHERS, Quota, Tenants
from xds_server.admin.views.context import UnknownNameError, ViewContext
from xds_server.admin_api.status_types import Explanation, RuleStatus
from xds_server.admin_api.tenant_types import TenantPeriod, TenantStatus

PREFIX = "tenant:"
# Share of a quota below which a refusal needs another reason than the quota itself.
_USED_UP = 0.8


def why_tenant(name: str, scene: ViewContext) -> Explanation:
    """Explain ``PORT/TENANT``, or a ``TENANT`` of only one port; ``UnknownNameError`` for none or several."""
    row = _named(name, scene)
    tenants, route = _declared(row.port, scene.policies)
    quota = tenants.quotas()[row.tenant]
    over = [one for one in row.periods if one.used_ratio >= 1]
    used, refused, above = row.used, row.traffic.refused_per_s, row.traffic.over_share_per_s
    served = f"{row.traffic.served_per_s:.3g} of {row.quota_per_s or 0:.3g} requests per second"
    uses = (
        f"has no quota of requests: {row.traffic.served_per_s:.3g} per second are served"
        if used is None
        else f"uses {used:.0%} of its quota: {served}"
    )
    return Explanation(
        subject=row.name,
        kind="tenant",
        well=not refused and not above and not over,
        now=(
            f"tenant {row.tenant} of port {row.port} {uses}"
            + (f"; {refused:.3g} more per second are refused" if refused else "")
            + (f"; {above:.3g} more per second are above its fair share" if above else "")
            + "."
        ),
        because=(*_because(row, quota, tenants), *_of_shares(row, quota)),
        why_not=tuple(map(_used_up, over))
        or ((_early_refusal(row, quota),) if refused and used is not None and used < _USED_UP else ()),
        ruled_by=(_rule(row.tenant, tenants, route, scene.policies),),
    )


def _named(name: str, scene: ViewContext) -> TenantStatus:
    rows = scene.tenants()
    found = [row for row in rows if name in (row.name, row.tenant)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UnknownNameError(
            f"{PREFIX}{name!r} is ambiguous: use " + " or ".join(f"{PREFIX}{row.name}" for row in found)
        )
    near = difflib.get_close_matches(
        name, [one for row in rows for one in (row.name, row.tenant)], n=3, cutoff=0.5
    )
    hint = f"did you mean {' or '.join(near)}?" if near else "`switchgear get tenants` lists them"
    raise UnknownNameError(f"no tenant {name!r}; {hint}")


def _declared(port: int, policies: PolicySet) -> tuple[Tenants, str]:
    """The tenants of a port, and the first route that declares them."""
    for name, route in policies.routes.items():
        if route.spec.listener.port == port and route.spec.listener.tenants is not None:
            return route.spec.listener.tenants, name
    raise UnknownNameError(f"port {port} has no tenants any more")


def _because(row: TenantStatus, quota: Quota, tenants: Tenants) -> Iterator[str]:
    even = 1 / row.proxies
    burst = max(1, int(quota.burst_requests * even))
    if row.quota_per_s is None:
        yield "No quota of requests."
    elif row.parts:
        each = ", ".join(f"{row.quota_per_s * part:.3g} at {node}" for node, part in row.parts.items())
        yield (
            f"Quota: {quota.requests} requests per {row.per}, divided over {row.proxies} proxies by what this "
            f"tenant asks of each: {each} per second."
        )
    elif row.proxies > 1:
        yield (
            f"Quota: {quota.requests} requests per {row.per}, divided over {row.proxies} proxies: "
            f"{row.quota_per_s / row.proxies:.3g} per second and a burst of {burst} at each."
        )
    else:
        yield f"Quota: {quota.requests} requests per {row.per}, with a burst of {burst}."
    if quota.tokens is not None:
        part = max(1, int(quota.burst_tokens * max(row.parts.values(), default=even)))
        yield (
            f"And {quota.tokens} tokens per {row.per}, estimated when a request arrives, with a burst of "
            f"{part} at {'the busiest' if row.parts else 'each'} proxy; a larger request counts as that."
        )
    for one in row.periods:
        parts = (
            f"{used:.0f} of {limit} {what} ({used / limit:.0%})"
            for what, used, limit in (
                ("requests", one.used_requests, one.requests),
                ("tokens", one.used_tokens, one.tokens),
            )
            if limit is not None
        )
        yield f"This {one.period} (UTC): {' and '.join(parts)} are used."
        if one.used_tokens and one.corrected_tokens != one.used_tokens:
            yield (
                f"By the engines' own counters, these were about {one.corrected_tokens:.0f} tokens instead of "
                f"{one.used_tokens:.0f}; the quota counts the estimate."
            )
    if row.tenant == OTHERS:
        yield f"Shared by all callers whose {tenants.header} is absent, repeated or names no tenant."
    counts = row.traffic
    if row.mode == Mode.SHADOW:
        yield (
            f"Mode shadow: no request is refused. Of those since this server started {counts.over_quota:.0f} were "
            f"above the quota and {counts.admitted:.0f} within it."
        )
    else:
        yield f"Since this server started: {counts.admitted:.0f} admitted, {counts.refused:.0f} refused with 429."


def _used_up(one: TenantPeriod) -> str:
    """Why no request is admitted any more."""
    ends = datetime.fromtimestamp(one.ends_at_unix_s, UTC)
    return f"The quota of this {one.period} is used up; it begins again at {ends:%Y-%m-%d %H:%M} UTC."


def _of_shares(row: TenantStatus, quota: Quota) -> Iterator[str]:
    for one in row.shares:
        least = f", at least {quota.min_percent:g} % of it" if quota.min_percent else ""
        share = (
            f"Fair share of pool {one.pool}: {one.share_per_s:.3g} mean requests per second (weight "
            f"{quota.weight:g}{least})"
        )
        if not one.pressure:
            yield f"{share}. The pool has room for all requests, so no tenant is limited."
        elif one.refused_percent:
            yield (
                f"{share}. The pool has no room for all requests: of {one.demand_per_s:.3g} that this tenant asks "
                f"for it gets {one.allowed_per_s:.3g}, with what others leave; {one.refused_percent:.0f} % are "
                "refused with 429."
            )
        else:
            yield f"{share}. The pool has no room for all requests, but this tenant asks for no more than it may."


def _early_refusal(row: TenantStatus, quota: Quota) -> str:
    """Why requests are refused before the quota is used up."""
    if row.proxies > 1:
        return (
            f"Refused below its quota: each of {row.proxies} proxies admits a part, which follows its callers "
            "within seconds; or requests come in bursts."
        )
    return f"Refused below its quota: requests come in bursts of more than {max(1, int(quota.burst_requests))}."


def _rule(tenant: str, tenants: Tenants, route: str, policies: PolicySet) -> RuleStatus:
    names = [one.name for one in tenants.named]
    field = "spec.listener.tenants." + (f"named[{names.index(tenant)}]" if tenant in names else OTHERS)
    origin = policies.origin("ModelRoute", route, field)
    place = "" if origin is None else f"{origin.file}:{origin.line}"
    return RuleStatus(field=field, value=str(tenants.quotas()[tenant]), place=place)
