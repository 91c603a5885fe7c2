"""One refused ModelRoute does not stop the edits of its neighbours on the same port."""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from xds_server.model.snapshot import (
    Resource,
    ResourcePart,
    ResourceParts,
    Snapshot,
    content_hash,
    resource,
    snapshot,
)
from xds_server.model.type_urls import ROUTE
from xds_server.publish import NackPolicy, NullObserver, Publisher
from xds_server.publish.part_isolation import MAX_NACKS
from xds_server.publish.rollback_status import rolled_back_resources
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.wire.route_parts import RouteFrame
from xds_server.wire.varint import delimited
from xds_server.xds import Sync, XdsVariant

NO_RANKS: Mapping[str, int] = MappingProxyType({})
FRAME = RouteFrame(before=b"<", host_before=b"[", host_after=b"]", after=b">")
BOTH = pytest.mark.parametrize("mode", [XdsVariant.DELTA, XdsVariant.SOTW])


def part(name: str, content: str, rank: int = 0) -> ResourcePart:
    value = delimited(3, f"{name}={content}".encode())
    return ResourcePart(
        name=name,
        value=value,
        content=content_hash(value),
        origins=(f"{name}.yaml:1",),
        rank=(rank,),
        instead=delimited(3, f"{name}=503".encode()),
    )


def port(
    contents: Mapping[str, str], *, name: str = "port-1", frame: str = "", ranks: Mapping[str, int] = NO_RANKS
) -> Resource:
    found = (part(one, content, ranks.get(one, 0)) for one, content in contents.items())
    parts = tuple(sorted(found, key=lambda one: (one.rank, one.name)))
    around = FRAME._replace(before=b"<" + frame.encode())
    whole = ResourceParts(frame=around, parts=parts)
    return resource(ROUTE, name, around.filled(one.value for one in parts), ["all.yaml:1"], whole)


def routes(value: bytes) -> dict[str, str]:
    text = value.decode(errors="replace")
    inside = text[text.index("[") + 1 : text.rindex("]")]
    return dict(one[1:].split("=", 1) for one in inside.split("\x1a")[1:])


def frame_of(value: bytes) -> str:
    return value.decode(errors="replace").partition("\x12")[0][1:]


class Proxy:
    """Refuses (NACK) the routes of a port if one has content that begins with ``refuses``; names none.

    ``holds``: an earlier stream, whose routes it still has.
    """

    def __init__(
        self,
        site: "Site",
        node: str,
        mode: XdsVariant,
        *,
        refuses: str = "bad",
        ports: Collection[str] = ("port-1",),
        holds: "Proxy | None" = None,
    ) -> None:
        self.node, self.mode, self.refuses, self.ports = node, mode, refuses, ports
        self.by_port: dict[str, dict[str, str]] = dict(holds.by_port) if holds else {}
        self.versions: dict[str, str] = dict(holds.versions) if holds else {}
        self.frame = ""
        self.seen: list[dict[str, str]] = []
        self.session = site.publisher.connect(mode, node, lambda: None)
        self._say()

    @property
    def routes(self) -> dict[str, str]:
        return {name: content for routes in self.by_port.values() for name, content in routes.items()}

    def _say(self, nonce: str = "", error: str = "") -> None:
        request: DeltaDiscoveryRequest | DiscoveryRequest
        if self.mode is XdsVariant.DELTA:
            request = DeltaDiscoveryRequest(
                type_url=ROUTE,
                response_nonce=nonce,
                resource_names_subscribe=() if nonce else self.ports,
                initial_resource_versions={} if nonce else self.versions,
            )
        else:
            request = DiscoveryRequest(type_url=ROUTE, response_nonce=nonce, resource_names=self.ports)
        request.node.id = self.node
        if error:
            request.error_detail.message = error
        self.session.request(request.SerializeToString(), 0.0)

    def settle(self) -> None:
        for _ in range(200):
            data = self.session.poll(0.0)
            if data is None:
                return
            if self.mode is XdsVariant.DELTA:
                delta = DeltaDiscoveryResponse.FromString(data)
                if delta.removed_resources:
                    self.by_port = {}
                    self._say(delta.nonce)
                    continue
                nonce = delta.nonce
                found = {one.name: (one.resource.value, one.version) for one in delta.resources}
            else:
                whole = DiscoveryResponse.FromString(data)
                nonce, found = whole.nonce, {"port-1": (whole.resources[0].value, whole.version_info)}
            self._take(nonce, found)
        pytest.fail("routes are sent forever")

    def _take(self, nonce: str, found: Mapping[str, tuple[bytes, str]]) -> None:
        sent = {name: routes(value) for name, (value, _) in found.items()}
        frames = [frame_of(value) for value, _ in found.values()]
        self.seen.append({name: content for one in sent.values() for name, content in one.items()})
        refused = any(content.startswith(self.refuses) for content in (*self.seen[-1].values(), *frames))
        if not refused:
            self.by_port |= sent
            self.versions |= {name: version for name, (_, version) in found.items()}
            self.frame = frames[-1]
        self._say(nonce, "regex too large" if refused else "")

    @property
    def state(self) -> Sync:
        standing = self.session.sync()
        assert standing is not None
        return standing.types[0].state


