"""Push fan-out: how long until the last of N proxies has a change, and what a proxy costs the server.

For each N and transport the server runs in a process of its own (memory counts from the same start), and
the peers in another; so does go-control-plane, where there is Go to build it. One endpoint of the cluster changes
per push; the clock runs from ``publish`` to the last peer's receipt.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from benchmarks.fanout_go import GO_CONTROL_PLANE, measure_go, program
from benchmarks.fanout_testbed import LIMIT_S, FanoutRow, peers
from benchmarks.harness import ResultColumn, measured_in_child, option_parser, publish, result_table
from benchmarks.process_usage import resident_bytes
from tests.go_build import PartsError
from xds_server.model.snapshot import Resource, Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.publish import NullObserver, Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.wire.assignment import AssignmentSpec, EndpointSpec, HostPort, LocalitySpec
from xds_server.wire.eds import encode_assignment
from xds_server.wire.encode import encode
from xds_server.xds import NodeInfo

STREAMS: Final = (100, 500, 1_000)
TRANSPORTS: Final = {"grpc": GrpcAdsServer, "h2": H2AdsServer}
PUSHES: Final = 30
ENDPOINTS: Final = 100
TARGET_LAST_MS: Final = 70.0
TARGET_KB_PER_STREAM: Final = 50.0


def _snapshots() -> list[Snapshot]:
    """Two snapshots that differ in the health of one of a hundred endpoints."""
    cluster = resource(CLUSTER, "c", encode(Cluster(name="c")))
    return [snapshot([cluster, _endpoints(health)]) for health in (1, 3)]


def _endpoints(health: int) -> Resource:
    hosts = tuple(
        EndpointSpec(
            address=HostPort(host=f"10.0.{n >> 8}.{n & 255}", port=8000), health=health if n == 0 else 1, weight=4
        )
        for n in range(ENDPOINTS)
    )
    zone = LocalitySpec(region="r", zone="z1", weight=100, priority=0, endpoints=hosts)
    spec = AssignmentSpec(cluster="c", localities=(zone,), overprovisioning_percent=140)
    return resource(ENDPOINT, "c", encode_assignment(spec))


class _Push(NullObserver):
    """Counts down the responses and the acknowledgements of a push."""

    def __init__(self) -> None:
        self.begin(0)

    def begin(self, streams: int) -> None:
        self.unwritten = self.missing = streams
        self.written_cpu_s = 0.0
        self.complete = asyncio.Event()

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None:  # noqa: ARG002
        self.unwritten -= 1
        if self.unwritten == 0:
            self.written_cpu_s = time.process_time()

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:  # noqa: ARG002
        self.missing -= 1
        if self.missing == 0:
            self.complete.set()


async def measure(transport: str, streams: int, pushes: int) -> FanoutRow:
    """One row, with the server in this process."""
    snapshots = _snapshots()
    seen = _Push()
    publisher = Publisher(view_of=lambda _node: "all", snapshot_for=lambda _view: snapshots[0], observer=seen)
    server = TRANSPORTS[transport](publisher)
    port = await server.start()
    ticking = asyncio.create_task(server.run())
    gc.collect()
    before_bytes = resident_bytes(os.getpid())
    before_s = time.process_time()
    try:
        async with peers(port, streams) as fleet:
            await fleet.connected()
            storm_cpu_ms = (time.process_time() - before_s) * 1e3
            await asyncio.sleep(1.0)
            gc.collect()
            kb_per_stream = (resident_bytes(os.getpid()) - before_bytes) / 1024 / streams
            cpu_ms, written_ms = [], []
            for push in range(pushes):
                seen.begin(streams)
                cpu_s = time.process_time()
                started_s = time.monotonic()
                publisher.publish({"all": snapshots[(push + 1) % 2]}, started_s)
                await fleet.pushed(started_s)
                await asyncio.wait_for(seen.complete.wait(), LIMIT_S)
                written_ms.append((seen.written_cpu_s - cpu_s) * 1e3)
                cpu_ms.append((time.process_time() - cpu_s) * 1e3)
    finally:
        ticking.cancel()
        await server.stop()
    return fleet.row(
        transport,
        written_cpu_ms=median(written_ms),
        cpu_ms_per_push=median(cpu_ms),
        kb_per_stream=kb_per_stream,
        storm_cpu_ms=storm_cpu_ms,
    )


COLUMNS: Final[Sequence[ResultColumn[FanoutRow]]] = (
    ResultColumn(heading="transport", cell=lambda row: row.transport, left=True),
    ResultColumn(heading="streams", cell=lambda row: f"{row.streams}"),
    ResultColumn(heading="last p50", cell=lambda row: f"{row.last_ms_p50:.1f} ms"),
    ResultColumn(heading="last max", cell=lambda row: f"{row.last_ms_max:.1f} ms"),
    ResultColumn(heading="median stream", cell=lambda row: f"{row.median_stream_ms:.1f} ms"),
    ResultColumn(
        heading="CPU/last write",
        cell=lambda row: "-" if row.written_cpu_ms is None else f"{row.written_cpu_ms:.1f} ms",
    ),
    ResultColumn(heading="CPU/push", cell=lambda row: f"{row.cpu_ms_per_push:.1f} ms"),
    ResultColumn(heading="memory/stream", cell=lambda row: f"{row.kb_per_stream:.1f} KB"),
    ResultColumn(heading="storm", cell=lambda row: f"{row.storm_ms:.0f} ms"),
    ResultColumn(heading="CPU/storm", cell=lambda row: f"{row.storm_cpu_ms:.0f} ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutRatio:
    """What a transport takes over what go-control-plane takes, in one run."""

    transport: str
    streams: int
    last: float
    cpu_of_push: float
    storm: float
    storm_cpu: float
    memory: float


RATIO_COLUMNS: Final[Sequence[ResultColumn[FanoutRatio]]] = (
    ResultColumn(heading="transport", cell=lambda row: row.transport, left=True),
    ResultColumn(heading="streams", cell=lambda row: f"{row.streams}"),
    ResultColumn(heading="last stream", cell=lambda row: f"{row.last:.2f}"),
    ResultColumn(heading="CPU/push", cell=lambda row: f"{row.cpu_of_push:.2f}"),
    ResultColumn(heading="storm", cell=lambda row: f"{row.storm:.2f}"),
    ResultColumn(heading="CPU/storm", cell=lambda row: f"{row.storm_cpu:.2f}"),
    ResultColumn(heading="memory/stream", cell=lambda row: f"{row.memory:.2f}"),
)


def ratios(rows: Sequence[FanoutRow]) -> list[FanoutRatio]:
    """Our rows over go-control-plane's of as many streams; none without these."""
    peers_of = {row.streams: row for row in rows if row.transport == GO_CONTROL_PLANE}
    return [
        FanoutRatio(
            transport=row.transport,
            streams=row.streams,
            last=row.last_ms_p50 / peer.last_ms_p50,
            cpu_of_push=row.cpu_ms_per_push / peer.cpu_ms_per_push,
            storm=row.storm_ms / peer.storm_ms,
            storm_cpu=row.storm_cpu_ms / peer.storm_cpu_ms,
            memory=row.kb_per_stream / peer.kb_per_stream,
        )
        for row in rows
        if row.transport != GO_CONTROL_PLANE and (peer := peers_of.get(row.streams)) is not None
    ]


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 when 1 000 streams miss a target, 0 otherwise."""
    parser = option_parser("fanout", __doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=list(STREAMS))
    parser.add_argument("--pushes", type=int, default=PUSHES)
    servers = [*TRANSPORTS, GO_CONTROL_PLANE]
    parser.add_argument("--transport", choices=servers, nargs="+", default=servers)
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        one = options.transport[0]
        measuring = (
            measure_go(options.measure, options.pushes)
            if one == GO_CONTROL_PLANE
            else measure(one, options.measure, options.pushes)
        )
        print(json.dumps(asdict(asyncio.run(measuring))))
        return 0
    if GO_CONTROL_PLANE in options.transport:
        try:
            program()
        except PartsError as error:
            print(f"{GO_CONTROL_PLANE}: SKIPPED: {error}")
            options.transport.remove(GO_CONTROL_PLANE)
    rows = [
        FanoutRow(
            **measured_in_child(
                "benchmarks.fanout", str(streams), "--pushes", str(options.pushes), "--transport", transport
            )
        )
        for streams in options.streams
        for transport in options.transport
    ]
    targets = {"last_ms_p50": TARGET_LAST_MS, "kb_per_stream": TARGET_KB_PER_STREAM}
    met = all(
        row.last_ms_p50 <= TARGET_LAST_MS and row.kb_per_stream <= TARGET_KB_PER_STREAM
        for row in rows
        if row.streams == max(STREAMS) and row.transport != GO_CONTROL_PLANE
    )
    title = "ADS fan-out: one of 100 endpoints changed, delta streams in another process"
    answer = {"targets_at_1000": targets, "rows": [asdict(row) for row in rows]}
    shown = [result_table(title, COLUMNS, rows)]
    if compared := ratios(rows):
        caption = "Targets of h2: last stream 0.6, CPU of a push 0.5, storm 0.6, memory 0.15"
        shown.append(result_table(f"The same over {GO_CONTROL_PLANE}", RATIO_COLUMNS, compared, caption=caption))
        answer["ratios"] = [asdict(one) for one in compared]
    return publish(shown, options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
