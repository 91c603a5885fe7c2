"""Recent requests of tenants by proxy, admitted and refused: what quotas are divided by.

A count over a minute is exact enough also where a tenant has a thousand proxies with few requests each, but does
not follow traffic that moves. So there are shorter ones, over a second or two and over six: when one differs from
the longest by more than chance, it replaces it. Bounded by tenants of the policies and by proxies; what faded is
dropped.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from xds_server.model.pool_traffic import TenantDemand, TenantId

FADES_S: Final = (1.5, 6.0, 60.0)
"""Times in which counts fade to 37 %."""

BY_CHANCE: Final = (8.0, 6.0)
"""Square of the deviation, over its variance, that chance explains: it exceeds this in one of 200 and one of
70 cases. The shortest count is the least exact, so it must differ more.
"""

MEAN_OF: Final = 100.0
"""Requests that the mean number of tokens is of."""

READ_EACH_S: Final = 0.5
"""How old a reading may be: one of 20 tenants at 1 000 proxies takes 27 ms, and rounds follow each verdict."""

_FADED: Final = 1e-3


@dataclass(slots=True)
class _Recent:
    """Fading counts of one tenant at one proxy, one for each of ``FADES_S``, and the times that they are over."""

    counts: list[float]
    spans_s: list[float]
    at_s: float

    def fade(self, now_s: float) -> None:
        passed_s = now_s - self.at_s
        if passed_s <= 0:
            return
        self.at_s = now_s
        for place, time_s in enumerate(FADES_S):
            left = math.exp(-passed_s / time_s)
            self.counts[place] *= left
            self.spans_s[place] = self.spans_s[place] * left + time_s * (1 - left)

    def add(self, weight: float) -> None:
        for place in range(len(FADES_S)):
            self.counts[place] += weight

    def per_s(self) -> float:
        """The present rate."""
        for place in reversed(range(len(FADES_S) - 1)):
            count, span_s = self.counts[place], self.spans_s[place]
            expected = self.counts[-1] / self.spans_s[-1] * span_s
            # The variance of a count that fades is half of the number expected.
            if (count - expected) ** 2 > BY_CHANCE[place] * max(expected, 0.5) / 2:
                longer = range(place + 1, len(FADES_S))
                for one in longer:
                    self.counts[one], self.spans_s[one] = count, span_s
        return self.counts[-1] / self.spans_s[-1]


@dataclass(slots=True)
class _MeanTokens:
    """Mean of the estimated tokens of recent requests of a tenant."""

    requests: float = 0.0
    tokens: float = 0.0

    def add(self, weight: float, tokens: float) -> None:
        left = MEAN_OF / (MEAN_OF + weight)
        self.requests = self.requests * left + weight
        self.tokens = self.tokens * left + weight * tokens


class DemandByProxy:
    """Counts of all tenants by node id."""

    def __init__(self) -> None:
        self._tenants: dict[TenantId, dict[str, _Recent]] = {}
        self._tokens: dict[TenantId, _MeanTokens] = {}
        self._read: TenantDemand | None = None
        self._read_at_s = 0.0

    def retain(self, tenants: Iterable[TenantId]) -> None:
        """Count these tenants only."""
        self._tenants = {key: self._tenants.get(key, {}) for key in tenants}
        self._tokens = {key: one for key, one in self._tokens.items() if key in self._tenants}
        self._read = None

    def add(self, tenant: TenantId, node: str, *, weight: float, at_s: float, tokens: float = 0.0) -> None:
        """Count requests of a tenant at a proxy, each of this many tokens."""
        if (of := self._tenants.get(tenant)) is None:
            return
        if (recent := of.get(node)) is None:
            recent = of[node] = _Recent([0.0] * len(FADES_S), [FADES_S[0]] * len(FADES_S), at_s)
        recent.fade(at_s)
        recent.add(weight)
        if tokens:
            self._tokens.setdefault(tenant, _MeanTokens()).add(weight, tokens)

    def demand(self, now_s: float, nodes: Collection[str]) -> TenantDemand:
        """Recent requests at proxies, up to ``READ_EACH_S`` old; ``nodes``: those that are connected. A tenant
        without any is absent.
        """
        if self._read is None or now_s - self._read_at_s >= READ_EACH_S:
            self._read, self._read_at_s = self._reading(now_s), now_s
        return replace(self._read, nodes=nodes)

    def _reading(self, now_s: float) -> TenantDemand:
        found, per_s = {}, {}
        for tenant, of in self._tenants.items():
            rates = {}
            for node, recent in list(of.items()):
                recent.fade(now_s)
                rates[node] = recent.per_s()
                if recent.counts[-1] < _FADED:
                    del of[node], rates[node]
            if rates:
                # As many as are remembered, in the ratio of the rates.
                per_s[tenant] = sum(rates.values())
                times = sum(recent.counts[-1] for recent in of.values()) / per_s[tenant]
                found[tenant] = MappingProxyType({node: rate * times for node, rate in rates.items()})
        tokens_per_s = {
            tenant: per_s[tenant] * one.tokens / one.requests
            for tenant, one in self._tokens.items()
            if tenant in per_s
        }
        return TenantDemand(
            by_tenant=MappingProxyType(found),
            per_s=MappingProxyType(per_s),
            tokens_per_s=MappingProxyType(tokens_per_s),
        )
