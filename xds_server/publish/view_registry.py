"""Views with proxies: added with their first proxy, retired with the last, limited in number."""

from collections.abc import Callable, Hashable
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.auth.connection_limit import ConnectionLimiter
from xds_server.publish.session import SessionView
from xds_server.xds import StreamError, StreamErrorKind

MAX_VIEWS: Final = 1_024
"""Limit of views with proxies: each is built in every round. Zones times kinds of proxies are tens; more come
from a peer that varies its node.
"""

MAX_VIEWS_OF_HOST: Final = 128
"""Limit of views per host: all zones and kinds of proxies behind one gateway."""

MAX_IDLE_VIEWS: Final = 256
"""Views without proxies whose accepted content is kept for reconnects."""


class ViewRegistry:
    """``by_key``: views with proxies; ``forget`` is called for each view idle too long."""

    def __init__(self, forget: Callable[[Hashable], None]) -> None:
        self.by_key: dict[Hashable, SessionView] = {}
        self._kinds = ConnectionLimiter("kinds of proxies", MAX_VIEWS, MAX_VIEWS_OF_HOST)
        self._idle: BoundedDict[Hashable, None] = BoundedDict(MAX_IDLE_VIEWS, on_evict=forget)

    def admit(self, key: Hashable, host: str) -> None:
        """Raise ``StreamError`` if a proxy of this view and host would exceed a limit."""
        if key in self.by_key:
            return
        for flaw, full in (
            (StreamErrorKind.CONNECTION_LIMIT, self._kinds.full()),
            (StreamErrorKind.HOST_LIMIT, self._kinds.full_for(host)),
        ):
            if full:
                raise StreamError(full, flaw)

    def add(self, view: SessionView) -> None:
        """Add a view that is about to have a proxy."""
        self.by_key[view.key] = view
        self._kinds.acquire(view.founder)
        self._idle.pop(view.key, None)

    def retire(self, view: SessionView) -> None:
        """Remove a view without proxies."""
        if view.sessions or view.key not in self.by_key:
            return
        del self.by_key[view.key]
        self._kinds.release(view.founder)
        self._idle[view.key] = None
