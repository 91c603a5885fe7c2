"""Progress of policies in proxies: of this replica by ACKs, of all replicas by their status.

A replica reports policies as confirmed once all its proxies accepted all their resources, and keeps reporting it:
later changes (health, limits) and new proxies do not revoke it. Refusals are reported while they last.
"""

from collections.abc import Callable, Iterable, Mapping

from xds_server.k8s.replica_status import NackSummary, ReplicaStatus
from xds_server.k8s.status.write_context import ProgrammedState
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import MOVING, SHORT_NAMES
from xds_server.model.view import View
from xds_server.publish import ProxySync
from xds_server.xds.messages import Sync


class ProgrammedTracker:
    """Remembers which proxies have accepted the served policies."""

    def __init__(self) -> None:
        self._digest = ""
        self._done: set[str] = set()
        self.confirmed = ""
        """Latest policies accepted by all proxies; never set without proxies."""

    def observe(
        self, states: Iterable[ProxySync], digest: str, desired: Callable[[View], Snapshot | None]
    ) -> tuple[NackSummary, ...]:
        """Record the state of these proxies, which were sent ``digest``; returns current refusals.

        ``desired``: desired resources of a view. Runtime layers and parts of quotas are ignored: they
        change continuously.
        """
        if digest != self._digest:
            self._digest, self._done = digest, set()
        refusals: dict[str, NackSummary] = {}
        nodes = set()
        for state in states:
            nodes.add(state.node.id)
            kinds = [kind for kind in state.types if kind.type_url not in MOVING]
            if kinds and all(kind.state is Sync.SYNCED for kind in kinds):
                self._done.add(state.node.id)
                continue
            wanted = desired(state.view) if isinstance(state.view, View) else None
            for kind in kinds:
                for name in kind.rejected:
                    item = None if wanted is None else wanted.of(kind.type_url).get(name)
                    resource = f"{SHORT_NAMES.get(kind.type_url, kind.type_url)} {name}"
                    refusals[resource] = NackSummary(
                        resource=resource, reason=kind.reason, origins=() if item is None else item.origins
                    )
        self._done &= nodes
        if nodes and nodes == self._done:
            self.confirmed = digest
        return tuple(refusals[name] for name in sorted(refusals))


def programming_of_replicas(
    name: str, here: ReplicaStatus, others: Mapping[str, ReplicaStatus]
) -> ProgrammedState:
    """Progress of the policies that this replica, called ``name``, serves, over all replicas."""
    replicas = {**others, name: here}
    refusals = {one.resource: one for status in replicas.values() for one in status.refusals}
    return ProgrammedState(
        digest=here.digest,
        proxies=sum(status.proxies for status in replicas.values()),
        waiting=tuple(
            other
            for other, status in sorted(replicas.items())
            if status.proxies and status.confirmed != here.digest
        ),
        refusals=tuple(refusals[resource] for resource in sorted(refusals)),
    )
