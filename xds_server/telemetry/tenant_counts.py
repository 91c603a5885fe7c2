"""Requests of tenants by what their quota did, from access logs. Bounded by the tenants of the policies.

Counts grow since the server started and are for metrics; rates are of the last seconds. Both are what the proxies
report to this replica.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from prometheus_client.core import Metric

from policies.model import PolicySet
from policies.route import MAX_TOKENS_HEADER, Listener
from policies.tenants import OTHERS, Tenants
from xds_server.admin_api.tenant_types import TenantTraffic
from xds_server.metrics.fleet_metrics import CallerMetrics
from xds_server.model.pool_traffic import TenantId
from xds_server.telemetry.sliding_windows import RateWindow
from xds_server.telemetry.usage_by_day import UsageByDay
from xds_server.translate.access_log_config import PORT_TAG
from xds_server.translate.request_fields import ESTIMATED_TOKENS_HEADER, MOST_TOKENS
from xds_server.translate.tenant_quotas import OVER_QUOTA_HEADER

RATE_LIMITED: Final = "rate_limited"
"""Response flag of requests that a quota refused, by its protobuf name."""

FAULT_INJECTED: Final = "fault_injected"
"""The same of requests above their tenant's share."""


class QuotaResult(IntEnum):
    """What a quota did with a request; the values are positions of counts."""

    ADMITTED = 0
    OVER_QUOTA = 1  # served, in shadow mode
    REFUSED = 2
    OVER_SHARE = 3  # refused, while the pool had no room for all requests


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFacts:
    """The tenants of a port: the header with their name, the names, and the pools behind the port.

    ``models`` are by pool. ``estimate`` yields a request's tokens from its entry; None without limits of tokens.
    ``shared`` are the pools that they have fair shares of.
    """

    header: str
    names: frozenset[str]
    pools: frozenset[str]
    models: Mapping[str, str]
    estimate: Callable[[Any], float] | None
    shared: frozenset[str] = frozenset()


def tenants_by_port(policies: PolicySet) -> Mapping[str, TenantFacts]:
    """Facts by port, as text, of ports with tenants."""
    found: dict[str, TenantFacts] = {}
    for route in policies.routes.values():
        tenants = route.spec.listener.tenants
        if tenants is not None:
            port = str(route.spec.listener.port)
            pools = frozenset((*(share.pool for share in route.spec.pools), *route.spec.fallbacks))
            shared = frozenset((route.spec.pools[0].pool,) if tenants.fair_shares else ())
            names = frozenset(one.name for one in tenants.named)
            if (before := found.get(port)) is not None:
                pools, shared = before.pools | pools, before.shared | shared
            found[port] = TenantFacts(
                header=tenants.header,
                names=names,
                pools=pools,
                models={pool: policies.pools[pool].spec.model for pool in pools},
                estimate=_estimate(route.spec.listener, tenants) if tenants.counts_tokens else None,
                shared=shared,
            )
    return found


def _estimate(listener: Listener, tenants: Tenants) -> Callable[[Any], float]:
    """What the quota of tokens counts: Envoy's number, or the same sum from the headers and the body's size."""
    if not listener.reads_headers:
        # Requests without a body have no estimate, and count as one token.
        return lambda entry: _number(entry.request.request_headers.get(ESTIMATED_TOKENS_HEADER, ""), 1.0)

    def of_headers(entry: Any) -> float:
        stated = entry.request.request_headers.get(MAX_TOKENS_HEADER, "")
        prompt: float = entry.request.request_body_bytes / tenants.bytes_per_token
        return prompt + _number(stated, tenants.answer_tokens)

    return of_headers


def _number(text: str, otherwise: float) -> float:
    """A number of tokens, within what a request can ask for; ``otherwise`` if it is none."""
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return min(found, MOST_TOKENS) if found >= 0 else otherwise


