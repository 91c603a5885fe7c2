"""Limits are divided by node ids: many streams of one take nothing from the others."""

from xds_server.app.adapters import PublisherAdapter
from xds_server.model.snapshot import snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.publish import Publisher, Session
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import NodeInfo, XdsVariant


def view_of(node: NodeInfo) -> View:
    return View(zone=node.id[-1], role="gateway" if node.id.startswith("g") else "sidecar")


def stream(publisher: Publisher, node: str) -> Session:
    session = publisher.connect(XdsVariant.DELTA, "peer", lambda: None)
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = node
    session.request(request.SerializeToString(), 0.0)
    return session


def test_node_with_many_streams_counts_once() -> None:
    publisher = Publisher(view_of=view_of, snapshot_for=lambda _: snapshot([]))
    connected = PublisherAdapter(publisher)
    for node in ("g-a", "g-b", "s-a"):
        stream(publisher, node)
    many = [stream(publisher, "g-c") for _ in range(240)]
    assert connected.proxies_by_role() == {"gateway": 3, "sidecar": 1}
    assert connected.proxies_by_zone() == {"a": 2, "b": 1, "c": 1}
    assert sum(connected.by_view().values()) == 4
    for session in many[1:]:
        session.close("")
    assert connected.proxies_by_role() == {"gateway": 3, "sidecar": 1}
    many[0].close("")
    assert connected.proxies_by_role() == {"gateway": 2, "sidecar": 1}
