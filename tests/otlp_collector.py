"""A collector of traces: real OTLP over HTTP on a free port. It keeps what it is sent, or behaves badly."""

import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True, kw_only=True)
class ReceivedSpan:
    """A span as it was sent; times in nanoseconds of Unix time."""

    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    error: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


@dataclass
class Collector:
    """``status`` is what it answers with, from ``location`` if it sends elsewhere, and ``mib`` how much it says.

    While ``go_on`` is not set it does not answer at all. ``unheard`` is set once the client has left.
    """

    url: str = ""
    status: int = 200
    location: str = ""
    mib: int = 0
    unheard: threading.Event = field(default_factory=threading.Event)
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.go_on.set()

    def roots(self, name: str = "") -> list[ReceivedSpan]:
        return [one for one in list(self.spans) if not one.parent and one.name.startswith(name)]

    def below(self, parent: ReceivedSpan, name: str = "") -> list[ReceivedSpan]:
        return [one for one in list(self.spans) if one.parent == parent.id and one.name.startswith(name)]


@contextmanager
def collecting(certificates: Path | None = None) -> Iterator[Collector]:
    """A collector that listens; with a folder that has ``server.crt`` and ``server.key``, over TLS."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.asked.set()
            collector.go_on.wait(600)
            collector.paths.append(self.path)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            if collector.status == 200:
                collector.spans.extend(_spans(body))
            self.send_response(collector.status)
            if collector.location:
                self.send_header("location", collector.location)
            self.send_header("content-length", str(collector.mib * 1024**2))
            self.end_headers()
            try:
                for _ in range(collector.mib):
                    self.wfile.write(bytes(1024**2))
            except OSError:
                collector.unheard.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
            """Says nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """A peer that left while it was kept waiting is what is tested."""

    server = Server(("127.0.0.1", 0), Handler)
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    scheme = "http" if certificates is None else "https"
    collector.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(body: bytes) -> Iterator[ReceivedSpan]:
    for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {one.key: _value(one.value) for one in of_resource.resource.attributes}
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    name=span.name,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    error=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
                    attributes={one.key: _value(one.value) for one in span.attributes},
                    resource=resource,
                )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None
