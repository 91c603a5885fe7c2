"""Who is served, here and by other replicas: what limits are divided by, and where requests come from.

Counts are of all replicas together, so a proxy that goes from one to another changes nothing, and one that is away
for a moment is remembered; see ``roster``.
"""

from collections.abc import Mapping
from typing import Protocol

from xds_server.fleet.traffic import PoolTraffic
from xds_server.kube.elsewhere import NOWHERE, Elsewhere, Joining
from xds_server.reconcile import roster as rosters
from xds_server.reconcile.neighbours import Proxies
from xds_server.translate.view import View


class Peers(Protocol):
    """Other replicas that serve the same."""

    def elsewhere(self, here: Mapping[str, object]) -> Elsewhere:
        """What they serve beside the proxies that are connected ``here``; the same object while nothing is new."""
        ...


class Roll:
    """The proxies of all replicas, as this one knows them."""

    def __init__(self, proxies: Proxies, peers: Peers | None) -> None:
        """``peers`` are None where there is no way to know of any: then there are none."""
        self._proxies = proxies
        self._peers = peers
        self._joining = Joining()
        self.roster = rosters.EMPTY
        self.callers = rosters.EMPTY

    def elsewhere(self) -> Elsewhere:
        """What other replicas serve."""
        return NOWHERE if self._peers is None else self._peers.elsewhere(self._proxies.nodes())

    def traffic(self, here: Mapping[str, PoolTraffic]) -> Mapping[str, PoolTraffic]:
        """What proxies ask for, here and elsewhere."""
        return self._joining.traffic(here, self.elsewhere())

    def restore(self, by_role: Mapping[str, int], by_zone: Mapping[str, int], now_s: float) -> None:
        """Remember whom the last run of the server knew of."""
        self.roster, self.callers = rosters.restored(by_role, now_s), rosters.restored(by_zone, now_s)

    def call(self, now_s: float, arriving: View | None = None) -> bool:
        """Bring the rosters up to who is served, and the proxy that is about to be; whether that changed them."""
        there = self.elsewhere()
        by_role = _together(self._proxies.proxies_by_role(), there.proxies_by_role)
        by_zone = _together(self._proxies.proxies_by_zone(), there.proxies_by_zone)
        # Where another replica has its like it most likely comes from there, and is counted already. If not, it is
        # counted in the round that follows.
        if arriving is not None and (arriving.role, arriving.zone) not in there.kinds:
            by_role[arriving.role] = by_role.get(arriving.role, 0) + 1
            by_zone[arriving.zone] = by_zone.get(arriving.zone, 0) + 1
        before = (self.roster.counts(), self.callers.counts())
        self.roster = rosters.updated(self.roster, by_role, now_s)
        self.callers = rosters.updated(self.callers, by_zone, now_s)
        return (self.roster.counts(), self.callers.counts()) != before


def _together(here: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    return {key: here.get(key, 0) + there.get(key, 0) for key in here.keys() | there.keys()}
