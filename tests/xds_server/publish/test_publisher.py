"""What becomes of refusals: who is blamed, what is served instead, and when publishing resumes."""

import re
from dataclasses import dataclass, field

import pytest

from xds_server.publish import Acceptance, Nack, Publisher, Scope, Session, Silent
from xds_server.refusals import Refusals, RolledBack
from xds_server.snapshot import Resource, Snapshot, resource, snapshot
from xds_server.streams import Mode, NodeInfo, RefusedPeerError, StreamError
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME, SECRET
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DeltaDiscoveryResponseMessage,
)


def cluster(name: str, content: str, *origins: str) -> Resource:
    return resource(CLUSTER, name, content.encode(), origins)


def values(served: Snapshot, type_url: str = CLUSTER) -> dict[str, str]:
    return {name: item.value.decode() for name, item in served.of(type_url).items()}


# Acceptance


def test_refused_content_is_replaced_by_the_last_accepted_until_it_changes() -> None:
    acceptance = Acceptance()
    good, bad = cluster("c", "good"), cluster("c", "bad")
    acceptance.accepted("v", [good])
    assert acceptance.refused([bad], "no").scope is Scope.EVERYONE
    served = acceptance.effective("v", snapshot([bad]))
    assert values(served) == {"c": "good"}
    assert served.rolled_back_of(CLUSTER) == {"c"}
    newer = snapshot([cluster("c", "better")])
    assert acceptance.effective("v", newer) is newer


def test_what_was_never_accepted_is_left_out_and_other_views_lend_theirs() -> None:
    acceptance = Acceptance()
    bad = cluster("c", "bad")
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad, cluster("d", "1")]))) == {"d": "1"}
    acceptance.accepted("other view", [cluster("c", "good")])
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}


@pytest.mark.parametrize("type_url", [ROUTE, LISTENER, RUNTIME])
def test_nobody_is_lent_what_names_pools_that_it_may_not_see(type_url: str) -> None:
    acceptance = Acceptance()
    gateway, bound = View(), View(allowed=frozenset({"a"}), pools=frozenset({"nothing"}))
    other = View(allowed=frozenset({"a"}), zone="z")
    whole, own, empty = (resource(type_url, "port-1", one) for one in (b"-> a, b", b"-> a", b""))
    acceptance.accepted(gateway, [whole])
    acceptance.refused([empty], "no")
    assert not acceptance.effective(bound, snapshot([empty])).of(type_url)
    acceptance.accepted(other, [own])
    assert values(acceptance.effective(bound, snapshot([empty])), type_url) == {"port-1": "-> a"}
    acceptance.refused([bad := resource(type_url, "port-1", b"bad")], "no")
    assert values(acceptance.effective(View(zone="y"), snapshot([bad])), type_url) == {"port-1": "-> a, b"}


def test_secrets_are_not_written_down_and_lent_only_where_keys_may_go() -> None:
    acceptance = Acceptance()
    good, bad = (resource(SECRET, "s/certificate", one) for one in (b"a key", b"another key"))
    acceptance.accepted(View(keys=True), [good])
    for node in ("a", "b", "c"):
        acceptance.refused([bad], "no", node=node)
    kept = [cluster("c", "good"), cluster("c", "bad")]
    acceptance.accepted(View(keys=True), kept[:1])
    acceptance.refused(kept[1:], "no")
    assert values(acceptance.effective(View(keys=True, zone="z"), snapshot([bad])), SECRET) == {
        "s/certificate": "a key"
    }
    assert not acceptance.effective(View(), snapshot([bad])).of(SECRET)
    assert [park.type_url for park in acceptance.memory()] == [CLUSTER]
    assert "a key" not in repr((good, acceptance.memory()))


@pytest.mark.parametrize("type_url", [CLUSTER, ROUTE, LISTENER])
def test_what_is_rolled_back_finds_the_secrets_that_it_names(type_url: str) -> None:
    acceptance = Acceptance()
    view, secret = View(keys=True), resource(SECRET, "before/certificate", b"a key")
    acceptance.accepted(view, [secret, resource(type_url, "c", b"names it")])
    acceptance.refused([bad := resource(type_url, "c", b"names another")], "no")
    after = resource(SECRET, "after/certificate", b"another key")
    wanted = snapshot([bad, after])
    assert values(acceptance.effective(view, wanted), SECRET) == {
        "before/certificate": "a key",
        "after/certificate": "another key",
    }
    assert not acceptance.effective(View(), wanted).of(SECRET).keys() - {"after/certificate"}
    mended = snapshot([resource(type_url, "c", b"names another, well"), after])
    assert acceptance.effective(view, mended) is mended


