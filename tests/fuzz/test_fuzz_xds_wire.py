"""Bytes of proxies and agents, spoiled: the decoder's own error or a value, bounded, and nothing of it stays."""

import math
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.report_wire import MAX_REPORT_BYTES, ReportError, decode
from policies.load import load_contents
from policies.model import PolicySet
from tests.fuzz.mutations import seeds, spoiled
from xds_server.engine_health.agent_state import AgentState
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.snapshot import snapshot
from xds_server.publish import Publisher, Session
from xds_server.publish.view_registry import MAX_VIEWS, MAX_VIEWS_OF_HOST
from xds_server.telemetry import Telemetry
from xds_server.telemetry.access_log_service import AccessLogHandler, AccessLogs
from xds_server.telemetry.load_report_service import LoadReportHandler
from xds_server.telemetry.stream_service import StreamHandler, TelemetryStreamError
from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import StreamError, XdsVariant, decode_request
from xds_server.xds.messages import reason_tail

FUZZ = settings(max_examples=120)
"""Some seconds for all decoders together; ``--hypothesis-profile explore`` and a larger number find more."""

MOST_PER_BYTE = 120
"""Bytes of memory for a byte read: a mapping of strings of no length is the worst there is."""

SLACK_BYTES = 2_000_000

KINDS = {XdsVariant.DELTA: "delta", XdsVariant.SOTW: "sotw"}


def taking(read: Callable[[], object]) -> int:
    """Most bytes held at once while this is read."""
    tracemalloc.start()
    try:
        read()
    except (StreamError, ReportError, TelemetryStreamError):
        pass  # a refusal costs memory, too
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return most


@FUZZ
@given(data=spoiled("delta"), mode=st.sampled_from(XdsVariant))
def test_mutated_discovery_requests_are_decoded_or_rejected(data: bytes, mode: XdsVariant) -> None:
    try:
        request = decode_request(mode, data)
    except StreamError:
        return
    if request.node is not None:
        for said in (request.node.id, request.node.zone, request.node.region, request.node.cluster):
            assert said.isprintable()
            assert len(said) <= 1024


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_metadata_without_json_form_ends_the_stream(number: float) -> None:
    said = DeltaDiscoveryRequest()
    said.node.id = "n"
    said.node.metadata["load"] = number
    with pytest.raises(StreamError):
        decode_request(XdsVariant.DELTA, said.SerializeToString())


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("id", "x" * 1_025),
        ("id", "gw-1\n2026 [info] all is fine"),
        ("id", "gw\x1b[2J"),
        ("id", "gw\x9b2J"),
        ("id", "gw\u202e1"),
        ("cluster", "\x00"),
        ("zone", "z" * 2_000),
        ("zone", "z\u2028"),
        ("region", "\r"),
        ("metadata", "x" * 70_000),
        ("extensions", b"\x0a\x01x" * 200_000),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() and len(value) < 20 else "",
)
def test_unprintable_node_id_is_rejected(field: str, said: str | bytes) -> None:
    message = DeltaDiscoveryRequest()
    message.node.id = "n"
    match field:
        case "zone" | "region":
            setattr(message.node.locality, field, said)
        case "metadata":
            message.node.metadata["a"] = said
        case "extensions":
            message.node.extensions.extend([said, b""])
        case _:
            setattr(message.node, field, said)
    with pytest.raises(StreamError, match="node"):
        decode_request(XdsVariant.DELTA, message.SerializeToString())


def test_a_node_may_have_any_letters() -> None:
    message = DeltaDiscoveryRequest()
    message.node.id, message.node.locality.zone = "größe-東京", "Zürich 1"
    request = decode_request(XdsVariant.DELTA, message.SerializeToString())
    assert request.node is not None
    assert (request.node.id, request.node.zone) == ("größe-東京", "Zürich 1")


@FUZZ
@given(
    messages=st.lists(spoiled("sotw") | spoiled("delta"), min_size=1, max_size=4), mode=st.sampled_from(XdsVariant)
)
def test_rejected_discovery_request_leaves_the_publisher_unchanged(
    messages: list[bytes], mode: XdsVariant
) -> None:
    publisher = Publisher(view_of=lambda node: node.zone, snapshot_for=lambda _: snapshot(()))
    session = publisher.connect(mode, "peer", lambda: None)
    for at, data in enumerate(messages):
        before = (dict(publisher.nodes), publisher.views)
        try:
            session.request(data, float(at))
        except StreamError:
            assert (dict(publisher.nodes), publisher.views) == before or session.view is not None
            break
        session.poll(float(at))
        session.tick(float(at))
    session.close("over")
    assert not publisher.nodes
    assert not publisher.views


POLICIES = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: m
  endpoints:
    - {address: 127.0.0.1, port: 22104, name: e0, zone: z1}
    - {address: 127.0.0.1, port: 25468, name: e1, zone: z1}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: chat}
spec:
  listener: {port: 8000}
  pools: [{pool: chat}]
"""
KNOWN: PolicySet = load_contents({Path("p.yaml"): POLICIES.encode()})


class Quiet(Telemetry):
    """Telemetry without an event loop to tell its news in."""

    def reported(self, _node: str, _pools: int, issued: int, _now_s: float) -> None:
        assert 0 <= issued <= 10_000_000


def telemetry() -> Quiet:
    made = Quiet(Metrics(), clock=lambda: 100.0)
    made.watch(KNOWN)
    return made


def numbers(value: object) -> list[float]:
    """Every number in a value."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int | float):
        return [value]
    if is_dataclass(value):
        return [one for field in fields(value) for one in numbers(getattr(value, field.name))]
    if isinstance(value, Mapping):
        return [one for inner in value.values() for one in numbers(inner)]
    if isinstance(value, tuple | list | set | frozenset):
        return [one for inner in value for one in numbers(inner)]
    return []


