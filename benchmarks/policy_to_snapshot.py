"""Policy text to snapshot: what a cold start, one edited file and one verdict cost, by the size of the fleet.

One file per pool, 100 engines in each over three zones, one route per pool. Measured is what ``switchgear serve``
does between reading files and handing snapshots to streams: read and judge the files, fold the fleet, decide,
translate for a gateway view per zone and the reference view, encode. Of several edits of different files the
fastest counts for each stage, because whatever else the machine does only ever adds; the cold start is done once.
"""

import gc
import itertools
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness import ResultColumn, option_parser, publish, result_table
from engine.report import EngineReport, Verdict
from policies.load import LoadCache, load
from policies.model import PolicySet
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.model.fleet import Fleet, declared, redeclared, with_report
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildInputs, BuildResult, Pipeline

POOLS: Final = (10, 100, 1000)
ENGINES: Final = 100
ZONES: Final = ("zone-a", "zone-b", "zone-c")
EDITS: Final = 7
TARGET_EDIT_S: Final = 1.0
"""For 100 pools of 100 engines."""
LINEAR_WITHIN: Final = 1.5
"""How far the cost per pool may grow from one size to the next before it counts as more than linear."""

_VIEWS: Final = frozenset(View(zone=zone) for zone in ZONES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotBuildRow:
    """One size, seconds by stage. ``cold``: all from nothing, ``edit``: one file, ``verdict``: one engine."""

    pools: int
    engines: int
    cold_s: Mapping[str, float]
    edit_s: Mapping[str, float]
    verdict_s: Mapping[str, float]


def pool_text(number: int, engines: int, *, slots: int = 16) -> str:
    """The policy file of one pool and its route."""
    endpoints = "".join(
        f"    - {{address: 10.{number >> 8}.{number & 255}.{engine % 250 + 1}, port: {8000 + engine // 250},"
        f" name: gpu-{engine}, zone: {ZONES[engine % len(ZONES)]}}}\n"
        for engine in range(engines)
    )
    return (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\n"
        f"metadata: {{name: pool-{number}}}\n"
        f"spec:\n  model: model-{number}\n  slotsPerEngine: {slots}\n  endpoints:\n{endpoints}"
        "---\napiVersion: switchgear.dev/v1alpha1\nkind: ModelRoute\n"
        f"metadata: {{name: pool-{number}}}\n"
        f"spec:\n  listener: {{port: 10000}}\n  match: {{model: model-{number}}}\n"
        f"  pools: [{{pool: pool-{number}}}]\n"
    )


class PolicyPipeline:
    """A folder of policies and the pipeline that serves them, as a running server holds them."""

    def __init__(self, folder: Path, pools: int, engines: int) -> None:
        self._folder = folder
        self._engines = engines
        self._cache = LoadCache()
        self._pipeline = Pipeline()
        self._built: BuildResult | None = None
        self._fleet: Fleet | None = None
        self._policies: PolicySet | None = None
        for number in range(pools):
            self.write(number)

    def write(self, number: int, *, slots: int = 16) -> None:
        (self._folder / f"pool-{number}.yaml").write_text(pool_text(number, self._engines, slots=slots))

    def reload(self) -> dict[str, float]:
        """Seconds by stage, from files to snapshots."""
        started_s = time.perf_counter()
        before, self._policies = self._policies, load([self._folder], self._cache)
        loaded_s = time.perf_counter()
        known = self._fleet
        self._fleet = declared(self._policies) if known is None else redeclared(self._policies, known, before)
        stages = {"load": loaded_s - started_s, "fold": time.perf_counter() - loaded_s}
        return stages | self._build()

    def report(self, pool: int, verdict: Verdict) -> dict[str, float]:
        """Seconds by stage, from one report to snapshots."""
        assert self._fleet is not None
        report = EngineReport(
            pool=f"pool-{pool}",
            engine="gpu-1",
            verdict=verdict,
            evidence="measured",
            observed_at_s=time.monotonic(),
        )
        started_s = time.perf_counter()
        for _ in range(2):  # one bad look ejects no engine
            self._fleet = with_report(self._fleet, report, time.monotonic())
        return {"fold": time.perf_counter() - started_s} | self._build()

    def _build(self) -> dict[str, float]:
        assert self._policies is not None
        assert self._fleet is not None
        self._built = self._pipeline.build(
            BuildInputs(
                policies=self._policies,
                fleet=self._fleet,
                memory=self._built.memory if self._built else NO_MEMORY,
                views=_VIEWS,
                proxies_by_role={"gateway": 3},
                now_s=time.monotonic(),
            )
        )
        return dict(self._built.stages_s)


def measure(pools: int, engines: int, edits: int) -> SnapshotBuildRow:
    """One size."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        fleet = PolicyPipeline(Path(folder), pools, engines)
        gc.collect()
        cold = fleet.reload()
        gc.collect()
        edited, verdicts = [], []
        for edit in range(edits):
            fleet.write(edit % pools, slots=17 + edit)
            edited.append(fleet.reload())
            verdicts.append(fleet.report(edit % pools, Verdict.DEAD if edit % 2 == 0 else Verdict.READY))
    return SnapshotBuildRow(
        pools=pools,
        engines=engines,
        cold_s=cold,
        edit_s=_least(edited),
        verdict_s=_least(verdicts),
    )


def _least(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {stage: min(sample[stage] for sample in samples) for stage in samples[0]}


def growth(rows: Sequence[SnapshotBuildRow], what: str) -> list[float]:
    """From each size to the next: how much the cost per pool grew; 1.0 is linear."""
    costs = [sum(getattr(row, what).values()) / row.pools for row in rows]
    return [after / before for before, after in itertools.pairwise(costs)]


_STAGES: Final = ("load", "fold", "decide", "translate", "assemble")
_EVENTS: Final = {"cold_s": "cold start", "edit_s": "one file edited", "verdict_s": "one verdict"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStages:
    """One line of the table: the seconds of each stage after one event."""

    row: SnapshotBuildRow
    event: str
    spent: Mapping[str, float]


def _stage(name: str) -> ResultColumn[BuildStages]:
    return ResultColumn(
        heading=name, cell=lambda line: f"{line.spent[name] * 1000:.1f}" if name in line.spent else ""
    )


COLUMNS: Final[Sequence[ResultColumn[BuildStages]]] = (
    ResultColumn(heading="pools", cell=lambda line: str(line.row.pools), left=True),
    ResultColumn(heading="engines", cell=lambda line: str(line.row.engines), left=True),
    ResultColumn(heading="what", cell=lambda line: line.event, left=True),
    *(_stage(name) for name in _STAGES),
    ResultColumn(heading="total", cell=lambda line: f"{sum(line.spent.values()) * 1000:.1f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = option_parser("policy_to_snapshot", __doc__)
    parser.add_argument("--pools", type=int, nargs="+", default=list(POOLS))
    parser.add_argument("--engines", type=int, default=ENGINES, help="per pool")
    parser.add_argument("--edits", type=int, default=EDITS)
    options = parser.parse_args(argv)
    rows = [measure(pools, options.engines, options.edits) for pools in sorted(options.pools)]
    grown = {name: growth(rows, name) for name in _EVENTS}
    edits_s = {row.pools: sum(row.edit_s.values()) for row in rows}
    met = all(seconds <= TARGET_EDIT_S for pools, seconds in edits_s.items() if pools <= 100)
    linear = all(ratio <= LINEAR_WITHIN for ratios in grown.values() for ratio in ratios)
    lines = [
        BuildStages(row=row, event=event, spent=getattr(row, name))
        for row in rows
        for name, event in _EVENTS.items()
    ]
    shown = [result_table("policy text to snapshot, ms", COLUMNS, lines)]
    remarks = [
        f"cost per pool from one size to the next, {name.removesuffix('_s')}: "
        + (", ".join(f"{ratio:.2f}" for ratio in ratios) or "one size only")
        for name, ratios in grown.items()
    ]
    remarks += [f"one edit of 100 pools within {TARGET_EDIT_S:g} s: {'yes' if met else 'NO'}; linear: {linear}"]
    answer = {"rows": [asdict(row) for row in rows], "growth_per_pool": grown}
    return publish([*shown, *remarks], options.json, answer, met=met and linear)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