def test_a_pools_cluster_is_lent_to_whoever_is_served_that_pool() -> None:
    acceptance = Acceptance()
    acceptance.accepted(View(), [cluster("a", "good")])
    acceptance.refused([bad := cluster("a", "bad")], "no")
    assert values(acceptance.effective(View(allowed=frozenset({"a"})), snapshot([bad]))) == {"a": "good"}


def test_the_resource_that_envoy_names_is_to_blame() -> None:
    acceptance = Acceptance()
    verdict = acceptance.refused(
        [cluster("a", "1"), cluster("bad", "1"), cluster("invalid", "1")],
        "Error adding/updating cluster(s) bad: Invalid path: /nonexistent",
    )
    assert [item.name for item in verdict.at_fault] == ["bad"]
    assert {item.name for item in verdict.cleared} == {"a", "invalid"}
    assert list(acceptance.parked) == [(CLUSTER, "bad")]


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Error adding/updating cluster(s) a: no, b:\n x: no; c: no", {"a", "b", "c"}),
        ("Error adding/updating cluster(s) aa: no, b-a: no, x:a:no", {"aa"}),
        ("a: no", set()),
        ('field: value too long, in name:  "a" and xname:"aa"', {"a", "aa"}),
        ('other: "a"', set()),
        ("Error adding/updating cluster(s) a.*: no", {"a.*"}),
        ("a: was fine, but\n\t a: not then", {"a"}),
    ],
)
def test_a_name_counts_only_where_envoy_puts_what_it_refuses(reason: str, named: set[str]) -> None:
    suspects = [cluster(name, "1") for name in ("a", "aa", "b", "c", "a.*")]
    verdict = Acceptance().refused(suspects, reason)
    assert (verdict.scope is Scope.SUSPECT) is not bool(named)
    assert not named or {item.name for item in verdict.at_fault} == named


def test_what_is_suspected_leaves_no_expression_of_its_own_behind() -> None:
    re.purge()
    suspects = [cluster(f"c{number}", "1") for number in range(100)]
    Acceptance().refused(suspects, "Error adding/updating cluster(s) c1: no")
    assert not re._cache  # type: ignore[attr-defined]  # asked for, as nothing public tells


def test_without_a_name_only_what_nobody_accepted_is_suspect() -> None:
    acceptance = Acceptance()
    fine, new = cluster("fine", "1"), cluster("new", "1")
    acceptance.accepted("v", [fine])
    verdict = acceptance.refused([fine, new], "Proto constraint validation failed (...)")
    assert [item.name for item in verdict.at_fault] == ["new"]
    assert verdict.scope is Scope.EVERYONE


def test_what_another_proxy_accepted_is_rolled_back_for_nobody() -> None:
    acceptance = Acceptance()
    listener = resource(LISTENER, "in", b"1")
    acceptance.accepted("v", [listener])
    reason = "Error adding/updating listener(s) in: cannot bind '0.0.0.0:80': Address already in use"
    assert acceptance.refused([listener], reason).scope is Scope.PEER
    assert acceptance.refused([listener], "no idea").scope is Scope.PEER
    assert not acceptance.parked


def test_an_acceptance_that_comes_late_ends_the_park() -> None:
    acceptance = Acceptance()
    item = cluster("c", "1")
    acceptance.refused([item], "no")
    assert acceptance.accepted("v", [item])
    assert not acceptance.parked


def test_several_suspects_are_tried_one_at_a_time() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1"), cluster("c", "1")]
    assert acceptance.refused(suspects, "constraint").scope is Scope.SUSPECT
    desired = snapshot(suspects)
    assert values(acceptance.effective("v", desired)) == {"a": "1"}
    assert acceptance.accepted("v", suspects[:1])
    assert values(acceptance.effective("v", desired)) == {"a": "1", "b": "1"}
    assert acceptance.refused(suspects[1:2], "constraint").scope is Scope.EVERYONE
    assert values(acceptance.effective("v", desired)) == {"a": "1", "c": "1"}
    assert acceptance.accepted("v", suspects[2:])
    assert list(acceptance.parked) == [(CLUSTER, "b")]