def sane(traffic: object) -> None:
    """Every number of the traffic can be one."""
    for one in numbers(traffic):
        assert math.isfinite(one)


@FUZZ
@given(messages=st.lists(spoiled("access_logs"), min_size=1, max_size=4))
def test_mutated_als_messages_are_counted_or_rejected(messages: list[bytes]) -> None:
    told = telemetry()
    sitting = AccessLogHandler(told, lambda _: None)
    feed(sitting, messages)
    sane(told.traffic_store.traffic(101.0))


@FUZZ
@given(messages=st.lists(spoiled("load_reports"), min_size=1, max_size=4))
def test_mutated_lrs_messages_are_counted_or_rejected(messages: list[bytes]) -> None:
    told = telemetry()
    sitting = LoadReportHandler(told)
    feed(sitting, messages)
    sitting.close()
    assert told.proxies() == 0
    sane(told.traffic_store.traffic(101.0))


def feed(sitting: StreamHandler, messages: list[bytes]) -> None:
    for at, data in enumerate(messages):
        try:
            sitting.take(data, 100.0 + at)
        except TelemetryStreamError:
            return


@FUZZ
@given(messages=st.lists(spoiled("report"), min_size=1, max_size=4))
def test_mutated_agent_reports_are_accepted_or_rejected(messages: list[bytes]) -> None:
    heard = AgentState()
    for data in messages:
        before = heard
        try:
            report = decode(data, pool="p", engine="e", received_at_s=7.0)
            heard = heard.after(report)
        except ReportError:
            assert heard is before
            continue
        for one in numbers(report):
            assert math.isfinite(one)
        assert report.evidence.isprintable()
        assert report.boot_id.isprintable()
        assert (report.pool, report.engine, report.observed_at_s) == ("p", "e", 7.0)


@pytest.mark.parametrize("mode", XdsVariant)
def test_memory_of_a_request_is_bounded_by_its_size(mode: XdsVariant) -> None:
    """Names without a letter, maps of nothing, metadata of nothing but brackets."""
    names = b"\x1a\x00" * 200_000
    versions = b"\x2a\x00" * 200_000
    lists = b"\x12\x00" * 200_000
    for data in (names, versions, lists, *seeds(KINDS[mode])):
        most = taking(lambda data=data: decode_request(mode, data))
        assert most <= MOST_PER_BYTE * len(data) + SLACK_BYTES


def test_memory_of_telemetry_is_bounded_by_its_size() -> None:
    entries = b"\x12\x82\x80\x02" + b"\x0a\x00" * 0x4001
    for data in (entries, *seeds("access_logs")):
        most = taking(lambda data=data: AccessLogHandler(telemetry(), lambda _: None).take(data, 1.0))
        assert most <= MOST_PER_BYTE * len(data) + SLACK_BYTES
    reasons = b"\x2a\x00" * (MAX_REPORT_BYTES // 2)
    for data in (reasons, *seeds("report")):
        most = taking(lambda data=data: decode(data, pool="p", engine="e", received_at_s=1.0))
        assert most <= MOST_PER_BYTE * len(data) + SLACK_BYTES


def test_a_corpus_is_read_as_it_was_recorded() -> None:
    """Spoiled bytes prove nothing if the sound ones are refused, too."""
    for mode, kind in KINDS.items():
        for data in seeds(kind):
            decode_request(mode, data)
    for data in seeds("report"):
        decode(data, pool="p", engine="e", received_at_s=1.0)
    told = telemetry()
    first, *further = sorted(
        seeds("access_logs"), key=lambda data: not AccessLogs.FromString(data).identifier.node.id
    )
    sitting = AccessLogHandler(told, lambda _: None)
    for data in (first, *further):
        sitting.take(data, 100.0)
    assert told.traffic_store.traffic(101.0)["chat"].engines


def test_views_per_host_are_limited() -> None:
    publisher = Publisher(view_of=lambda node: node.zone, snapshot_for=lambda _: snapshot(()))

    def come(zone: str, host: int) -> Session:
        message = DeltaDiscoveryRequest(type_url="t")
        message.node.id, message.node.locality.zone = "n", zone
        session = publisher.connect(XdsVariant.DELTA, f"ipv4:10.0.0.{host}:4711", lambda: None)
        session.request(message.SerializeToString(), 0.0)
        return session

    here = [come(f"z{number}", number // MAX_VIEWS_OF_HOST) for number in range(MAX_VIEWS)]
    with pytest.raises(StreamError, match=f"over the limit of {MAX_VIEWS} kinds of proxies"):
        come("one more", 200)
    here[-1].close()
    with pytest.raises(StreamError, match=f"over the limit of {MAX_VIEWS_OF_HOST} kinds of proxies per host"):
        come("one more", 0)
    come("z0", 200)
    come(f"z{MAX_VIEWS_OF_HOST}", 0)  # of a kind that is there already
    come("one more", 200)
    assert len(publisher.views) == MAX_VIEWS
    here[0].close()
    here[1].close()
    come("in the place of the second", 0)


def test_nack_text_cannot_move_the_terminal_cursor() -> None:
    assert reason_tail("a\x1b[2Jb\x9b31m\nc\u2028") == "a [2Jb 31m\nc "
    assert reason_tail("x" * 3_000) == "…" + "x" * 2_047
