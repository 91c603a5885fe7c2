"""What a replica in a cluster says of itself: to the others by its own Lease, and to the cluster as the writer.

Both are made of the present each time they are asked for.
"""

import time
from collections.abc import Callable
from typing import Final

from xds_server.kube import presence
from xds_server.kube.presence import Presence, Refusal
from xds_server.kube.replicas import Replicas
from xds_server.offers.confirming import Confirming, programming
from xds_server.offers.feed import Around
from xds_server.sources.cluster import ClusterSource
from xds_server.writeback.scene import Scene

CALM_S: Final = 2.0
"""How often proxies are looked at once all of them confirmed the policies: looking at thousands takes time."""

REST_PER_LOOK: Final = 20.0
"""While some have not, or refuse something, they are looked at for at most a twentieth of the time."""


class Reporting:
    """See ``presence`` and ``scene``."""

    def __init__(
        self,
        around: Around,
        replicas: Callable[[], Replicas | None],
        reader: Callable[[], ClusterSource | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._around = around
        self._replicas = replicas
        self._reader = reader
        self._clock = clock
        self._confirming = Confirming()
        self._refusals: tuple[Refusal, ...] = ()
        self._looked_s = float("-inf")
        self._rested_s = float("-inf")

    def presence(self) -> Presence:
        """What this replica says to the others now."""
        around = self._around
        nodes, digest = around.connected.nodes(), self._published()
        self._look(digest)
        fleet = around.reconciler.fleet
        return Presence(
            groups=presence.groups(nodes, around.connected.by_view()),
            asks=presence.asks(nodes, {} if fleet is None else fleet.traffic, self._clock()),
            digest=digest,
            confirmed=self._confirming.confirmed,
            refusals=self._refusals,
        )

    def scene(self, since: int) -> Scene | None:
        """Everything there is to write of, with the events after ``since``; None while nothing is known."""
        reconciler, reader, replicas = self._around.reconciler, self._reader(), self._replicas()
        files, serving, built = reconciler.files, reconciler.serving, reconciler.built
        if reader is None or replicas is None or files.state in {"unread", "unreached"}:
            return None
        return Scene(
            objects=reader.policy_objects,
            digest="" if serving is None else serving.digest,
            texts={} if serving is None else serving.texts,
            fleet=reconciler.fleet if built is None else built.inputs.fleet,
            engines={} if built is None else built.decisions.engines,
            programming=programming(replicas.name, self.presence(), replicas.others()),
            now_s=self._clock(),
            held=files.reason if files.state == "held" else "",
            pods=reader.pods,
            events=self._around.ledger.book.since(since),
        )

    def _published(self) -> str:
        """The digest of the policies that proxies were given; empty before there are any."""
        reconciler = self._around.reconciler
        serving, built = reconciler.serving, reconciler.built
        # Between two rounds these are the same; before the first nothing was given to anybody.
        given = built is not None and serving is not None and built.inputs.policies is serving.policies
        return serving.digest if given and serving is not None and reconciler.ready.is_set() else ""

    def _look(self, digest: str) -> None:
        """See how far the policies have come in the proxies."""
        calm = digest == self._confirming.confirmed and not self._refusals
        began_s = self._clock()
        if not digest or began_s < (self._looked_s + CALM_S if calm else self._rested_s):
            return
        self._looked_s = began_s
        publisher = self._around.publisher
        self._refusals = self._confirming.look(publisher.standings(), digest, publisher.desired)
        ended_s = self._clock()
        self._rested_s = ended_s + REST_PER_LOOK * (ended_s - began_s)