def test_a_refusal_from_before_the_trial_convicts_nobody() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.refused(suspects, "constraint")
    acceptance.refused(suspects, "constraint", answers_trial=False)
    assert acceptance.trial(CLUSTER) is not None
    acceptance.accepted("v", suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"a": "1", "b": "1"}


def test_silence_convicts_the_one_on_trial() -> None:
    acceptance = Acceptance()
    suspects = [cluster("a", "1"), cluster("b", "1")]
    acceptance.refused(suspects, "constraint")
    assert acceptance.unanswered(suspects[:1])
    assert values(acceptance.effective("v", snapshot(suspects))) == {"b": "1"}


def test_clusters_stay_while_a_route_that_may_name_them_is_rolled_back() -> None:
    acceptance = Acceptance()
    old = [cluster("old", "1"), resource(ENDPOINT, "old", b"1"), resource(ROUTE, "rc", b"->old")]
    acceptance.accepted("v", snapshot(old).of(CLUSTER).values())
    acceptance.accepted("v", snapshot(old).of(ENDPOINT).values())
    acceptance.accepted("v", snapshot(old).of(ROUTE).values())
    new = [cluster("new", "1"), resource(ROUTE, "rc", b"->new and bad")]
    acceptance.refused(new[1:], "no")
    served = acceptance.effective("v", snapshot(new))
    assert values(served) == {"new": "1", "old": "1"}
    assert values(served, ROUTE) == {"rc": "->old"}
    assert set(served.of(ENDPOINT)) == {"old"}


def test_parks_of_content_that_nobody_wants_are_forgotten() -> None:
    acceptance = Acceptance()
    acceptance.refused([cluster("c", "bad")], "no")
    acceptance.wanted([snapshot([cluster("c", "other")])], 0.0)
    assert not acceptance.parked


def test_accepted_content_that_nobody_wants_is_forgotten_after_a_while() -> None:
    acceptance = Acceptance()
    acceptance.accepted("v", [cluster("c", "good")])
    for now_s in (0.0, 500.0):
        acceptance.wanted([Snapshot()], now_s)
    bad = cluster("c", "bad")
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {"c": "good"}
    acceptance.wanted([Snapshot()], 1_000.0)
    acceptance.refused([bad], "no")
    assert values(acceptance.effective("v", snapshot([bad]))) == {}


def test_a_rolled_back_cluster_changes_the_version_of_its_endpoints_back_too() -> None:
    acceptance = Acceptance()
    endpoints = resource(ENDPOINT, "c", b"same")
    before = snapshot([cluster("c", "good"), endpoints])
    acceptance.accepted("v", before.of(CLUSTER).values())
    after = snapshot([cluster("c", "bad"), endpoints])
    assert after.of(ENDPOINT)["c"].version != before.of(ENDPOINT)["c"].version
    acceptance.refused([after.of(CLUSTER)["c"]], "no")
    assert acceptance.effective("v", after).of(ENDPOINT)["c"].version == before.of(ENDPOINT)["c"].version


# Publisher


@dataclass
class Log(Silent):
    nacks: list[Nack] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    acks: int = 0
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.refusals = Refusals(clock=lambda: self.now_s)

    def on_nack(self, nack: Nack) -> None:
        self.nacks.append(nack)
        self.refusals.note(nack)

    def on_connect(self, node: NodeInfo, mode: Mode) -> None:  # noqa: ARG002
        self.connected.append(node.id)

    def on_disconnect(self, node: NodeInfo, mode: Mode, reason: str) -> None:  # noqa: ARG002
        self.connected.remove(node.id)

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:  # noqa: ARG002
        self.acks += 1


