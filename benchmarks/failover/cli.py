"""``python -m benchmarks failover``: which cells, one after another, and what to make of the results."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import aiohttp
from rich.console import Console

from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_setting import EngineKind, ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell, run
from benchmarks.failover.failover_page import page
from benchmarks.failover.failover_scenarios import DEAD, DEAF, MIXTURES, MORE, SCENARIOS, SIX
from benchmarks.failover.result import FOLDER, PEER_FOLDER, counts, file_name, read, result, usual, write
from benchmarks.failover.result_tables import missed, table
from benchmarks.peers import PeersError
from chaos.lab.envoy_processes import NotReadyError
from chaos.processes import ProcessError
from tests.go_build import PartsError

GROUPS: Final = {
    "six": tuple(one.name for one in SIX),
    "more": tuple(one.name for one in MORE),
    "mixtures": tuple(one.name for one in MIXTURES),
    "dead": tuple(one.name for one in DEAD),
    "deaf": tuple(one.name for one in DEAF),
    "all": tuple(SCENARIOS),
}
QUICK: Final[dict[str, Any]] = {"before_s": 3.0, "fault_s": 6.0, "after_s": 4.0}
OVERHEAD_S: Final = 15.0
"""Time of a cell in addition to its arrivals: start, last answers, shutdown."""

_INTERRUPTED: Final = 130


def main(argv: Sequence[str]) -> int:
    """Run missing cells and print all results; 1: a target was missed or a run is invalid, 2: usage error."""
    options = _parser().parse_args(argv)
    console = Console(width=options.width)
    if options.page is not None:
        own, beside = (
            usual(read(sorted(folder.glob("*.json"))))
            for folder in (options.results, options.results / PEER_FOLDER.name)
        )
        page(own, options.page, beside)
        return 0
    try:
        cells = cells_of(options)
    except ValueError as problem:
        console.print(str(problem))
        return 2
    # Engines crash on command: aiohttp need not log their errors.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    try:
        done = _make(cells, options, console)
    except asyncio.CancelledError:
        console.print("interrupted; finished cells are kept, run the same command to continue")
        return _INTERRUPTED
    results = read(path for path in (options.results / file_name(cell) for cell in cells) if path.exists())
    console.print(table(results, "failover: goodput by arrival, latency and waste"))
    for one in results:
        name = f"{one['scenario']} {one['load_percent']:g} % {one['contestant']} seed {one['seed']}"
        if not counts(one):
            console.print(f"does not count: {name}: {'; '.join(one['bench']['problems'])}")
        elif missed(one):
            console.print(f"missed: {name}: {'; '.join(missed(one))}")
    bound = [one for one in results if counts(one) and one["contestant"].startswith("switchgear")]
    return int(not done or not all(map(counts, results)) or any(map(missed, bound)))


def cells_of(options: argparse.Namespace) -> list[ExperimentCell]:
    """The cells that are asked for, in the order they are made; ValueError names what does not exist."""
    names: list[str] = []
    for said in options.scenario.split(","):
        names += GROUPS.get(said, (said,))
    contestants = options.contestant.split(",")
    for wanted, known in ((names, SCENARIOS), (contestants, CONTESTANTS)):
        unknown = [one for one in wanted if one not in known]
        if unknown:
            raise ValueError(f"there is no {', '.join(unknown)}; there are {', '.join((*known, *GROUPS))}")
    wanted_setting = replace(ExperimentSetting(), **(QUICK if options.quick else {}))
    overrides = _overrides(options)
    return [
        ExperimentCell(
            scenario=SCENARIOS[name],
            contestant=CONTESTANTS[contestant],
            setting=replace(SCENARIOS[name].setting(wanted_setting), **overrides, load_percent=load, seed=seed),
        )
        for seed in options.seeds
        for load in options.load
        for name in dict.fromkeys(names)
        for contestant in contestants
    ]


def _make(cells: Sequence[ExperimentCell], options: argparse.Namespace, console: Console) -> bool:
    """Run the cells that are missing, within the budget; False when some are left."""
    missing = [cell for cell in cells if options.again or not _made(options.results, cell)]
    console.print(f"{len(cells)} cells, {len(cells) - len(missing)} of them there already")
    ends_s = time.monotonic() + 60.0 * options.budget_minutes
    complete = True
    for place, cell in enumerate(missing):
        needs_s = cell.setting.seconds + OVERHEAD_S
        if time.monotonic() + needs_s > ends_s:
            console.print(f"the budget of {options.budget_minutes:g} min is used up; {len(missing) - place} left")
            return False
        began_s = time.monotonic()
        found: dict[str, Any] | None = None
        try:
            found = result(cell, asyncio.run(_ended_by_signals(cell)))
        except* (ProcessError, NotReadyError, PartsError, PeersError, aiohttp.ClientError) as problems:
            # One cell that cannot be made must not cost a night of others.
            console.print(f"[{place + 1}/{len(missing)}] {file_name(cell)} could not be made: {_said(problems)}")
        if found is None:
            complete = False
            continue
        write(options.results, cell, found)
        left_s = (len(missing) - place - 1) * (time.monotonic() - began_s)
        console.print(f"[{place + 1}/{len(missing)}, {left_s / 60:.0f} min left] {_line(found)}")
    return complete


def _made(folder: Path, cell: ExperimentCell) -> bool:
    """Whether a result that counts is there; one that does not is made again."""
    path = folder / file_name(cell)
    return path.exists() and counts(read([path])[0])


async def _ended_by_signals(cell: ExperimentCell) -> Any:
    """The experiment; SIGTERM ends it as Ctrl-C does, in order."""
    task = asyncio.create_task(run(cell))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    return await task


def _said(problems: BaseExceptionGroup[BaseException]) -> str:
    return "; ".join(
        _said(one) if isinstance(one, BaseExceptionGroup) else f"{type(one).__name__}: {one}"
        for one in problems.exceptions
    )


def _line(found: Any) -> str:
    measures, bench = found["measures"], found["bench"]
    told = (
        f"{found['scenario']} {found['load_percent']:g} % {found['contestant']} seed {found['seed']}: "
        f"goodput {measures['fault']['goodput_percent']:.1f} -> {measures['both']['goodput_percent']:.1f} "
        f"(predicted {found['prediction']['both_percent']:.1f}), "
        f"p99 good {measures['fault']['good_p99_s'] or 0:.2f} s, all {measures['both']['all_p99_s'] or 0:.2f} s, "
        f"wasted {measures['waste']['wasted_s']:.0f} s, lost {dict(measures['both']['reasons'])}"
    )
    return told + (f"; DOES NOT COUNT: {'; '.join(bench['problems'])}" if bench["problems"] else "")


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the setting; the rest is the scenario's."""
    said = {
        name: getattr(options, name)
        for name in (
            "engines",
            "zones",
            "demand",
            "max_wait_s",
            "deadline_s",
            "before_s",
            "fault_s",
            "after_s",
            "tokens",
            "streaming_share",
            "engine_processes",
        )
    }
    found = {name: value for name, value in said.items() if value is not None}
    if options.slots is not None:
        found["kinds"] = (EngineKind(slots=options.slots),)
    if options.gate is not None:
        found["gate"] = options.gate
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks failover", description=__doc__)
    add = parser.add_argument
    add("--scenario", default="six", help=f"names or groups, by comma: {', '.join((*GROUPS, *SCENARIOS))}")
    add("--contestant", default="switchgear,static", help=f"by comma: {', '.join(CONTESTANTS)}")
    add("--load", type=_numbers, default=(80.0,), help="percent of healthy capacity, by comma (80)")
    add("--seeds", type=_whole_numbers, default=(1,), help="by comma (1)")
    add(
        "--quick",
        action="store_true",
        help="3 s, 6 s of fault and 4 s; another thing than the whole, and kept apart",
    )
    add("--again", action="store_true", help="make also what is there already")
    add("--budget-minutes", type=float, default=1e6, help="begin no cell that would end later")
    add("--results", type=Path, default=FOLDER, help="(%(default)s)")
    add("--page", type=Path, help="write all results there are as a page, such as docs/failover.md; make none")
    add("--width", type=int, default=200, help="columns of the table (%(default)s)")
    setting = parser.add_argument_group("the setting, where it is to be other than the scenario's")
    add = setting.add_argument
    add("--engines", type=int)
    add("--slots", type=int, help="of each engine")
    add("--zones", type=int)
    add("--demand", type=_numbers, help="share of each proxy, by comma: 3,1")
    add("--max-wait", type=float, dest="max_wait_s", help="W, seconds")
    add("--deadline", type=float, dest="deadline_s", help="what a caller waits, seconds")
    add("--before", type=float, dest="before_s", help="seconds")
    add("--fault", type=float, dest="fault_s", help="seconds")
    add("--after", type=float, dest="after_s", help="seconds")
    add("--tokens", type=_whole_numbers, help="shortest and longest answer: 24,68")
    add("--streaming", type=float, dest="streaming_share", help="share of requests, 0 to 1")
    add("--gate", action=argparse.BooleanOptionalAction, help="first-token gate in front of streams")
    add("--engine-processes", type=int)
    return parser


def _numbers(said: str) -> tuple[float, ...]:
    return tuple(float(one) for one in said.split(","))


def _whole_numbers(said: str) -> tuple[int, ...]:
    return tuple(int(one) for one in said.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
