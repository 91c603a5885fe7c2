"""Keeps a ``ObjectStore`` true: lists, then watches from there, and begins again whatever happens. The shell
around it.

A lost server changes nothing but how old the objects are. A version that is no longer kept (410) is answered with
a list, which takes effect in one step. Nobody can hold this up: changes are told by a callback that returns at
once, and how much it has missed is not its concern, for the objects are there to be read.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar

import structlog

from xds_server.k8s.kube_api import PAGE, ApiError, KubeApi, KubeObject, ObjectSelector
from xds_server.k8s.object_store import ObjectKey, ObjectStore
from xds_server.k8s.watch_backoff import WatchBackoff, WatchBackoffPolicy, WatchState

T = TypeVar("T")

WATCH_S: Final = (270.0, 540.0)
"""A watch is begun anew after so long, by chance, so that clients move to new servers one by one; as client-go."""

_BRIEF_S: Final = 1.0
"""A watch that ends sooner, without a word, is not taken up again at once."""

_log = structlog.get_logger()


class Reflector(Generic[T]):
    """The objects of a selection as the server has them, or had them when it was last heard.

    ``run`` keeps them until it is cancelled. ``on_change`` gets the keys of what became different and all objects;
    ``on_contact`` is called when ``state``, ``complete`` or ``current`` may have changed. Where the list is
    ``optional`` it counts as complete when it may not be read.
    """

    def __init__(
        self,
        api: KubeApi,
        which: ObjectSelector,
        read: Callable[[KubeObject], T],
        *,
        on_change: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, T]], None] = lambda *_: None,
        on_contact: Callable[[], None] = lambda: None,
        optional: bool = False,
        pace: WatchBackoffPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.which = which
        self.state = WatchState.CONNECTING
        self.reason = ""
        self._api = api
        self._mirror = ObjectStore(read)
        self._on_change = on_change
        self._on_contact = on_contact
        self._optional = optional
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- spreads load, guards no secret
        self._patience = WatchBackoff(pace or WatchBackoffPolicy(), self._rng)
        self._heard_at_s = clock()
        self._page = PAGE
        self._cut: asyncio.Timeout | None = None

    @property
    def objects(self) -> Mapping[ObjectKey, T]:
        """Everything there is, as far as is known."""
        return self._mirror.objects

    @property
    def complete(self) -> bool:
        """Whether the objects were all there at some time, or it is known that there are none to be had."""
        return self._mirror.complete

    @property
    def current(self) -> bool:
        """Whether what is not there is known not to exist: the server is heard, and no list is due."""
        return self.state is WatchState.SYNCED and not self._mirror.must_list

    @property
    def stale_s(self) -> float | None:
        """Seconds since the list could be had; None while it can, and where it is gone on without one."""
        if self.state in {WatchState.FORBIDDEN, WatchState.ABSENT}:
            missed = bool(self.objects) or not self.complete
        else:
            missed = self.state is WatchState.LOST
        return self._clock() - self._heard_at_s if missed else None

    def suspect(self, reason: str) -> None:
        """The server has stopped answering others: what is watched may be as dead, without having said so."""
        if self.state in {WatchState.CONNECTING, WatchState.SYNCED}:
            self._meet(WatchState.LOST, reason)

    def rewatch(self) -> None:
        """Take the watch up again over a new connection, from where it is; a wait ends."""
        if self._cut is not None:
            with contextlib.suppress(RuntimeError):  # it is ending by itself at this very moment
                self._cut.reschedule(asyncio.get_running_loop().time())

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            wait_s = 0.0
            try:
                if self._mirror.must_list:
                    await self._list()
                wait_s = await self._watch()
            except ApiError as error:
                wait_s = self._failed(error)
            if wait_s:
                async with self._until_cut(wait_s):
                    await asyncio.Event().wait()

    async def _list(self) -> None:
        self._mirror.begin()
        more = ""
        while True:
            page = await self._api.page(self.which, more=more, limit=self._page)
            self._heard()
            changed = self._mirror.page(page)
            if not page.more:
                self._page = PAGE
                if changed:
                    self._on_change(changed, self.objects)
                self._on_contact()
                return
            more = page.more

    async def _watch(self) -> float:
        """Follow what happens until the watch ends; how long to wait before the next."""
        began_s, heard = self._clock(), False
        events = self._api.watch(
            self.which,
            self._mirror.resource_version,
            timeout_s=self._rng.uniform(*WATCH_S),
            on_open=self._heard,
        )
        async with self._until_cut(None), contextlib.aclosing(events):
            async for event in events:
                heard = True
                self._heard()
                self._patience.reset()
                changed = self._mirror.event(event)
                if changed:
                    self._on_change(changed, self.objects)
        return 0.0 if heard or self._clock() - began_s >= _BRIEF_S else self._patience.pause()

    @asynccontextmanager
    async def _until_cut(self, seconds: float | None) -> AsyncIterator[None]:
        """A block that ends after so long, never when None, or when ``again`` is called."""
        try:
            async with asyncio.timeout(seconds) as self._cut:
                yield
        except TimeoutError:
            pass  # what was waited for has come
        finally:
            self._cut = None

    def _failed(self, error: ApiError) -> float:
        """What a failure means for the objects and the contact; how long to wait."""
        if error.expired or error.unreadable:
            # The server is there. Half a list that has expired is read in one piece the next time.
            self._page = 0 if self._mirror.must_list else PAGE
            self._mirror.expired()
            self._on_contact()
            first = self._patience.failures == 0
            pause_s = self._patience.pause()
            return 0.0 if first else pause_s
        contact, wait_s = self._patience.after(error)
        known = self.complete
        if contact is WatchState.ABSENT or (contact is WatchState.FORBIDDEN and self._optional):
            self._mirror.mark_absent()
        if not (error.missing and contact is WatchState.LOST and self.state is WatchState.CONNECTING):
            self._meet(contact, str(error), told=known != self.complete)
        return wait_s

    def _heard(self) -> None:
        self._heard_at_s = self._clock()
        self._meet(WatchState.SYNCED, "")

    def _meet(self, contact: WatchState, reason: str, *, told: bool = False) -> None:
        before, self.state, self.reason = self.state, contact, reason
        if before is not contact:
            where = {"resource": self.which.resource.plural, "namespace": self.which.namespace or "all"}
            match contact:
                case WatchState.SYNCED if before is WatchState.CONNECTING:
                    pass
                case WatchState.SYNCED:
                    _log.info("cluster.found", **where)
                case WatchState.LOST:
                    _log.warning("cluster.lost", **where, kept=len(self.objects), reason=reason)
                case _:
                    _log.warning("cluster.without", **where, contact=contact.value, reason=reason)
        if told or before is not contact:
            self._on_contact()