class Proxy:
    """A delta proxy that subscribes to all clusters and refuses those whose content says so."""

    def __init__(self, publisher: Publisher, name: str) -> None:
        self.name = name
        self.holds: dict[str, str] = {}
        self.received: list[DeltaDiscoveryResponseMessage] = []
        self.unanswered: list[DeltaDiscoveryResponseMessage] = []
        self.raw: list[bytes] = []
        self.woken = 0
        self.session: Session = publisher.connect(Mode.DELTA, "peer", self._wake)
        request = DeltaDiscoveryRequest(type_url=CLUSTER)
        request.node.id = name
        self.session.request(request.SerializeToString(), 0.0)

    def _wake(self) -> None:
        self.woken += 1

    def receive(self) -> bool:
        """Receive what is due; whether there was anything."""
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
        self.publisher = Publisher(
            view_of=lambda _node: "v", snapshot_for=lambda _view: self.wanted, observer=self.log
        )
        self.proxies: list[Proxy] = []

    def join(self, name: str) -> Proxy:
        proxy = Proxy(self.publisher, name)
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

    def rolled_back(self) -> tuple[RolledBack, ...]:
        return self.log.refusals.rolled_back(self.publisher)

    def settle(self) -> None:
        # A push is on its way to all before the first answer comes back.
        while [proxy for proxy in self.proxies if proxy.receive()]:
            for proxy in self.proxies:
                proxy.answer()


def test_a_proxy_that_moves_is_counted_once_and_keeps_what_it_has() -> None:
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
    assert [state.node.id for state in publisher.proxies({"p", "nobody"})] == ["p"]


def test_a_node_is_one_peers_alone() -> None:
    publisher = Publisher(view_of=lambda _node: "v", snapshot_for=lambda _view: snapshot([]))

    def connect(*identities: str) -> Session:
        session = publisher.connect(Mode.DELTA, "peer", lambda: None, identities=identities)
        request = DeltaDiscoveryRequest(type_url=CLUSTER)
        request.node.id = "gateway-1"
        session.request(request.SerializeToString(), 0.0)
        return session

    first = connect("spiffe://prod/gateway", "gateway.prod")
    connect("spiffe://prod/gateway")
    for stranger in (("spiffe://prod/chat",), ()):
        with pytest.raises(RefusedPeerError, match="connected by another certificate"):
            connect(*stranger)
    assert publisher.speaks_for("gateway-1", ("gateway.prod",))
    assert not publisher.speaks_for("gateway-1", ("spiffe://prod/chat",))
    first.close("")


def test_a_bad_cluster_is_rolled_back_for_old_and_new_proxies_and_its_origin_is_named() -> None:
    fleet = Fleet(cluster("c", "good"))
    one = fleet.join("one")
    fleet.publish(cluster("c", "bad", "policy.yaml:7"), cluster("d", "good"))
    assert one.holds == {"c": "good", "d": "good"}
    newcomer = fleet.join("two")
    assert newcomer.holds == {"c": "good", "d": "good"}
    assert not any("bad" in item.resource.value.decode() for r in newcomer.received for item in r.resources)
    blamed = [item for nack in fleet.log.nacks for item in nack.resources if item.name == "c"]
    assert {item.origins for item in blamed} == {("policy.yaml:7",)}
    (state,) = [status for status in fleet.publisher.proxies()[0].types if status.type_url == CLUSTER]
    assert state.refused.keys() == {"c"}
    fleet.publish(cluster("c", "better"), cluster("d", "good"))
    assert one.holds == newcomer.holds == {"c": "better", "d": "good"}
    assert not fleet.publisher.proxies()[0].types[0].refused


def test_what_is_rolled_back_is_told_after_whoever_refused_it_has_gone_and_until_it_is_mended() -> None:
    fleet = Fleet(cluster("c", "good"))
    one = fleet.join("one")
    assert fleet.rolled_back() == ()
    fleet.publish(cluster("c", "bad", "policy.yaml:7"), cluster("d", "bad", "policy.yaml:9"))
    fleet.log.now_s = 40.0
    fleet.leave(one)
    assert fleet.rolled_back() == (), "with nobody connected nobody has anything else than is meant"
    fleet.join("two")
    assert not any(kind.refused for state in fleet.publisher.proxies() for kind in state.types)
    found = {told.name: told for told in fleet.rolled_back()}
    assert found.keys() == {"c", "d"}
    told = found["c"]
    assert (told.type, told.origins, told.refused_by, told.refusals) == ("CDS", ("policy.yaml:7",), ("one",), 1)
    assert (told.age_s, told.reason) == (40.0, "Proto constraint validation failed")
    assert (told.on_content_before, told.on_nothing) == (1, 0)
    assert (found["d"].on_content_before, found["d"].on_nothing) == (0, 1)
    fleet.publish(cluster("c", "better"))
    assert fleet.rolled_back() == ()


