"""Signals: cost of access logs and load reports for the control plane, through its real port.

The server runs in its own process and folds what proxies send, ten times a second, into traffic of a pool of
1 000 engines; the proxies are another process. The cost is processor time of the server per entry (or report), and
from it the share of a core at the rate of the target, so that a busy machine, where proxies fall behind, does not
flatter it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import grpc
from envoy_data_plane.envoy.service.accesslog.v3 import StreamAccessLogsMessage

from benchmarks.harness import ResultColumn, measured_in_child, option_parser, publish, result_table
from benchmarks.signals_peers import ENGINES, POOL, log_messages, place
from policies.load import load
from policies.model import PolicySet
from xds_server.metrics.metric_registry import Metrics
from xds_server.telemetry import Telemetry
from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.transport import H2Server

TARGET_CORE_PERCENT: Final = 30.0
LOOK_EACH_S: Final = 0.1
SETTLE_S: Final = 4.0
DURATION_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryLoad:
    """What is sent: ``proxies`` with ``size`` entries or engines in a message each ``interval_s``."""

    name: str
    kind: str
    proxies: int
    size: int
    interval_s: float
    target: bool = True

    @property
    def per_s(self) -> float:
        """Entries, or load reports, per second."""
        messages = self.proxies / self.interval_s
        return messages * self.size if self.kind == "logs" else messages


LOADS: Final = (
    TelemetryLoad(name="access logs of 8 gateways", kind="logs", proxies=8, size=62, interval_s=0.1),
    # Nearly a message per call. Unsampled it is beyond the budget, which is what the sampling is for.
    TelemetryLoad(
        name="access logs of 250 sidecars", kind="logs", proxies=250, size=2, interval_s=0.1, target=False
    ),
    TelemetryLoad(name="load reports of 1000 proxies", kind="loads", proxies=1_000, size=4, interval_s=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryCostRow:
    """One load. ``core_percent`` is what the wanted rate costs, ``done_per_s`` the rate that was reached.

    ``sampling`` is the share of calls that the server asks for at this load; the proxies here do not follow it.
    """

    name: str
    transport: str
    wanted_per_s: float
    done_per_s: float
    messages_per_s: float
    cpu_us_each: float
    core_percent: float
    idle_percent: float
    sampling: float


def _policies() -> PolicySet:
    endpoints = [
        {"address": place(n)[0], "port": place(n)[1], "name": f"e{n}", "zone": "a"} for n in range(ENGINES)
    ]
    documents = [
        {"kind": "EnginePool", "metadata": {"name": POOL}, "spec": {"model": "m", "endpoints": endpoints}},
        {
            "kind": "ModelRoute",
            "metadata": {"name": "chat"},
            "spec": {"listener": {"port": 8080}, "pools": [{"pool": POOL}]},
        },
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policies.yaml"
        texts = (json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **one}) for one in documents)
        path.write_text("\n---\n".join(texts))
        return load([path])


async def _grpc(telemetry: Telemetry) -> tuple[int, Callable[[], Awaitable[None]]]:
    """The services on grpc.aio: the port, and how to stop."""
    server = grpc.aio.server(handlers=telemetry.handlers())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, lambda: server.stop(0)


async def _h2(telemetry: Telemetry) -> tuple[int, Callable[[], Awaitable[None]]]:
    """The services on our own transport: the port, and how to stop."""
    server = H2Server(telemetry.services(), host="127.0.0.1", port=0)
    return await server.start(), server.stop


TRANSPORTS: Final = {"grpc": _grpc, "h2": _h2}


async def measure(load_: TelemetryLoad, transport: str) -> TelemetryCostRow:
    """One row, with the server in this process."""
    metrics = Metrics()
    telemetry = Telemetry(metrics)
    telemetry.watch(_policies())
    port, stop = await TRANSPORTS[transport](telemetry)

    async def looking() -> None:
        while True:
            telemetry.traffic(time.monotonic())
            await asyncio.sleep(LOOK_EACH_S)

    looks = asyncio.create_task(looking())

    def count() -> float:
        name = "entries" if load_.kind == "logs" else "load_reports"
        return metrics.registry.get_sample_value(f"switchgear_telemetry_{name}_total") or 0.0

    idle_s = time.process_time()
    await asyncio.sleep(1.0)
    idle_s = time.process_time() - idle_s
    command = [sys.executable, "-m", "benchmarks.signals_peers", str(port), load_.kind]
    command += [str(load_.proxies), str(load_.size), str(load_.interval_s)]
    peers = await asyncio.create_subprocess_exec(*command)
    try:
        while not count():
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE_S)
        done, cpu_s, began_s = count(), time.process_time(), time.monotonic()
        await asyncio.sleep(DURATION_S)
        done, cpu_s, took_s = count() - done, time.process_time() - cpu_s, time.monotonic() - began_s
        seen = telemetry.traffic(time.monotonic())[POOL]
        if len(seen.proxies) != load_.proxies:
            raise RuntimeError(f"{len(seen.proxies)} of {load_.proxies} proxies were heard")
    finally:
        peers.kill()
        await peers.wait()
        looks.cancel()
        telemetry.stop()
        await stop()
    each_s = cpu_s / done
    per_message = load_.size if load_.kind == "logs" else 1
    return TelemetryCostRow(
        name=load_.name,
        transport=transport,
        wanted_per_s=load_.per_s,
        done_per_s=done / took_s,
        messages_per_s=done / took_s / per_message,
        cpu_us_each=each_s * 1e6,
        core_percent=each_s * load_.per_s * 100,
        idle_percent=idle_s * 100,
        sampling=min(telemetry.sampling.values(), default=1.0),
    )


def decode_ratio(entries: int = 50) -> dict[str, float]:
    """Microseconds to parse a batch with our classes and with envoy-data-plane's own."""
    messages = log_messages("proxy", entries, random.Random(0))
    next(messages)  # the first has the node in it
    batch = next(messages)

    def took_us(parse: Callable[[bytes], object], repeats: int) -> float:
        times = []
        for _ in range(5):
            began_s = time.perf_counter()
            for _ in range(repeats):
                parse(batch)
            times.append((time.perf_counter() - began_s) / repeats * 1e6)
        return median(times)

    derived = took_us(AccessLogs.FromString, 2_000)
    own = took_us(StreamAccessLogsMessage.parse, 20)
    return {"entries": entries, "derived_us": derived, "envoy_data_plane_us": own, "ratio": own / derived}


