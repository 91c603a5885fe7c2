"""A proxy that refuses a certificate keeps the previous one, without effect on other proxies."""

import pytest

from xds_server.model.snapshot import Resource, resource, snapshot
from xds_server.model.type_urls import SECRET
from xds_server.model.view import View
from xds_server.publish import Nack, NullObserver, Publisher, RollbackScope, Session
from xds_server.publish.content_rejections import NACK_QUORUM
from xds_server.translate.upstream_tls import rejected_secret
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.xds import Sync, XdsVariant

NAMES = ("s/authorities", "s/certificate")
WORDS = {
    "s/authorities": "Failed to load trusted CA certificates from <inline>",
    "s/certificate": "Failed to load certificate chain from <inline>",
}
BOTH = pytest.mark.parametrize("mode", [XdsVariant.DELTA, XdsVariant.SOTW])
MOST_ROUNDS = 50


def secrets(authorities: str, certificate: str) -> list[Resource]:
    contents = zip(NAMES, (authorities, certificate), strict=True)
    return [resource(SECRET, name, f"{name}={content}".encode()) for name, content in contents]


class Proxy:
    """Subscribes to both secrets, and accepts all but ``refuses``.

    Like Envoy: it keeps refused content next to the one in use, accepts it when sent again, and validates it
    together with the next content. With only one of the two secrets it accepts without validation.
    """

    def __init__(self, fleet: "Fleet", node: str, refuses: set[str]) -> None:
        self.node = node
        self.mode = fleet.mode
        self.refuses = refuses
        self.holds: dict[str, str] = {}
        self.stored: dict[str, str] = {}
        self.offered: list[str] = []
        self.unanswered: list[tuple[str, str, dict[str, str]]] = []
        self.version = ""
        self.versions: dict[str, str] = {}
        self.connect(fleet)

    def connect(self, fleet: "Fleet") -> None:
        """Open a stream, and send what is already held."""
        self.session: Session = fleet.publisher.connect(fleet.mode, self.node, lambda: None)
        self._say("", self.version, first=True)

    def _say(self, nonce: str, version: str, *, first: bool = False, error: str = "") -> None:
        if self.mode is XdsVariant.DELTA:
            delta = DeltaDiscoveryRequest(
                type_url=SECRET,
                response_nonce=nonce,
                resource_names_subscribe=NAMES if first else (),
                initial_resource_versions=self.versions if first else {},
            )
            if error:
                delta.error_detail.message = error
            delta.node.id = self.node
            self.session.request(delta.SerializeToString(), 0.0)
        else:
            whole = DiscoveryRequest(
                type_url=SECRET, response_nonce=nonce, version_info=version, resource_names=NAMES
            )
            if error:
                whole.error_detail.message = error
            whole.node.id = self.node
            self.session.request(whole.SerializeToString(), 0.0)

    def receive(self) -> bool:
        """Receive what is due; returns whether an answer is pending."""
        while (data := self.session.poll(0.0)) is not None:
            if self.mode is XdsVariant.DELTA:
                delta = DeltaDiscoveryResponse.FromString(data)
                nonce, version = delta.nonce, ""
                self.versions |= {item.name: item.version for item in delta.resources}
                values = [item.resource.value.decode() for item in delta.resources]
            else:
                whole = DiscoveryResponse.FromString(data)
                nonce, version = whole.nonce, whole.version_info
                values = [item.value.decode() for item in whole.resources]
            contents = dict(value.split("=", 1) for value in values)
            self.offered += contents.values()
            self.unanswered.append((nonce, version, contents))
        return bool(self.unanswered)

    def answer(self) -> None:
        waiting, self.unanswered = self.unanswered, []
        for nonce, version, contents in waiting:
            news = any(self.stored.get(name) != content for name, content in contents.items())
            self.stored |= contents
            bad = [name for name, content in self.stored.items() if content in self.refuses]
            refused = bool(news and bad and len(self.stored) == len(NAMES))
            if news and not refused:
                self.holds = dict(self.stored)
            if not refused:
                self.version = version
            self._say(nonce, version, error=WORDS[bad[0]] if refused else "")

    @property
    def state(self) -> Sync:
        standing = self.session.sync()
        assert standing is not None
        return standing.types[0].state


class Log(NullObserver):
    def __init__(self) -> None:
        self.scopes: list[RollbackScope] = []
        self.names: list[str] = []

    def on_nack(self, nack: Nack) -> None:
        self.scopes.append(nack.scope)
        self.names += [one.name for one in nack.resources]