def test_refusals_of_an_earlier_run_are_told_without_an_age() -> None:
    fleet = Fleet(cluster("c", "bad"))
    before = Acceptance()
    before.accepted("v", [cluster("c", "good")])
    before.refused([cluster("c", "bad")], "no")
    fleet.publisher.acceptance.remember(before.memory())
    fleet.join("one")
    [told] = fleet.rolled_back()
    assert (told.age_s, told.refused_by, told.reason) == (None, (), "")


def test_what_one_proxy_alone_cannot_take_is_rolled_back_for_nobody() -> None:
    fleet = Fleet(cluster("c", "good"))
    fleet.join("two")
    fleet.join("one")
    fleet.publish(cluster("c", "not for one"))
    assert fleet.rolled_back() == ()


def test_the_culprits_among_many_are_found() -> None:
    fleet = Fleet(cluster("z", "good"))
    for name in ("one", "two", "three"):
        fleet.join(name)
    many = [cluster(name, f"bad {name}" if name in "bd" else "good") for name in "abcdef"]
    fleet.publish(cluster("z", "good"), *many)
    for proxy in fleet.proxies:
        assert set(proxy.holds) == set("zacef")
    assert {name for _, name in fleet.publisher.acceptance.parked} == {"b", "d"}


def test_one_proxy_that_cannot_take_what_others_can_goes_without() -> None:
    fleet = Fleet(cluster("c", "good"))
    two, one = fleet.join("two"), fleet.join("one")
    fleet.publish(cluster("c", "not for one"))
    assert two.holds == {"c": "not for one"}
    assert one.holds == {"c": "good"}
    assert fleet.log.nacks[-1].scope is Scope.PEER
    sent = len(one.received)
    fleet.publish(cluster("c", "not for one"), cluster("d", "1"))
    assert [item.name for item in one.received[-1].resources] == ["d"]
    assert len(one.received) == sent + 1


def test_a_refusal_by_the_first_of_many_is_undone_by_the_acceptance_of_the_next() -> None:
    fleet = Fleet(cluster("c", "good"))
    one, two = fleet.join("one"), fleet.join("two")
    fleet.publish(cluster("c", "not for one"))
    assert two.holds == {"c": "not for one"}
    assert one.holds == {"c": "good"}
    assert fleet.join("three").holds == {"c": "not for one"}
    assert len(fleet.log.nacks) == 1, "it was sent again to the one that had refused it"


def test_a_push_is_one_bytes_object_for_all_streams() -> None:
    fleet = Fleet(cluster("c", "1"))
    for name in ("one", "two", "three"):
        fleet.join(name)
    fleet.publish(cluster("c", "2"))
    assert len({id(proxy.raw[-1]) for proxy in fleet.proxies}) == 1


def test_an_equal_snapshot_wakes_nobody_for_anything() -> None:
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


def test_the_last_accepted_content_outlives_the_proxies_that_accepted_it() -> None:
    fleet = Fleet(cluster("c", "good"))
    fleet.join("one").session.close()
    fleet.proxies.clear()
    fleet.wanted = snapshot([cluster("c", "bad")])
    # The first to come is sent it and refuses; nobody after it is.
    assert fleet.join("two").holds == {"c": "good"}
    assert fleet.join("three").holds == {"c": "good"}
    assert len(fleet.log.nacks) == 1


def test_a_first_request_without_a_node_ends_the_stream() -> None:
    fleet = Fleet()
    session = fleet.publisher.connect(Mode.DELTA, "peer", lambda: None)
    with pytest.raises(StreamError, match=r"node\.id"):
        session.request(DeltaDiscoveryRequest(type_url=CLUSTER).SerializeToString(), 0.0)
    assert session.poll(0.0) is None


def test_bytes_that_are_no_request_end_the_stream() -> None:
    session = Fleet().publisher.connect(Mode.SOTW, "peer", lambda: None)
    with pytest.raises(StreamError):
        session.request(b"\xff\xff\xff", 0.0)
