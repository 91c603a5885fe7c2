"""The discovery service, as both transports serve it: methods, limits, statuses and the clock of its timeouts."""

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Protocol

from xds_server.auth.memory_guard import MemoryGuard
from xds_server.transport.h2.grpc_messages import GrpcCode
from xds_server.xds import DeniedPeerError, StreamError, XdsVariant
from xds_server.xds.messages import EXHAUSTED

_SERVICE: Final = "/envoy.service.discovery.v3.AggregatedDiscoveryService"

METHODS: Final[Mapping[str, XdsVariant]] = MappingProxyType(
    {
        f"{_SERVICE}/DeltaAggregatedResources": XdsVariant.DELTA,
        f"{_SERVICE}/StreamAggregatedResources": XdsVariant.SOTW,
    }
)

TICK_S: Final = 0.5
"""Tick interval; timeouts are seconds long."""

MEMORY_CHECK_S: Final = 0.1
"""A host can send some hundred MB a second."""

MAX_REQUEST_BYTES: Final = 2 * 1024 * 1024
"""Limit of any message on the port. Ten thousand names of a hundred characters have 1 MB."""


class TickingPublisher(Protocol):
    """What has timeouts."""

    def tick(self, now_s: float) -> None:
        """Process timeouts."""


def status_of(error: StreamError) -> GrpcCode:
    """Status with which a stream ends because of its peer."""
    if isinstance(error, DeniedPeerError):
        return GrpcCode.PERMISSION_DENIED
    return GrpcCode.RESOURCE_EXHAUSTED if error.flaw in EXHAUSTED else GrpcCode.INVALID_ARGUMENT


async def tick(publisher: TickingPublisher, memory: MemoryGuard, clock: Callable[[], float]) -> None:
    """Tick the publisher and watch the memory until cancelled."""
    next_tick_s = clock() + TICK_S
    while True:
        await asyncio.sleep(MEMORY_CHECK_S)
        now_s = clock()
        memory.check(now_s)
        if now_s >= next_tick_s:
            next_tick_s = now_s + TICK_S
            publisher.tick(now_s)
