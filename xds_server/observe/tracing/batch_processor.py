"""Traces to a collector, by OpenTelemetry's own library: OTLP over HTTP, from a thread of its own.

The server hands a trace over and goes on. What a dead or slow collector does not take waits in a short queue; what
finds that full is dropped and counted. At the end the thread has ``LAST_S`` for what still waits, and is left to
itself after that. The library is imported only when traces are asked for.
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
"""Traces that may wait for the collector: minutes of a bad day."""

BATCH: Final = 20
"""Traces sent at once."""

LAST_S: Final = 2.0
"""How long a server that stops waits for what still waits."""

PATH: Final = "/v1/traces"
"""Where collectors take traces. Source: OpenTelemetry, "OTLP Specification"."""

EXTRA: Final = "--otlp needs the extra `otel`: pip install 'switchgear[otel]'"

_SECRETS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")

_log = structlog.get_logger()


class TraceExporter(Protocol):
    """What takes traces to a collector, in its own time."""

    def send(self, traces: Sequence[Span]) -> str:
        """Send these; why it did not work, empty when it did. May take long."""
        ...

    def hurry(self) -> None:
        """End what is being sent soon, and do not try it again."""
        ...


class BatchProcessor:
    """Keeps traces for ``sender`` and has them sent, one batch after the other."""

    def __init__(self, sender: TraceExporter, *, most_waiting: int = MOST_WAITING) -> None:
        self._sender = sender
        self._waiting: queue.Queue[Span | None] = queue.Queue(most_waiting)
        self._counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._failing = False
        # A daemon: a collector that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def offer(self, trace: Span) -> None:
        """Have a trace sent soon; dropped and counted where too many wait."""
        try:
            self._waiting.put_nowait(trace)
        except queue.Full:
            self._counts["dropped"] += trace.count

    def skip(self) -> None:
        """Count a trace that was not even made."""
        self._counts["dropped"] += 1

    def stop(self, within_s: float = LAST_S) -> None:
        """Send what waits, for so long; blocks."""
        give_up_s = time.monotonic() + within_s
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=within_s)
        self._thread.join(max(0.0, give_up_s - time.monotonic()))
        if self._thread.is_alive():
            self._sender.hurry()
            _log.warning(
                "otlp.left_behind", traces=self._waiting.qsize(), reason="the collector did not take them"
            )

    def families(self) -> Iterable[Metric]:
        """What became of spans."""
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
    """Traces to the collector at ``url``; ``ConfigError`` where that cannot be."""
    to = endpoint(url)
    try:
        from xds_server.observe.tracing.otlp import OtlpTraceExporter  # noqa: PLC0415 - an extra, and slow to import
    except ModuleNotFoundError as missing:
        raise ConfigError(EXTRA) from missing
    return BatchProcessor(OtlpTraceExporter(to))


def endpoint(url: str) -> str:
    """Where traces are posted to; secrets that would go there in plain text are a ``ConfigError``."""
    parts = urlsplit(url)
    if parts.scheme == "http" and not ListenAddress(parts.hostname or "", 0).is_loopback:
        told = next((name for name in _SECRETS if os.environ.get(name)), "")
        if told:
            raise ConfigError(f"{told} would go to {parts.netloc} in plain text: give --otlp an https:// URL")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}{PATH}"
