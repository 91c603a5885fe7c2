"""Connected node ids: the view of each, and counts by view, kept as proxies come and go.

A round asks for them whenever a proxy came or left, so nothing here looks at all of them in Python.
"""

from collections import Counter
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Final

from xds_server.model.host_crowds import HostCrowds, NodeHost
from xds_server.model.memo import reuse_equal

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class ConnectedNodes:
    """The view and host of each connected node id."""

    def __init__(self) -> None:
        self._view_of: dict[str, Hashable] = {}
        self._by_view: Counter[Hashable] = Counter()
        self._crowds = HostCrowds()
        self._shown: Mapping[str, Hashable] | None = None
        self._crowding = _NOTHING
        self._crowding_stale = False

    def put(self, node: str, view: Hashable, host: NodeHost) -> None:
        """Record a proxy that connected, or changed its view or host."""
        self._crowds.put(node, host)
        self._changed(node)
        self._view_of[node] = view
        self._by_view[view] += 1

    def remove(self, node: str) -> None:
        """Record that a proxy left."""
        self._crowds.remove(node)
        self._changed(node)
        self._view_of.pop(node, None)

    def _changed(self, node: str) -> None:
        if node in self._view_of:
            view = self._view_of[node]
            self._by_view[view] -= 1
            if not self._by_view[view]:
                del self._by_view[view]
        self._shown, self._crowding_stale = None, True

    @property
    def views(self) -> Mapping[str, Hashable]:
        """View of each node id; the same object until a proxy connects or disconnects."""
        if self._shown is None:
            self._shown = MappingProxyType(self._view_of.copy())
        return self._shown

    @property
    def crowding(self) -> Mapping[str, str]:
        """Node ids that take no part in limits, each with its host; the same object while they are the same."""
        if self._crowding_stale:
            self._crowding = reuse_equal(self._crowding, self._crowds.crowding())
            self._crowding_stale = False
        return self._crowding

    @property
    def sharing_by_view(self) -> Mapping[Hashable, int]:
        """Number of node ids by view that take part in limits."""
        shared = self._by_view.copy()
        shared.subtract(Counter(self._view_of[node] for node in self.crowding))
        return +shared
