"""Keeps an ``ObjectStore`` current: list, watch, and start again after any failure.

Losing the server changes only the age of the objects. An expired version (410) leads to a new list, which takes
effect atomically. Handlers return at once, so that no consumer delays the watch. A handler that missed changes
reads the objects.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

from xds_server.k8s.kube_api import PAGE, ApiError, KubeApi, KubeObject, ObjectSelector
from xds_server.k8s.object_store import ObjectKey, ObjectStore
from xds_server.k8s.watch_backoff import WatchBackoff, WatchBackoffPolicy, WatchState

T = TypeVar("T")

WATCH_S: Final = (270.0, 540.0)
"""Range of a watch's random lifetime, as in client-go, so that clients move to new servers gradually."""

_BRIEF_S: Final = 1.0
"""A watch that ends sooner, without an event, is not reopened at once."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectorHandlers(Generic[T]):
    """Callbacks of a ``Reflector``; each returns at once."""

    on_change: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, T]], None] = lambda *_: None
    """Receives the keys of the changed objects, and all objects."""

    on_state_change: Callable[[], None] = lambda: None
    """Called when ``state``, ``complete`` or ``current`` may have changed."""


class Reflector(Generic[T]):
    """Objects of a selection as of the last contact with the server.

    ``run`` keeps them current until cancelled. An ``optional`` list counts as complete when the server forbids
    it.
    """

    def __init__(
        self,
        api: KubeApi,
        selector: ObjectSelector,
        read: Callable[[KubeObject], T],
        handlers: ReflectorHandlers[T],
        *,
        optional: bool = False,
        backoff: WatchBackoffPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.selector = selector
        self.state = WatchState.CONNECTING
        self.reason = ""
        self._api = api
        self._store = ObjectStore(read)
        self._handlers = handlers
        self._optional = optional
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- spreads load, guards no secret
        self._backoff = WatchBackoff(backoff or WatchBackoffPolicy(), self._rng)
        self._last_contact_s = clock()
        self._page = PAGE
        self._cut: asyncio.Timeout | None = None

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """All known objects."""
        return self._store.objects

    @property
    def complete(self) -> bool:
        """Whether a whole list was read once, or the server has none."""
        return self._store.complete

    @property
    def current(self) -> bool:
        """Whether an object missing here does not exist: the server answers, and no list is due."""
        return self.state is WatchState.SYNCED and not self._store.must_list

    @property
    def stale_s(self) -> float | None:
        """Seconds since the last contact; None while connected, or if the list is not needed."""
        if self.state in {WatchState.FORBIDDEN, WatchState.ABSENT}:
            missed = bool(self.objects) or not self.complete
        else:
            missed = self.state is WatchState.LOST
        return self._clock() - self._last_contact_s if missed else None

    def suspect(self, reason: str) -> None:
        """Treat the watch as lost: the server stopped answering other requests."""
        if self.state in {WatchState.CONNECTING, WatchState.SYNCED}:
            self._set_state(WatchState.LOST, reason)

    def rewatch(self) -> None:
        """Reopen the watch on a new connection from its resource version; ends a wait."""
        if self._cut is not None:
            with contextlib.suppress(RuntimeError):  # it is just ending by itself
                self._cut.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            wait_s = 0.0
            try:
                if self._store.must_list:
                    await self._list()
                wait_s = await self._watch()
            except ApiError as error:
                wait_s = self._record_failure(error)
            if wait_s:
                async with self._until_cut(wait_s):
                    await asyncio.Event().wait()

    async def _list(self) -> None:
        self._store.begin()
        more = ""
        while True:
            page = await self._api.page(self.selector, more=more, limit=self._page)
            self._record_contact()
            changed = self._store.page(page)
            if not page.more:
                self._page = PAGE
                if changed:
                    self._handlers.on_change(changed, self.objects)
                self._handlers.on_state_change()
                return
            more = page.more

    async def _watch(self) -> float:
        """Apply events until the watch ends; returns the wait before the next."""
        began_s, received = self._clock(), False
        events = self._api.watch(
            self.selector,
            self._store.resource_version,
            timeout_s=self._rng.uniform(*WATCH_S),
            on_open=self._record_contact,
        )
        async with self._until_cut(None), contextlib.aclosing(events):
            async for event in events:
                received = True
                self._record_contact()
                self._backoff.reset()
                changed = self._store.event(event)
                if changed:
                    self._handlers.on_change(changed, self.objects)
        return 0.0 if received or self._clock() - began_s >= _BRIEF_S else self._backoff.pause()

    @asynccontextmanager
    async def _until_cut(self, seconds: float | None) -> AsyncIterator[None]:
        """Block that ends after ``seconds`` (None: never), or when ``rewatch`` is called."""
        try:
            async with asyncio.timeout(seconds) as self._cut:
                yield
        except TimeoutError:
            pass  # timeout
        finally:
            self._cut = None

    def _record_failure(self, error: ApiError) -> float:
        """Record the effect of a failure on objects and state; returns the wait."""
        if error.expired or error.unreadable:
            # The server answers. After an expired continue token, request the next list in one piece.
            self._page = 0 if self._store.must_list else PAGE
            self._store.expired()
            self._handlers.on_state_change()
            first = self._backoff.failures == 0
            pause_s = self._backoff.pause()
            return 0.0 if first else pause_s
        state, wait_s = self._backoff.after(error)
        complete = self.complete
        if state is WatchState.ABSENT or (state is WatchState.FORBIDDEN and self._optional):
            self._store.mark_absent()
        if not (error.missing and state is WatchState.LOST and self.state is WatchState.CONNECTING):
            self._set_state(state, str(error), completed=complete != self.complete)
        return wait_s

    def _record_contact(self) -> None:
        self._last_contact_s = self._clock()
        self._set_state(WatchState.SYNCED, "")

    def _set_state(self, state: WatchState, reason: str, *, completed: bool = False) -> None:
        before, self.state, self.reason = self.state, state, reason
        if before is not state:
            where = {"resource": self.selector.resource.plural, "namespace": self.selector.namespace or "all"}
            match state:
                case WatchState.SYNCED if before is WatchState.CONNECTING:
                    pass
                case WatchState.SYNCED:
                    _log.info("cluster.found", **where)
                case WatchState.LOST:
                    _log.warning("cluster.lost", **where, kept=len(self.objects), reason=reason)
                case _:
                    _log.warning("cluster.without", **where, contact=state.value, reason=reason)
        if completed or before is not state:
            self._handlers.on_state_change()
