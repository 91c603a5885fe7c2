"""Proxies of other replicas, which share limits and demand."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from xds_server.model.pool_traffic import PoolTraffic, Proxy, ProxyTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteProxies:
    """Proxies of other replicas: by synthetic node id, by role, by zone, and their demand by pool.

    ``kinds`` has the role, zone and pools of each kind.
    """

    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    proxies_by_role: Mapping[str, int] = field(default_factory=dict)
    proxies_by_zone: Mapping[str, int] = field(default_factory=dict)
    traffic: Mapping[str, Mapping[str, ProxyTraffic]] = field(default_factory=dict)
    kinds: frozenset[tuple[str, str]] = frozenset()


NO_REMOTE_PROXIES: Final = RemoteProxies()


class TrafficMerger:
    """Merges local and remote traffic; equal inputs return the same object."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[PoolTraffic | None, Mapping[str, ProxyTraffic], PoolTraffic]] = {}

    def traffic(self, here: Mapping[str, PoolTraffic], there: RemoteProxies) -> Mapping[str, PoolTraffic]:
        """The demand of all proxies, by pool; ``here`` itself without remote demand."""
        if not there.traffic:
            self._made = {}
            return here
        made = {}
        for pool, proxies in there.traffic.items():
            local, known = here.get(pool), self._made.get(pool)
            same = known is not None and known[0] is local and known[1] is proxies
            made[pool] = known if known is not None and same else (local, proxies, _joined(local, proxies))
        self._made = made
        return MappingProxyType({**here, **{pool: one[2] for pool, one in made.items()}})


def _joined(here: PoolTraffic | None, there: Mapping[str, ProxyTraffic]) -> PoolTraffic:
    if here is not None:
        return replace(here, proxies=MappingProxyType({**here.proxies, **there}))
    return PoolTraffic(proxies=there, heard_at_s=max(one.heard_at_s for one in there.values()))
