"""``python -m benchmarks soak [--minutes 15] [--seed 1]``: 0 when every invariant held, 1 when not."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.soak.growth_rate import BOUND_PERCENT_PER_H, GrowthVerdict
from benchmarks.soak.soak_run import FULL, OWN, SMALL, MeasureGrowth, SoakResult, soak
from benchmarks.soak.soak_testbed import ControlPlanes

RESULTS: Final = Path(__file__).parents[1] / "results" / "soak.json"
MOST_SAID: Final = 20
_MIB: Final = 2**20


def main(argv: Sequence[str]) -> int:
    """Soak, print what was seen and keep it."""
    asked = _parser().parse_args(argv)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    with _folder(asked.evidence) as folder:
        seen = asyncio.run(
            soak(
                asked.minutes * 60,
                asked.seed,
                folder,
                fleet=SMALL if asked.small else FULL,
                control_planes=ControlPlanes(count=asked.replicas, other_python=asked.other_python),
                enemy=asked.enemy,
                verbose=asked.evidence is not None,
            )
        )
    _say(seen, Console())
    asked.results.write_text(results_json(asdict(seen)))
    return 1 if seen.findings else 0


def results_json(results: Mapping[str, Any]) -> str:
    """The results as JSON, with one line for each field and each item of a list."""
    lines = (f"{json.dumps(name)}: {_field_json(value)}" for name, value in results.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _field_json(value: Any) -> str:
    if not isinstance(value, list | tuple) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak")
    parser.add_argument("--minutes", type=float, default=15.0, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="decides what goes wrong, and when (%(default)s)")
    parser.add_argument("--small", action="store_true", help="a fleet that takes about half a core")
    parser.add_argument("--replicas", type=int, default=1, help="control planes, killed in turn (%(default)s)")
    parser.add_argument(
        "--other-python",
        type=_python,
        help="Python of an environment with another version: control planes change version with each start",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="file for what was seen")
    parser.add_argument(
        "--evidence", type=Path, help="folder to keep every log in, those of Envoys at length; it must be new"
    )
    parser.add_argument(
        "--enemy",
        action="store_true",
        help="attack all the while: a hostile proxy, agent and operator's host, by the seed",
    )
    return parser


def _python(text: str) -> Path:
    path = Path(text)
    if not os.access(path, os.X_OK) or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a program")
    return path


@contextlib.contextmanager
def _folder(asked: Path | None) -> Iterator[Path]:
    if asked is not None:
        asked.mkdir(parents=True)
        yield asked
        return
    with tempfile.TemporaryDirectory(prefix="switchgear-soak-") as made:
        yield Path(made)


def _say(seen: SoakResult, console: Console) -> None:
    troubles = ", ".join(f"{count} {what}" for what, count in sorted(seen.troubles.items()))
    console.print(f"{seen.length_s:g} s with seed {seen.seed}: {troubles}", markup=False)
    answered = ", ".join(f"{name} {value:g} s" for name, value in seen.answered_s.items())
    console.print(
        f"{seen.requests} requests, {seen.streams} of them streams; {len(seen.lost)} lost; answers: {answered}",
        markup=False,
    )
    if seen.starved_s or seen.excused:
        console.print(
            f"CPU starved for {seen.starved_s:g} s; {len(seen.excused)} requests without a complete answer "
            "are not counted as lost: CPU starved, no healthy engine, or begun on an Envoy or engine that ended",
            style="yellow",
            markup=False,
        )
        for loss in seen.excused[:MOST_SAID]:
            console.print(f"  {loss}", style="yellow", markup=False)
    console.print(_growth_table(seen.grown))
    console.print(_verdict(seen.grown), markup=False)
    for finding in seen.findings[:MOST_SAID]:
        console.print(f"  {finding}", style="red", markup=False)
    if len(seen.findings) > MOST_SAID:
        console.print(f"  and {len(seen.findings) - MOST_SAID} more", style="red")


def _verdict(grown: Sequence[MeasureGrowth]) -> str:
    """Processes whose growth is shown to be below the bound, and the others."""
    known = sorted({one.process for one in grown if one.measure == OWN})
    shown = [
        who
        for who in known
        if all(one.word is GrowthVerdict.BELOW for one in grown if one.process == who and one.measure == OWN)
    ]
    others = [who for who in known if who not in shown]
    bound = f"private memory growth below {BOUND_PERCENT_PER_H:g} % an hour"
    return f"{bound}: shown for {', '.join(shown) or 'none'}; not shown for {', '.join(others) or 'none'}"


def _growth_table(grown: Sequence[MeasureGrowth]) -> Table:
    table = Table("process", "measure", "level", "change", "over", "% an hour, 95 % interval", "verdict", box=None)
    for one in grown:
        found = one.growth
        in_bytes = one.measure.endswith("_bytes")
        between = "-" if found.low is None or found.high is None else f"{found.low:+.1f} to {found.high:+.1f}"
        table.add_row(
            one.process,
            one.measure.removesuffix("_bytes"),
            f"{found.level / _MIB:.1f} MiB" if in_bytes else f"{found.level:.0f}",
            f"{found.moved / _MIB:+.1f} MiB" if in_bytes else f"{found.moved:+.0f}",
            f"{found.over_s:.0f} s",
            between,
            one.climb or _said(one),
        )
    return table


def _said(one: MeasureGrowth) -> str:
    enough_s = one.growth.enough_s
    if one.word is not GrowthVerdict.UNKNOWN or enough_s is None:
        return one.word.value
    return f"{one.word.value}: {enough_s / 60:.0f} min would do"