class Site:
    """One view; ``second``: names of the routes that belong to a second port."""

    def __init__(self, before: NackPolicy | None = None, **contents: Any) -> None:
        self.wanted = self.made(**contents)
        self.publisher = Publisher(
            view_of=lambda _: "v", snapshot_for=lambda _: self.wanted, observer=NullObserver(), wall=lambda: 10.0
        )
        if before is not None:
            self.publisher.nack_policy.restore(before.rejections())
        self.proxies: list[Proxy] = []

    @staticmethod
    def made(
        *,
        second: Collection[str] = (),
        frame: str = "",
        ranks: Mapping[str, int] = NO_RANKS,
        **contents: str,
    ) -> Snapshot:
        first = {name: content for name, content in contents.items() if name not in second}
        ports = [port(first, frame=frame, ranks=ranks)]
        if second:
            ports.append(port({name: contents[name] for name in second}, name="port-2"))
        return snapshot(ports)

    def join(self, node: str, mode: XdsVariant, **how: Any) -> Proxy:
        self.proxies.append(proxy := Proxy(self, node, mode, **how))
        proxy.settle()
        return proxy

    def publish(self, **contents: Any) -> None:
        self.wanted = self.made(**contents)
        self.publisher.publish({"v": self.wanted}, 0.0)
        for proxy in self.proxies:
            proxy.settle()

    def refused(self) -> Mapping[str, tuple[tuple[str, ...], int, int]]:
        return {
            one.name: (one.origins, one.on_content_before, one.on_nothing)
            for one in rolled_back_resources(self.publisher, 10.0)
        }


