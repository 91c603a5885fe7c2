"""Properties of streams with a simulated Envoy, for any order of events.

The simulated peer subscribes to endpoints when it learns of a cluster, withholds the ACK of clusters until they
are warm, refuses a whole response with content marked bad, and keeps its previous content.
"""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.model.snapshot import Resource, Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE
from xds_server.xds import DeltaRequest, NodeInfo, Request, Response, SotwRequest, Stream, XdsVariant

NODE = NodeInfo(id="n1", user_agent_name="envoy")
NAMES = ("a", "b", "c")
FETCH_TIMEOUT_S = 15.0
WHOLE = (CLUSTER, LISTENER)


def wanted(clusters: dict[str, str], to: str, bad: bool = False) -> Snapshot:
    """Clusters with endpoints of these contents, and a route to one of them."""
    items = [resource(LISTENER, "in", b"listener")]
    for name, content in clusters.items():
        items.append(resource(CLUSTER, name, f"cluster {content[0]}".encode()))
        items.append(resource(ENDPOINT, name, f"endpoints {content[1]}".encode()))
    if to in clusters:
        items.append(resource(ROUTE, "rc", f"{'bad ' if bad else ''}->{to}".encode()))
    return snapshot(items)


snapshots = st.builds(
    wanted,
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("11", "12", "21", "22")), min_size=1),
    st.sampled_from(NAMES),
)
any_snapshots = st.builds(
    wanted,
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(("11", "12", "21", "22")), min_size=1),
    st.sampled_from(NAMES),
    st.booleans(),
)
delivered = st.integers(1, 4)
steps = st.lists(snapshots | delivered, max_size=25)
any_steps = st.lists(any_snapshots | delivered, max_size=25)


