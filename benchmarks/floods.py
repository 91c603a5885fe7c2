"""What each flood takes from others: verdicts, pushes, ``/readyz`` and telemetry, as ratios to calm.

One server with 50 honest proxies, 50 honest agents and the enemy, all on one host without identity. Calm and
flooded windows alternate, so other work on the machine slows both. In calm windows as many processes without
connections use a core as the enemy has in flooded ones: a ratio shows what the flood takes from the server, not
the cost of busy cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import grpc

from benchmarks.agents_many import report
from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from benchmarks.soak.attack_corpus import ENEMY, HALF_FIRST_MESSAGES, HALF_MESSAGES, proxy_attacks
from benchmarks.soak.enemy import ALL, Call
from benchmarks.soak.half_messages import DISCOVERY
from chaos.processes import ChildProcess, ChildProcesses
from engine.report import Verdict
from engine.watch_server import WATCH
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.telemetry.access_log_service import METHOD as ACCESS_LOGS
from xds_server.telemetry.access_log_service import AccessLogs
from xds_server.translate.access_log_config import LOG_NAME
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse

FLOODS: Final = (*proxy_attacks(ENEMY), HALF_MESSAGES, HALF_FIRST_MESSAGES, ALL)
ENEMY_PROCESSES: Final = {HALF_MESSAGES: 2, HALF_FIRST_MESSAGES: 2, ALL: 3}
"""The enemy's own, and one for each kind of half messages."""

PEERS: Final = 50
CYCLES: Final = 4
ROUNDS: Final = 4
READS: Final = 10
TARGET: Final = 2.0
CHART_MIB: Final = 1024
"""Memory limit of the Helm chart."""

MEASURES: Final = ("verdict", "push", "readyz", "telemetry")
_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.005
_HEARTBEAT_S: Final = 1.0
_LOOK_EACH_S: Final = 0.05
_MIB: Final = 2**20
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class FloodRow:
    """One flood: medians in seconds when calm and flooded, and the highest memory of the server.

    ``waits``: how often a peer had used up its CPU time.
    """

    flood: str
    calm_s: Mapping[str, float]
    flooded_s: Mapping[str, float]
    peak_mib: float
    waits: float

    def ratio(self, measure: str) -> float:
        """Flooded to calm."""
        return self.flooded_s[measure] / self.calm_s[measure]

    @property
    def worst(self) -> float:
        """The highest ratio."""
        return max(map(self.ratio, MEASURES))


class HonestAgent(grpc.GenericRpcHandler):
    """Reports READY each second, and HUNG at once after ``hang``."""

    def __init__(self) -> None:
        self._hung = asyncio.Event()
        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(self._watch)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """The handler, if it is our method."""
        return self._handler if handler_call_details.method == WATCH else None

    def hang(self) -> None:
        """Report the engine as hung from now on."""
        self._hung.set()

    async def _watch(self, _request: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        rng = random.Random(1)
        for sequence in itertools.count(1):
            verdict = Verdict.HUNG if self._hung.is_set() else Verdict.READY
            yield report("boot", sequence, rng, verdict)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await (asyncio.sleep(_HEARTBEAT_S) if verdict is Verdict.HUNG else self._hung.wait())


@dataclass(slots=True, kw_only=True)
class HonestProxy:
    """A proxy that accepts everything; ``accepted`` counts its accepted endpoints."""

    node: str
    discovery: Call
    logs: Call
    accepted: int = 0

    async def behave(self) -> None:
        """Subscribe, and accept every response."""
        for type_url, names in ((CLUSTER, ()), (ENDPOINT, ("chat",))):
            request = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names)
            request.node.id = self.node
            await self.discovery.write(request.SerializeToString())
        while isinstance(data := await self.discovery.read(), bytes):
            answer = DeltaDiscoveryResponse.FromString(data)
            confirmed = DeltaDiscoveryRequest(type_url=answer.type_url, response_nonce=answer.nonce)
            await self.discovery.write(confirmed.SerializeToString())
            self.accepted += answer.type_url == ENDPOINT


