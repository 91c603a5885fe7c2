"""Many delta ADS peers in one process: ``python -m benchmarks.fanout_peers PORT PEERS``.

Each peer subscribes to all clusters and to the endpoints of one, and acknowledges what it gets.

One JSON line on stdout per event: ``connected`` when the last peer has its clusters and endpoints, ``push`` when
the last one has received the next change. Clocks are ``time.monotonic``, which all processes of a Linux machine
share.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable
from statistics import median

from benchmarks.ads_peer import AdsPeer, acknowledgement, fields
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryRequest


class FanoutPeer(AdsPeer):
    """One simulated Envoy; ``got`` is called with each type URL received."""

    def __init__(self, name: str, got: Callable[[str], None], lost: Callable[[], None]) -> None:
        super().__init__()
        self._name = name
        self._got = got
        self._lost = lost

    def opened(self) -> None:
        """Subscribe to all clusters, and to the endpoints of one."""
        clusters = DeltaDiscoveryRequest(type_url=CLUSTER)
        clusters.node.id = self._name
        self.request(clusters.SerializeToString())
        self.request(DeltaDiscoveryRequest(type_url=ENDPOINT, resource_names_subscribe=["c"]).SerializeToString())

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._lost()

    def received(self, response: bytes) -> None:
        """Report and acknowledge."""
        found = dict(fields(response))
        self._got(found[4].decode())
        self.request(acknowledgement(found[4], found[5]))


async def run(port: int, peers: int) -> None:
    """Connect all peers at once and report until the server ends."""
    started_s = time.monotonic()
    lost = asyncio.Event()
    received_s: list[float] = []
    connected = False

    def got(type_url: str) -> None:
        nonlocal connected
        received_s.append(time.monotonic())
        expected = peers if connected else 2 * peers
        if len(received_s) == expected and (connected or type_url):
            event = {
                "event": "push" if connected else "connected",
                "started_s": started_s,
                "median_s": median(received_s),
                "last_s": received_s[-1],
            }
            print(json.dumps(event), flush=True)
            connected = True
            received_s.clear()

    loop = asyncio.get_running_loop()
    await asyncio.gather(
        *[
            loop.create_connection(lambda name=f"peer-{n}": FanoutPeer(name, got, lost.set), "127.0.0.1", port)  # type: ignore[misc]
            for n in range(peers)
        ]
    )
    await lost.wait()


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), int(sys.argv[2])))