@dataclass
class Peer:
    """Simulated Envoy on one stream; ``wire`` holds responses in transit."""

    mode: XdsVariant
    stream: Stream
    held: dict[str, dict[str, Resource]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    nonces: dict[str, str] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=lambda: {ENDPOINT: set(), ROUTE: set()})
    wire: deque[Response] = field(default_factory=deque)
    sent: list[Response] = field(default_factory=list)
    unwarmed: dict[str, set[str]] = field(default_factory=dict)
    withheld: deque[Response] = field(default_factory=deque)
    nacks_alone: list[list[Response]] = field(default_factory=list)
    now_s: float = 0.0

    def connect(self) -> None:
        """Start: subscribe to clusters, listeners, and known names."""
        self.ask(CLUSTER, first=True)
        self.ask(LISTENER, first=True)
        for type_url, names in self.names.items():
            if names:
                self.ask(type_url, names, first=True)

    def ask(self, type_url: str, names: set[str] = frozenset(), *, first: bool = False) -> None:  # type: ignore[assignment]
        request: Request
        if self.mode is XdsVariant.DELTA:
            held = self.held.get(type_url, {}) if first else {}
            request = DeltaRequest(
                type_url=type_url,
                subscribe=tuple(sorted(names)),
                initial_versions={name: item.version for name, item in held.items()},
            )
        else:
            request = SotwRequest(
                type_url=type_url,
                names=tuple(sorted(self.names.get(type_url, ()))),
                version=self.versions.get(type_url, ""),
                nonce="" if first else self.nonces.get(type_url, ""),
            )
        self.stream.request(request, self.now_s)
        self.flush()

    def drop(self, type_url: str, name: str) -> None:
        """Unsubscribe."""
        self.names[type_url].discard(name)
        self.held.get(type_url, {}).pop(name, None)
        if self.mode is XdsVariant.DELTA:
            self.stream.request(DeltaRequest(type_url=type_url, unsubscribe=(name,)), self.now_s)
            self.flush()
        else:
            self.ask(type_url)

    def flush(self) -> list[Response]:
        due = self.stream.due(self.now_s)
        self.wire.extend(due)
        self.sent.extend(due)
        return due

    def offer(self, newest: Snapshot, sequence: int) -> list[Response]:
        self.stream.offer(newest, sequence)
        return self.flush()

    def receive(self) -> None:
        """Receive the next response, apply it, and answer."""
        response = self.wire.popleft()
        type_url = response.type_url
        self.nonces[type_url] = response.nonce
        if any(item.value.startswith(b"bad") for item in response.resources):
            self.answer(response, "refused")
            return
        held = self.held.setdefault(type_url, {})
        wanted = self.names.get(type_url)
        # Resources without subscription are ignored.
        arrived = {item.name: item for item in response.resources if wanted is None or item.name in wanted}
        if self.mode is XdsVariant.SOTW and type_url in WHOLE:
            gone = set(held) - set(arrived)
        else:
            gone = set(response.removed) & set(held)
        changed = {name for name, item in arrived.items() if held.get(name) != item}
        held.update(arrived)
        for name in gone:
            del held[name]
        if type_url == CLUSTER:
            new = {name for name in changed if name not in self.names[ENDPOINT]}
            self.unwarmed[response.nonce] = changed
            self.names[ENDPOINT] |= new
            self.withheld.append(response)
            self.warm(set())
            if new:
                self.ask(ENDPOINT, new, first=ENDPOINT not in self.held and len(self.names[ENDPOINT]) == len(new))
            for name in gone:
                self.drop(ENDPOINT, name)
        else:
            self.answer(response)
        if type_url == ENDPOINT:
            self.warm(set(arrived) | set(response.removed))
        if type_url == LISTENER and "in" in arrived and "rc" not in self.names[ROUTE]:
            self.names[ROUTE].add("rc")
            self.ask(ROUTE, {"rc"}, first=True)

    def warm(self, names: set[str]) -> None:
        """Endpoints arrived: accept the clusters that waited only for them."""
        for response in self.withheld:
            self.unwarmed[response.nonce] -= names
            self.unwarmed[response.nonce] &= set(self.held[CLUSTER])
        # Answers queue behind the first withheld one.
        while self.withheld and not self.unwarmed[self.withheld[0].nonce]:
            self.answer(self.withheld.popleft())

    def answer(self, response: Response, error: str | None = None) -> None:
        type_url = response.type_url
        if error is None:
            self.versions[type_url] = response.version
        quiet = not self.stream.is_waiting
        request: Request
        if self.mode is XdsVariant.DELTA:
            request = DeltaRequest(type_url=type_url, nonce=response.nonce, error=error)
        else:
            request = SotwRequest(
                type_url=type_url,
                names=tuple(sorted(self.names.get(type_url, ()))),
                version=self.versions.get(type_url, ""),
                nonce=response.nonce,
                error=error,
            )
        self.stream.request(request, self.now_s)
        drawn = self.flush()
        if error is not None and quiet:
            self.nacks_alone.append(drawn)

    def settle(self) -> None:
        """Deliver everything, and let the stream's timeouts pass."""
        for _ in range(200):
            while self.wire:
                self.receive()
            if not (self.stream.is_waiting or self.withheld) or self.refuses():
                return
            self.now_s += 1.0
            if self.now_s % FETCH_TIMEOUT_S == 0:
                self.warm(set(NAMES))  # Envoy stops waiting for endpoints.
            self.stream.tick(self.now_s)
            self.flush()
        raise AssertionError("the stream never comes to rest")

    def refuses(self) -> bool:
        """Whether refused content is still wanted: its dependents then wait forever."""
        return any(status.rejected for status in self.stream.status())

    def holds(self) -> dict[str, dict[str, str]]:
        return {
            type_url: {name: item.version for name, item in sorted(held.items())}
            for type_url, held in self.held.items()
            if held
        }


def peer(mode: XdsVariant, first: Snapshot, held: Peer | None = None) -> Peer:
    """A connected peer; with ``held``, one that reconnects with that content."""
    made = Peer(mode=mode, stream=Stream(mode, NODE, first, sequence=1, now_s=0.0, epoch="e-"))
    if held is not None:
        made.held = {type_url: dict(by_name) for type_url, by_name in held.held.items()}
        made.versions = dict(held.versions)
        made.names = {type_url: set(names) for type_url, names in held.names.items()}
    made.connect()
    return made


def play(mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]) -> tuple[Peer, Snapshot]:
    """The peer after these steps: publish a snapshot, deliver some responses."""
    one, newest = peer(mode, first), first
    for sequence, step in enumerate(steps, start=2):
        if isinstance(step, Snapshot):
            newest = step
            one.offer(newest, sequence)
        else:
            for _ in range(min(step, len(one.wire))):
                one.receive()
    return one, newest


def due_to(peer: Peer, newest: Snapshot) -> dict[str, dict[str, str]]:
    """Content that a peer must finally hold of a snapshot."""
    result = {}
    for type_url, by_name in newest.resources.items():
        names = by_name if type_url in WHOLE else peer.names[type_url] & set(by_name)
        if names:
            result[type_url] = {name: by_name[name].version for name in sorted(names)}
    return result


modes = st.sampled_from(XdsVariant)


