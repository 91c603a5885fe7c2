"""The views that have proxies: added for the first proxy of a view, retired with the last, and never too many."""

from collections.abc import Callable, Hashable
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.publish.session import SessionView
from xds_server.xds import StreamError, StreamErrorKind

MAX_VIEWS: Final = 1_024
"""Views with proxies: each is built in every round. Zones times kinds of proxies are tens; more come from a peer
with another node on each stream."""

MAX_VIEWS_OF_HOST: Final = 128
"""Views that exist because of proxies of one host: all zones and kinds of proxies behind one gateway."""

MAX_IDLE_VIEWS: Final = 256
"""Views without proxies whose accepted content is remembered, for a proxy that reconnects."""


class ViewRegistry:
    """``by_key`` are the views that have a proxy; ``forget`` is called with each that was idle for too long."""

    def __init__(self, forget: Callable[[Hashable], None]) -> None:
        self.by_key: dict[Hashable, SessionView] = {}
        self._kinds = ConnectionLimiter("kinds of proxies", MAX_VIEWS, MAX_VIEWS_OF_HOST)
        self._idle: BoundedDict[Hashable, None] = BoundedDict(MAX_IDLE_VIEWS, on_evict=forget)

    def admit(self, key: Hashable, host: str) -> None:
        """``StreamError`` where a proxy of this view and host would make one view too many."""
        if key in self.by_key:
            return
        for flaw, full in (
            (StreamErrorKind.CONNECTION_LIMIT, self._kinds.full()),
            (StreamErrorKind.HOST_LIMIT, self._kinds.full_for(host)),
        ):
            if full:
                raise StreamError(full, flaw)

    def add(self, view: SessionView) -> None:
        """Add a view, which is about to have a proxy."""
        self.by_key[view.key] = view
        self._kinds.acquire(view.founder)
        self._idle.pop(view.key, None)

    def retire(self, view: SessionView) -> None:
        """Remove a view that has no proxy left."""
        if view.sessions or view.key not in self.by_key:
            return
        del self.by_key[view.key]
        self._kinds.release(view.founder)
        self._idle[view.key] = None
