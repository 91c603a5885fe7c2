"""What small runs cost now, against the committed figures, in runs of a fixed loop of the same process.

CPU time only, the least of several processes: other work only adds. ``--record`` writes the figures to compare
with; a change that makes something dearer on purpose records them in the same commit.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import commands, decide_loop, fanout
from benchmarks.harness import RESULTS, ResultColumn, measured_in_child, option_parser, publish, result_table
from benchmarks.policy_to_snapshot import PolicyPipeline
from engine.report import Verdict

GROWN: Final = 4 / 3
"""A cost above this multiple of the committed one is a regression, on the machine that recorded it."""

RUNS: Final = 3
MORE_RUNS: Final = 6
"""As many again, at most, while something looks grown, and as many after those while it is above the bound."""

REPLAYS: Final = 3
"""Of the same rounds: a machine's speed changes from one second to the next."""

WITH_PEERS: Final = frozenset({"grpc", "h2"})
"""Groups whose server shares the machine with a process of peers, so their fixed loop runs next to one, too."""

COMMITTED: Final = RESULTS / "committed_costs.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostGrowthRow:
    """One cost: multiples of the fixed loop, now and as committed (None: not committed)."""

    what: str
    now: float
    committed: float | None

    @property
    def growth(self) -> float | None:
        """The multiple of the committed cost."""
        return None if self.committed is None else self.now / self.committed


def fixed_loop() -> int:
    """Some 20 ms of what our code does most: small objects, dicts, strings, bytes, sorting, JSON."""
    found: dict[str, tuple[int, ...]] = {}
    for number in range(6_000):
        name = f"engine-{number % 500}"
        found[name] = (*found.get(name, ())[-3:], number)
    lines = [json.dumps({"name": name, "calls": calls}).encode() for name, calls in sorted(found.items())]
    return sum(len(json.loads(line)["calls"]) for line in lines) + len(b"".join(lines))


def cpu_s(call: Callable[[], object]) -> float:
    """CPU seconds of a call in this process."""
    began_s = time.process_time()
    call()
    return time.process_time() - began_s


def snapshot_costs() -> Mapping[str, float]:
    """CPU seconds from policy text to snapshots: 20 pools of 100 engines."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        fleet = PolicyPipeline(Path(folder), pools=20, engines=100)
        cold_s = cpu_s(fleet.reload)
        edits_s, verdicts_s = [], []
        for edit in range(6):
            fleet.write(edit, slots=17 + edit)
            edits_s.append(cpu_s(fleet.reload))
            verdict = Verdict.DEAD if edit % 2 == 0 else Verdict.READY
            verdicts_s.append(cpu_s(lambda pool=edit, said=verdict: fleet.report(pool, said)))  # type: ignore[misc]
    return {"cold start, 20 pools": cold_s, "one file edited": min(edits_s), "one verdict": min(verdicts_s)}


def round_costs() -> Mapping[str, float]:
    """CPU seconds of a round of telemetry, and of one with translation: 300 engines, 300 proxies."""
    row = decide_loop.measure(decide_loop.FleetSize(engines=300, proxies=300, pools=3), 30, replays=REPLAYS)
    scale = decide_loop.ROUND_S / 100
    return {"one round": row.loop_core_percent * scale, "one round, translated": row.whole_core_percent * scale}


def transport_costs(transport: str) -> Mapping[str, float]:
    """CPU seconds of 100 delta streams: until all are configured, and of one push to all."""
    row = asyncio.run(fanout.measure(transport, 100, 15))
    return {
        f"100 streams configured, {transport}": row.storm_cpu_ms / 1e3,
        f"one push to 100 streams, {transport}": row.cpu_ms_per_push / 1e3,
    }


def command_costs() -> Mapping[str, float]:
    """CPU seconds of a command, start included."""
    return {"switchgear translate": commands.child_cpu_s(["-m", "xds_server", *commands.COMMANDS["translate"]])}


COSTS: Final[Mapping[str, Callable[[], Mapping[str, float]]]] = {
    "snapshot": snapshot_costs,
    "round": round_costs,
    "grpc": lambda: transport_costs("grpc"),
    "h2": lambda: transport_costs("h2"),
    "command": command_costs,
}
"""Each is measured in processes of its own."""


@contextmanager
def while_another_computes() -> Iterator[None]:
    """Run what is inside while another process computes: two processes may share one core's units."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def measured(name: str) -> Mapping[str, float]:
    """The costs of one group as multiples of the fixed loop, which runs before and after them."""

    def loops() -> list[float]:
        with while_another_computes() if name in WITH_PEERS else nullcontext():
            return [cpu_s(fixed_loop) for _ in range(10)]

    loops_s = loops()
    costs_s = COSTS[name]()
    loops_s += loops()
    return {what: cost_s / min(loops_s) for what, cost_s in costs_s.items()}