@BOTH
def test_good_edit_arrives_while_a_neighbour_is_refused(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1")
    proxy = site.join("n1", mode)
    site.publish(a="bad", b="1", c="1")
    assert proxy.routes == {"a": "1", "b": "1", "c": "1"}
    assert proxy.state is Sync.NACK
    assert site.refused() == {"port-1/a": (("a.yaml:1",), 1, 0)}
    site.publish(a="bad", b="2", c="1")
    assert proxy.routes == {"a": "1", "b": "2", "c": "1"}
    assert proxy.state is Sync.NACK
    assert site.refused() == {"port-1/a": (("a.yaml:1",), 1, 0)}
    assert sum("bad" in seen.values() for seen in proxy.seen) == 1, "a refused route is not sent again"
    site.publish(a="2", b="2", c="1")
    assert proxy.routes == {"a": "2", "b": "2", "c": "1"}
    assert (proxy.state, site.refused()) == (Sync.SYNCED, {})


@BOTH
def test_refused_route_among_several_edits_is_found_by_trial(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1", d="1", e="1")
    proxy = site.join("n1", mode)
    site.publish(a="2", b="2", c="bad", d="2", e="1")
    assert proxy.routes == {"a": "2", "b": "2", "c": "1", "d": "2", "e": "1"}
    assert site.refused().keys() == {"port-1/c"}
    assert proxy.state is Sync.NACK
    site.publish(a="bad 2", b="3", c="bad", d="2", e="3")
    assert proxy.routes == {"a": "2", "b": "3", "c": "1", "d": "2", "e": "3"}
    assert site.refused().keys() == {"port-1/a", "port-1/c"}
    site.publish(a="bad 2", b="3", c="2", d="2", e="3")
    assert proxy.routes == {"a": "2", "b": "3", "c": "2", "d": "2", "e": "3"}
    assert site.refused().keys() == {"port-1/a"}


@BOTH
def test_last_of_several_suspects_is_found_though_the_whole_was_refused(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1")
    proxy = site.join("n1", mode)
    site.publish(a="2", b="bad", c="1")
    site.publish(a="2", b="bad", c="2")
    assert proxy.routes == {"a": "2", "b": "1", "c": "2"}
    assert site.refused().keys() == {"port-1/b"}


@BOTH
def test_refused_new_route_replies_after_its_neighbours(mode: XdsVariant) -> None:
    site = Site(b="1")
    proxy = site.join("n1", mode)
    site.publish(a="bad", b="1", c="1")
    assert list(proxy.routes.items()) == [("b", "1"), ("c", "1"), ("a", "503")]
    assert site.refused() == {"port-1/a": (("a.yaml:1",), 0, 1)}


@BOTH
def test_first_proxy_of_a_port_isolates_a_bad_route(mode: XdsVariant) -> None:
    site = Site(a="1", b="bad", c="1", d="1")
    first, second = site.join("n1", mode), site.join("n2", mode)
    assert first.routes == second.routes == {"a": "1", "c": "1", "d": "1", "b": "503"}
    assert site.refused() == {"port-1/b": (("b.yaml:1",), 0, 2)}


@BOTH
def test_refused_route_stays_isolated_after_a_restart(mode: XdsVariant) -> None:
    site = Site(a="1", b="1")
    site.join("n1", mode)
    site.publish(a="bad", b="1")
    site.publish(a="bad", b="2")
    later = Site(site.publisher.nack_policy, a="bad", b="3")
    proxy = later.join("n2", mode)
    assert proxy.routes == {"a": "1", "b": "3"}
    (shown,) = rolled_back_resources(later.publisher, 10.0)
    assert (shown.name, shown.refused_by) == ("port-1/a", ("n1", "n2"))


@BOTH
def test_route_nacked_by_a_quorum_is_held_back_without_its_neighbours(mode: XdsVariant) -> None:
    site = Site(a="1", b="1")
    for number in range(3):
        site.join(f"n{number}", mode)
    site.publish(a="bad", b="2")
    late = site.join("late", mode)
    assert late.seen == [{"a": "1", "b": "2"}], "not sent what a quorum refused"


@BOTH
def test_proxy_that_nacks_every_route_takes_none_from_others(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1")
    liar = site.join("liar", mode, refuses="")
    assert liar.routes == {}
    assert site.join("n1", mode).routes == {"a": "1", "b": "1", "c": "1"}
    site.publish(a="2", b="bad", c="2")
    assert liar.routes == {}
    assert site.proxies[1].routes == {"a": "2", "b": "1", "c": "2"}


@BOTH
def test_part_accepted_by_another_proxy_is_a_suspect_too(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1")
    site.join("accepts everything", mode, refuses="nothing")
    proxy = site.join("n1", mode)
    site.publish(a="bad", b="2", c="2")
    assert proxy.routes == {"a": "1", "b": "2", "c": "2"}
    late = site.join("n2", mode)
    assert late.routes == {"a": "1", "b": "2", "c": "2"}
    site.publish(a="bad", b="3", c="2")
    assert proxy.routes == late.routes == {"a": "1", "b": "3", "c": "2"}


@BOTH
def test_new_proxy_is_tried_with_the_last_accepted_routes_first(mode: XdsVariant) -> None:
    site = Site(a="1", b="1", c="1")
    site.join("n1", mode)
    site.publish(a="bad", b="2", c="1")
    assert site.join("n2", mode).seen == [
        {"a": "bad", "b": "2", "c": "1"},
        {"a": "1", "b": "2", "c": "1"},
        {"a": "bad", "b": "2", "c": "1"},
    ]


@BOTH
def test_reconnected_proxy_gets_edits_next_to_a_route_it_refuses(mode: XdsVariant) -> None:
    site = Site(a="1", b="1")
    site.join("n1", mode)
    site.publish(a="bad", b="1")
    later = Site(site.publisher.nack_policy, a="bad", b="2")
    proxy = later.join("n1", mode, holds=site.proxies[0])
    assert proxy.routes == {"a": "1", "b": "2"}
    assert later.refused().keys() == {"port-1/a"}
    assert all("503" not in seen.values() for seen in proxy.seen)


@BOTH
def test_older_route_in_place_of_a_refused_one_keeps_its_own_rank(mode: XdsVariant) -> None:
    """A broad route must not take the requests of its neighbours in the place of a more specific one."""
    site = Site(a="1", b="1", ranks={"a": 2, "b": 1})
    proxy = site.join("n1", mode)
    assert list(proxy.routes) == ["b", "a"]
    site.publish(a="bad", b="2", ranks={"a": 0, "b": 1})
    assert list(proxy.seen[-2]) == ["a", "b"]
    assert list(proxy.routes.items()) == [("b", "2"), ("a", "1")]


@BOTH
def test_refused_frame_takes_no_route_with_it(mode: XdsVariant) -> None:
    site = Site(a="1", b="1")
    proxy = site.join("n1", mode)
    site.publish(a="2", b="bad", frame="bad")
    assert (proxy.frame, proxy.routes) == ("", {"a": "2", "b": "1"})
    assert site.refused() == {"port-1": (("all.yaml:1",), 1, 0), "port-1/b": (("b.yaml:1",), 1, 0)}
    site.publish(a="3", b="bad", frame="bad")
    assert (proxy.frame, proxy.routes) == ("", {"a": "3", "b": "1"})
    assert site.refused().keys() == {"port-1", "port-1/b"}
    site.publish(a="3", b="3", frame="2")
    assert (proxy.frame, proxy.routes, site.refused()) == ("2", {"a": "3", "b": "3"}, {})


@BOTH
def test_refused_route_that_comes_back_is_tried_again(mode: XdsVariant) -> None:
    site = Site(a="1", b="1")
    proxy = site.join("n1", mode)
    site.publish(a="bad", b="bad")
    site.publish(a="bad", b="2")
    site.publish(a="bad", b="bad")
    assert proxy.routes == {"a": "1", "b": "2"}
    assert site.refused().keys() == {"port-1/a", "port-1/b"}
    proxy.refuses = "bad 2"
    site.publish(a="bad", b="3")
    site.publish(a="bad", b="bad")
    assert proxy.routes == {"a": "1", "b": "bad"}


@BOTH
def test_number_of_trials_grows_with_the_refused_routes_only(mode: XdsVariant) -> None:
    names = [f"r{number:02}" for number in range(64)]
    site = Site(**dict.fromkeys(names, "1"))
    proxy = site.join("n1", mode)
    before = len(proxy.seen)
    site.publish(**dict.fromkeys(names, "2") | {"r07": "bad", "r40": "bad"})
    wanted = dict.fromkeys(names, "2") | {"r07": "1", "r40": "1"}
    assert proxy.routes == wanted
    assert len(proxy.seen) - before <= 2 * 2 * 7
    before = len(proxy.seen)
    site.publish(**dict.fromkeys(names, "3") | {"r07": "bad", "r40": "bad"})
    assert len(proxy.seen) - before == 1, "what it refused is not sent again"


@BOTH
def test_trials_of_one_version_end(mode: XdsVariant) -> None:
    names = [f"r{number:02}" for number in range(MAX_NACKS)]
    site = Site(**dict.fromkeys(names, "1"))
    proxy = site.join("n1", mode)
    site.publish(**dict.fromkeys(names, "bad"))
    assert sum("bad" in seen.values() for seen in proxy.seen) == MAX_NACKS + 1
    assert proxy.routes == dict.fromkeys(names, "1")
    assert "port-1" in site.refused()
    site.publish(**dict.fromkeys(names, "2"))
    assert (proxy.routes, site.refused()) == (dict.fromkeys(names, "2"), {})


def test_suspects_of_two_ports_are_judged_apart() -> None:
    site = Site(a="1", b="1", c="1", second=("c",))
    proxy = site.join("n1", XdsVariant.DELTA, ports=("port-1", "port-2"))
    site.publish(a="2", b="bad", c="2", second=("c",))
    assert proxy.routes == {"a": "2", "b": "1", "c": "2"}
    assert site.refused().keys() == {"port-1/b"}
