"""A proxy with its own runtime layer gets that layer, and everything else from its view."""

from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.xds_server.publish.resource_fixtures import refuse
from xds_server.model.snapshot import OwnResources, Resource, Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, LISTENER, RUNTIME
from xds_server.publish import Publisher, Session
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.xds import Sync, XdsVariant

TYPES = {RUNTIME: ("layer",), CLUSTER: (), LISTENER: ()}


def layer(content: str) -> Resource:
    return resource(RUNTIME, "layer", content.encode())


def of_view(runtime: str, cluster: str = "c1") -> Snapshot:
    return snapshot(
        [layer(runtime), resource(CLUSTER, "c", cluster.encode()), resource(LISTENER, "l", b"constant")]
    )


class Proxy:
    """A proxy of either variant that subscribes to three types and accepts everything."""

    def __init__(self, publisher: Publisher, node: str, mode: XdsVariant) -> None:
        self.node = node
        self.mode = mode
        self.holds: dict[str, str] = {}
        self.received: list[str] = []
        self.woken = 0
        self.unanswered: list[tuple[str, str, str]] = []
        self.session: Session = publisher.connect(mode, "peer", self._wake)
        for type_url, names in TYPES.items():
            if mode is XdsVariant.DELTA:
                delta = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names)
                delta.node.id = node
                data = delta.SerializeToString()
            else:
                whole = DiscoveryRequest(type_url=type_url, resource_names=names)
                whole.node.id = node
                data = whole.SerializeToString()
            self.session.request(data, 0.0)

    def _wake(self) -> None:
        self.woken += 1

    def receive(self) -> None:
        """Receive what is due, without answering."""
        while (data := self.session.poll(0.0)) is not None:
            if self.mode is XdsVariant.DELTA:
                delta = DeltaDiscoveryResponse.FromString(data)
                type_url, nonce, version = delta.type_url, delta.nonce, ""
                values = [item.resource.value.decode() for item in delta.resources]
            else:
                whole = DiscoveryResponse.FromString(data)
                type_url, nonce, version = whole.type_url, whole.nonce, whole.version_info
                values = [item.value.decode() for item in whole.resources]
            self.received.append(type_url)
            if values:  # each type has one resource here
                self.holds[type_url] = values[-1]
            self.unanswered.append((type_url, nonce, version))

    def answer(self) -> None:
        for type_url, nonce, version in self.unanswered:
            if self.mode is XdsVariant.DELTA:
                data = DeltaDiscoveryRequest(type_url=type_url, response_nonce=nonce).SerializeToString()
            else:
                data = DiscoveryRequest(
                    type_url=type_url, response_nonce=nonce, version_info=version, resource_names=TYPES[type_url]
                ).SerializeToString()
            self.session.request(data, 0.0)
        self.unanswered.clear()

    def settle(self) -> None:
        while True:
            self.receive()
            if not self.unanswered:
                return
            self.answer()


class World:
    def __init__(self) -> None:
        self.views: dict[str, Snapshot] = {"a": of_view("view a"), "b": of_view("view b")}
        self.own: Mapping[str, OwnResources] = {}
        self.publisher = Publisher(
            view_of=lambda node: node.id[0], snapshot_for=lambda view: self.views[str(view)]
        )
        self.proxies: list[Proxy] = []

    def join(self, node: str, mode: XdsVariant = XdsVariant.DELTA) -> Proxy:
        proxy = Proxy(self.publisher, node, mode)
        self.proxies.append(proxy)
        return proxy

    def publish(self, own: Mapping[str, Resource] | None = None) -> None:
        self.own = self.own if own is None else {node: (item,) for node, item in own.items()}
        self.publisher.publish({view: served for view, served in self.views.items()}, 0.0, self.own)  # noqa: C416

    def expected(self, proxy: Proxy) -> dict[str, str]:
        view = self.views[proxy.node[0]]
        held = {url: item.value.decode() for url, named in view.resources.items() for item in named.values()}
        own = self.own.get(proxy.node)
        return held if own is None else held | {RUNTIME: own[0].value.decode()}

    def settle(self) -> None:
        for proxy in self.proxies:
            proxy.settle()


@pytest.fixture(params=XdsVariant)
def mode(request: pytest.FixtureRequest) -> XdsVariant:
    found: XdsVariant = request.param
    return found


def test_per_proxy_rtds_layer_is_pushed_to_that_proxy_only(mode: XdsVariant) -> None:
    world = World()
    one, two = world.join("a1", mode), world.join("a2", mode)
    world.settle()
    before = len(one.received), len(two.received), two.woken
    world.publish({"a1": layer("own")})
    world.settle()
    assert one.holds == world.expected(one) == {RUNTIME: "own", CLUSTER: "c1", LISTENER: "constant"}
    assert two.holds[RUNTIME] == "view a"
    assert one.received[before[0] :] == [RUNTIME]
    assert (len(two.received), two.woken) == before[1:]


