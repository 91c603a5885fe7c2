"""Many Envoys as the control plane sees them, in one process: ``python -m benchmarks.storm_peers JSON``.

The argument names port, number of peers, zones, and the file with the first request of a real Envoy. Each peer
sends that request with its own node id and zone, then subscribes in Envoy's order: runtime, clusters, their
endpoints, listeners, their routes. It acknowledges all it gets.

One JSON line on stdout per event: ``connected`` when the last peer has all of its routes, or when time is up, and
``push`` when the last peer has endpoints with one more engine out of rotation.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.endpoint.v3 import ClusterLoadAssignment
from envoy_data_plane.envoy.config.listener.v3 import Listener

from benchmarks.ads_peer import AdsPeer, acknowledgement, fields
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME
from xds_server.translate.runtime import LAYER
from xds_server.wire.decode import DeltaDiscoveryRequest, decoder

_EDS: Final = 3
_HEALTHY: Final = (0, 1)
_RESOURCES, _TYPE_URL, _NONCE, _RESOURCE_VALUE, _ANY_VALUE = 2, 4, 5, 2, 2
_ROUTES_OF: Final = "port-"


class Storm(Protocol):
    """What peers report to."""

    def configured(self) -> None: ...

    def ejected(self, engines: int) -> None: ...

    def lost(self) -> None: ...


class Names:
    """Names that responses lead to, by content: most peers get the same bytes."""

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, ...], tuple[str, ...]] = {}
        self._cluster: Any = decoder(Cluster)
        self._listener: Any = decoder(Listener)
        self._assignment: Any = decoder(ClusterLoadAssignment)
        self._ejected: dict[tuple[bytes, ...], int] = {}

    def of_clusters(self, resources: tuple[bytes, ...]) -> tuple[str, ...]:
        """Names of endpoints that these clusters need."""
        return self._of(resources, self._endpoints)

    def of_listeners(self, resources: tuple[bytes, ...]) -> tuple[str, ...]:
        """Names of routes that these listeners need."""
        return self._of(resources, self._routes)

    def ejected_of(self, resources: tuple[bytes, ...]) -> int:
        """Engines out of rotation in these endpoints."""
        known = self._ejected.get(resources)
        if known is None:
            known = self._ejected[resources] = sum(
                endpoint.health_status not in _HEALTHY
                for one in resources
                for locality in self._assignment.FromString(_message(one)).endpoints
                for endpoint in locality.lb_endpoints
            )
        return known

    def _of(self, resources: tuple[bytes, ...], name: Callable[[bytes], str]) -> tuple[str, ...]:
        known = self._known.get(resources)
        if known is None:
            known = self._known[resources] = tuple(found for one in resources if (found := name(_message(one))))
        return known

    def _endpoints(self, data: bytes) -> str:
        cluster = self._cluster.FromString(data)
        return (cluster.eds_cluster_config.service_name or cluster.name) if cluster.type == _EDS else ""

    def _routes(self, data: bytes) -> str:
        name: str = self._listener.FromString(data).name
        return name if name.startswith(_ROUTES_OF) else ""


def _message(resource: bytes) -> bytes:
    """The message in a Resource."""
    anything = next(value for number, value in fields(resource) if number == _RESOURCE_VALUE)
    return next((value for number, value in fields(anything) if number == _ANY_VALUE), b"")


def _subscription(type_url: str, names: tuple[str, ...]) -> bytes:
    return DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names).SerializeToString()


class StormPeer(AdsPeer):
    """One simulated Envoy; ``first`` is its first request, which carries the node."""

    def __init__(self, first: bytes, names: Names, storm: Storm) -> None:
        super().__init__()
        self._first = first
        self._names = names
        self._storm = storm
        self._asked = {RUNTIME}
        self._missing_routes: set[str] | None = None

    def opened(self) -> None:
        """Ask for the runtime layer, as an Envoy does before anything else."""
        self.request(self._first)
        self._first = b""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._storm.lost()

    def received(self, response: bytes) -> None:
        """Acknowledge, and ask for what this leads to."""
        found = fields(response)
        by_number = dict(found)
        type_url = by_number[_TYPE_URL].decode()
        self.request(acknowledgement(by_number[_TYPE_URL], by_number[_NONCE]))
        resources = tuple(value for number, value in found if number == _RESOURCES)
        if type_url == RUNTIME:
            self._ask(CLUSTER, ())
        elif type_url == CLUSTER:
            self._ask(ENDPOINT, self._names.of_clusters(resources))
        elif type_url == ENDPOINT:
            self._storm.ejected(self._names.ejected_of(resources))
            self._ask(LISTENER, ())
        elif type_url == LISTENER and (names := self._names.of_listeners(resources)):
            if ROUTE not in self._asked:
                self._missing_routes = set(names)
            self._ask(ROUTE, names)
        elif type_url == ROUTE and self._missing_routes:
            for one in resources:
                self._missing_routes.discard(next(value for number, value in fields(one) if number == 3).decode())
            if not self._missing_routes:
                self._storm.configured()

    def _ask(self, type_url: str, names: tuple[str, ...]) -> None:
        if type_url not in self._asked:
            self._asked.add(type_url)
            self.request(_subscription(type_url, names))


class _Count:
    """Counts what peers report, and prints a line when the last one has."""

    def __init__(self, peers: int) -> None:
        self._peers = peers
        self._configured_s: list[float] = []
        self._ejected_s: list[list[float]] = []
        self.started_s = time.monotonic()
        self.connected = asyncio.Event()
        self.lost_count = 0

    def configured(self) -> None:
        self._configured_s.append(time.monotonic())
        if len(self._configured_s) == self._peers:
            self.tell_connected()

    def tell_connected(self) -> None:
        times = [one - self.started_s for one in self._configured_s]
        _print(
            event="connected",
            configured=len(times),
            lost=self.lost_count,
            median_s=median(times) if times else None,
            last_s=max(times, default=None),
        )
        self.connected.set()

    def ejected(self, engines: int) -> None:
        while engines > len(self._ejected_s):
            self._ejected_s.append([])
        if engines:
            times = self._ejected_s[engines - 1]
            times.append(time.monotonic())
            if len(times) == self._peers:
                _print(event="push", ejected=engines, median_at_s=median(times), last_at_s=times[-1])

    def lost(self) -> None:
        self.lost_count += 1


def _print(**event: object) -> None:
    print(json.dumps(event), flush=True)


async def run(*, port: int, peers: int, zones: list[str], first: bytes, limit_s: float) -> None:
    """Connect all peers at once, and report until killed."""
    template = DeltaDiscoveryRequest.FromString(first)
    template.type_url = RUNTIME
    template.resource_names_subscribe[:] = [LAYER]
    names, count = Names(), _Count(peers)

    def peer(number: int) -> StormPeer:
        template.node.id = f"peer-{number}"
        template.node.locality.zone = zones[number % len(zones)]
        return StormPeer(template.SerializeToString(), names, count)

    loop = asyncio.get_running_loop()
    for number in range(peers):
        # A host each: the server limits what one host may cost.
        host = f"127.1.{number >> 8}.{number & 255}"
        await loop.create_connection(
            lambda number=number: peer(number),  # type: ignore[misc]
            "127.0.0.1",
            port,
            local_addr=(host, 0),
        )
    try:
        async with asyncio.timeout(limit_s):
            await count.connected.wait()
    except TimeoutError:
        count.tell_connected()
    await asyncio.Event().wait()


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    asyncio.run(run(**{**options, "first": Path(options["first"]).read_bytes()}))
