"""No proxy takes anything from another: random populations of honest, outdated and lying proxies.

Clusters are single resources, and routes are parts of one. Contents tell who refuses them:
``good`` no honest proxy, ``bad`` every honest one, ``new`` only outdated proxies.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.xds_server.publish.test_part_isolation import part, port, routes
from xds_server.model.snapshot import Snapshot, content_hash, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ROUTE
from xds_server.publish import NackPolicy, Publisher
from xds_server.publish.acked_content import MAX_FORMER
from xds_server.publish.content_rejections import NACK_QUORUM
from xds_server.wire.decode import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from xds_server.xds import XdsVariant

TYPES = (CLUSTER, ROUTE)
NAMES = {CLUSTER: ("a", "b", "c"), ROUTE: ("a", "b", "c", "d", "e")}
KEYS = [(url, name) for url, names in NAMES.items() for name in names]
NEW, OLD = "1.40.0", "1.36.0"
MOST_ANSWERS = 200
PORT, REPLY = "port-1", "503"

Key = tuple[str, str]


class Peer:
    """A proxy that refuses what ``accepts`` does not accept, naming it or not, as Envoy does."""

    def __init__(self, publisher: Publisher, number: int, mode: XdsVariant, kind: str, *, names: bool) -> None:
        self.number = number
        self.mode = mode
        self.kind = kind
        self.names = names
        self.version = OLD if kind == "outdated" else NEW
        self.holds: dict[Key, str] = {}
        self.versions: dict[Key, str] = {}
        self.waiting: list[tuple[str, bytes]] = []
        self.connect(publisher)

    @property
    def is_honest(self) -> bool:
        return self.kind in ("honest", "outdated")

    def accepts(self, content: str) -> bool:
        if not self.is_honest:
            return self.kind == "accepts all"
        return content.startswith("good") or (content.startswith("new") and self.version == NEW)

    def connect(self, publisher: Publisher) -> None:
        self.waiting.clear()
        self.session = publisher.connect(self.mode, f"10.0.0.{self.number}", lambda: None)
        for type_url in TYPES:
            self._say(type_url, first=True)

    def _say(self, type_url: str, *, first: bool = False, nonce: str = "", error: str = "") -> None:
        names = (PORT,) if type_url == ROUTE else ()
        request: Any
        if self.mode is XdsVariant.DELTA:
            held = {name: version for (url, name), version in self.versions.items() if url == type_url}
            request = DeltaDiscoveryRequest(
                type_url=type_url,
                response_nonce=nonce,
                resource_names_subscribe=names if first else (),
                initial_resource_versions=held if first else {},
            )
        else:
            request = DiscoveryRequest(type_url=type_url, response_nonce=nonce, resource_names=names)
        request.node.id = f"n{self.number}"
        request.node.user_agent_name = "envoy"
        major, minor, patch = map(int, self.version.split("."))
        request.node.user_agent_build_version.version.major_number = major
        request.node.user_agent_build_version.version.minor_number = minor
        request.node.user_agent_build_version.version.patch = patch
        if error:
            request.error_detail.message = error
        self.session.request(request.SerializeToString(), 0.0)

    def receive(self) -> bool:
        while (data := self.session.poll(0.0)) is not None:
            self.waiting.append(("", data))
        return bool(self.waiting)

    def answer(self) -> None:
        _, data = self.waiting.pop(0)
        removed: list[str] = []
        if self.mode is XdsVariant.DELTA:
            delta = DeltaDiscoveryResponse.FromString(data)
            type_url, nonce, removed = delta.type_url, delta.nonce, list(delta.removed_resources)
            found = {one.name: (one.resource.value, one.version) for one in delta.resources}
        else:
            whole = DiscoveryResponse.FromString(data)
            type_url, nonce = whole.type_url, whole.nonce
            values = [one.value for one in whole.resources]
            found = {value.split(b"=")[0].decode(): (value, "") for value in values}
            if type_url == CLUSTER:
                removed = [name for url, name in self.holds if url == type_url and name not in found]
        if type_url == ROUTE:
            self._answer_routes(nonce, found)
            return
        contents = {name: (value.decode().split("=")[1], version) for name, (value, version) in found.items()}
        refused = [name for name, (content, _) in contents.items() if not self.accepts(content)]
        applied = {} if refused and not self.names else {n: c for n, c in contents.items() if n not in refused}
        for name, (content, version) in applied.items():
            self.holds[type_url, name] = content
            if not refused:
                self.versions[type_url, name] = version
        for name in removed if not refused else ():
            self.holds.pop((type_url, name), None)
            self.versions.pop((type_url, name), None)
        error = ""
        if refused:
            listed = ", ".join(f"{name}: no" for name in refused)
            error = f"Error adding/updating cluster(s) {listed}" if self.names else "constraint"
        self._say(type_url, nonce=nonce, error=error)

    def _answer_routes(self, nonce: str, found: Mapping[str, tuple[bytes, str]]) -> None:
        """Accept all routes of the port, or none."""
        if not found:  # it refused everything before
            self.holds = {key: content for key, content in self.holds.items() if key[0] != ROUTE}
            self._say(ROUTE, nonce=nonce)
            return
        [(value, version)] = found.values()
        contents = routes(value)
        refused = not all(self.accepts(content) for content in contents.values() if content != REPLY)
        if not refused:
            self.holds = {key: content for key, content in self.holds.items() if key[0] != ROUTE}
            self.holds |= {(ROUTE, name): content for name, content in contents.items() if content != REPLY}
            self.versions[ROUTE, PORT] = version
        self._say(ROUTE, nonce=nonce, error="constraint" if refused else "")


class Population(RuleBasedStateMachine):
    """Proxies come, go and answer in any order, while contents change and the server restarts."""

    @initialize()
    def begin(self) -> None:
        self.contents: dict[Key, str] = dict.fromkeys(KEYS, "good 0")
        self.accepted: dict[tuple[Key, str], list[str]] = {}
        self.peers: list[Peer] = []
        self.refusing: Counter[str] = Counter()
        self.has_refused_all = False
        self.numbers = 0
        self.wanted = self.snapshot()
        self.publisher = self.made(NackPolicy())

    def snapshot(self) -> Snapshot:
        return snapshot(
            [
                *(
                    resource(url, name, f"{name}={content}".encode())
                    for (url, name), content in self.contents.items()
                    if url == CLUSTER
                ),
                port({name: content for (url, name), content in self.contents.items() if url == ROUTE}),
            ]
        )

    def made(self, before: NackPolicy) -> Publisher:
        publisher = Publisher(
            view_of=lambda _: "v", snapshot_for=lambda _: self.wanted, epoch=f"{self.numbers}-", wall=lambda: 0.0
        )
        publisher.nack_policy.restore(before.rejections())
        return publisher

    @rule(
        kind=st.sampled_from(("honest", "honest", "outdated", "refuses all", "accepts all")),
        mode=st.sampled_from(XdsVariant),
        names=st.booleans(),
    )
    def join(self, kind: str, mode: XdsVariant, names: bool) -> None:
        self.numbers += 1
        self.refusing[NEW] += kind == "refuses all"
        self.has_refused_all |= kind == "refuses all"
        self.peers.append(Peer(self.publisher, self.numbers, mode, kind, names=names))

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        peer = data.draw(st.sampled_from(self.peers), "peer")
        self.peers.remove(peer)
        peer.session.close()

    @precondition(lambda self: self.peers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """One proxy answers everything, ahead of the others."""
        peer = data.draw(st.sampled_from(self.peers), "peer")
        for _ in range(MOST_ANSWERS):
            if not peer.receive():
                return
            peer.answer()
        raise AssertionError("the control plane never stops sending to one proxy")

    @rule(
        changed=st.dictionaries(
            st.sampled_from(KEYS),
            st.sampled_from(("good", "bad", "new")),
            min_size=1,
            max_size=5,
        )
    )
    def publish(self, changed: Mapping[Key, str]) -> None:
        self.numbers += 1
        self.contents |= {key: f"{kind} {self.numbers}" for key, kind in changed.items()}
        self.wanted = self.snapshot()
        self.publisher.publish({"v": self.wanted}, 0.0)

    @rule(empty=st.booleans())
    def restart(self, empty: bool) -> None:
        """The server is killed and started again; proxies come back with what they hold, or empty."""
        self.numbers += 1
        for peer in self.peers:
            peer.session.close()
        self.publisher = self.made(self.publisher.nack_policy)
        self.accepted = {}
        for peer in self.peers:
            if empty:
                peer.holds, peer.versions = {}, {}
            peer.connect(self.publisher)

    @rule()
    def settle(self) -> None:
        """Once all is answered, no honest proxy lacks what some honest proxy has accepted."""
        for _ in range(MOST_ANSWERS):
            if not [peer for peer in self.peers if peer.receive()]:
                break
            for peer in self.peers:
                if peer.waiting:
                    peer.answer()
        else:
            raise AssertionError("the control plane never stops sending")
        self.blames_no_good_content()
        honest = [peer for peer in self.peers if peer.is_honest]
        for key, wanted in self.contents.items():
            self.judge(key, wanted, honest)

    def blames_no_good_content(self) -> None:
        """A content is on record as refused only if a proxy refuses it."""
        known = self.publisher.nack_policy.rejected_contents
        for (url, name), wanted in self.contents.items():
            if wanted.startswith("good") and not self.has_refused_all:
                content = part(name, wanted).content if url == ROUTE else content_hash(f"{name}={wanted}".encode())
                of = PORT if url == ROUTE else name
                assert (url, of, content) not in known, f"{name} {wanted} is blamed"

    def judge(self, key: Key, wanted: str, honest: list[Peer]) -> None:
        for peer in honest:
            if peer.accepts(wanted):
                self.has_wanted_or_last_accepted(peer, key, wanted, honest)
            else:
                self.has_last_good(peer, key)
        for peer in honest:
            if held := peer.holds.get(key):
                known = self.accepted.setdefault((key, peer.version), [])
                if held in known:
                    known.remove(held)
                known.append(held)

    def has_wanted_or_last_accepted(self, peer: Peer, key: Key, wanted: str, honest: list[Peer]) -> None:
        held = peer.holds.get(key)
        assert held is not None, f"{peer.kind} proxy {peer.number} is served no {key}"
        if any(other.holds.get(key) == wanted for other in honest):
            assert held == wanted, f"{peer.kind} proxy {peer.number} lacks {key} {wanted}, and has {held}"
        if held != wanted:
            refusing = self.refusing[peer.version]
            assert refusing >= NACK_QUORUM, f"{wanted} of {key} is held back after {refusing} refusals"

    def has_last_good(self, peer: Peer, key: Key) -> None:
        """A version that it refuses rolls back to one accepted before, if not too many came in between."""
        since = self.accepted.get((key, peer.version), ())[-1:]
        number = int(since[0].split()[1]) if since else -1
        changes = self.numbers - number
        if since and changes <= MAX_FORMER:
            held = peer.holds.get(key)
            assert held is not None
            assert peer.accepts(held), f"{peer.kind} proxy {peer.number} has {held} of {key}"


Population.TestCase.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
TestPopulation = Population.TestCase
