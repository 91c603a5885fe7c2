"""``grpc.health.v1`` on the agent's gRPC port (Check and Watch).

Services of a Kubernetes gRPC probe: empty or ``readyz`` (readiness), ``livez`` (liveness), ``startupz``.
"""

from collections.abc import Mapping
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

_YES: Final = health_pb2.HealthCheckResponse.SERVING
_NO: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcHealthService:
    """The health service; ``add_to`` a server, then ``set_statuses``."""

    def __init__(self) -> None:
        self._servicer = aio.HealthServicer()
        self._said: dict[str, bool] = {}

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the service on this server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def set_statuses(self, answers: Mapping[str, bool]) -> None:
        """Set the status per service; watchers get changes."""
        for service, yes in answers.items():
            if self._said.get(service) is not yes:
                self._said[service] = yes
                await self._servicer.set(service, _YES if yes else _NO)
