"""Proxy progress is checked rarely and cheaply, and equals the full state."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from xds_server.app.replica_reporter import CALM_S, REST_PER_LOOK, ReplicaReporter
from xds_server.model.snapshot import Resource, resource, snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from xds_server.xds import XdsVariant

POLICIES = object()


class Place:
    """A publisher with proxies and a reporting replica; counts checks and their cost."""

    def __init__(self, proxies: int, *, look_s: float = 0.0) -> None:
        self.now_s, self.looks, self.look_s, self.digest = 100.0, 0, look_s, "one"
        self.publisher = Publisher(view_of=lambda _: View(), snapshot_for=lambda _: snapshot(self.served))
        self.served: list[Resource] = [resource(CLUSTER, f"c{number}", b"1") for number in range(3)]
        self.sessions = [
            self.publisher.connect(XdsVariant.DELTA, f"ipv4:10.0.0.1:{number}", lambda: None)
            for number in range(proxies)
        ]
        serving = SimpleNamespace(policies=POLICIES, digest=self.digest)
        reconciler = SimpleNamespace(
            serving=serving,
            built=SimpleNamespace(inputs=SimpleNamespace(policies=POLICIES)),
            released="",
            ready=SimpleNamespace(is_set=lambda: True),
            fleet=None,
        )
        connected = SimpleNamespace(sharing=dict, by_view=dict)
        standings, self.publisher.sync_states = self.publisher.sync_states, self._looked  # type: ignore[method-assign]
        self._standings = standings
        around: Any = SimpleNamespace(reconciler=reconciler, publisher=self.publisher, connected=connected)
        self.reporting = ReplicaReporter(around, clock=lambda: self.now_s)

    def _looked(self) -> Any:
        self.looks += 1
        self.now_s += self.look_s
        return self._standings()

    def ask(self, place: int, *, nonce: str = "", refuses: str = "") -> str:
        """Nonce of the response to one request of this proxy."""
        request = DeltaDiscoveryRequest(type_url=CLUSTER, response_nonce=nonce)
        request.node.id = f"n{place}"
        if refuses:
            request.error_detail.message = refuses
        self.sessions[place].request(request.SerializeToString(), self.now_s)
        sent = self.sessions[place].poll(self.now_s)
        if sent is None:
            return ""
        return DeltaDiscoveryResponse.FromString(sent).nonce


def test_sync_shortcut_equals_full_proxy_state() -> None:
    there = Place(4)
    nonces = [there.ask(place) for place in range(3)]
    there.ask(0, nonce=nonces[0])
    there.ask(1, nonce=nonces[1], refuses="Error adding/updating cluster(s) c1: no")

    def same() -> None:
        shown, cheap = there.publisher.proxies(), list(there._standings())
        assert [(one.node, one.view) for one in shown] == [(one.node, one.view) for one in cheap]
        for one, other in zip(shown, cheap, strict=True):
            assert [(kind.type_url, kind.state, kind.rejected, kind.reason) for kind in one.types] == [
                tuple(kind) for kind in other.types
            ]

    same()
    assert {kind.state.value for one in there._standings() for kind in one.types} >= {"NACK", "STALE"}
    there.served.append(resource(CLUSTER, "c9", b"1"))
    there.publisher.publish({View(): snapshot(there.served)}, {})
    same()


def looks_within(
    there: Place, seconds: float, each_s: float = 0.5, then: Callable[[], None] = lambda: None
) -> int:
    before, until_s = there.looks, there.now_s + seconds
    while there.now_s < until_s:
        there.reporting.replica_status()
        there.now_s += each_s
        then()
    return there.looks - before


def test_proxy_checks_are_throttled_while_refusals_last() -> None:
    there = Place(2, look_s=0.5)
    there.ask(0, nonce=there.ask(0), refuses="Error adding/updating cluster(s) c1: no")
    assert there.reporting.replica_status().refusals
    assert looks_within(there, 100.0) <= 100.0 / (0.5 * REST_PER_LOOK)
    quick = Place(2)
    quick.ask(0, nonce=quick.ask(0), refuses="Error adding/updating cluster(s) c1: no")
    assert looks_within(quick, 100.0) == 200, "where it costs nothing there is no rest"


def test_synced_proxies_are_checked_rarely_and_after_new_policies() -> None:
    there = Place(1)
    there.ask(0, nonce=there.ask(0))
    assert there.reporting.replica_status().confirmed == "one"
    assert looks_within(there, 100.0) <= 100.0 / CALM_S
    there.reporting._context.reconciler.serving.digest = "two"  # type: ignore[union-attr, misc]
    before = there.looks
    assert there.reporting.replica_status().confirmed == "two"
    assert there.looks == before + 1
