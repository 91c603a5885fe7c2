"""Traces reach a real collector; a failing one only loses spans, which are counted."""

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from tests.otlp_collector import Collector, collecting
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates
from xds_server.observe.tracing.batch_processor import EXTRA, BatchProcessor, batch_processor, endpoint
from xds_server.observe.tracing.otlp import OtlpTraceExporter, _CapturedMessages
from xds_server.observe.tracing.spans import Span
from xds_server.observe.tracing.tracing import Tracing
from xds_server.serve_config import ConfigError, ServeConfig

TREE = Span(
    name="health change",
    start_ns=1_000,
    end_ns=9_000,
    attributes={"switchgear.pool": "chat", "switchgear.proxies": 2, "switchgear.requests": ("a", "b")},
    children=(
        Span(name="decide", start_ns=2_000, end_ns=3_000, attributes={}),
        Span(
            name="push",
            start_ns=3_000,
            end_ns=4_000,
            attributes={},
            children=(Span(name="refused", start_ns=3_500, end_ns=4_000, attributes={}, error="no such thing"),),
        ),
    ),
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as one:
        yield one


def counts(exporter: BatchProcessor) -> dict[str, float]:
    (family,) = exporter.families()
    return {sample.labels["result"]: sample.value for sample in family.samples if sample.name.endswith("_total")}


def test_span_tree_is_exported_unchanged(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t0ken")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    exporter = batch_processor(collector.url)
    exporter.offer(TREE)
    exporter.stop(30)
    assert collector.paths == ["/v1/traces"]
    assert collector.headers[0]["authorization"] == "Bearer t0ken"
    (root,) = collector.roots()
    assert (root.name, root.start_ns, root.end_ns) == ("health change", 1_000, 9_000)
    assert root.attributes == {
        "switchgear.pool": "chat",
        "switchgear.proxies": 2,
        "switchgear.requests": ["a", "b"],
    }
    assert root.resource["service.name"] == "switchgear"
    assert root.resource["deployment.environment.name"] == "lab"
    assert [one.name for one in collector.below(root)] == ["decide", "push"]
    (refused,) = collector.below(collector.below(root, "push")[0])
    assert (refused.name, refused.error) == ("refused", "no such thing")
    assert {one.trace for one in collector.spans} == {root.trace}
    assert counts(exporter) == {"sent": 4, "failed": 0, "dropped": 0}


def test_collector_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path, LAB_CERTIFICATES, lasts=timedelta(days=1))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with collecting(tmp_path) as collector:
        doubted = batch_processor(collector.url)
        assert doubted._sender.send([TREE])
        doubted.stop(30)
        assert not collector.spans
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.crt"))
        # Set in many images; the setting for traces overrides it.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "proxy.crt"))
        trusted = batch_processor(collector.url)
        trusted.offer(TREE)
        trusted.stop(30)
        assert [root.name for root in collector.roots()] == ["health change"]


def test_service_name_comes_from_the_environment(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, said in (("OTEL_SERVICE_NAME", "east"), ("OTEL_RESOURCE_ATTRIBUTES", "service.name=west")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, said)
            exporter = batch_processor(collector.url)
            exporter.offer(TREE)
            exporter.stop(30)
    assert [root.resource["service.name"] for root in collector.roots()] == ["east", "west"]


def test_each_change_is_a_separate_trace(collector: Collector) -> None:
    exporter = batch_processor(f"{collector.url}/collector/v1/traces")
    for _ in range(3):
        exporter.offer(TREE)
    exporter.stop(30)
    assert set(collector.paths) == {"/collector/v1/traces"}
    assert len({root.trace for root in collector.roots()}) == 3


def test_refusing_collector_is_logged_once_and_counted(
    collector: Collector, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400
    exporter = batch_processor(collector.url)
    sender = exporter._sender
    exporter.offer(TREE)
    exporter.stop(30)
    assert counts(exporter) == {"sent": 0, "failed": 4, "dropped": 0}
    assert "400" in sender.send([TREE])
    captured = capsys.readouterr()
    # Only our line: the library's would be one per retry.
    assert (captured.err, caplog.records) == ("", [])
    assert captured.out.count("otlp.failed") == 1


def test_collector_redirect_is_not_followed(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=t0ken")
    with collecting() as elsewhere:
        collector.status, collector.location = 307, f"{elsewhere.url}/v1/traces"
        exporter = batch_processor(collector.url)
        exporter.offer(TREE)
        exporter.stop(30)
    assert "redirect not followed" in exporter._sender.send([TREE])
    assert not elsewhere.paths
    # Lost: not counted as sent, either.
    assert counts(exporter) == {"sent": 0, "failed": 4, "dropped": 0}


@pytest.mark.parametrize("status", [200, 400])
def test_collector_answer_is_read_up_to_a_limit(collector: Collector, status: int) -> None:
    collector.status, collector.mib = status, 64
    exporter = batch_processor(collector.url)
    exporter.offer(TREE)
    exporter.stop(30)
    assert collector.unheard.wait(30)
    assert counts(exporter)["sent" if status == 200 else "failed"] == 4


def test_unreachable_collector_only_loses_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with collecting() as gone:
        url = gone.url
    exporter = batch_processor(url)
    exporter.offer(TREE)
    exporter.stop(30)
    assert counts(exporter) == {"sent": 0, "failed": 4, "dropped": 0}


def test_export_error_has_first_and_last_message() -> None:
    words = _CapturedMessages()
    for said in ("no route", "again", "given up"):
        words.emit(logging.LogRecord("opentelemetry", logging.WARNING, "", 0, said, None, None))
    assert words.summary == "no route; given up"
    del words.heard[1:]
    assert words.summary == "no route"


def test_stalled_collector_does_not_delay_shutdown(collector: Collector) -> None:
    collector.go_on.clear()
    exporter = batch_processor(collector.url)
    exporter.offer(TREE)
    assert collector.asked.wait(30)
    exporter.stop(0.01)
    assert exporter._thread.is_alive()  # and is a daemon thread: the process may end
    assert exporter._thread.daemon


class Slow:
    """Blocks until released."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.batches: list[int] = []
        self.hurried = False

    def send(self, traces: Sequence[Span]) -> str:
        self.begun.set()
        self.let.wait(60)
        self.batches.append(len(traces))
        return ""

    def hurry(self) -> None:
        self.hurried = True


def test_full_queue_drops_and_counts_traces() -> None:
    slow = Slow()
    exporter = BatchProcessor(slow, most_waiting=3)
    exporter.offer(TREE)
    assert slow.begun.wait(30)
    for _ in range(5):
        exporter.offer(TREE)
    exporter.skip()
    assert counts(exporter) == {"sent": 0, "failed": 0, "dropped": 9}
    slow.let.set()
    exporter.stop(30)
    assert counts(exporter) == {"sent": 16, "failed": 0, "dropped": 9}
    assert slow.batches == [1, 3]
    assert not slow.hurried


def test_full_queue_does_not_delay_shutdown() -> None:
    slow = Slow()
    exporter = BatchProcessor(slow, most_waiting=1)
    exporter.offer(TREE)
    assert slow.begun.wait(30)
    exporter.offer(TREE)
    exporter.stop(0.01)
    assert slow.hurried
    slow.let.set()


@pytest.mark.parametrize(
    ("url", "to"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("http://127.0.0.1:4318/", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector/api/traces", "https://collector/api/traces"),
    ],
)
def test_otlp_url_without_path_gets_the_default_path(url: str, to: str) -> None:
    assert endpoint(url) == to


def test_secrets_require_an_https_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint("http://collector:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=t0ken")
    endpoint("http://localhost:4318")
    endpoint("https://collector:4318")
    with pytest.raises(
        ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS would be sent to collector:4318 in plaintext"
    ):
        endpoint("http://collector:4318")


@pytest.mark.parametrize(
    "url",
    [
        "collector:4318", "grpc://collector:4317", "http://", "http://:4318", "http://a:99999", "http://[::1",
        "http://a b", "http://a\nb", "http://me:secret@collector:4318", "https://collector/?token=secret", "https://collector/#x",
    ],
)  # fmt: skip
def test_invalid_collector_url_is_refused(url: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(ConfigError, match="--otlp"):
        ServeConfig(policies=(tmp_path_factory.getbasetemp(),), otlp=url)


def test_missing_otel_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "xds_server.observe.tracing.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError) as refused:
        batch_processor("http://127.0.0.1:4318")
    assert str(refused.value) == EXTRA
    assert ".[otel]" in EXTRA


def test_tracing_is_off_without_a_collector() -> None:
    script = (
        "import sys, threading; import xds_server.app.application; from xds_server.observe.tracing.tracing "
        "import Tracing;"
        "one = Tracing('', lambda pool, engine: None); assert one.change_tracer is None and one.event is None;"
        "assert list(one.families()) == [] and threading.active_count() == 1;"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


async def test_shutdown_sends_followed_changes(collector: Collector) -> None:
    async with Tracing(collector.url, lambda _pool, _engine: None) as tracing:
        assert tracing.change_tracer is not None
        tracing.change_tracer._done(TREE)
    assert [root.name for root in collector.roots()] == ["health change"]
    assert isinstance(tracing._exporter, BatchProcessor)
    assert isinstance(tracing._exporter._sender, OtlpTraceExporter)
