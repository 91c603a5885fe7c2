"""Traces of changes: cause, stages, resource types, and limits."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from tests.xds_server.hung_engine import KEY, fleet
from xds_server.decide.decisions import Decisions, Ejector, EngineDecision, Health
from xds_server.decide.diff.change import ChangeKind, Subject
from xds_server.ledger.event import Event
from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, ROUTE, RUNTIME
from xds_server.model.view import GRPC_ROLE, View
from xds_server.observe.tracing.change_tracer import FOLLOWED_S, MOST_FOLLOWED, ChangeTracer, PublishedRound
from xds_server.observe.tracing.propagation import MAX_NACKS, TracedPolicies
from xds_server.observe.tracing.spans import ATTRIBUTES, LONGEST_TEXT, NAMES, Span
from xds_server.observe.tracing.trace_builder import MOST_DECISIONS
from xds_server.publish import Nack
from xds_server.publish.nack_decision import RollbackScope
from xds_server.xds import NodeInfo

VIEW = View()
STAGES = {"decide": 0.01, "translate": 0.02, "assemble": 0.03}


class Site:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.wall_ns = 1_000_000_000_000_000_000
        self.done: list[Span] = []
        self.skipped = 0
        self.began_s: float | None = None
        self.nodes: Mapping[str, View] = {"n1": VIEW, "n2": VIEW}
        self.number = 0
        self.following = ChangeTracer(
            self.done.append,
            self._skip,
            began_at_s=lambda _pool, _engine: self.began_s,
            clock=lambda: self.now_s,
            wall_ns=lambda: self.wall_ns,
        )
        self.content = {CLUSTER: "c", ENDPOINT: "e", ROUTE: "r", RUNTIME: "t"}
        self.round()

    def _skip(self) -> None:
        self.skipped += 1

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_ns += round(seconds * 1e9)

    def tell(self, kind: ChangeKind = ChangeKind.HEALTH, **fields: Any) -> None:
        self.number += 1
        given = {"after": "UNHEALTHY", "evidence": "hung: no token", **fields}
        subject = given.pop("subject", Subject(pool="chat", engine="e1"))
        self.following.on_event(
            Event(
                number=self.number, at_s=self.now_s, at_unix_s=0.0, kind=kind, subject=subject, before="", **given
            )
        )

    def round(self, health: Health = Health.HEALTHY, ejector: Ejector | None = None, **fields: Any) -> None:
        made = PublishedRound(
            decisions=decided(health, ejector),
            fleet=fleet(self.now_s - 0.25),
            stages_s=STAGES,
            snapshots={VIEW: snapshot(self.content), View(role=GRPC_ROLE): snapshot(self.content)},
            nodes=self.nodes,
            **{"policies": TracedPolicies(version=7, digest="d" * 32, author="ada", source="files"), **fields},
        )
        self.following.on_round(made)

    def out(self, number: int = 0) -> None:
        """Eject the engine, and change the endpoints of all proxies."""
        self.tell(rule="ResiliencePolicy.spec.x", place="chat.yaml:3", requests=("id-2", "id-1"))
        self.content[ENDPOINT] = f"without-{number}"
        self.round(Health.UNHEALTHY, Ejector.VERDICT, news_s=self.now_s - 0.25)

    def push(self, *nodes: str, kind: str = ENDPOINT) -> None:
        for node in nodes:
            self.following.on_push(node, kind)

    def ack(self, node: str, kind: str = ENDPOINT, latency_s: float = 0.0) -> None:
        self.following.on_ack(node, kind, latency_s)

    @property
    def only(self) -> Span:
        (trace,) = self.done
        return trace


def decided(health: Health, ejector: Ejector | None) -> Decisions:
    one = EngineDecision(health=health, reason="a test", since_s=0.0, ejector=ejector)
    return Decisions(engines=MappingProxyType({KEY: one}), zone_weights={}, ceilings={})


def snapshot(content: Mapping[str, str]) -> Snapshot:
    return Snapshot(
        resources={
            kind: {"chat": Resource(type_url=kind, name="chat", value=content_text.encode(), version=content_text)}
            for kind, content_text in content.items()
        }
    )


def nack(node: str, reason: str = "bad", kind: str = ENDPOINT) -> Nack:
    item = Resource(type_url=kind, name="chat", value=b"", version="v", origins=("chat.yaml:9",))
    info = NodeInfo(id=node, zone="", metadata={}, user_agent_name="envoy", user_agent_version="1.40")
    return Nack(node=info, type_url=kind, resources=(item,), reason=reason, scope=RollbackScope.EVERYONE)


def below(span: Span, name: str) -> list[Span]:
    return [child for child in span.children if child.name == name]


def everything(span: Span) -> Iterator[Span]:
    yield span
    for child in span.children:
        yield from everything(child)


@pytest.fixture
def site() -> Site:
    return Site()


def test_ejection_trace_spans_evidence_to_last_request(site: Site) -> None:
    site.out()
    site.pass_s(0.01)
    site.push("n1", "n2")
    site.pass_s(0.02)
    site.ack("n1")
    site.pass_s(0.03)
    site.ack("n2")
    assert not site.done  # the last request may still be reported
    site.began_s = 100.005
    site.pass_s(FOLLOWED_S)
    site.round(Health.UNHEALTHY, Ejector.VERDICT)
    trace = site.only
    assert trace.name == "health change"
    assert trace.attributes == {
        "switchgear.pool": "chat", "switchgear.engine": "e1", "switchgear.after": "UNHEALTHY",
        "switchgear.reason": "hung: no token", "switchgear.rule": "ResiliencePolicy.spec.x",
        "switchgear.place": "chat.yaml:3", "switchgear.event": 1, "switchgear.requests": ("id-2", "id-1"),
        "switchgear.cause": "verdict", "switchgear.decisions": 1, "switchgear.proxies": 2,
        "switchgear.proxies.unconfirmed": 0, "switchgear.proxies.refused": 0, "switchgear.policies.version": 7,
        "switchgear.policies.digest": "d" * 32,
    }  # fmt: skip
    names = [child.name for child in trace.children]
    assert names == ["detect", "decide", "translate", "assemble", "push", "last request"]
    t0 = 1_000_000_000_000_000_000
    took = {child.name: (child.start_ns - t0, child.end_ns - t0) for child in trace.children}
    ms = 1_000_000
    assert took == {
        "detect": (-2_250 * ms, -250 * ms),
        "decide": (-60 * ms, -50 * ms),
        "translate": (-50 * ms, -30 * ms),
        "assemble": (-30 * ms, 0),
        "push": (0, 10 * ms),
        "last request": (0, 5 * ms),
    }
    (ack,) = below(below(trace, "push")[0], "ack")
    assert (ack.start_ns - t0, ack.end_ns - t0) == (10 * ms, 60 * ms)
    assert ack.attributes == {
        "switchgear.xds.type": "EDS", "switchgear.proxies": 2, "switchgear.first_seconds": 0.02,
        "switchgear.slowest": "n2", "switchgear.slowest_seconds": 0.05,
    }  # fmt: skip
    assert (trace.start_ns - t0, trace.end_ns - t0) == (-2_250 * ms, 60 * ms)


def test_wall_clock_change_keeps_traces_consistent(site: Site) -> None:
    site.out()
    site.push("n1", "n2")
    site.wall_ns -= 3_600_000_000_000
    site.pass_s(1.0)
    site.ack("n1")
    site.ack("n2")
    site.round()
    spans = list(everything(site.only))
    assert all(one.start_ns <= one.end_ns for one in spans)
    assert site.only.end_ns - site.only.start_ns == 3_250_000_000


def test_returned_engine_ends_its_trace(site: Site) -> None:
    site.out()
    site.push("n1", "n2")
    site.ack("n1")
    site.ack("n2")
    site.began_s = 99.9
    site.round(Health.HEALTHY)
    assert below(site.only, "last request") == []  # none began later


def test_policy_trace_names_version_and_author(site: Site) -> None:
    site.tell(ChangeKind.POLICIES, subject=Subject(), after="version 7", evidence="from files")
    site.content |= {CLUSTER: "c2", ROUTE: "r2", RUNTIME: "t2"}
    site.round(offered_s=99.0)
    for kind in (CLUSTER, ROUTE):
        site.push("n1", "n2", kind=kind)
        site.ack("n1", kind)
        assert not site.done
        site.ack("n2", kind)
    trace = site.only
    assert trace.name == "policies change"
    assert trace.attributes["switchgear.cause"] == "files"
    assert trace.attributes["switchgear.policies.author"] == "ada"
    (offered,) = below(trace, "offered")
    assert offered.end_ns - offered.start_ns == 940_000_000
    # Runtime layers are ignored, and endpoints are unchanged.
    assert [one.attributes["switchgear.xds.type"] for one in below(trace, "push")] == ["CDS", "RDS"]


def test_trace_is_named_by_its_most_important_event(site: Site) -> None:
    site.tell(ChangeKind.BREAKER, after="open")
    for number in range(MOST_DECISIONS + 5):
        site.tell(subject=Subject(pool="chat", engine=f"e{number}"), after="HEALTHY")
    site.tell(ChangeKind.LADDER, subject=Subject(pool="chat"), after="level 2")
    site.round()
    trace = site.only
    assert (trace.name, trace.attributes["switchgear.cause"]) == ("ladder change", "pressure")
    assert trace.attributes["switchgear.decisions"] == MOST_DECISIONS + 7
    (decide,) = below(trace, "decide")
    assert len(below(decide, "decision")) == MOST_DECISIONS


@pytest.mark.parametrize(
    ("health", "ejector", "cause"),
    [
        (Health.UNHEALTHY, Ejector.ERRORS, "errors"),
        (Health.DRAINING, Ejector.OPERATOR, "order"),
        (Health.HEALTHY, None, "recovery"),
    ],
)
def test_trace_cause_is_one_word(site: Site, health: Health, ejector: Ejector | None, cause: str) -> None:
    site.tell(after=health.value)
    site.round(health, ejector)
    site.following.stop()
    assert site.only.attributes["switchgear.cause"] == cause
    assert below(site.only, "detect") == []


def test_spans_per_proxy_are_bounded(site: Site) -> None:
    site.nodes = {f"n{number}": VIEW for number in range(1000)}
    site.round()
    site.out()
    site.push(*site.nodes)
    for node in list(site.nodes)[:-7]:
        site.ack(node)
    for node in list(site.nodes)[-7:]:
        site.following.on_nack(nack(node))
    site.following.stop()
    trace = site.only
    assert trace.count < 20
    (push,) = below(trace, "push")
    assert push.attributes["switchgear.proxies"] == 1000
    assert push.attributes["switchgear.proxies.refused"] == 7
    assert len(below(push, "refused")) == MAX_NACKS
    assert trace.error


def test_nack_is_an_error_span_with_a_sanitised_reason(site: Site) -> None:
    site.out()
    site.push("n1")
    site.following.on_nack(nack("n1", "\x1b[31mno\n" + "x" * 10_000))
    site.following.stop()
    (push,) = below(site.only, "push")
    (refused,) = below(push, "refused")
    assert refused.error.startswith(" [31mno x")
    assert len(refused.error) == LONGEST_TEXT
    assert refused.attributes["switchgear.proxy"] == "n1"
    assert refused.attributes["switchgear.place"] == "chat.yaml:9"
    assert push.attributes["switchgear.proxies.unsent"] == 1  # n2


def test_unrelated_nack_is_its_own_trace(site: Site) -> None:
    site.following.on_nack(nack("n9"))
    assert (site.only.name, site.only.error) == ("refused", "bad")


def test_proxies_without_ack_time_out_a_trace(site: Site) -> None:
    site.out()
    site.push("n1")
    site.pass_s(FOLLOWED_S)
    site.round(Health.UNHEALTHY, Ejector.VERDICT)
    (push,) = below(site.only, "push")
    assert push.attributes["switchgear.proxies.unconfirmed"] == 1
    assert push.attributes["switchgear.proxies.unsent"] == 1
    assert site.only.attributes["switchgear.proxies.unconfirmed"] == 2


def test_ack_of_an_earlier_push_does_not_count_in_a_trace(site: Site) -> None:
    site.out()
    site.push("n1", "n2")
    site.pass_s(0.1)
    site.ack("n1", latency_s=0.2)  # of what was written before the round
    site.ack("n2", latency_s=0.1)
    site.following.stop()
    (push,) = below(site.only, "push")
    assert push.attributes["switchgear.proxies.unconfirmed"] == 1


def test_trace_does_not_wait_for_new_or_gone_proxies(site: Site) -> None:
    site.nodes = {"n1": VIEW, "n2": VIEW, "g": View(role=GRPC_ROLE)}
    site.round()
    site.nodes = {**site.nodes, "fresh": VIEW}
    site.tell(after="HEALTHY")
    site.content[ENDPOINT] = "with"
    site.round()
    site.push("n1")
    site.ack("n1")
    site.following.on_disconnect("n2")
    (push,) = below(site.only, "push")
    assert push.attributes["switchgear.proxies"] == 1
    assert site.only.attributes["switchgear.proxies"] == 1


def test_traces_per_round_are_bounded(site: Site) -> None:
    for _ in range(100):
        site.round()
    site.tell(ChangeKind.CEILING)
    site.round()
    assert not site.done
    for number in range(MOST_FOLLOWED + 3):
        site.out(number)
    assert site.skipped == 3
    site.following.stop()
    assert len(site.done) == MOST_FOLLOWED


def test_span_names_and_attributes_are_closed_sets(site: Site) -> None:
    site.out()
    site.push("n1", "n2")
    site.following.on_nack(nack("n1"))
    site.ack("n2")
    site.tell(ChangeKind.POLICIES, subject=Subject(), after="version 8")
    site.round(offered_s=99.0)
    site.began_s = 101.0
    site.following.stop()
    spans = [one for trace in site.done for one in everything(trace)]
    assert {one.name for one in spans} <= NAMES
    assert {name for one in spans for name in one.attributes} <= ATTRIBUTES
