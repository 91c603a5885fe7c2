"""Sends traces to a collector with OpenTelemetry's library: OTLP over HTTP, in its own thread.

The server queues a trace and continues. The queue is short; traces that find it full are dropped and counted. At
shutdown the thread has ``LAST_S`` to send the rest. The library is imported only with --otlp.
"""

import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Final, Protocol
from urllib.parse import urlsplit

import structlog
from prometheus_client.core import Metric

from engine.address import ListenAddress
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.observe.tracing.spans import Span, attribute_text
from xds_server.serve_config import ConfigError

MOST_WAITING: Final = 200
"""Queue limit: minutes of a bad day."""

BATCH: Final = 20
"""Traces per request."""

LAST_S: Final = 2.0
"""Time to send queued traces at shutdown."""

PATH: Final = "/v1/traces"
"""Path of the collector. Source: OpenTelemetry, "OTLP Specification"."""

EXTRA: Final = "--otlp needs the extra `otel`; in a checkout: pip install '.[otel]'"

_SECRETS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")

_log = structlog.get_logger()


class TraceExporter(Protocol):
    """Sends traces to a collector; may block."""

    def send(self, traces: Sequence[Span]) -> str:
        """Send these traces; returns the error, empty on success. May take long."""
        ...

    def hurry(self) -> None:
        """Shorten the current request and do not retry it."""
        ...


class BatchProcessor:
    """Queues traces and sends them in batches through ``sender``."""

    def __init__(self, sender: TraceExporter, *, most_waiting: int = MOST_WAITING) -> None:
        self._sender = sender
        self._waiting: queue.Queue[Span | None] = queue.Queue(most_waiting)
        self._counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._failing = False
        # A daemon thread: a collector that never answers must not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def offer(self, trace: Span) -> None:
        """Queue a trace; drops and counts it if the queue is full."""
        try:
            self._waiting.put_nowait(trace)
        except queue.Full:
            self._counts["dropped"] += trace.count

    def skip(self) -> None:
        """Count a trace that was not created."""
        self._counts["dropped"] += 1

    def stop(self, within_s: float = LAST_S) -> None:
        """Send queued traces, at most for this long; blocks."""
        give_up_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        self._thread.join(max(0.0, give_up_s - time.monotonic()))
        if self._thread.is_alive():
            self._sender.hurry()
            _log.warning("otlp.left_behind", traces=self._waiting.qsize(), reason="refused by the collector")

    def families(self) -> Iterable[Metric]:
        """Spans by outcome."""
        yield ControlPlaneMetrics.trace_spans.family({(result,): count for result, count in self._counts.items()})

    def _run(self) -> None:
        ends = False
        while not ends:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH:
                    batch.append(self._waiting.get_nowait())
            ends = None in batch
            traces = [trace for trace in batch if trace is not None]
            if traces:
                self._send(traces)

    def _send(self, traces: Sequence[Span]) -> None:
        reason = self._sender.send(traces)
        self._counts["failed" if reason else "sent"] += sum(trace.count for trace in traces)
        if reason and not self._failing:
            _log.warning("otlp.failed", reason=attribute_text(reason))
        elif self._failing and not reason:
            _log.info("otlp.recovered", failed=self._counts["failed"])
        self._failing = bool(reason)


def batch_processor(url: str) -> BatchProcessor:
    """Processor for the collector at ``url``; ``ConfigError`` if impossible."""
    to = endpoint(url)
    try:
        from xds_server.observe.tracing.otlp import OtlpTraceExporter  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as missing:
        raise ConfigError(EXTRA) from missing
    return BatchProcessor(OtlpTraceExporter(to))


def endpoint(url: str) -> str:
    """URL for traces; ``ConfigError`` if secrets would be sent in plaintext."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not ListenAddress(parts.hostname or "", 0).is_loopback:
        variable = next((name for name in _SECRETS if os.environ.get(name)), "")
        if variable:
            raise ConfigError(
                f"{variable} would be sent to {parts.netloc} in plaintext: use an https:// URL for --otlp"
            )
    return url if parts.path.strip("/") else f"{url.rstrip('/')}{PATH}"
