"""Of which pools a connected proxy may tell, and as which identity."""

from xds_server.publish import Publisher
from xds_server.reconcile.neighbours import Connected
from xds_server.snapshot import snapshot
from xds_server.streams import Mode, NodeInfo
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER
from xds_server.wire.decode import DeltaDiscoveryRequest


def view_of(node: NodeInfo) -> View:
    return View(allowed=frozenset({"chat"}) if node.id == "n1" else None)


def test_a_proxy_tells_of_what_it_may_see_as_who_it_is() -> None:
    publisher = Publisher(view_of=view_of, snapshot_for=lambda _: snapshot([]))
    connected = Connected(publisher)
    for node in ("n1", "n2"):
        session = publisher.connect(Mode.DELTA, "peer", lambda: None, identities=(f"spiffe://lab/{node}",))
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