def _name(entry: Any, facts: TenantFacts) -> str:
    name = entry.request.request_headers.get(facts.header, "")
    return name if name in facts.names else OTHERS


class _Tenant:
    __slots__ = ("counts", "recent")

    def __init__(self) -> None:
        self.counts = [0.0] * len(QuotaResult)
        self.recent = RateWindow(len(QuotaResult))


class TenantCounts:
    """Counts of all tenants, by port and name. ``ports``: those with tenants; ``usage``: by calendar day."""

    def __init__(self) -> None:
        self.ports: Mapping[str, TenantFacts] = {}
        self.usage = UsageByDay()
        self._tenants: dict[tuple[str, str], _Tenant] = {}

    def set_ports(self, ports: Mapping[str, TenantFacts]) -> None:
        """Count these tenants from now on; counts of those that remain are kept."""
        self.ports = ports
        before = self._tenants
        keys = ((port, name) for port, facts in ports.items() for name in (*sorted(facts.names), OTHERS))
        self._tenants = {key: before.get(key) or _Tenant() for key in keys}

    def facts(self, entry: Any) -> tuple[str, TenantFacts] | None:
        """Port and tenants that an entry belongs to; None for ports without tenants."""
        port = entry.common_properties.custom_tags.get(PORT_TAG, "")
        facts = self.ports.get(port)
        return None if facts is None else (port, facts)

    def tenant_with_share(self, entry: Any, pool: str) -> TenantId | None:
        """Port and name of the tenant that sent a request, if it has a fair share of this pool."""
        found = self.facts(entry)
        if found is None or pool not in found[1].shared:
            return None
        name = entry.request.request_headers.get(found[1].header, "")
        return int(found[0]), name if name in found[1].names else OTHERS

    def add(self, entry: Any, *, refused: QuotaResult | None = None, weight: float, at_s: float) -> None:
        """Count a request; ``refused``: by what."""
        found = self.facts(entry)
        if found is None:
            return
        port, facts = found
        headers = entry.request.request_headers
        tenant = self._tenants[port, _name(entry, facts)]
        result = QuotaResult.ADMITTED
        if refused is not None:
            result = refused
        elif OVER_QUOTA_HEADER in headers:
            result = QuotaResult.OVER_QUOTA
        tenant.counts[result] += weight
        tenant.recent.slot(at_s)[result + 1] += weight

    def add_answer(self, entry: Any, pool: str, *, weight: float) -> None:
        """Count the usage of a request that an engine of this pool answered."""
        found = self.facts(entry)
        if found is None:
            return
        port, facts = found
        tokens = 0.0 if facts.estimate is None else facts.estimate(entry)
        self.usage.add(
            (int(port), _name(entry, facts)), facts.models.get(pool, ""), requests=weight, tokens=weight * tokens
        )

    def traffic(self, now_s: float) -> Mapping[tuple[int, str], TenantTraffic]:
        """Counts and rates by port and name."""
        found = {}
        for (port, name), one in self._tenants.items():
            rates = one.recent.rates(now_s) or (0.0,) * len(QuotaResult)
            found[int(port), name] = TenantTraffic(
                admitted=one.counts[QuotaResult.ADMITTED],
                over_quota=one.counts[QuotaResult.OVER_QUOTA],
                refused=one.counts[QuotaResult.REFUSED],
                over_share=one.counts[QuotaResult.OVER_SHARE],
                served_per_s=rates[QuotaResult.ADMITTED] + rates[QuotaResult.OVER_QUOTA],
                refused_per_s=rates[QuotaResult.REFUSED],
                over_share_per_s=rates[QuotaResult.OVER_SHARE],
            )
        return found

    def families(self) -> Iterator[Metric]:
        """The counts, for a scrape."""
        yield CallerMetrics.tenant_requests.family(
            {
                (port, name, result.name.lower()): one.counts[result]
                for (port, name), one in self._tenants.items()
                for result in QuotaResult
            }
        )