class Fleet:
    def __init__(self, mode: XdsVariant) -> None:
        self.mode = mode
        self.wanted = snapshot(secrets("ca 1", "cert 1"))
        self.log = Log()
        self.publisher = Publisher(
            view_of=lambda _: View(keys=True), snapshot_for=lambda _: self.wanted, observer=self.log
        )
        self.proxies: list[Proxy] = []

    def join(self, node: str, *refuses: str) -> Proxy:
        proxy = Proxy(self, node, set(refuses))
        self.proxies.append(proxy)
        self.settle()
        return proxy

    def again(self, proxy: Proxy) -> Proxy:
        """The same proxy after a restart, without content."""
        self.proxies.remove(proxy)
        proxy.session.close()
        return self.join(proxy.node, *proxy.refuses)

    def lose(self, proxy: Proxy) -> None:
        """End its stream; it reconnects with its content."""
        proxy.session.close()
        proxy.connect(self)
        self.settle()

    def publish(self, authorities: str, certificate: str) -> None:
        self.wanted = snapshot(secrets(authorities, certificate))
        self.publisher.publish({View(keys=True): self.wanted}, 0.0)
        self.settle()

    def settle(self) -> None:
        for _ in range(MOST_ROUNDS):
            if not [proxy for proxy in self.proxies if proxy.receive()]:
                return
            for proxy in self.proxies:
                proxy.answer()
        pytest.fail(f"something is still sent after {MOST_ROUNDS} answers")


def holding(certificate: str, authorities: str = "ca 1") -> dict[str, str]:
    return dict(zip(NAMES, (authorities, certificate), strict=True))


