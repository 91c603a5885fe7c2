"""Cost of agents for the control plane: real server, agents in another process.

For each N the server runs with N engines in ten pools, with one agent each and without agents (and probes): the
difference is the cost of agents. Each agent has a connection and reports every second: ``busy`` ones a changed
report, ``idle`` ones the same.
"""

import asyncio
import functools
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from benchmarks.pool_documents import pool_documents
from benchmarks.process_usage import cpu_s as cpu_seconds
from benchmarks.process_usage import resident_bytes
from chaos.processes import ChildProcesses

AGENTS: Final = (100, 1000)
HEARTBEAT_S: Final = 1.0
POOLS: Final = 10
WINDOW_S: Final = 15.0
SETTLE_S: Final = 3.0
TARGET_PERCENT: Final = 25.0
_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUsage:
    """What the server needed: share of one core in percent, resident memory in MiB."""

    cpu_percent: float
    rss_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCostRow:
    """One fleet. ``reports_per_s`` is what the server took in; ``connect_s``: start to the last agent heard."""

    agents: int
    kind: str
    reports_per_s: float
    connect_s: float
    with_agents: ServerUsage
    without: ServerUsage

    @property
    def agents_percent(self) -> float:
        """Share of one core that the agents cost."""
        return self.with_agents.cpu_percent - self.without.cpu_percent


async def measure(count: int, kind: str, window_s: float) -> AgentCostRow:
    """One row."""
    async with ChildProcesses() as processes:
        without, _, _ = await _served(processes, "without", [None] * count, window_s)
        command = [sys.executable, "-m", "benchmarks.agents_many", str(count), str(HEARTBEAT_S), kind]
        agents = await processes.start("agents", command, ready_within_s=_LIMIT_S)
        with_agents, reports_per_s, connect_s = await _served(processes, "with", agents.ready["ports"], window_s)
    return AgentCostRow(
        agents=count,
        kind=kind,
        reports_per_s=reports_per_s,
        connect_s=connect_s,
        with_agents=with_agents,
        without=without,
    )


async def _served(
    processes: ChildProcesses, name: str, ports: Sequence[int | None], window_s: float
) -> tuple[ServerUsage, float, float]:
    """What a server needs for these engines, reports per second, and seconds until every agent was heard."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        policies = Path(folder) / "policies.yaml"
        policies.write_text(
            pool_documents(POOLS, len(ports), functools.partial(_endpoint, ports), probe={"enabled": False})
        )
        command = [str(Path(sys.executable).with_name("switchgear")), "serve", "-f", folder]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--first-reports", "60s"]
        started_s = time.monotonic()
        server = await processes.start(name, command, ready_within_s=_LIMIT_S)
        connect_s = time.monotonic() - started_s
        admin = server.ready["admin"]
        wanted = sum(port is not None for port in ports)
        connected = await _metric(admin, 'switchgear_agents{state="connected"}')
        if connected != wanted:
            raise RuntimeError(f"{connected:g} of {wanted} agents are connected")
        await asyncio.sleep(SETTLE_S)
        reports, cpu_s, began_s = await _reports(admin), cpu_seconds(server.pid), time.monotonic()
        await asyncio.sleep(window_s)
        cpu_s, elapsed_s = cpu_seconds(server.pid) - cpu_s, time.monotonic() - began_s
        reports = await _reports(admin) - reports
        load = ServerUsage(cpu_percent=100 * cpu_s / elapsed_s, rss_mib=resident_bytes(server.pid) / 2**20)
        await processes.stop(server)
    return load, reports / elapsed_s, connect_s


def _endpoint(ports: Sequence[int | None], number: int) -> dict[str, object]:
    """An unreachable engine, with a reachable agent where it has a port."""
    port = ports[number]
    agent = {} if port is None else {"agentPort": port}
    return {"name": f"e{number}", "address": "127.0.0.1", "port": 1 + number, "zone": f"z{number % 3}", **agent}


async def _reports(admin: str) -> float:
    return await _metric(admin, 'switchgear_engine_reports_total{source="agent"')


async def _metric(admin: str, prefix: str) -> float:
    """The sum of the samples that begin so."""

    def get() -> str:
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    lines = (await asyncio.to_thread(get)).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))


COLUMNS: Final[Sequence[ResultColumn[AgentCostRow]]] = (
    ResultColumn(heading="agents", cell=lambda row: f"{row.agents}"),
    ResultColumn(heading="kind", cell=lambda row: row.kind),
    ResultColumn(heading="reports/s", cell=lambda row: f"{row.reports_per_s:.0f}"),
    ResultColumn(heading="all heard", cell=lambda row: f"{row.connect_s:.1f} s"),
    ResultColumn(heading="CPU for agents", cell=lambda row: f"{row.agents_percent:.1f} %"),
    ResultColumn(heading="CPU in all", cell=lambda row: f"{row.with_agents.cpu_percent:.1f} %"),
    ResultColumn(
        heading="memory in all",
        cell=lambda row: (
            f"{row.with_agents.rss_mib:.0f} MiB (+{row.with_agents.rss_mib - row.without.rss_mib:.0f})"
        ),
    ),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when the most agents cost more of a core than the target."""
    parser = option_parser("agents", __doc__)
    parser.add_argument("--agents", type=int, nargs="+", default=list(AGENTS))
    parser.add_argument("--kind", nargs="+", choices=["busy", "idle"], default=["busy", "idle"])
    parser.add_argument("--window", type=float, default=WINDOW_S, help="seconds measured")
    options = parser.parse_args(argv)
    rows = [asyncio.run(measure(count, kind, options.window)) for count in options.agents for kind in options.kind]
    most = max(options.agents)
    met = all(row.with_agents.cpu_percent <= TARGET_PERCENT for row in rows if row.agents == most)
    table = result_table(f"agents on one control plane, a report each {HEARTBEAT_S:g} s", COLUMNS, rows)
    answer = {"target_percent": TARGET_PERCENT, "rows": [asdict(row) for row in rows]}
    return publish([table], options.json, answer, met=met)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
