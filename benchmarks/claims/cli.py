"""The table of claims, and its JSON."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.claims.claims import claims
from benchmarks.claims.live_results import retry_storm

RESULT: Final = Path("benchmarks/results/claims.json")
LIVE: Final = Path("benchmarks/results/failover")


def main(argv: Sequence[str]) -> int:
    """Print each claim beside what was found; 1 when the models do not bear one out."""
    parser = argparse.ArgumentParser(prog="benchmarks claims", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="where the result goes")
    parser.add_argument("--live", type=Path, default=LIVE, help="folder with results of the failover benchmark")
    asked = parser.parse_args(argv)
    found = list(claims(retry_storm(asked.live)))
    console = Console(width=150)
    table = Table(title="Published, and found here", show_lines=True)
    for column in ("claim", "published", "simulated", "live", "borne out"):
        table.add_column(column)
    for one in found:
        table.add_row(one.name, one.published, one.simulated, one.live or "not run", "yes" if one.holds else "NO")
    console.print(table)
    for plainly in dict.fromkeys(one.plainly for one in found):
        names = ", ".join(one.name for one in found if one.plainly == plainly)
        console.print(f"- {names}: {plainly}.", highlight=False)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False) + "\n")
    return 0 if all(one.holds for one in found) else 1