COLUMNS: Final[Sequence[ResultColumn[TelemetryCostRow]]] = (
    ResultColumn(heading="load", cell=lambda row: row.name, left=True),
    ResultColumn(heading="transport", cell=lambda row: row.transport, left=True),
    ResultColumn(heading="wanted", cell=lambda row: f"{row.wanted_per_s:.0f}/s"),
    ResultColumn(heading="reached", cell=lambda row: f"{row.done_per_s:.0f}/s"),
    ResultColumn(heading="messages", cell=lambda row: f"{row.messages_per_s:.0f}/s"),
    ResultColumn(heading="CPU each", cell=lambda row: f"{row.cpu_us_each:.1f} us"),
    ResultColumn(heading="of a core at the wanted rate", cell=lambda row: f"{row.core_percent:.1f} %"),
    ResultColumn(heading="asked for", cell=lambda row: f"{row.sampling:.0%}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 when one load costs more than the target, 0 otherwise."""
    parser = option_parser("signals", __doc__)
    parser.add_argument("--measure", nargs=2, metavar=("LOAD", "TRANSPORT"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure is not None:
        number, transport = options.measure
        print(json.dumps(asdict(asyncio.run(measure(LOADS[int(number)], transport)))))
        return 0
    asked = [(number, transport) for number in range(len(LOADS)) for transport in TRANSPORTS]
    rows = [
        TelemetryCostRow(**measured_in_child("benchmarks.signals", str(number), transport))
        for number, transport in asked
    ]
    decode = decode_ratio()
    parsing = (
        f"parsing {decode['entries']:.0f} entries: {decode['derived_us']:.0f} us; "
        f"envoy-data-plane's own classes {decode['envoy_data_plane_us']:.0f} us ({decode['ratio']:.0f} x)"
    )
    table = result_table(f"Signals: {ENGINES} engines, proxies in another process", COLUMNS, rows)
    aimed = [row for (number, _), row in zip(asked, rows, strict=True) if LOADS[number].target]
    answer = {
        "target_core_percent": TARGET_CORE_PERCENT,
        "rows": [asdict(row) for row in rows],
        "decode": decode,
    }
    met = all(row.core_percent <= TARGET_CORE_PERCENT for row in aimed)
    return publish([table, parsing], options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
