"""Maintains this replica's Lease and reads those of its peers; see ``replica_status`` and ``remote_proxies``.

An unreachable API server changes nothing: peers cannot renew either. Their last status counts until the server is
back; then each has time to renew. Dropping them would admit more than the engines can serve. A proxy that moves
here is known by name and keeps its share.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
"""Renewal interval, two requests each; three renewals can fail before peers drop this replica."""

MIN_SPACING_S: Final = 0.25
"""Minimum time between renewals: a burst of proxies is one change."""

SWEEP_S: Final = 600.0
"""A Lease not renewed for this long belongs to a dead replica; any replica deletes it."""

_MANAGER: Final = "switchgear-replica"
_JITTER: Final = 0.1
_NAME: Final = 253
_LABEL: Final = 63

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity:
    """One replica of a group; ``group``: name of the group leader's Lease."""

    namespace: str
    group: str
    identity: str

    @property
    def group_label(self) -> str:
        """Label value on the Leases of the group's replicas."""
        return _kubernetes_name(self.group, _LABEL)

    @property
    def lease_name(self) -> str:
        """Name of this replica's own Lease."""
        return PREFIX + _kubernetes_name(self.identity, _NAME - len(PREFIX))


class ReplicaRegistry:
    """This replica and its peers; see ``run``."""

    def __init__(
        self,
        api: KubeApi,
        replica: ReplicaIdentity,
        *,
        own_status: Callable[[], ReplicaStatus],
        on_change: Callable[[], None] = lambda: None,
        renew_s: float = RENEW_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        """``own_status`` returns the status to publish; ``on_change`` is called when a peer's status changes."""
        self._api = api
        self._namespace = replica.namespace
        self._group = replica.group_label
        self.name = replica.lease_name
        # The holder is this process: otherwise two replicas with one identity would alternate undetected.
        self._holder = f"{replica.identity}_{uuid4().hex[:8]}"
        self._own_status = own_status
        self._on_change = on_change
        self._renew_s = renew_s
        self._clock = clock
        self._wall = wall
        self._rng = rng or random.Random()  # noqa: S311 - spreads requests, hides nothing
        self._wake = asyncio.Event()
        self._peers: ReplicaPeers = {}
        self._published: ReplicaStatus = NO_STATUS
        self._began = micro_time(wall())
        self._cached: tuple[ReplicaPeers, Mapping[str, object], tuple[object, ...], RemoteProxies] | None = None
        self._failure = ""
        self._last_contact_s = clock()
        self._shared = False

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        """Proxies of other replicas, without those ``here``; the same object while unchanged."""
        if not self._peers:
            return NO_REMOTE_PROXIES
        now_s = self._as_of()
        counted = live_peers(self._peers, now_s)
        known = self._cached
        if known is not None and known[0] is self._peers and known[1] is here and known[2] == counted:
            return known[3]
        found = remote_proxies(self._peers, here, now_s)
        if known is not None:
            found = reuse_remote_proxies(known[3], found)
        self._cached = (self._peers, here, counted, found)
        return found

    def peer_statuses(self) -> Mapping[str, ReplicaStatus]:
        """Last status of each live peer, by Lease name."""
        now_s = self._as_of()
        return {name: peer.presence for name, peer in sorted(self._peers.items()) if peer.live(now_s)}

    def request_renewal(self) -> None:
        """Publish the own status soon if it changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish and read until cancelled; then delete the own Lease, so that peers need not wait for its end."""
        try:
            while True:
                await self._exchange()
                await self._pause()
        finally:
            with contextlib.suppress(ApiError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._api.delete(LEASES, self._namespace, self.name)

    def _as_of(self) -> float:
        """Time for judging peers: now, or the last contact while the server is unreachable."""
        return self._last_contact_s if self._failure else self._clock()

    async def _pause(self) -> None:
        """Wait until a renewal is due, or the own status changes urgently."""
        due_s = self._clock() + self._renew_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
        await asyncio.sleep(min(MIN_SPACING_S, self._renew_s))
        while (left_s := due_s - self._clock()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            self._wake.clear()
            if _urgent(self._own_status()) != _urgent(self._published):
                return

    async def _exchange(self) -> None:
        """Publish the own status and read those of the peers."""
        try:
            async with asyncio.timeout(0.4 * DURATION_S):
                await self._publish()
                leases = await self._list_leases()
        except (ApiError, TimeoutError) as error:
            reason = str(error) or "timeout"
            if not self._failure:
                _log.warning("replicas.unheard", reason=reason)
            self._failure = reason
            return
        now_s = self._clock()
        if self._failure:
            _log.info("replicas.heard_again")
            self._failure = ""
            # Peers could not renew either.
            self._peers = peers_after_outage(self._peers, self._last_contact_s, now_s)
        self._last_contact_s = now_s
        self._update_peers(leases)
        await self._sweep()

    async def _publish(self) -> None:
        own = self._own_status()
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
        self._published = own

    async def _list_leases(self) -> Sequence[KubeObject]:
        selector = ObjectSelector(resource=LEASES, namespace=self._namespace, labels=f"{LABEL}={self._group}")
        found: list[KubeObject] = []
        more = ""
        while True:
            page = await self._api.page(selector, more=more)
            found += page.items
            more = page.more
            if not more:
                return found

    def _update_peers(self, leases: Sequence[KubeObject]) -> None:
        statuses: dict[str, tuple[LeaderElectionRecord, ReplicaStatus]] = {}
        for lease in leases:
            name, record = _name(lease), lease_record(lease)
            if name == self.name:
                self._check_own(record)
                continue
            status = replica_status(lease)
            if status is None:
                # The peer is alive: keep its last status.
                known = self._peers.get(name)
                status = NO_STATUS if known is None else known.presence
                _log.warning("replicas.not_understood", lease=name)
            statuses[name] = (record, status)
        before = self._peers
        self._peers = updated_peers(before, statuses, self._clock(), self._wall())
        if _statuses(before) != _statuses(self._peers):
            _log.info("replicas.changed", others=len(self._peers), proxies=_proxies(self._peers))
            self._on_change()

    def _check_own(self, record: LeaderElectionRecord) -> None:
        shared = record.holder != self._holder
        if shared and not self._shared:
            _log.error(
                "replicas.identity_shared",
                lease=self.name,
                reason="another replica has the same --identity, so neither sees the other's proxies",
            )
        self._shared = shared

    async def _sweep(self) -> None:
        now_s, unix_s = self._clock(), self._wall()
        for name, peer in self._peers.items():
            if now_s - peer.observed_s > SWEEP_S and unix_s - unix_of(peer.record.renewed) > SWEEP_S:
                with contextlib.suppress(ApiError):
                    await self._api.delete(LEASES, self._namespace, name)


def _urgent(status: ReplicaStatus) -> tuple[object, ...]:
    """Fields whose change cannot wait for the next renewal; demand can."""
    return status.groups, status.digest, status.confirmed, status.refusals


def _statuses(peers: ReplicaPeers) -> Mapping[str, ReplicaStatus]:
    return {name: peer.presence for name, peer in peers.items()}


def _proxies(peers: ReplicaPeers) -> int:
    return sum(peer.presence.proxies for peer in peers.values())


def _name(lease: KubeObject) -> str:
    metadata = lease.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _kubernetes_name(text: str, most: int) -> str:
    """``text`` as a valid Kubernetes name or label value."""
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower())[-most:].strip(".-") or "switchgear"
