"""``python -m benchmarks [NAME...]``: run all short benchmarks, or the named ones, each with its own defaults.

Each prints a table, and all but ``source_tree`` write JSON to ``benchmarks/results/``. The exit code is 1 when one
missed its target.
``python -m benchmarks NAME --option ...`` passes options on to one of them; ``affinity``, ``failover``,
``floods``, ``mix_change``, ``simulator``, ``soak`` and ``storm`` are long, and ``gpu_calls`` needs a GPU: they
only run when they are named.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

NAMES: Final = (
    "eds_encode",
    "policy_to_snapshot",
    "fanout",
    "fault_to_quiet",
    "detect",
    "pods",
    "agents",
    "request_cost",
    "signals",
    "decide_loop",
    "scrape",
    "commands",
    "resources",
    "regressions",
    "source_tree",
)
LONG: Final = (
    "affinity",
    "failover",
    "floods",
    "gpu_calls",
    "mix_change",
    "quota_division",
    "simulator",
    "soak",
    "storm",
)
"""Long, or not for every machine."""


def main(argv: Sequence[str]) -> int:
    """Run these, or all short ones; 0 when every target was met, 1 when not, 2 for a name that does not exist."""
    console = Console()
    names, options = list(argv), []
    if len(argv) > 1 and argv[1].startswith("-"):
        names, options = [argv[0]], list(argv[1:])
    known = (*NAMES, *LONG)
    unknown = [name for name in names if name not in known]
    if unknown:
        console.print(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    missed = []
    for name in names or NAMES:
        console.rule(name)
        if importlib.import_module(f"benchmarks.{name}").main(options):
            missed.append(name)
    if missed:
        console.print(f"targets missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
