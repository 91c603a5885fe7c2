"""The pools on which a connected proxy may report, and the identity it needs."""

from xds_server.app.adapters import PublisherAdapter
from xds_server.model.snapshot import snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import NodeInfo, XdsVariant


def view_of(node: NodeInfo) -> View:
    return View(allowed=frozenset({"chat"}) if node.id == "n1" else None)


def test_telemetry_authorization_by_pools_and_identity() -> None:
    publisher = Publisher(view_of=view_of, snapshot_for=lambda _: snapshot([]))
    connected = PublisherAdapter(publisher)
    for node in ("n1", "n2"):
        session = publisher.connect(XdsVariant.DELTA, "peer", lambda: None, identities=(f"spiffe://lab/{node}",))
        request = DeltaDiscoveryRequest(type_url=CLUSTER)
        request.node.id = node
        session.request(request.SerializeToString(), 0.0)
    bounded, free = (
        connected.speaks_for("n1", ("spiffe://lab/n1",)),
        connected.speaks_for("n2", ("spiffe://lab/n2",)),
    )
    assert bounded is not None
    assert free is not None
    assert [bounded("chat"), bounded("small"), free("chat"), free("small")] == [True, False, True, True]
    assert connected.speaks_for("n1", ("spiffe://lab/n2",)) is None
    assert connected.speaks_for("n3", ("spiffe://lab/n1",)) is None