@dataclass(kw_only=True)
class HonestFleet:
    """Honest proxies and agents of one server."""

    admin: str
    proxies: Sequence[HonestProxy]
    agents: list[HonestAgent]
    samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    async def round(self, window: str) -> None:
        """Take one sample of each measure; ``/readyz`` several."""
        before = [one.accepted for one in self.proxies]
        began_s = time.monotonic()
        self.agents.pop().hang()
        verdict_s = await self._until(
            lambda: any(one.accepted > was for one, was in zip(self.proxies, before, strict=True))
        )
        push_s = await self._until(
            lambda: all(one.accepted > was for one, was in zip(self.proxies, before, strict=True))
        )
        self._add(window, "verdict", verdict_s - began_s)
        self._add(window, "push", push_s - began_s)
        for _ in range(READS):
            began_s = time.monotonic()
            await asyncio.to_thread(self._get, "/readyz")
            self._add(window, "readyz", time.monotonic() - began_s)
        began_s = reported_s = time.monotonic()
        await self._report()
        while not await self._heard(began_s):
            if time.monotonic() > began_s + _LIMIT_S:
                raise TimeoutError("telemetry of some proxies does not arrive")
            if time.monotonic() > reported_s + _HEARTBEAT_S:
                # The server may drop entries of a host; proxies send more.
                reported_s = time.monotonic()
                await self._report()
        self._add(window, "telemetry", time.monotonic() - began_s)

    async def _report(self) -> None:
        for proxy in self.proxies:
            await proxy.logs.write(log_message())

    def median_s(self, window: str, measure: str) -> float:
        """Of all samples so far."""
        return statistics.median(self.samples[window, measure])

    def _add(self, window: str, measure: str, value_s: float) -> None:
        self.samples.setdefault((window, measure), []).append(value_s)

    async def _until(self, true: Callable[[], bool]) -> float:
        give_up_at = time.monotonic() + _LIMIT_S
        while not true():
            if time.monotonic() > give_up_at:
                raise TimeoutError("some proxies get no endpoints")
            await asyncio.sleep(_POLL_S)
        return time.monotonic()

    async def _heard(self, since_s: float) -> bool:
        """Whether the telemetry of every proxy is younger than this."""
        lines = (await asyncio.to_thread(self._get, "/metrics")).splitlines()
        ages_s = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("switchgear_telemetry_age_seconds{")
            and 'signal="access_log"' in line
            and ENEMY not in line
        ]
        passed_s = time.monotonic() - since_s
        return len(ages_s) >= len(self.proxies) and all(age_s < passed_s for age_s in ages_s)

    async def waits(self) -> float:
        """How often a peer had used up its CPU time."""
        lines = (await asyncio.to_thread(self._get, "/metrics")).splitlines()
        return sum(
            float(one.rpartition(" ")[2]) for one in lines if one.startswith("switchgear_peer_waits_total{")
        )

    async def until_waits(self) -> None:
        """Return once a peer has used up its CPU time since now: a fast machine takes a while."""
        before, give_up_at = await self.waits(), time.monotonic() + _LIMIT_S
        while await self.waits() <= before:
            if time.monotonic() > give_up_at:
                raise TimeoutError("no message of the flood waits")
            await asyncio.sleep(_HEARTBEAT_S)

    def _get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.admin}{path}", timeout=_LIMIT_S) as answer:
            return str(answer.read().decode())


def log_message(node: str = "") -> bytes:
    """One entry; the first message of a stream names its node."""
    message = AccessLogs()
    if node:
        message.identifier.node.id, message.identifier.log_name = node, LOG_NAME
    message.http_logs.log_entry.add().common_properties.upstream_cluster = "chat"
    return bytes(message.SerializeToString())


