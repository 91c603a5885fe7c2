"""Requests of tenants by what their quota did, from access logs. Bounded by the tenants of the policies.

Counts grow since the server started and are for metrics; rates are of the last seconds. Both are what the proxies
report to this replica.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

from prometheus_client.core import Metric

from policies.listener import Listener
from policies.model import PolicySet
from policies.route import MAX_TOKENS_HEADER
from policies.tenants import OTHERS, Tenants
from xds_server.admin_api.tenant_types import TenantTraffic
from xds_server.metrics.fleet_metrics import CallerMetrics
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import TenantId
from xds_server.telemetry.sliding_windows import RateWindow
from xds_server.telemetry.tenant_demand import DemandByProxy
from xds_server.telemetry.token_use import RequestedTokens, TokenUse, sent_bytes
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

    ``models`` are by pool. ``asked`` yields what a request asked for, from its entry and the bytes of its body;
    None without limits of tokens. ``shared`` are the pools that they have fair shares of, ``limited`` the names
    with a quota that is divided.
    """

    port: int
    header: str
    names: frozenset[str]
    pools: frozenset[str]
    models: Mapping[str, str]
    asked: Callable[[Any, float], RequestedTokens] | None
    shared: frozenset[str] = frozenset()
    limited: frozenset[str] = frozenset()


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
                port=route.spec.listener.port,
                header=tenants.header,
                names=names,
                pools=pools,
                models={pool: policies.pools[pool].spec.model for pool in pools},
                asked=_asked(route.spec.listener, tenants) if tenants.counts_tokens else None,
                shared=shared,
                limited=frozenset(name for name, quota in tenants.quotas().items() if quota.is_divided),
            )
    return found


def _asked(listener: Listener, tenants: Tenants) -> Callable[[Any, float], RequestedTokens]:
    """What the quota of tokens counts: Envoy's number, or the same sum from the headers and the body's size."""

    def of_body(entry: Any, body_bytes: float) -> RequestedTokens:
        # Requests without a body have no estimate, and count as one token.
        estimate = _number(entry.request.request_headers.get(ESTIMATED_TOKENS_HEADER, ""), 1.0)
        prompt = min(estimate, body_bytes / tenants.bytes_per_token)
        return RequestedTokens(body_bytes=body_bytes, prompt=prompt, answer=estimate - prompt)

    def of_headers(entry: Any, body_bytes: float) -> RequestedTokens:
        stated = entry.request.request_headers.get(MAX_TOKENS_HEADER, "")
        answer = _number(stated, tenants.answer_tokens)
        return RequestedTokens(body_bytes=body_bytes, prompt=body_bytes / tenants.bytes_per_token, answer=answer)

    return of_headers if listener.reads_headers else of_body


def _number(text: str, otherwise: float) -> float:
    """A number of tokens, within what a request can ask for; ``otherwise`` if it is none."""
    try:
        found = float(text)
    except ValueError:
        return otherwise
    return min(found, MOST_TOKENS) if found >= 0 else otherwise


class EntryTenant(NamedTuple):
    """The tenant that sent the request of an entry; found once, and then asked for all that counts it."""

    id: TenantId
    facts: TenantFacts

    def has_share_of(self, pool: str) -> bool:
        """Whether it has a fair share of this pool."""
        return pool in self.facts.shared


class _Tenant:
    __slots__ = ("counts", "recent")

    def __init__(self) -> None:
        self.counts = [0.0] * len(QuotaResult)
        self.recent = RateWindow(len(QuotaResult))


class TenantCounts:
    """Counts of all tenants, by port and name. ``ports``: those with tenants; ``usage``: by calendar day,
    ``demand``: by proxy.

    ``token_use`` gets what answered requests asked for, and corrects their usage.
    """

    def __init__(self, token_use: TokenUse | None = None) -> None:
        self.ports: Mapping[str, TenantFacts] = {}
        self._token_use = token_use or TokenUse()
        self.usage = UsageByDay()
        self.demand = DemandByProxy()
        self._tenants: dict[TenantId, _Tenant] = {}

    def set_ports(self, ports: Mapping[str, TenantFacts]) -> None:
        """Count these tenants from now on; counts of those that remain are kept."""
        self.ports = ports
        before = self._tenants
        keys = ((facts.port, name) for facts in ports.values() for name in (*sorted(facts.names), OTHERS))
        self._tenants = {key: before.get(key) or _Tenant() for key in keys}
        self.demand.retain((facts.port, name) for facts in ports.values() for name in facts.limited)

    def of(self, entry: Any) -> EntryTenant | None:
        """The tenant that sent the request of an entry; None for ports without tenants."""
        facts = self.ports.get(entry.common_properties.custom_tags.get(PORT_TAG, ""))
        if facts is None:
            return None
        name = entry.request.request_headers.get(facts.header, "")
        return EntryTenant((facts.port, name if name in facts.names else OTHERS), facts)

    def add(
        self,
        tenant: EntryTenant,
        entry: Any,
        node: str,
        *,
        refused: QuotaResult | None = None,
        tried: bool = False,
        weight: float,
        at_s: float,
    ) -> None:
        """Count a request at the proxy ``node``; ``refused``: by what; ``tried``: the entry is of a try."""
        counted, result = self._tenants[tenant.id], refused or QuotaResult.ADMITTED
        if refused is None and OVER_QUOTA_HEADER in entry.request.request_headers:
            result = QuotaResult.OVER_QUOTA
        counted.counts[result] += weight
        counted.recent.slot(at_s)[result + 1] += weight
        asked = tenant.facts.asked
        tokens = 0.0
        if asked is not None:
            tokens = asked(entry, sent_bytes(entry) if tried else entry.request.request_body_bytes).estimate
        self.demand.add(tenant.id, node, weight=weight, at_s=at_s, tokens=tokens)

    def add_answer(self, tenant: EntryTenant, entry: Any, engine: EngineId, *, weight: float) -> None:
        """Count the usage of a request that this engine answered."""
        facts, tokens, corrected = tenant.facts, 0.0, 0.0
        if facts.asked is not None:
            asked = facts.asked(entry, sent_bytes(entry))
            self._token_use.record_request(engine, asked, weight)
            tokens, corrected = asked.estimate, self._token_use.corrected(engine.pool, asked)
        self.usage.add(
            tenant.id,
            facts.models.get(engine.pool, ""),
            requests=weight,
            tokens=weight * tokens,
            corrected=weight * corrected,
        )

    def traffic(self, now_s: float) -> Mapping[TenantId, TenantTraffic]:
        """Counts and rates by port and name."""
        found = {}
        for tenant, one in self._tenants.items():
            rates = one.recent.rates(now_s) or (0.0,) * len(QuotaResult)
            found[tenant] = TenantTraffic(
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
                (str(port), name, result.name.lower()): one.counts[result]
                for (port, name), one in self._tenants.items()
                for result in QuotaResult
            }
        )
