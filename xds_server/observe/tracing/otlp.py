"""Trace exporter based on OpenTelemetry's SDK; the only module that imports it.

``OTEL_EXPORTER_OTLP_*`` (headers, certificates, timeout, compression), ``OTEL_SERVICE_NAME``,
``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_TRACES_SAMPLER`` have their standard meaning. ``OtlpTraceExporter`` is not
thread-safe.
"""

import contextlib
import logging
import os
from collections.abc import Sequence
from importlib import metadata
from typing import Final

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from xds_server.observe.tracing.spans import Span

SERVICE: Final = "switchgear"

MOST_ANSWER_BYTES: Final = 64 * 1024
"""Limit of a collector's answer, which is a few bytes and ignored."""


class OtlpTraceExporter:
    """Sends to the collector at ``url``."""

    def __init__(self, url: str) -> None:
        # Environment first: values given in code would override it.
        named = os.environ.get("OTEL_SERVICE_NAME") or _in_resource("service.name")
        version = metadata.version(SERVICE)
        resource = Resource.create({"service.version": version, **({} if named else {"service.name": SERVICE})})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = _Ended()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SERVICE, version)
        self._messages = _capture_messages("opentelemetry")
        self._exporter = OTLPSpanExporter(endpoint=url, session=_Session())

    def send(self, traces: Sequence[Span]) -> str:
        """Send the traces; returns the error, empty on success. Blocks up to the exporter's timeout."""
        self._messages.heard.clear()
        for trace in traces:
            self._put(trace, Context())
        batch, self._ended.spans = self._ended.spans, []
        # None if a sampler dropped it
        if not batch or self._exporter.export(batch) is SpanExportResult.SUCCESS:
            return ""
        return self._messages.summary or "refused by the collector"

    def hurry(self) -> None:
        """Skip further retries."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library's own omission

    def _put(self, span: Span, within: Context) -> None:
        made = self._tracer.start_span(
            span.name, context=within, attributes=dict(span.attributes), start_time=span.start_ns
        )
        if span.error:
            made.set_status(Status(StatusCode.ERROR, span.error))
        inside = set_span_in_context(made, within)
        for child in span.children:
            self._put(child, inside)
        made.end(span.end_ns)


class _Session(requests.Session):
    """Uses the configured certificate even if ``REQUESTS_CA_BUNDLE`` is set.

    Follows no redirects, and reads only the beginning of an answer.
    """

    def send(self, request, **kwargs):  # type: ignore[no-untyped-def]
        """Answer to one request."""
        # Headers contain secrets, which requests would send to another host.
        answer = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True})
        with contextlib.closing(answer):
            # Read once: this consumes a normal answer, so its connection is reused.
            answer.raw.read1(MOST_ANSWER_BYTES, decode_content=False)
        # Otherwise the library reads all of it.
        answer._content, answer._content_consumed = b"", True
        if answer.is_redirect:
            # The library treats every status below 400 as success.
            raise requests.TooManyRedirects(f"{answer.status_code}: redirect not followed")
        return answer

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]
        """Settings of one request; the library would prefer the environment."""
        return super().merge_environment_settings(
            url, proxies, stream, self.verify if verify is None else verify, cert
        )


class _Ended(SpanProcessor):
    """Collects ended spans in order."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _CapturedMessages(logging.Handler):
    """Captures the library's log messages, which would be one line per retry."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    @property
    def summary(self) -> str:
        """The first message (the cause) and the last (giving up)."""
        return "; ".join(dict.fromkeys((*self.heard[:1], *self.heard[-1:])))

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def _capture_messages(logger: str) -> _CapturedMessages:
    heard, words = logging.getLogger(logger), _CapturedMessages()
    heard.handlers[:] = [words]
    heard.propagate = False
    return words


def _in_resource(name: str) -> bool:
    configured = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return any(pair.partition("=")[0].strip() == name for pair in configured.split(","))
