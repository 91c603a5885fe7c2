"""An authorization service: the published gRPC protocol of Envoy on a free port, and what it was asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy_data_plane.envoy.service.auth.v3 import CheckRequest, CheckResponse, DeniedHttpResponse
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
from envoy_data_plane.google.rpc import Status

_METHOD = "/envoy.service.auth.v3.Authorization/Check"
OK, PERMISSION_DENIED = 0, 7


@dataclass
class AuthorizationService(grpc.GenericRpcHandler):
    """Allows callers with the header ``x-allowed``; keeps the headers and bodies it was asked about."""

    port: int = 0
    asked: list[dict[str, str]] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method != _METHOD:
            return None
        return grpc.unary_unary_rpc_method_handler(
            self.check, request_deserializer=CheckRequest.parse, response_serializer=bytes
        )

    async def check(self, request: CheckRequest, _context: Any) -> CheckResponse:
        assert request.attributes is not None
        assert request.attributes.request is not None
        assert request.attributes.request.http is not None
        http = request.attributes.request.http
        self.asked.append(dict(http.headers))
        self.bodies.append(http.body)
        if "x-allowed" in http.headers:
            return CheckResponse(status=Status(code=OK))
        denied = DeniedHttpResponse(status=HttpStatus(code=StatusCode(403)), body="no quota")
        return CheckResponse(status=Status(code=PERMISSION_DENIED), denied_response=denied)


@asynccontextmanager
async def authorizing() -> AsyncIterator[AuthorizationService]:
    """A service that listens until the end of the block."""
    service, server = AuthorizationService(), grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    service.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield service
    finally:
        await server.stop(None)
