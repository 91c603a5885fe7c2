"""How far policies have come in proxies: in those of this replica as they confirm, in all as each replica says.

A replica says of policies that they are confirmed once all its proxies have acknowledged everything made of them,
and goes on saying so: what moves later (health, limits) and proxies that only now connect do not take that back.
Refusals are said as long as they last.
"""

from collections.abc import Callable, Iterable, Mapping

from xds_server.k8s.replica_status import NackSummary, ReplicaStatus
from xds_server.k8s.status.write_context import ProgrammedState
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import RUNTIME, SHORT_NAMES
from xds_server.model.view import View
from xds_server.publish import ProxySync
from xds_server.xds.messages import Sync


class ProgrammedTracker:
    """Remembers which proxies have taken over the policies that are served."""

    def __init__(self) -> None:
        self._digest = ""
        self._done: set[str] = set()
        self.confirmed = ""
        """The newest policies that all proxies there were took over. No proxy at all confirms nothing."""

    def observe(
        self, states: Iterable[ProxySync], digest: str, desired: Callable[[View], Snapshot | None]
    ) -> tuple[NackSummary, ...]:
        """Note how these proxies stand, which were given ``digest``; what they refuse of it now.

        ``desired`` says what a view should have. Runtime layers do not count: live limits are always on their way.
        """
        if digest != self._digest:
            self._digest, self._done = digest, set()
        refusals: dict[str, NackSummary] = {}
        nodes = set()
        for state in states:
            nodes.add(state.node.id)
            kinds = [kind for kind in state.types if kind.type_url != RUNTIME]
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
    """How far the policies that this replica, called ``name``, serves have come in the proxies of all."""
    replicas = {**others, name: here}
    refusals = {one.resource: one for said in replicas.values() for one in said.refusals}
    return ProgrammedState(
        digest=here.digest,
        proxies=sum(said.proxies for said in replicas.values()),
        waiting=tuple(
            other for other, said in sorted(replicas.items()) if said.proxies and said.confirmed != here.digest
        ),
        refusals=tuple(refusals[resource] for resource in sorted(refusals)),
    )
