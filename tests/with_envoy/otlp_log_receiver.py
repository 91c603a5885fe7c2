"""A collector of logs: real OTLP over gRPC on a free port, which keeps the records it is sent."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)


@dataclass
class LogReceiver(logs_service_pb2_grpc.LogsServiceServicer):
    """Attributes of each record, with its ``body`` and ``time_ns``, and those of each resource."""

    port: int = 0
    records: list[Mapping[str, Any]] = field(default_factory=list)
    resources: list[Mapping[str, str]] = field(default_factory=list)

    async def Export(self, request: ExportLogsServiceRequest, _context: Any) -> ExportLogsServiceResponse:
        for of_resource in request.resource_logs:
            self.resources.append({one.key: one.value.string_value for one in of_resource.resource.attributes})
            for scope in of_resource.scope_logs:
                for record in scope.log_records:
                    attributes = {one.key: one.value.string_value for one in record.attributes}
                    more = {"body": record.body.string_value, "time_ns": record.time_unix_nano}
                    self.records.append({**attributes, **more})
        return ExportLogsServiceResponse()


@asynccontextmanager
async def receiving(certificates: Path | None = None) -> AsyncIterator[LogReceiver]:
    """A receiver that listens; with a folder that has ``server.crt`` and ``server.key``, over TLS."""
    receiver, server = LogReceiver(), grpc.aio.server()
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(receiver, server)
    if certificates is None:
        receiver.port = server.add_insecure_port("127.0.0.1:0")
    else:
        pair = ((certificates / "server.key").read_bytes(), (certificates / "server.crt").read_bytes())
        receiver.port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(None)
