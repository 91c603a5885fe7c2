"""Refusals with many proxies, and counting of connected proxies."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.xds_server.publish.resource_fixtures import cluster, refuse
from xds_server.admin_api.status_types import RolledBackResource
from xds_server.model.snapshot import Resource, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.publish import Nack, NackPolicy, NullObserver, Publisher, RollbackScope, Session
from xds_server.publish.content_rejections import NACK_QUORUM
from xds_server.publish.rollback_status import rolled_back_resources
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DeltaDiscoveryResponseMessage,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.xds import DeniedPeerError, NodeInfo, StreamError, XdsVariant


@dataclass
class Log(NullObserver):
    nacks: list[Nack] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    acks: int = 0

    def on_nack(self, nack: Nack) -> None:
        self.nacks.append(nack)

    def on_connect(self, node: NodeInfo, mode: XdsVariant) -> None:  # noqa: ARG002
        self.connected.append(node.id)

    def on_disconnect(self, node: NodeInfo, mode: XdsVariant, reason: str) -> None:  # noqa: ARG002
        self.connected.remove(node.id)

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:  # noqa: ARG002
        self.acks += 1


class Proxy:
    """A delta proxy that subscribes to all clusters and refuses content marked so."""

    def __init__(self, publisher: Publisher, name: str, host: str = "") -> None:
        self.name = name
        self.holds: dict[str, str] = {}
        self.received: list[DeltaDiscoveryResponseMessage] = []
        self.unanswered: list[DeltaDiscoveryResponseMessage] = []
        self.raw: list[bytes] = []
        self.woken = 0
        self.session: Session = publisher.connect(XdsVariant.DELTA, host or name, self._wake)
        request = DeltaDiscoveryRequest(type_url=CLUSTER)
        request.node.id = name
        self.session.request(request.SerializeToString(), 0.0)

    def _wake(self) -> None:
        self.woken += 1

    def receive(self) -> bool:
        """Receive what is due; returns whether there was anything."""
        while (data := self.session.poll(0.0)) is not None:
            self.raw.append(data)
            self.unanswered.append(DeltaDiscoveryResponse.FromString(data))
        return bool(self.unanswered)

    def answer(self) -> None:
        """Apply and answer what was received."""
        for response in self.unanswered:
            self.received.append(response)
            answer = DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce)
            contents = {item.name: item.resource.value.decode() for item in response.resources}
            if any(self.refuses(content) for content in contents.values()):
                answer.error_detail.message = "Proto constraint validation failed"
            else:
                self.holds |= contents
                for name in response.removed_resources:
                    self.holds.pop(name, None)
            self.session.request(answer.SerializeToString(), 0.0)
        self.unanswered.clear()

    def refuses(self, content: str) -> bool:
        return content.startswith("bad") or content == f"not for {self.name}"


class Fleet:
    def __init__(self, *resources: Resource) -> None:
        self.wanted = snapshot(resources)
        self.log = Log()
        self.now_s = 0.0
        self.publisher = Publisher(
            view_of=lambda _node: "v",
            snapshot_for=lambda _view: self.wanted,
            observer=self.log,
            wall=lambda: self.now_s,
        )
        self.proxies: list[Proxy] = []

    def join(self, name: str, host: str = "") -> Proxy:
        proxy = Proxy(self.publisher, name, host)
        self.proxies.append(proxy)
        self.settle()
        return proxy

    def publish(self, *resources: Resource) -> None:
        self.wanted = snapshot(resources)
        self.publisher.publish({"v": self.wanted}, 0.0)
        self.settle()

    def leave(self, proxy: Proxy) -> None:
        self.proxies.remove(proxy)
        proxy.session.close()

    def rolled_back(self) -> tuple[RolledBackResource, ...]:
        return rolled_back_resources(self.publisher, self.now_s)

    def settle(self) -> None:
        # A push reaches all proxies before the first answer.
        while [proxy for proxy in self.proxies if proxy.receive()]:
            for proxy in self.proxies:
                proxy.answer()


def test_regrouped_proxy_is_counted_once_and_keeps_its_resources() -> None:
    counted: list[int] = []
    views = {"now": "v"}
    publisher = Publisher(
        view_of=lambda _node: views["now"],
        snapshot_for=lambda view: (
            counted.append(sum(publisher.proxies_by_view.values())),
            snapshot([cluster("c", "1")]) if view == "v" else snapshot([]),
        )[1],
    )
    proxy = Proxy(publisher, "p")
    proxy.receive()
    proxy.answer()
    assert proxy.holds == {"c": "1"}
    views["now"] = "canary"
    publisher.regroup()
    assert counted == [0, 0]
    assert publisher.proxies_by_view == {"canary": 1}
    assert not proxy.receive(), "nothing could be made for the new view, and nothing is taken away"
    assert [state.node.id for state in publisher.proxies({"p", "missing"})] == ["p"]


def test_node_id_belongs_to_one_certificate() -> None:
    publisher = Publisher(view_of=lambda _node: "v", snapshot_for=lambda _view: snapshot([]))

    def connect(*identities: str) -> Session:
        session = publisher.connect(XdsVariant.DELTA, "peer", lambda: None, identities=identities)
        request = DeltaDiscoveryRequest(type_url=CLUSTER)
        request.node.id = "gateway-1"
        session.request(request.SerializeToString(), 0.0)
        return session

    first = connect("spiffe://prod/gateway", "gateway.prod")
    connect("spiffe://prod/gateway")
    for stranger in (("spiffe://prod/chat",), ()):
        with pytest.raises(DeniedPeerError, match="already connected with another certificate"):
            connect(*stranger)
    assert publisher.speaks_for("gateway-1", ("gateway.prod",))
    assert not publisher.speaks_for("gateway-1", ("spiffe://prod/chat",))
    first.close("")


def test_nacked_cluster_is_rolled_back_for_each_proxy_and_its_origin_is_named() -> None:
    fleet = Fleet(cluster("c", "good"))
    one = fleet.join("one")
    fleet.publish(cluster("c", "bad", "policy.yaml:7"), cluster("d", "good"))
    assert one.holds == {"c": "good", "d": "good"}
    newcomer = fleet.join("two")
    assert newcomer.holds == {"c": "good", "d": "good"}
    blamed = [item for nack in fleet.log.nacks for item in nack.resources if item.name == "c"]
    assert {item.origins for item in blamed} == {("policy.yaml:7",)}
    (state,) = [status for status in fleet.publisher.proxies()[0].types if status.type_url == CLUSTER]
    assert state.rejected.keys() == {"c"}
    fleet.publish(cluster("c", "better"), cluster("d", "good"))
    assert one.holds == newcomer.holds == {"c": "better", "d": "good"}
    assert not fleet.publisher.proxies()[0].types[0].rejected


def test_nack_is_reported_until_fixed_even_after_its_proxy_left() -> None:
    fleet = Fleet(cluster("c", "good"))
    one = fleet.join("one")
    assert fleet.rolled_back() == ()
    fleet.publish(cluster("c", "bad", "policy.yaml:7"), cluster("d", "bad", "policy.yaml:9"))
    fleet.now_s = 40.0
    fleet.leave(one)
    assert fleet.rolled_back() == (), "without proxies nothing is rolled back"
    fleet.join("two")
    found = {rollback.name: rollback for rollback in fleet.rolled_back()}
    assert found.keys() == {"c", "d"}
    rollback = found["c"]
    assert (rollback.type, rollback.origins, rollback.refused_by, rollback.refusals) == (
        "CDS",
        ("policy.yaml:7",),
        ("one", "two"),
        2,
    )
    assert (rollback.age_s, rollback.reason) == (40.0, "Proto constraint validation failed")
    assert (rollback.on_content_before, rollback.on_nothing) == (1, 0)
    assert (found["d"].on_content_before, found["d"].on_nothing) == (0, 1)
    fleet.publish(cluster("c", "better"))
    assert fleet.rolled_back() == ()


def test_nacks_of_an_earlier_run_are_reported_with_who_and_since_when() -> None:
    fleet = Fleet(cluster("c", "bad"))
    before = NackPolicy()
    before.record_ack("v", [cluster("c", "good")])
    for host in "abc":
        refuse(before, [cluster("c", "bad")], host=host, agent=" ", at_unix_s=10.0)
    fleet.publisher.nack_policy.restore(before.rejections())
    fleet.now_s = 25.0
    one = fleet.join("one")
    assert (one.holds, fleet.log.nacks) == ({"c": "good"}, [])
    [rollback] = fleet.rolled_back()
    assert (rollback.age_s, rollback.refused_by, rollback.hosts) == (15.0, ("node a", "node b", "node c"), 3)
    assert (rollback.reason, rollback.held_from) == ("no", (" ",))


def test_nack_of_one_proxy_alone_is_not_rolled_back_for_others() -> None:
    fleet = Fleet(cluster("c", "good"))
    fleet.join("two")
    fleet.join("one")
    fleet.publish(cluster("c", "not for one"))
    assert fleet.rolled_back() == ()


def test_nack_attribution_finds_the_culprits_among_many() -> None:
    fleet = Fleet(cluster("z", "good"))
    for name in ("one", "two", "three"):
        fleet.join(name)
    many = [cluster(name, f"bad {name}" if name in "bd" else "good") for name in "abcdef"]
    fleet.publish(cluster("z", "good"), *many)
    for proxy in fleet.proxies:
        assert set(proxy.holds) == set("zacef")
    assert {name for _, name, _ in fleet.publisher.nack_policy.rejected_contents} == {"b", "d"}


def test_nacking_proxy_goes_without_what_others_acked() -> None:
    fleet = Fleet(cluster("c", "good"))
    two, one = fleet.join("two"), fleet.join("one")
    fleet.publish(cluster("c", "not for one"))
    assert two.holds == {"c": "not for one"}
    assert one.holds == {"c": "good"}
    assert fleet.log.nacks[-1].scope is RollbackScope.PEER
    sent = len(one.received)
    fleet.publish(cluster("c", "not for one"), cluster("d", "1"))
    assert [item.name for item in one.received[-1].resources] == ["d"]
    assert len(one.received) == sent + 1


def test_ack_of_the_next_proxy_undoes_the_first_nack() -> None:
    fleet = Fleet(cluster("c", "good"))
    one, two = fleet.join("one"), fleet.join("two")
    fleet.publish(cluster("c", "not for one"))
    assert two.holds == {"c": "not for one"}
    assert one.holds == {"c": "good"}
    assert fleet.join("three").holds == {"c": "not for one"}
    assert len(fleet.log.nacks) == 1, "it was sent again to the one that had refused it"


@pytest.mark.parametrize(
    ("mode", "asks", "answers"),
    [
        (XdsVariant.DELTA, DeltaDiscoveryRequest, DeltaDiscoveryResponse),
        (XdsVariant.SOTW, DiscoveryRequest, DiscoveryResponse),
    ],
)
def test_nack_of_removals_only_is_reported_and_blocks_nothing(mode: XdsVariant, asks: Any, answers: Any) -> None:
    fleet = Fleet(cluster("chat", "good"))
    session = fleet.publisher.connect(mode, "peer", lambda: None)

    def say(nonce: str, reason: str = "") -> None:
        request = asks(type_url=CLUSTER, response_nonce=nonce)
        request.node.id = "p"
        if reason:
            request.error_detail.message = reason
        session.request(request.SerializeToString(), 0.0)

    def rollback() -> Any:
        data = session.poll(0.0)
        assert data is not None
        return answers.FromString(data)

    say("")
    say(rollback().nonce)
    fleet.publish()
    removal = rollback()
    assert len(removal.resources) == 0
    say(removal.nonce, "no")
    (nack,) = fleet.log.nacks
    assert (nack.resources, nack.type_url, nack.reason) == ((), CLUSTER, "no")
    assert fleet.rolled_back() == ()
    fleet.publish(cluster("chat", "new"))
    assert len(rollback().resources) == 1


def test_a_push_is_one_bytes_object_for_all_streams() -> None:
    fleet = Fleet(cluster("c", "1"))
    for name in ("one", "two", "three"):
        fleet.join(name)
    fleet.publish(cluster("c", "2"))
    assert len({id(proxy.raw[-1]) for proxy in fleet.proxies}) == 1


def test_equal_snapshot_causes_no_push() -> None:
    fleet = Fleet(cluster("c", "1"))
    one = fleet.join("one")
    received = len(one.received)
    fleet.publish(cluster("c", "1"))
    assert len(one.received) == received


def test_views_come_and_go_with_their_proxies() -> None:
    fleet = Fleet(cluster("c", "1"))
    assert fleet.publisher.views == ()
    one = fleet.join("one")
    assert fleet.publisher.views == ("v",)
    assert fleet.publisher.proxies_by_view == {"v": 1}
    assert fleet.log.connected == ["one"]
    one.session.close()
    one.session.close()
    assert fleet.publisher.views == ()
    assert fleet.log.connected == []


def test_last_acked_content_outlives_its_proxies() -> None:
    fleet = Fleet(cluster("c", "good"))
    fleet.join("one").session.close()
    fleet.proxies.clear()
    fleet.wanted = snapshot([cluster("c", "bad")])
    # Each proxy gets it and refuses, until a quorum did; no later one gets it.
    for number in range(NACK_QUORUM + 2):
        assert fleet.join(f"n{number}").holds == {"c": "good"}
    assert len(fleet.log.nacks) == NACK_QUORUM
    assert [nack.scope for nack in fleet.log.nacks][-2:] == [RollbackScope.PEER, RollbackScope.EVERYONE]


def test_a_first_request_without_a_node_ends_the_stream() -> None:
    fleet = Fleet()
    session = fleet.publisher.connect(XdsVariant.DELTA, "peer", lambda: None)
    with pytest.raises(StreamError, match=r"node\.id"):
        session.request(DeltaDiscoveryRequest(type_url=CLUSTER).SerializeToString(), 0.0)
    assert session.poll(0.0) is None


def test_invalid_request_bytes_end_the_stream() -> None:
    session = Fleet().publisher.connect(XdsVariant.SOTW, "peer", lambda: None)
    with pytest.raises(StreamError):
        session.request(b"\xff\xff\xff", 0.0)


@pytest.mark.parametrize("mode", [XdsVariant.DELTA, XdsVariant.SOTW])
@pytest.mark.parametrize("type_url", [CLUSTER, ENDPOINT])
def test_proxy_that_refuses_everything_is_sent_little(mode: XdsVariant, type_url: str) -> None:
    publisher = Publisher(view_of=lambda _: "v", snapshot_for=lambda _: snapshot([resource(type_url, "a", b"1")]))
    session = publisher.connect(mode, "10.0.0.1:1", lambda: None)
    delta = mode is XdsVariant.DELTA
    request: Any = DeltaDiscoveryRequest(type_url=type_url) if delta else DiscoveryRequest(type_url=type_url)
    (request.resource_names_subscribe if delta else request.resource_names).append("a")
    request.node.id = "refuser"
    session.request(request.SerializeToString(), 0.0)
    received = 0
    while (data := session.poll(0.0)) is not None and received < 100:
        received += 1
        response: Any = (DeltaDiscoveryResponse if delta else DiscoveryResponse).FromString(data)
        fields = {"type_url": type_url, "response_nonce": response.nonce}
        answer: Any = (
            DeltaDiscoveryRequest(**fields) if delta else DiscoveryRequest(resource_names=["a"], **fields)
        )
        answer.error_detail.message = "no"
        session.request(answer.SerializeToString(), 0.0)
    assert 0 < received < 10
