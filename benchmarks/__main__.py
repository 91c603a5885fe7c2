"""``python -m benchmarks [NAME...]``: run all benchmarks, or the named ones, each with its own defaults.

Each prints a table and writes JSON to ``benchmarks/results/``. The exit code is 1 when one missed its target.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

NAMES: Final = ("eds_encode", "policy_to_snapshot", "fanout", "fault_to_quiet", "detect", "agents")


def main(argv: Sequence[str]) -> int:
    """Run these, or all; 0 when every target was met, 1 when not, 2 for a name that does not exist."""
    console = Console()
    unknown = [name for name in argv if name not in NAMES]
    if unknown:
        console.print(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
    missed = []
    for name in argv or NAMES:
        console.rule(name)
        if importlib.import_module(f"benchmarks.{name}").main([]):
            missed.append(name)
    if missed:
        console.print(f"targets missed: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