@BOTH
def test_sds_nack_keeps_the_previous_certificate_and_withholds_it_from_no_other(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken = fleet.join("broken", "cert 2")
    fleet.publish("ca 1", "cert 2")
    assert broken.holds == holding("cert 1")
    assert broken.state is Sync.NACK
    well = fleet.join("well")
    assert well.holds == holding("cert 2")
    assert well.state is Sync.SYNCED
    assert (fleet.log.scopes, broken.offered.count("cert 2")) == ([RollbackScope.PEER], 1)
    fleet.publish("ca 1", "cert 3")
    assert broken.holds == well.holds == holding("cert 3")
    assert broken.state is Sync.SYNCED


@BOTH
def test_restarted_proxy_after_sds_nack_gets_the_previous_certificate(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken = fleet.join("broken", "cert 2")
    fleet.publish("ca 1", "cert 2")
    broken = fleet.again(broken)
    assert broken.holds == holding("cert 1")
    assert broken.state is Sync.NACK
    served = fleet.publisher.snapshot_served_to("broken")
    assert served is not None
    assert [item.value.decode() for item in served.of(SECRET).values()] == [
        "s/authorities=ca 1",
        "s/certificate=cert 1",
    ]
    assert fleet.join("well").holds == holding("cert 2")
    assert fleet.again(broken).holds == holding("cert 1"), "also where others have the new one"


@BOTH
def test_sds_certificate_nacked_by_all_is_sent_to_few(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    fleet.join("first", "cert 2")
    fleet.publish("ca 1", "cert 2")
    others = [fleet.join(f"n{number}", "cert 2") for number in range(5)]
    assert [one.holds for one in others] == [holding("cert 1")] * 5
    tried = NACK_QUORUM - 1
    assert [one.offered.count("cert 2") for one in others] == [1] * tried + [0] * (len(others) - tried)
    assert fleet.log.scopes == [RollbackScope.PEER] * (NACK_QUORUM - 1) + [RollbackScope.EVERYONE]
    fleet.publish("ca 1", "cert 3")
    assert {one.holds["s/certificate"] for one in fleet.proxies} == {"cert 3"}


@BOTH
def test_repeated_sds_nacks_of_one_proxy_count_once(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken = fleet.join("broken", "cert 2")
    fleet.publish("ca 1", "cert 2")
    for _ in range(2 * NACK_QUORUM):
        broken = fleet.again(broken)
    assert fleet.join("well").holds == holding("cert 2")


@BOTH
def test_valid_sds_secret_is_accepted_despite_a_nacked_one(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken, well = fleet.join("broken", "cert 2"), fleet.join("well")
    fleet.publish("ca 2", "cert 2")
    assert well.holds == holding("cert 2", "ca 2")
    assert broken.holds == holding("cert 1", "ca 2")
    assert broken.offered[-2:] == ["cert 2", "cert 1"], "by itself, and then what it had"
    assert broken.state is Sync.NACK
    assert well.offered.count("cert 2") == 1
    fleet.publish("ca 3", "cert 2")
    assert broken.holds == holding("cert 1", "ca 3"), "which is not judged with what was refused"
    fleet.publish("ca 4", "cert 3")
    assert broken.holds == holding("cert 3", "ca 4")


@BOTH
def test_first_secrets_are_kept_except_the_refused_one(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    for number in range(NACK_QUORUM):
        assert fleet.join(f"n{number}", "cert 1").holds == {"s/authorities": "ca 1"}
    assert fleet.join("late", "cert 1").holds == {"s/authorities": "ca 1"}


@BOTH
def test_proxy_that_nacks_the_sds_fallback_is_sent_neither_again(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken, well = fleet.join("broken", "cert 1", "cert 2"), fleet.join("well")
    fleet.publish("ca 1", "cert 2")
    assert well.holds == holding("cert 2")
    assert broken.offered == ["ca 1", "cert 1", "cert 2", "cert 1"]
    assert broken.state is Sync.NACK
    fleet.publish("ca 1", "cert 3")
    assert broken.offered[4:] == ["cert 3"]
    assert broken.holds == holding("cert 3")
    assert broken.state is Sync.SYNCED


@BOTH
def test_sds_certificate_is_not_blamed_for_a_nacked_ca(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken = [fleet.join(f"n{number}", "ca 2") for number in range(NACK_QUORUM)]
    fleet.publish("ca 2", "cert 2")
    assert [one.holds for one in broken] == [holding("cert 2")] * NACK_QUORUM
    assert fleet.again(broken[0]).holds == holding("cert 2")


@BOTH
def test_sds_fallback_is_not_the_content_others_accepted(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    broken = fleet.join("broken", "cert 2")
    fleet.publish("ca 1", "cert 2")
    fleet.proxies.remove(broken)
    broken.session.close()
    broken = Proxy(fleet, "broken", {"cert 2"})
    while "cert 1" not in broken.offered:  # sent after it refused the new one
        broken.answer()
        assert broken.receive()
    well = fleet.join("well")
    broken.answer()
    assert broken.holds == holding("cert 1")
    for number in range(NACK_QUORUM):
        fleet.join(f"other {number}", "cert 2")
    assert RollbackScope.EVERYONE not in fleet.log.scopes
    assert fleet.again(well).holds == holding("cert 2")


@BOTH
def test_sds_reconnect_resends_nothing(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    proxy = fleet.join("n1")
    fleet.publish("ca 2", "cert 2")
    assert proxy.holds == holding("cert 2", "ca 2")
    proxy.offered.clear()

    fleet.lose(proxy)

    assert proxy.offered == []
    fleet.publish("ca 2", "cert 3")
    assert proxy.offered == ["cert 3"]
    fleet.lose(proxy)
    assert proxy.offered == ["cert 3"]


@BOTH
def test_sds_certificate_with_a_nacked_ca_is_not_at_fault(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    first = [fleet.join(f"n{number}", "ca 1") for number in range(NACK_QUORUM + 1)]
    assert [one.state for one in first] == [Sync.NACK] * len(first)
    assert set(fleet.log.names) == {"s/authorities"}
    assert fleet.join("well").holds == holding("cert 1")
    fleet.publish("ca 2", "cert 1")
    assert [one.holds for one in (*first, fleet.join("late"))] == [holding("cert 1", "ca 2")] * (len(first) + 1)
    assert [one.state for one in fleet.proxies] == [Sync.SYNCED] * len(fleet.proxies)
    assert RollbackScope.EVERYONE not in fleet.log.scopes


@BOTH
def test_bad_certificate_is_found_after_the_ca_is_fixed(mode: XdsVariant) -> None:
    fleet = Fleet(mode)
    proxy = fleet.join("n", "ca 1", "cert 1")
    fleet.publish("ca 2", "cert 1")
    assert proxy.state is Sync.NACK
    fleet.publish("ca 2", "cert 2")
    assert proxy.holds == holding("cert 2", "ca 2")
    assert proxy.state is Sync.SYNCED


@pytest.mark.parametrize(
    ("refused", "reason", "meant"),
    [
        ("s/certificate", "Failed to load trusted CA certificates from <inline>", "s/authorities"),
        ("s/certificate", "Failed to load certificate chain from <inline>", "s/certificate"),
        ("s/authorities", "Failed to load private key from <inline>, Cause: ...", "s/certificate"),
        ("s/authorities", "Failed to load certificate chain from <inline>", "s/certificate"),
        ("s/authorities", "Failed to load trusted CA certificates from <inline>", "s/authorities"),
        ("s/authorities", "something that this Envoy says in other words", "s/authorities"),
    ],
)
def test_sds_nack_is_attributed_to_certificate_or_ca(refused: str, reason: str, meant: str) -> None:
    assert rejected_secret(refused, reason) == meant