def least(name: str, runs: int, known: Mapping[str, float]) -> dict[str, float]:
    """The least of ``known`` and of this many runs, each in a process of its own."""
    found = dict(known)
    for _ in range(runs):
        for what, cost in measured_in_child("benchmarks.regressions", name).items():
            found[what] = min(cost, found.get(what, cost))
    return found


def grown(rows: Sequence[CostGrowthRow], bound: float = GROWN) -> list[CostGrowthRow]:
    """The rows whose cost grew beyond the bound."""
    return [row for row in rows if row.growth is not None and row.growth > bound]


def rows_of(costs: Mapping[str, float], committed: Mapping[str, float]) -> list[CostGrowthRow]:
    """A row for each cost."""
    return [CostGrowthRow(what=what, now=now, committed=committed.get(what)) for what, now in costs.items()]


def python_version() -> str:
    """Major and minor version: another interpreter has other ratios."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def committed_costs(path: Path) -> Mapping[str, float]:
    """The committed costs for this Python; empty, with a line, when there are none."""
    record: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"python": "", "costs": {}}
    if record["python"] == python_version():
        costs: Mapping[str, float] = record["costs"]
        return costs
    print(f"not compared: {path} was recorded with Python {record['python'] or '-'}, this is {python_version()}")
    return {}


COLUMNS: Final[Sequence[ResultColumn[CostGrowthRow]]] = (
    ResultColumn(heading="cost", cell=lambda row: row.what, left=True),
    ResultColumn(heading="loops now", cell=lambda row: f"{row.now:.2f}"),
    ResultColumn(
        heading="loops committed", cell=lambda row: "-" if row.committed is None else f"{row.committed:.2f}"
    ),
    ResultColumn(heading="growth", cell=lambda row: "-" if row.growth is None else f"{row.growth:.2f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, compare; 1 when a cost grew beyond the bound."""
    parser = option_parser("regressions", __doc__)
    parser.add_argument("--record", action="store_true", help="write the figures to compare with from now on")
    parser.add_argument("--bound", type=float, default=GROWN, help="allowed multiple of the committed cost")
    parser.add_argument("--measure", choices=list(COSTS), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.measure:
        print(json.dumps(measured(options.measure)))
        return 0
    committed = {} if options.record else committed_costs(COMMITTED)
    rows: list[CostGrowthRow] = []
    for name in COSTS:
        costs = least(name, RUNS + MORE_RUNS if options.record else RUNS, {})
        for limit in (*[GROWN] * MORE_RUNS, *[options.bound] * MORE_RUNS):
            if not grown(rows_of(costs, committed), limit):
                break
            costs = least(name, 1, costs)
        rows += rows_of(costs, committed)
    record = {"python": python_version(), "costs": {row.what: round(row.now, 3) for row in rows}}
    table = result_table("costs in runs of a fixed loop of Python", COLUMNS, rows)
    return publish(
        [table], COMMITTED if options.record else options.json, record, met=not grown(rows, options.bound)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
