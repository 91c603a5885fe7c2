"""Fault to ejection: time until every connected Envoy has ejected a broken engine, with default settings.

Four fake engines with a real agent each (or probed by the control plane, for comparison), the real control plane
and two real Envoys, under steady load. One engine hangs (/health still answers 200), crashes or drains. Time runs
from the fault (the last token) until the admin page of the last Envoy shows that the engine gets no new requests.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import (
    ResultColumn,
    Trial,
    TrialGroup,
    option_parser,
    publish,
    result_table,
    trial_groups,
)
from benchmarks.testbed import Testbed, ejection_trial, until
from chaos.fake_engine import EngineCrash, EngineFault, EngineHang, FakeEngine
from chaos.processes import ChildProcesses

ENGINES: Final = 4
ENVOYS: Final = 2
RATE_PER_S: Final = 60.0
TRIALS: Final = 20
DRAIN: Final = "drain"
FAULTS: Final[dict[str, EngineFault]] = {"hang": EngineHang(health="ok"), "crash": EngineCrash()}
TARGETS_S: Final = {"hang": 1.5, "crash": 0.3, DRAIN: 0.1}
"""With agents, at the 99th percentile."""


async def measure(judge: str, trials: int, rate_per_s: float) -> list[Trial]:
    """All trials of all faults with one judge, ``agent`` or ``probe``, one after another on the same site."""
    faults = [*FAULTS, *([DRAIN] if judge == "agent" else [])]
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        async with (
            ChildProcesses() as processes,
            Testbed(Path(folder), processes, engines=ENGINES, envoys=ENVOYS, agents=judge == "agent") as site,
            site.under_load(rate_per_s),
        ):
            return [
                await _trial(site, judge, fault, site.engines[number % ENGINES])
                for fault in faults
                for number in range(trials)
            ]


async def _trial(site: Testbed, judge: str, fault: str, engine: FakeEngine) -> Trial:
    """Break one engine, wait until it is out, heal it. It begins when the engine is in everywhere."""

    async def everywhere() -> bool:
        return all([await site.takes_requests(envoy, engine) for envoy in site.envoys])

    async def cause() -> None:
        if fault == DRAIN:
            await _post(site, f"{site.agents[engine.config.name]}/drain?deadline=30s")
        else:
            await engine.set_fault(FAULTS[fault])

    await until(everywhere, f"{engine.config.name} is in")
    trial = await ejection_trial(site, {"judge": judge, "fault": fault}, engine, cause)
    if fault == DRAIN:
        await _post(site, f"{site.agents[engine.config.name]}/undrain")
    else:
        await engine.heal()
    return trial


async def _post(site: Testbed, url: str) -> None:
    async with site.http.post(url) as answer:
        await answer.read()
        answer.raise_for_status()


COLUMNS: Final[Sequence[ResultColumn[TrialGroup]]] = (
    ResultColumn(heading="judge", cell=lambda some: some.labels["judge"], left=True),
    ResultColumn(heading="fault", cell=lambda some: some.labels["fault"], left=True),
    ResultColumn(heading="trials", cell=lambda some: str(len(some.trials))),
    ResultColumn(heading="first p50", cell=lambda some: f"{1e3 * some.percentile('first_s', 50):.0f} ms"),
    ResultColumn(heading="last p50", cell=lambda some: f"{1e3 * some.percentile('last_s', 50):.0f} ms"),
    ResultColumn(heading="last p99", cell=lambda some: f"{1e3 * some.percentile('last_s', 99):.0f} ms"),
    ResultColumn(
        heading="target",
        cell=lambda some: (
            f"{1e3 * TARGETS_S[some.labels['fault']]:.0f} ms" if some.labels["judge"] == "agent" else ""
        ),
    ),
)


def missed(trials: Sequence[Trial]) -> list[str]:
    """The faults whose 99th percentile is above its target, with agents."""
    return [
        some.labels["fault"]
        for some in trial_groups(trials)
        if some.labels["judge"] == "agent" and some.percentile("last_s", 99) > TARGETS_S[some.labels["fault"]]
    ]


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = option_parser("detect", __doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="per fault")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    parser.add_argument("--judge", nargs="+", choices=["agent", "probe"], default=["agent", "probe"])
    options = parser.parse_args(argv)
    # Engines crash on command: aiohttp need not log their errors.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    trials = [
        trial for judge in options.judge for trial in asyncio.run(measure(judge, options.trials, options.rate))
    ]
    title = f"fault to out of every Envoy ({ENGINES} engines, {ENVOYS} Envoys)"
    table = result_table(title, COLUMNS, trial_groups(trials))
    answer = {"targets_s": TARGETS_S, "trials": [trial.record() for trial in trials]}
    return publish([table], options.json, answer, met=not missed(trials))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
