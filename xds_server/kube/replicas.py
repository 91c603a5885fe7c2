"""Keeps this replica's own Lease, and knows the others by theirs; see ``presence`` and ``elsewhere``.

A lost API server changes nothing: who cannot be heard is not silent. What was said last counts for as long as the
server is away, and when it is back everybody has time to renew. Handing out what is theirs meanwhile would let in
more than the engines can do. A proxy that comes over is known by name, and brings its share along.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import uuid4

import structlog

from xds_server.kube.api import Api, ApiError, Object, Selection
from xds_server.kube.elsewhere import NOWHERE, Elsewhere, Peers, elsewhere, excused, heard, live, same_as
from xds_server.kube.lease import Record, micro_time, read, unix_of
from xds_server.kube.presence import NOBODY, Presence, annotations, presence
from xds_server.kube.resources import LEASES

LABEL: Final = "switchgear.dev/replica"
PREFIX: Final = "switchgear-replica-"
DURATION_S: Final = 10
RENEW_S: Final = 2.0
"""Two requests each time; three can be missed before the others let this replica go."""

SOON_S: Final = 0.25
"""What has changed is said so soon, and not more often: a storm of proxies is one line."""

SWEEP_S: Final = 600.0
"""A Lease nobody renewed for so long was left by a replica that died; whoever sees that takes it away."""

_MANAGER: Final = "switchgear-replica"
_JITTER: Final = 0.1
_NAME: Final = 253
_LABEL: Final = 63

_log = structlog.get_logger()


class Replicas:
    """This replica among the others; see ``run``."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        group: str,
        identity: str,
        own: Callable[[], Presence],
        on_change: Callable[[], None] = lambda: None,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """``group`` names those that serve the same together: the name of the Lease of their writer.

        ``own`` says what this replica has to say now; ``on_change`` is called when others say something else.
        """
        self._api = api
        self._namespace = namespace
        self._group = _plain(group, _LABEL)
        self.name = PREFIX + _plain(identity, _NAME - len(PREFIX))
        # Its holder is this process: two that were given one identity would else take turns unseen.
        self._holder = f"{identity}_{uuid4().hex[:8]}"
        self._own = own
        self._on_change = on_change
        self._renew_s = renew_s
        self._clock = clock
        self._wall = wall
        self._rng = rng or random.Random()  # noqa: S311 - spreads requests, hides nothing
        self._wake = asyncio.Event()
        self._peers: Peers = {}
        self._said: Presence = NOBODY
        self._began = micro_time(wall())
        self._elsewhere: tuple[Peers, Mapping[str, object], tuple[object, ...], Elsewhere] | None = None
        self._failure = ""
        self._asked_s = clock()
        self._shared = False

    def elsewhere(self, here: Mapping[str, object]) -> Elsewhere:
        """What other replicas serve beside the proxies ``here``; the same object while nothing is different."""
        if not self._peers:
            return NOWHERE
        now_s = self._as_of()
        counted = live(self._peers, now_s)
        known = self._elsewhere
        if known is not None and known[0] is self._peers and known[1] is here and known[2] == counted:
            return known[3]
        found = elsewhere(self._peers, here, now_s)
        if known is not None:
            found = same_as(known[3], found)
        self._elsewhere = (self._peers, here, counted, found)
        return found

    def others(self) -> Mapping[str, Presence]:
        """What each of the others said last, by the name of its Lease."""
        now_s = self._as_of()
        return {name: peer.presence for name, peer in sorted(self._peers.items()) if peer.live(now_s)}

    def look_again(self) -> None:
        """Note that there may be something else to say."""
        self._wake.set()

    async def run(self) -> None:
        """Say and hear for ever; when cancelled, take the own Lease away, so that nobody waits for it to end."""
        try:
            while True:
                await self._meet()
                await self._pause()
        finally:
            with contextlib.suppress(ApiError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._api.delete(LEASES, self._namespace, self.name)

    def _as_of(self) -> float:
        """The moment of which the silence of others is known: now, or when the server was last heard."""
        return self._asked_s if self._failure else self._clock()

    async def _pause(self) -> None:
        """Wait until it is time to renew, or until something else is to be said."""
        due_s = self._clock() + self._renew_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        await asyncio.sleep(min(SOON_S, self._renew_s))
        while (left_s := due_s - self._clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            self._wake.clear()
            if _news(self._own()) != _news(self._said):
                return

    async def _meet(self) -> None:
        """Say what is to be said, and hear what the others say."""
        try:
            async with asyncio.timeout(0.4 * DURATION_S):
                await self._say()
                leases = await self._listed()
        except (ApiError, TimeoutError) as error:
            reason = str(error) or "no answer in time"
            if not self._failure:
                _log.warning("replicas.unheard", reason=reason)
            self._failure = reason
            return
        now_s = self._clock()
        if self._failure:
            _log.info("replicas.heard_again")
            self._failure = ""
            # They could not renew either.
            self._peers = excused(self._peers, self._asked_s, now_s)
        self._asked_s = now_s
        self._hear(leases)
        await self._sweep()

    async def _say(self) -> None:
        own = self._own()
        now = self._wall()
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": self._namespace,
                "labels": {LABEL: self._group},
                "annotations": annotations(own),
            },
            "spec": {
                "holderIdentity": self._holder,
                "leaseDurationSeconds": DURATION_S,
                "acquireTime": self._began,
                "renewTime": micro_time(now),
            },
        }
        await self._api.apply(LEASES, self._namespace, self.name, body, manager=_MANAGER)
        self._said = own

    async def _listed(self) -> Sequence[Object]:
        which = Selection(resource=LEASES, namespace=self._namespace, labels=f"{LABEL}={self._group}")
        found: list[Object] = []
        more = ""
        while True:
            page = await self._api.page(which, more=more)
            found += page.items
            more = page.more
            if not more:
                return found

    def _hear(self, leases: Sequence[Object]) -> None:
        said: dict[str, tuple[Record, Presence]] = {}
        for lease in leases:
            name, record = _name(lease), read(lease)
            if name == self.name:
                self._is_own(record)
                continue
            what = presence(lease)
            if what is None:
                # It is there, and that much counts: proxies it may have are remembered by whoever had them.
                known = self._peers.get(name)
                what = NOBODY if known is None else known.presence
                _log.warning("replicas.not_understood", lease=name)
            said[name] = (record, what)
        before = self._peers
        self._peers = heard(before, said, self._clock(), self._wall())
        if _told(before) != _told(self._peers):
            _log.info("replicas.changed", others=len(self._peers), proxies=_proxies(self._peers))
            self._on_change()

    def _is_own(self, record: Record) -> None:
        shared = record.holder != self._holder
        if shared and not self._shared:
            _log.error(
                "replicas.identity_shared",
                lease=self.name,
                reason="another replica has the same --identity, so neither knows of the other's proxies",
            )
        self._shared = shared

    async def _sweep(self) -> None:
        now_s, unix_s = self._clock(), self._wall()
        for name, peer in self._peers.items():
            if now_s - peer.heard_s > SWEEP_S and unix_s - unix_of(peer.record.renewed) > SWEEP_S:
                with contextlib.suppress(ApiError):
                    await self._api.delete(LEASES, self._namespace, name)


def _news(said: Presence) -> tuple[object, ...]:
    """What cannot wait; what is asked for moves all the time, and is told with the next renewal."""
    return said.groups, said.digest, said.confirmed, said.refusals


def _told(peers: Peers) -> Mapping[str, Presence]:
    return {name: peer.presence for name, peer in peers.items()}


def _proxies(peers: Peers) -> int:
    return sum(peer.presence.proxies for peer in peers.values())


def _name(lease: Object) -> str:
    metadata = lease.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _plain(text: str, most: int) -> str:
    """The text as names and labels of Kubernetes may be."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower())[-most:].strip(".-") or "switchgear"
