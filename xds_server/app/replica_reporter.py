"""Status of a replica: to other replicas through its Lease, and to the cluster as the leader.

Both are computed on request.
"""

import time
from collections.abc import Callable
from typing import Final

from xds_server.app.policy_feed import ServerContext
from xds_server.k8s import replica_status
from xds_server.k8s.replica_registry import ReplicaRegistry
from xds_server.k8s.replica_status import NackSummary, ReplicaStatus
from xds_server.k8s.source import ClusterSource
from xds_server.k8s.status.programmed import ProgrammedTracker, programming_of_replicas
from xds_server.k8s.status.write_context import WriteContext

CALM_S: Final = 2.0
"""Poll interval after all proxies accepted the policies; checking thousands takes time."""

REST_PER_LOOK: Final = 20.0
"""Limits the checks to a twentieth of the time while proxies are pending or refuse resources."""


class ReplicaReporter:
    """See ``replica_status`` and ``write_context``."""

    def __init__(self, context: ServerContext, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._confirming = ProgrammedTracker()
        self._refusals: tuple[NackSummary, ...] = ()
        self._looked_s = float("-inf")
        self._rested_s = float("-inf")

    def replica_status(self) -> ReplicaStatus:
        """This replica's status for other replicas."""
        context = self._context
        nodes, digest = context.connected.sharing(), self._published()
        self._look(digest)
        fleet = context.reconciler.fleet
        return ReplicaStatus(
            groups=replica_status.proxy_groups(nodes, context.connected.by_view()),
            asks=replica_status.proxy_demands(nodes, {} if fleet is None else fleet.traffic, self._clock()),
            digest=digest,
            confirmed=self._confirming.confirmed,
            released=context.reconciler.released,
            refusals=self._refusals,
        )

    def write_context(self, reader: ClusterSource, replicas: ReplicaRegistry, since: int) -> WriteContext | None:
        """Data for the status writer, with the events after ``since``; None before the first round."""
        reconciler = self._context.reconciler
        files, serving, built = reconciler.source_state, reconciler.serving, reconciler.built
        if files.state in {"unread", "unreached"}:
            return None
        return WriteContext(
            objects=reader.policy_objects,
            digest="" if serving is None else serving.digest,
            texts={} if serving is None else serving.texts,
            fleet=reconciler.fleet if built is None else built.inputs.fleet,
            engines={} if built is None else built.decisions.engines,
            programmed=programming_of_replicas(replicas.name, self.replica_status(), replicas.peer_statuses()),
            now_s=self._clock(),
            hold_reason=files.reason if files.state == "held" else "",
            pods=reader.pods,
            events=self._context.ledger.book.since(since),
            conditions=self._context.conditions(),
        )

    def _published(self) -> str:
        """Digest of the published policies; empty before the first."""
        reconciler = self._context.reconciler
        serving, built = reconciler.serving, reconciler.built
        # Between rounds both are equal; before the first round nothing is published.
        given = built is not None and serving is not None and built.inputs.policies is serving.policies
        return serving.digest if given and serving is not None and reconciler.ready.is_set() else ""

    def _look(self, digest: str) -> None:
        """Check which proxies have accepted the policies."""
        calm = digest == self._confirming.confirmed and not self._refusals
        began_s = self._clock()
        if not digest or began_s < (self._looked_s + CALM_S if calm else self._rested_s):
            return
        self._looked_s = began_s
        publisher = self._context.publisher
        self._refusals = self._confirming.observe(publisher.sync_states(), digest, publisher.desired)
        ended_s = self._clock()
        self._rested_s = ended_s + REST_PER_LOOK * (ended_s - began_s)