def test_proxy_is_synced_against_its_own_rtds_layer(mode: XdsVariant) -> None:
    world = World()
    one = world.join("a1", mode)
    world.settle()
    world.publish({"a1": layer("own")})
    (state,) = world.publisher.proxies()
    assert {status.type_url: status.state for status in state.types}[RUNTIME] is Sync.STALE
    one.receive()
    one.answer()
    (state,) = world.publisher.proxies()
    assert {status.state for status in state.types} == {Sync.SYNCED}
    assert world.publisher.effective("a") is world.views["a"]


def test_proxy_without_own_layer_gets_the_view_layer(mode: XdsVariant) -> None:
    world = World()
    one = world.join("a1", mode)
    world.publish({"a1": layer("own")})
    world.settle()
    world.publish({})
    world.settle()
    assert one.holds[RUNTIME] == "view a"


def test_reconnected_proxy_gets_its_own_layer_at_once(mode: XdsVariant) -> None:
    world = World()
    world.publish({"a1": layer("own")})
    one = world.join("a1", mode)
    world.settle()
    assert one.holds[RUNTIME] == "own"
    assert one.received.count(RUNTIME) == 1


def test_equal_layers_are_one_snapshot_and_one_bytes_object() -> None:
    world = World()
    shared = layer("shared")
    sessions = []
    for number in range(3):
        sessions.append(world.publisher.connect(XdsVariant.DELTA, "peer", lambda: None))
        request = DeltaDiscoveryRequest(type_url=RUNTIME, resource_names_subscribe=["layer"])
        request.node.id = f"a{number}"
        sessions[-1].request(request.SerializeToString(), 0.0)
    for session in sessions:
        while session.poll(0.0) is not None:
            pass
    world.publish({f"a{number}": shared for number in range(3)})
    assert len({id(session.poll(0.0)) for session in sessions}) == 1


def test_a_view_without_that_resource_gets_none(mode: XdsVariant) -> None:
    world = World()
    world.views["a"] = Snapshot()
    one = world.join("a1", mode)
    world.publish({"a1": layer("own")})
    one.settle()
    assert "own" not in one.holds.values()


def test_own_resource_is_never_a_fallback_for_others() -> None:
    world = World()
    two, one = world.join("a2"), world.join("a1")  # in this order the own layer is accepted last
    world.publish({"a1": layer("own")})
    world.settle()
    bad = layer("refused")
    world.views["a"] = of_view("refused")
    world.publish()
    for host in "abc":
        refuse(world.publisher.nack_policy, [bad], host=host, agent=" ")
    world.publish()
    world.settle()
    assert one.holds[RUNTIME] == "own"
    assert two.holds[RUNTIME] != "own"


NODES = ("a1", "a2", "a3", "b1", "b2")
_steps = st.one_of(
    st.tuples(st.just("own"), st.dictionaries(st.sampled_from(NODES), st.sampled_from("xyz"))),
    st.tuples(st.just("view"), st.tuples(st.sampled_from("ab"), st.sampled_from("123"), st.sampled_from("456"))),
    st.tuples(st.just("join"), st.tuples(st.sampled_from(NODES), st.sampled_from(XdsVariant))),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("receive"), st.integers(0, 9)),
    st.tuples(st.just("answer"), st.integers(0, 9)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_steps, max_size=30))
def test_proxies_converge_in_any_order(steps: list[tuple[str, Any]]) -> None:
    world = World()
    for what, value in steps:
        if what == "own":
            world.publish({node: layer(f"own {content}") for node, content in value.items()})
        elif what == "view":
            view, runtime, cluster = value
            world.views[view] = of_view(f"view {runtime}", cluster)
            world.publish()
        elif what == "join":
            world.join(*value)
        elif world.proxies:
            proxy = world.proxies[value % len(world.proxies)]
            if what == "leave":
                proxy.session.close()
                world.proxies.remove(proxy)
            elif what == "receive":
                proxy.receive()
            else:
                proxy.answer()
    world.settle()
    for proxy in world.proxies:
        assert proxy.holds == world.expected(proxy)
    states = world.publisher.proxies()
    assert {status.state for state in states for status in state.types} <= {Sync.SYNCED}
    assert {state.node.id for state in states} == {proxy.node for proxy in world.proxies}


def test_unused_layer_snapshots_are_forgotten() -> None:
    world = World()
    one = world.join("a1")
    for number in range(100):
        world.publish({"a1": layer(f"own {number}")})
        one.settle()
    (served,) = world.publisher._views.values()
    assert len(served.personal) == 1


def test_disconnected_nodes_are_forgotten() -> None:
    world = World()
    world.join("a1").session.close()
    assert world.publisher._sessions_of == {}
