"""Limits are divided by node ids: neither many streams of one nor many ids of one host take from the others."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from policies.load import load_contents
from tests.xds_server.reconcile.test_pipeline import POLICIES
from xds_server.app.adapters import PublisherAdapter
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.model.fleet import declared
from xds_server.model.host_crowds import MIN_NODES_OF_HOST
from xds_server.model.snapshot import snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.publish import Publisher, Session
from xds_server.reconcile.pipeline import BuildInputs, Pipeline
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import NodeInfo, XdsVariant

HONEST = ("honest-1", "honest-2", "honest-3")


def view_of(node: NodeInfo) -> View:
    return View(zone=node.id[-1], role="sidecar" if node.id.startswith("s") else "gateway")


def stream(publisher: Publisher, node: str, host: str = "10.0.0.9", identities: tuple[str, ...] = ()) -> Session:
    session = publisher.connect(XdsVariant.DELTA, f"ipv4:{host}:4711", lambda: None, identities=identities)
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = node
    session.request(request.SerializeToString(), 0.0)
    return session


@pytest.fixture
def publisher() -> Publisher:
    return Publisher(view_of=view_of, snapshot_for=lambda _: snapshot([]))


def test_node_with_many_streams_counts_once(publisher: Publisher) -> None:
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


def parts(connected: PublisherAdapter, nodes: Sequence[str]) -> tuple[int, list[int]]:
    """The places of the pool, and those of these proxies."""
    policies = load_contents({Path("chat.yaml"): POLICIES})
    inputs = BuildInputs(
        policies=policies,
        fleet=declared(policies),
        views=frozenset(),
        proxies_by_role=connected.proxies_by_role(),
        nodes=connected.nodes(),
        crowding=connected.crowding(),
        now_s=0.0,
    )
    admission = Pipeline().build(inputs).decisions.pools["chat"].admission
    return admission.total, [admission.by_proxy[node].interactive for node in nodes]


def test_made_up_nodes_of_one_host_leave_the_others_their_part(publisher: Publisher) -> None:
    reached = ReachedLimits()
    connected = PublisherAdapter(publisher, reached)
    for number in range(100):
        stream(publisher, f"made-up-{number}")
    for number, node in enumerate(HONEST):
        stream(publisher, node, f"10.0.0.{number}")
    for number in range(100, 200):
        stream(publisher, f"made-up-{number}")
    assert connected.proxies_by_role() == {"gateway": len(HONEST) + MIN_NODES_OF_HOST}
    assert len(connected.nodes()) == 203, "all are served"
    total, found = parts(connected, HONEST)
    assert all(one >= total // (len(HONEST) + MIN_NODES_OF_HOST) for one in found), (total, found)
    assert [(one.code, one.peers) for one in reached.current()] == [("SG280", ("10.0.0.9",))]


def test_host_may_have_as_many_nodes_as_there_are_other_hosts(publisher: Publisher) -> None:
    connected = PublisherAdapter(publisher)
    for number in range(40):
        stream(publisher, f"honest-{number}", f"10.0.1.{number}")
        stream(publisher, f"other-{number}")
        stream(publisher, f"made-up-{number}")
    assert connected.proxies_by_role() == {"gateway": 80}
    assert {"other-0", "made-up-0"} <= set(connected.sharing()), "the first ones"


@pytest.mark.parametrize("identities", [(), ("spiffe://lab/gateway",)], ids=["the only host", "a proven identity"])
def test_lab_with_many_proxies_of_one_host_divides_by_all(
    publisher: Publisher, identities: tuple[str, ...]
) -> None:
    connected = PublisherAdapter(publisher)
    for number in range(50):
        stream(publisher, f"g-{number}", identities=identities)
    if identities:
        stream(publisher, "elsewhere", "10.0.0.1")
    assert connected.proxies_by_role() == {"gateway": 50 + bool(identities)}
    assert not connected.crowding()
