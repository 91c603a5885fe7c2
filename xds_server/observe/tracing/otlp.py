"""Traces to a collector, by OpenTelemetry's SDK and its exporter: the one module that knows them.

``OTEL_EXPORTER_OTLP_*`` (headers, certificates, time limit, compression), ``OTEL_SERVICE_NAME``,
``OTEL_RESOURCE_ATTRIBUTES`` and ``OTEL_TRACES_SAMPLER`` mean what OpenTelemetry says. ``OtlpTraceExporter`` is for
one thread.
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
"""What a collector answers is a few bytes, and nothing is done with it."""


class OtlpTraceExporter:
    """Sends to the collector at ``url``."""

    def __init__(self, url: str) -> None:
        # Environment before ours: OpenTelemetry lets what is given in code win.
        named = os.environ.get("OTEL_SERVICE_NAME") or _in_resource("service.name")
        version = metadata.version(SERVICE)
        resource = Resource.create({"service.version": version, **({} if named else {"service.name": SERVICE})})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._ended = _Ended()
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer(SERVICE, version)
        self._words = _words_of("opentelemetry")
        self._exporter = OTLPSpanExporter(endpoint=url, session=_Session())

    def send(self, traces: Sequence[Span]) -> str:
        """Why they were not taken; empty when they were. As long as the exporter's time limit allows."""
        self._words.heard.clear()
        for trace in traces:
            self._put(trace, Context())
        batch, self._ended.spans = self._ended.spans, []
        # None, where a sampler chose so.
        if not batch or self._exporter.export(batch) is SpanExportResult.SUCCESS:
            return ""
        return self._words.said or "the collector did not take them"

    def hurry(self) -> None:
        """Wait for no further try."""
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
    """Goes by the certificate that was given for this, also where ``REQUESTS_CA_BUNDLE`` names another.

    It goes nowhere else than it was told, and reads only the beginning of an answer.
    """

    def send(self, request, **kwargs):  # type: ignore[no-untyped-def]
        """The answer to one request."""
        # Headers have secrets in them, which requests would take along to another host.
        answer = super().send(request, **{**kwargs, "allow_redirects": False, "stream": True})
        with contextlib.closing(answer):
            # Once: an honest answer is read whole by that, and its connection is used again.
            answer.raw.read1(MOST_ANSWER_BYTES, decode_content=False)
        # Else the library reads all of it.
        answer._content, answer._content_consumed = b"", True
        if answer.is_redirect:
            # The library takes every status below 400 for taken.
            raise requests.TooManyRedirects(f"{answer.status_code}: it sends elsewhere, which is not followed")
        return answer

    def merge_environment_settings(self, url, proxies, stream, verify, cert):  # type: ignore[no-untyped-def]
        """What goes for one request: the library prefers the environment to the session."""
        return super().merge_environment_settings(
            url, proxies, stream, self.verify if verify is None else verify, cert
        )


class _Ended(SpanProcessor):
    """Spans that have ended, in that order."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class _Words(logging.Handler):
    """Hears what the library says, and says nothing: a line for each try is too many."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    @property
    def said(self) -> str:
        """The first of it, which has the reason, and the last, which says that it gives up."""
        return "; ".join(dict.fromkeys((*self.heard[:1], *self.heard[-1:])))

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def _words_of(logger: str) -> _Words:
    heard, words = logging.getLogger(logger), _Words()
    heard.handlers[:] = [words]
    heard.propagate = False
    return words


def _in_resource(name: str) -> bool:
    said = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return any(pair.partition("=")[0].strip() == name for pair in said.split(","))
