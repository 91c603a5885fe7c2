"""A whole server and its fleet: the storm of first connections, and an ejection until the last proxy has it.

``switchgear serve`` runs with all defaults; its proxies are many simulated Envoys in one other process. They send
the node of a real Envoy, 61 KB, and subscribe in its order. For each size: seconds until the last proxy has its
routes, the server's CPU and memory meanwhile, then engines are ejected by operators, from the order to the last
proxy's new endpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import aiohttp
import grpc
import grpc.aio

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from benchmarks.pool_documents import pool_documents
from benchmarks.process_usage import cpu_s as cpu_seconds
from benchmarks.process_usage import resident_bytes
from chaos.processes import ChildProcesses, envoy_command
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml

SIZES: Final = ((1_000, 1_000, 10), (1_000, 100, 10))
TRANSPORTS: Final = ("grpc", "h2")
ZONES: Final = 3
EJECTIONS: Final = 10
_STORM_LIMIT_S: Final = 120.0
_LIMIT_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StormRow:
    """One size and transport. ``storm_s``: from the first connection to the last configured proxy.

    ``configured``: proxies that were in time. ``storm_cpu_s`` and ``kb_per_proxy`` are the server's.
    ``ejection_ms_p50`` and ``ejection_ms_max``: from the order to the last proxy. ``idle_percent``: of a core,
    without any change.
    """

    transport: str
    engines: int
    proxies: int
    pools: int
    cuts: bool
    configured: int
    storm_s: float
    storm_cpu_s: float
    cpu_ms_per_proxy: float
    kb_per_proxy: float
    ejection_ms_p50: float
    ejection_ms_max: float
    ejection_cpu_ms: float
    idle_percent: float


async def first_request(processes: ChildProcesses, folder: Path, *, cuts: bool) -> bytes:
    """The first discovery request of a real Envoy, node and all."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(requests: Any, _context: object) -> None:
        async for data in requests:
            if not got.done():
                got.set_result(data)
        await asyncio.Event().wait()

    class _Discovery(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
            if not str(details.method).endswith("/DeltaAggregatedResources"):
                return None
            made: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(serve)
            return made

    server = grpc.aio.server(handlers=[_Discovery()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    path = folder / "bootstrap.yaml"
    bootstrap = Bootstrap(
        node="peer", zone="z0", role="sidecar", servers=[("127.0.0.1", port)], admin_port=0, cuts=cuts
    )
    path.write_text(bootstrap_yaml(bootstrap))
    envoy = await processes.start("envoy", envoy_command(path))
    try:
        async with asyncio.timeout(_LIMIT_S):
            return await got
    finally:
        await processes.stop(envoy)
        await server.stop(None)


async def measure(transport: str, engines: int, proxies: int, pools: int, *, cuts: bool) -> StormRow:
    """One row."""
    async with ChildProcesses() as processes, aiohttp.ClientSession() as http:
        with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as name:
            folder = Path(name)
            first = folder / "first-request"
            first.write_bytes(await first_request(processes, folder, cuts=cuts))
            policies = folder / "policies"
            policies.mkdir()
            (policies / "fleet.yaml").write_text(
                pool_documents(pools, engines, functools.partial(_endpoint, pools=pools), probe={"enabled": False})
            )
            command = [str(Path(sys.executable).with_name("switchgear")), "serve", "-f", str(policies)]
            command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--transport", transport]
            server = await processes.start("server", command, ready_within_s=_LIMIT_S)
            rss_bytes, cpu_s = resident_bytes(server.pid), cpu_seconds(server.pid)
            ask = {
                "port": int(server.ready["xds"].rpartition(":")[2]),
                "peers": proxies,
                "zones": [f"z{number}" for number in range(ZONES)],
                "first": str(first),
                "limit_s": _STORM_LIMIT_S,
            }
            async with _peers(ask) as stdout:
                storm = await _event(stdout, "connected", _STORM_LIMIT_S + _LIMIT_S)
                storm_cpu_s = cpu_seconds(server.pid) - cpu_s
                await asyncio.sleep(3.0)
                kb = (resident_bytes(server.pid) - rss_bytes) / 1024 / proxies
                cpu_s, began_s = cpu_seconds(server.pid), time.monotonic()
                await asyncio.sleep(5.0)
                idle_percent = 100 * (cpu_seconds(server.pid) - cpu_s) / (time.monotonic() - began_s)
                last_ms, cpu_ms = [], []
                if storm["configured"] == proxies:
                    for number in range(EJECTIONS):
                        cpu_s, began_s = cpu_seconds(server.pid), time.monotonic()
                        await _order(http, server.ready["admin"], f"pool-0/e{number * pools}")
                        event = await _event(stdout, "push", _LIMIT_S)
                        assert event["ejected"] == number + 1, event
                        last_ms.append(1e3 * (event["last_at_s"] - began_s))
                        await asyncio.sleep(0.5)
                        cpu_ms.append(1e3 * (cpu_seconds(server.pid) - cpu_s))
    return StormRow(
        transport=transport,
        engines=engines,
        proxies=proxies,
        pools=pools,
        cuts=cuts,
        configured=storm["configured"],
        storm_s=storm["last_s"] or float("nan"),
        storm_cpu_s=storm_cpu_s,
        cpu_ms_per_proxy=1e3 * storm_cpu_s / proxies,
        kb_per_proxy=kb,
        ejection_ms_p50=median(last_ms) if last_ms else float("nan"),
        ejection_ms_max=max(last_ms, default=float("nan")),
        ejection_cpu_ms=median(cpu_ms) if cpu_ms else float("nan"),
        idle_percent=idle_percent,
    )


@contextlib.asynccontextmanager
async def _peers(ask: dict[str, Any]) -> Any:
    """The process of the simulated Envoys: its stdout."""
    peers = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.storm_peers", json.dumps(ask), stdout=asyncio.subprocess.PIPE
    )
    try:
        yield peers.stdout
    finally:
        peers.kill()
        await peers.wait()


async def _event(stdout: asyncio.StreamReader, name: str, limit_s: float) -> dict[str, Any]:
    async with asyncio.timeout(limit_s):
        while line := await stdout.readline():
            event: dict[str, Any] = json.loads(line)
            if event["event"] == name:
                return event
    raise RuntimeError("the peers' process ended early")


async def _order(http: aiohttp.ClientSession, admin: str, engine: str) -> None:
    body = {"engine": engine, "action": "eject", "for_s": 600.0, "reason": "benchmark", "force": True}
    async with http.post(f"http://{admin}/v1/orders", json=body) as answer:
        if answer.status != 201:
            raise RuntimeError(f"{answer.status}: {await answer.text()}")


def _endpoint(number: int, *, pools: int) -> dict[str, object]:
    """An engine that is never asked."""
    return {
        "name": f"e{number}",
        "address": f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        "port": 8000,
        "zone": f"z{number // pools % ZONES}",
    }


COLUMNS: Final[Sequence[ResultColumn[StormRow]]] = (
    ResultColumn(heading="transport", cell=lambda row: row.transport, left=True),
    ResultColumn(heading="engines", cell=lambda row: f"{row.engines}"),
    ResultColumn(heading="proxies", cell=lambda row: f"{row.configured} of {row.proxies}"),
    ResultColumn(heading="cuts", cell=lambda row: "yes" if row.cuts else "no"),
    ResultColumn(heading="storm", cell=lambda row: f"{row.storm_s:.1f} s"),
    ResultColumn(heading="CPU/proxy", cell=lambda row: f"{row.cpu_ms_per_proxy:.1f} ms"),
    ResultColumn(heading="memory/proxy", cell=lambda row: f"{row.kb_per_proxy:.0f} KB"),
    ResultColumn(
        heading="ejection p50 (max)", cell=lambda row: f"{row.ejection_ms_p50:.0f} ms ({row.ejection_ms_max:.0f})"
    ),
    ResultColumn(heading="CPU/ejection", cell=lambda row: f"{row.ejection_cpu_ms:.0f} ms"),
    ResultColumn(heading="idle", cell=lambda row: f"{row.idle_percent:.1f} %"),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print."""
    parser = option_parser("storm", __doc__)
    parser.add_argument("--engines", type=int)
    parser.add_argument("--proxies", type=int)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--transport", choices=TRANSPORTS, nargs="+", default=list(TRANSPORTS))
    parser.add_argument("--no-cuts", action="store_true", help="proxies that cannot cut requests on hung engines")
    options = parser.parse_args(argv)
    sizes: Sequence[tuple[int, int, int]] = SIZES
    if options.engines and options.proxies:
        sizes = ((options.engines, options.proxies, options.pools),)
    rows = [
        asyncio.run(measure(transport, *size, cuts=not options.no_cuts))
        for size in sizes
        for transport in options.transport
    ]
    table = result_table("first connections of a fleet, and ejections", COLUMNS, rows)
    return publish([table], options.json, {"rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
