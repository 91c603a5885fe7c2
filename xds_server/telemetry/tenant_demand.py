"""Recent requests of tenants by proxy, admitted and refused: what quotas are divided by.

A count over a minute is exact enough also where a tenant has a thousand proxies with few requests each, but does
not follow traffic that moves. So there is a second one, over a second or two: when it differs from the first by
more than chance, it replaces it. Bounded by tenants of the policies and by proxies; what faded is dropped.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from xds_server.model.pool_traffic import TenantDemand, TenantId

FAST_S: Final = 1.5
SLOW_S: Final = 60.0
"""Time in which counts fade to 37 %."""

BY_CHANCE: Final = 6.0
"""Square of the deviation, over its variance, that chance explains: it exceeds this in one of seventy cases."""

_FADED: Final = 1e-3


@dataclass(slots=True)
class _Recent:
    """Fading counts of one tenant at one proxy. ``span_s`` is the time that ``slow`` is over."""

    fast: float
    slow: float
    span_s: float
    at_s: float

    def fade(self, now_s: float) -> None:
        passed_s = now_s - self.at_s
        if passed_s <= 0:
            return
        self.at_s = now_s
        self.fast *= math.exp(-passed_s / FAST_S)
        left = math.exp(-passed_s / SLOW_S)
        self.slow *= left
        self.span_s = self.span_s * left + SLOW_S * (1 - left)

    def per_s(self) -> float:
        """The present rate."""
        expected = self.slow / self.span_s * FAST_S
        # The variance of a count that fades is half of the number expected.
        if (self.fast - expected) ** 2 > BY_CHANCE * max(expected, 0.5) / 2:
            self.slow, self.span_s = self.fast, FAST_S
        return self.slow / self.span_s


class DemandByProxy:
    """Counts of all tenants by node id."""

    def __init__(self) -> None:
        self._tenants: dict[TenantId, dict[str, _Recent]] = {}

    def retain(self, tenants: Iterable[TenantId]) -> None:
        """Count these tenants only."""
        self._tenants = {key: self._tenants.get(key, {}) for key in tenants}

    def add(self, tenant: TenantId, node: str, *, weight: float, at_s: float) -> None:
        """Count requests of a tenant at a proxy."""
        if (of := self._tenants.get(tenant)) is None:
            return
        if (recent := of.get(node)) is None:
            recent = of[node] = _Recent(0.0, 0.0, FAST_S, at_s)
        recent.fade(at_s)
        recent.fast += weight
        recent.slow += weight

    def demand(self, now_s: float, nodes: Collection[str]) -> TenantDemand:
        """Recent requests at proxies; ``nodes``: those that are connected. A tenant without any is absent."""
        found = {}
        for tenant, of in self._tenants.items():
            rates = {}
            for node, recent in list(of.items()):
                recent.fade(now_s)
                rates[node] = recent.per_s()
                if recent.slow < _FADED:
                    del of[node], rates[node]
            if rates:
                # As many as are remembered, in the ratio of the rates.
                times = sum(recent.slow for recent in of.values()) / sum(rates.values())
                found[tenant] = MappingProxyType({node: rate * times for node, rate in rates.items()})
        return TenantDemand(by_tenant=MappingProxyType(found), nodes=nodes)
