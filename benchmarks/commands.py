"""CPU of commands on one small policy file, as a ratio to a Python that imports click and pydantic.

Each runs in a process of its own; the row has the least of several runs, because other processes only add time.
"""

import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final

from benchmarks.harness import ResultColumn, option_parser, publish, result_table

POLICY: Final = "policies/examples/single-pool.yaml"
OTHER: Final = "policies/examples/three-zones.yaml"
BASE: Final = ("-c", "import click, pydantic")
COMMANDS: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "status --help": ("status", "--help"),
        "validate": ("validate", "-f", POLICY),
        "explain": ("explain", "limits.maxWait", "-f", POLICY),
        "translate": ("translate", "-f", POLICY),
        "diff": ("diff", "-f", POLICY, "--against", OTHER),
    }
)
RUNS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRow:
    """CPU seconds (user and system) of one command, and the multiple of the base."""

    command: str
    cpu_s: float
    ratio: float


def cpu_s(arguments: Sequence[str]) -> float:
    """Least CPU seconds of a Python with these arguments."""
    return min(child_cpu_s(arguments) for _ in range(RUNS))


def child_cpu_s(arguments: Sequence[str]) -> float:
    """CPU seconds of one run of a Python with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


COLUMNS: Final[Sequence[ResultColumn[CommandRow]]] = (
    ResultColumn(heading="command", cell=lambda row: row.command),
    ResultColumn(heading="CPU", cell=lambda row: f"{row.cpu_s:.2f} s"),
    ResultColumn(heading="ratio", cell=lambda row: f"{row.ratio:.1f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure and print; 0, as there is no target."""
    parser = option_parser("commands", __doc__)
    options = parser.parse_args(argv)
    base_s = cpu_s(BASE)
    measured = {name: cpu_s(["-m", "xds_server", *words]) for name, words in COMMANDS.items()}
    rows = [CommandRow(command=name, cpu_s=took_s, ratio=took_s / base_s) for name, took_s in measured.items()]
    table = result_table("CPU of commands", COLUMNS, rows)
    record = {"benchmark": "commands", "base_s": base_s, "rows": [asdict(row) for row in rows]}
    return publish([table], options.json, record)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
