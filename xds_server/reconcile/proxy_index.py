"""The proxies as decisions see them, from the views of connected nodes: only those that changed are made again."""

from collections import Counter
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.decide.pool_inputs import ProxyKinds, proxy_kinds
from xds_server.model.memo import LastResult
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GATEWAY, View

_NO_GATEWAYS: Final[Mapping[str, Proxy]] = MappingProxyType({})


class ProxyIndex:
    """The proxies of all replicas that take part in limits."""

    def __init__(self) -> None:
        self._all: LastResult[tuple[Mapping[str, Proxy], ProxyKinds]] = LastResult()
        self._elsewhere: LastResult[ProxyKinds] = LastResult()
        self._gateways: LastResult[Mapping[str, Proxy]] = LastResult()
        self._view_of: dict[str, View] = {}
        self._proxies: dict[str, Proxy] = {}
        self._counts: Counter[tuple[str, frozenset[str]]] = Counter()
        self._places: Counter[tuple[str, str]] = Counter()
        self._gateways_here = _NO_GATEWAYS

    def proxies(
        self, nodes: Mapping[str, View], crowding: Collection[str], elsewhere: Mapping[str, Proxy]
    ) -> tuple[Mapping[str, Proxy], ProxyKinds]:
        """Proxies by node id, and their kinds; the same objects for the same nodes.

        ``nodes`` are here, ``crowding`` those of them that do not count; ``elsewhere`` are on other replicas.
        """
        return self._all.of((nodes, crowding, elsewhere), lambda: self._made(nodes, crowding, elsewhere))

    def _made(
        self, nodes: Mapping[str, View], crowding: Collection[str], elsewhere: Mapping[str, Proxy]
    ) -> tuple[Mapping[str, Proxy], ProxyKinds]:
        self._update({node: one for node, one in nodes.items() if node not in crowding} if crowding else nodes)
        there = self._elsewhere.of((elsewhere,), lambda: proxy_kinds(elsewhere))
        gateways = self._gateways.of(
            (there.gateways, self._gateways_here),
            lambda: MappingProxyType({**there.gateways, **self._gateways_here}),
        )
        kinds = ProxyKinds(
            gateways=gateways,
            counts=MappingProxyType(self._counts + Counter(there.counts)),
            places=there.places.union(self._places),
        )
        return MappingProxyType({**elsewhere, **self._proxies}), kinds

    def _update(self, sharing: Mapping[str, View]) -> None:
        """Take over the views of these nodes, which are all that count here."""
        known = self._view_of
        gone = known.keys() - sharing.keys()
        changed = [node for node, view in sharing.items() if known.get(node) is not view]
        before = {node: self._proxies[node] for node in (*gone, *changed) if node in self._proxies}
        for node in gone:
            del known[node], self._proxies[node]
        for node in changed:
            known[node] = sharing[node]
            self._proxies[node] = _proxy(node, sharing[node])
        after = [self._proxies[node] for node in changed]
        self._counts.subtract((one.role, one.pools) for one in before.values())
        self._counts.update((one.role, one.pools) for one in after)
        self._places.subtract((one.region, one.zone) for one in before.values())
        self._places.update((one.region, one.zone) for one in after)
        self._counts, self._places = +self._counts, +self._places
        if any(one.role == GATEWAY for one in (*before.values(), *after)):
            self._gateways_here = MappingProxyType(
                {node: one for node, one in self._proxies.items() if one.role == GATEWAY}
            )


def _proxy(node: str, view: View) -> Proxy:
    return Proxy(node=node, zone=view.zone, role=view.role, cuts=view.cuts, pools=view.pools, region=view.region)