@given(modes, snapshots, steps)
def test_every_peer_converges_to_the_newest_snapshot(
    mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]
) -> None:
    one, newest = play(mode, first, steps)
    one.settle()
    holds = one.holds()
    if mode is XdsVariant.SOTW and not newest.of(ROUTE):
        holds.pop(ROUTE, None)  # State of the world cannot remove a route.
    assert holds == due_to(one, newest)
    assert {status.state.value for status in one.stream.status()} == {"SYNCED"}
    assert not one.stream.has_timeouts, "an idle proxy is not ticked"


@given(snapshots, steps)
def test_sotw_and_delta_converge_to_the_same(first: Snapshot, steps: list[Snapshot | int]) -> None:
    delta, newest = play(XdsVariant.DELTA, first, steps)
    sotw, _ = play(XdsVariant.SOTW, first, steps)
    delta.settle()
    sotw.settle()
    types = set(newest.resources)
    assert {url: held for url, held in delta.holds().items() if url in types} == {
        url: held for url, held in sotw.holds().items() if url in types
    }


@given(modes, any_snapshots, any_steps)
def test_nonces_never_repeat(mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]) -> None:
    one, _ = play(mode, first, steps)
    one.settle()
    nonces = [response.nonce for response in one.sent]
    assert len(nonces) == len(set(nonces))


@given(modes, any_snapshots, any_steps)
def test_no_push_without_a_change(mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]) -> None:
    one, newest = play(mode, first, steps)
    one.settle()
    same = snapshot(item for by_name in newest.resources.values() for item in by_name.values())
    assert one.offer(same, 1_000) == []


@given(modes, snapshots, steps)
def test_reconnect_with_initial_resource_versions_draws_nothing(
    mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]
) -> None:
    one, newest = play(mode, first, steps)
    one.settle()
    if not newest.of(ROUTE):
        return  # It requests a missing route again, and gets an answer again.
    again = peer(mode, newest, held=one)
    if mode is XdsVariant.SOTW:
        # A SOTW version stands for a whole set: if endpoints have left it since, it is sent once more.
        again.sent = [response for response in again.sent if response.type_url != ENDPOINT]
        again.settle()
    assert again.sent == []
    assert {status.state.value for status in again.stream.status()} == {"SYNCED"}


@given(modes, any_snapshots, any_steps)
def test_stream_without_timeouts_ignores_time(
    mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]
) -> None:
    one, _ = play(mode, first, steps)
    for _ in range(2):
        if not one.stream.has_timeouts:
            later_s = one.now_s + 1e6
            assert one.stream.tick(later_s) == ()
            assert one.stream.due(later_s) == []
        one.settle()


@given(modes, any_snapshots, any_steps)
def test_a_nack_alone_draws_no_response(mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]) -> None:
    one, _ = play(mode, first, steps)
    one.settle()
    assert all(drawn == [] for drawn in one.nacks_alone)


@given(modes, any_snapshots, any_steps)
def test_nacked_version_is_not_resent_until_it_changes(
    mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]
) -> None:
    one, _ = play(mode, first, steps)
    one.settle()
    bad_in_a_row = 0
    last = b""
    for response in one.sent:
        for item in response.resources:
            if item.type_url == ROUTE:
                bad_in_a_row = bad_in_a_row + 1 if item.value == last and item.value.startswith(b"bad") else 0
                last = item.value
                # Two may be in flight before the refusal of the first arrives.
                assert bad_in_a_row < 2, one.sent


@given(modes, snapshots, steps)
@settings(max_examples=200)
def test_make_before_break_route_never_names_a_missing_cluster(
    mode: XdsVariant, first: Snapshot, steps: list[Snapshot | int]
) -> None:
    one = peer(mode, first)
    acted = [*steps, *[1] * 60]
    for sequence, step in enumerate(acted, start=2):
        if isinstance(step, Snapshot):
            if not step.of(ROUTE):
                continue
            one.offer(step, sequence)
            continue
        for _ in range(min(step, len(one.wire))):
            one.receive()
            for item in one.held.get(ROUTE, {}).values():
                to = item.value.decode().partition("->")[2]
                assert to in one.held[CLUSTER], (to, one.sent)
                assert to in one.held[ENDPOINT]


@given(modes, any_snapshots, st.lists(any_snapshots, max_size=20))
def test_stalled_peer_has_bounded_unacked_responses_then_gets_the_newest(
    mode: XdsVariant, first: Snapshot, published: list[Snapshot]
) -> None:
    one = peer(mode, first)
    for sequence, newest in enumerate(published, start=2):
        one.offer(newest, sequence)
    for type_url in (CLUSTER, ENDPOINT, LISTENER, ROUTE):
        assert len([response for response in one.sent if response.type_url == type_url]) <= 2