@contextlib.asynccontextmanager
async def honest_fleet(processes: ChildProcesses, folder: Path) -> AsyncIterator[tuple[HonestFleet, ChildProcess]]:
    """A server with its honest peers, all connected."""
    async with contextlib.AsyncExitStack() as stack:
        agents = [HonestAgent() for _ in range(PEERS)]
        ports = []
        for agent in agents:
            server = grpc.aio.server(handlers=[agent], options=[("grpc.so_reuseport", 0)])
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            stack.push_async_callback(server.stop, None)
        (folder / "policies").mkdir()
        (folder / "policies" / "chat.yaml").write_text(_policies(ports))
        command = [sys.executable, "-m", "xds_server", "serve", "-f", str(folder / "policies")]
        command += ["--state-dir", str(folder / "state"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        child = await processes.start("serve", command, ready_within_s=_LIMIT_S)
        proxies = []
        for number in range(PEERS):
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(child.ready["xds"], options))
            node = f"honest-{number}"
            discovery: Call = channel.stream_stream(DISCOVERY)()
            logs: Call = channel.stream_stream(ACCESS_LOGS)()
            proxies.append(HonestProxy(node=node, discovery=discovery, logs=logs))
        behaving = [asyncio.create_task(one.behave()) for one in proxies]
        fleet = HonestFleet(admin=child.ready["admin"], proxies=proxies, agents=agents)
        try:
            await fleet._until(lambda: all(one.accepted for one in proxies))
            for one in proxies:
                await one.logs.write(log_message(one.node))
            yield fleet, child
            if any(one.done() for one in behaving) or any(one.logs.done() for one in proxies):
                raise RuntimeError("the server ended the stream of an honest proxy")
        finally:
            for task in behaving:
                task.cancel()
            await asyncio.wait(behaving)
            for one in proxies:
                one.logs.cancel()


async def measure(flood: str, cycles: int = CYCLES) -> FloodRow:
    """Calm and flooded windows in turn."""
    async with contextlib.aclosing(measurements(flood, cycles, ROUNDS)) as rows:
        return await anext(rows)


async def measurements(flood: str, cycles: int, rounds: int) -> AsyncGenerator[FloodRow]:
    """The same again and again, with one server; agents last for ``PEERS`` rounds."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as made:
        async with ChildProcesses() as processes, honest_fleet(processes, Path(made)) as (fleet, server):
            peaks = [0]
            looking = asyncio.create_task(_look(server.pid, peaks))
            idle = [sys.executable, "-c", "while True: pass"]
            enemy = [sys.executable, "-m", "benchmarks.soak.enemy", server.ready["xds"], server.ready["admin"]]
            numbers = itertools.count()
            await fleet.round("warm")
            try:
                while True:
                    fleet.samples.clear()
                    for _ in range(cycles):
                        for window, command in (("calm", idle), ("flooded", [*enemy, "--only", flood])):
                            within_s = None if window == "calm" else _LIMIT_S
                            count = ENEMY_PROCESSES.get(flood, 1) if window == "calm" else 1
                            others = [
                                await processes.start(
                                    f"{window}-{next(numbers)}", command, ready_within_s=within_s
                                )
                                for _ in range(count)
                            ]
                            if window == "flooded" and flood == ALL:
                                await fleet.until_waits()
                            await fleet.round("warm")
                            for _ in range(rounds):
                                await fleet.round(window)
                            for other in others:
                                await processes.stop(other)
                    if server.returncode is not None:
                        raise RuntimeError("the server ended")
                    yield FloodRow(
                        flood=flood,
                        calm_s={one: fleet.median_s("calm", one) for one in MEASURES},
                        flooded_s={one: fleet.median_s("flooded", one) for one in MEASURES},
                        peak_mib=peaks[0] / _MIB,
                        waits=await fleet.waits(),
                    )
            finally:
                looking.cancel()


async def _look(pid: int, peaks: list[int]) -> None:
    while True:
        peaks[0] = max(peaks[0], _resident_bytes(pid))
        await asyncio.sleep(_LOOK_EACH_S)


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _policies(agent_ports: Sequence[int]) -> str:
    """Unreachable engines with reachable agents; JSON is YAML."""
    endpoints = [
        {"name": f"e{number}", "address": "127.0.0.1", "port": 1 + number, "zone": "z", "agentPort": port}
        for number, port in enumerate(agent_ports)
    ]
    spec = {"model": "m", "endpoints": endpoints, "probe": {"enabled": False}}
    document = {"apiVersion": "switchgear.dev/v1alpha1", "kind": "EnginePool", "metadata": {"name": "chat"}}
    return json.dumps({**document, "spec": spec})


def _ratio_column(measure_name: str) -> ResultColumn[FloodRow]:
    return ResultColumn(
        heading=measure_name,
        cell=lambda row: f"{row.ratio(measure_name):.1f} ({1e3 * row.calm_s[measure_name]:.0f} ms)",
    )


COLUMNS: Final[Sequence[ResultColumn[FloodRow]]] = (
    ResultColumn(heading="flood", cell=lambda row: row.flood, left=True),
    *map(_ratio_column, MEASURES),
    ResultColumn(heading="peak memory", cell=lambda row: f"{row.peak_mib:.0f} MiB"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a flood takes more than the target."""
    parser = option_parser("floods", __doc__)
    parser.add_argument("--only", nargs="+", choices=FLOODS, default=list(FLOODS))
    parser.add_argument("--cycles", type=int, default=CYCLES, help="calm and flooded windows of each flood")
    options = parser.parse_args(argv)
    rows = [asyncio.run(measure(flood, options.cycles)) for flood in options.only]
    title = f"flooded to calm, medians of {options.cycles * ROUNDS} rounds of {PEERS} proxies and agents"
    table = result_table(title, COLUMNS, rows)
    record = {"target": TARGET, "rows": [{**asdict(row), "worst": row.worst} for row in rows]}
    met = all(row.worst <= TARGET and row.peak_mib < CHART_MIB for row in rows)
    return publish([table], options.json, record, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
