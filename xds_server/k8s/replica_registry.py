"""Keeps this replica's own Lease, and knows the others by theirs; see ``replica_status`` and ``remote_proxies``.

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

from xds_server.k8s.api_resources import LEASES
from xds_server.k8s.kube_api import ApiError, KubeApi, KubeObject, ObjectSelector
from xds_server.k8s.lease import LeaderElectionRecord, lease_record, micro_time, unix_of
from xds_server.k8s.replica_peers import (
    ReplicaPeers,
    live_peers,
    peers_after_outage,
    remote_proxies,
    reuse_remote_proxies,
    updated_peers,
)
from xds_server.k8s.replica_status import NO_STATUS, ReplicaStatus, replica_status, status_annotations
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, RemoteProxies

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


class ReplicaRegistry:
    """This replica among the others; see ``run``."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        group: str,
        identity: str,
        own: Callable[[], ReplicaStatus],
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
        self._peers: ReplicaPeers = {}
        self._said: ReplicaStatus = NO_STATUS
        self._began = micro_time(wall())
        self._elsewhere: tuple[ReplicaPeers, Mapping[str, object], tuple[object, ...], RemoteProxies] | None = None
        self._failure = ""
        self._asked_s = clock()
        self._shared = False

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        """What other replicas serve beside the proxies ``here``; the same object while nothing is different."""
        if not self._peers:
            return NO_REMOTE_PROXIES
        now_s = self._as_of()
        counted = live_peers(self._peers, now_s)
        known = self._elsewhere
        if known is not None and known[0] is self._peers and known[1] is here and known[2] == counted:
            return known[3]
        found = remote_proxies(self._peers, here, now_s)
        if known is not None:
            found = reuse_remote_proxies(known[3], found)
        self._elsewhere = (self._peers, here, counted, found)
        return found

    def peer_statuses(self) -> Mapping[str, ReplicaStatus]:
        """What each of the others said last, by the name of its Lease."""
        now_s = self._as_of()
        return {name: peer.presence for name, peer in sorted(self._peers.items()) if peer.live(now_s)}

    def request_renewal(self) -> None:
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
            self._peers = peers_after_outage(self._peers, self._asked_s, now_s)
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
                "annotations": status_annotations(own),
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

    async def _listed(self) -> Sequence[KubeObject]:
        which = ObjectSelector(resource=LEASES, namespace=self._namespace, labels=f"{LABEL}={self._group}")
        found: list[KubeObject] = []
        more = ""
        while True:
            page = await self._api.page(which, more=more)
            found += page.items
            more = page.more
            if not more:
                return found

    def _hear(self, leases: Sequence[KubeObject]) -> None:
        said: dict[str, tuple[LeaderElectionRecord, ReplicaStatus]] = {}
        for lease in leases:
            name, record = _name(lease), lease_record(lease)
            if name == self.name:
                self._is_own(record)
                continue
            what = replica_status(lease)
            if what is None:
                # It is there, and that much counts: proxies it may have are remembered by whoever had them.
                known = self._peers.get(name)
                what = NO_STATUS if known is None else known.presence
                _log.warning("replicas.not_understood", lease=name)
            said[name] = (record, what)
        before = self._peers
        self._peers = updated_peers(before, said, self._clock(), self._wall())
        if _told(before) != _told(self._peers):
            _log.info("replicas.changed", others=len(self._peers), proxies=_proxies(self._peers))
            self._on_change()

    def _is_own(self, record: LeaderElectionRecord) -> None:
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
            if now_s - peer.observed_s > SWEEP_S and unix_s - unix_of(peer.record.renewed) > SWEEP_S:
                with contextlib.suppress(ApiError):
                    await self._api.delete(LEASES, self._namespace, name)


def _news(said: ReplicaStatus) -> tuple[object, ...]:
    """What cannot wait; what is asked for moves all the time, and is told with the next renewal."""
    return said.groups, said.digest, said.confirmed, said.refusals


def _told(peers: ReplicaPeers) -> Mapping[str, ReplicaStatus]:
    return {name: peer.presence for name, peer in peers.items()}


def _proxies(peers: ReplicaPeers) -> int:
    return sum(peer.presence.proxies for peer in peers.values())


def _name(lease: KubeObject) -> str:
    metadata = lease.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _plain(text: str, most: int) -> str:
    """The text as names and labels of Kubernetes may be."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower())[-most:].strip(".-") or "switchgear"
