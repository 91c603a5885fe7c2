"""Fault to out: how long until a broken engine is out of every connected Envoy, by fault; defaults everywhere.

Four fake engines with a real agent beside each (or, for comparison, probed by the control plane), the real control
plane and two real Envoys, under a steady load. One engine hangs (its /health still says 200), crashes, or is told
to drain. The clock runs from the fault, which is when the last token comes, until the last Envoy's own admin page
says that the engine takes nothing new.
"""

import argparse
import asyncio
import json
import logging
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.testbed import LIMIT_S, Testbed, until
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
POLL_S: Final = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionTrial:
    """One fault: seconds until the engine was out of the first Envoy, and of the last."""

    judge: str
    fault: str
    first_s: float
    last_s: float


async def measure(judge: str, trials: int, rate_per_s: float) -> list[DetectionTrial]:
    """All trials of all faults with one judge, ``agent`` or ``probe``, one after another on the same site."""
    done: list[DetectionTrial] = []
    faults = [*FAULTS, *([DRAIN] if judge == "agent" else [])]
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        async with (
            ChildProcesses() as processes,
            Testbed(Path(folder), processes, engines=ENGINES, envoys=ENVOYS, agents=judge == "agent") as site,
        ):
            stop = asyncio.Event()
            load = asyncio.create_task(site.load(rate_per_s, stop))
            try:
                for fault in faults:
                    done += [
                        await _trial(site, judge, fault, site.engines[number % ENGINES])
                        for number in range(trials)
                    ]
            finally:
                stop.set()
                await load
    return done


async def _trial(site: Testbed, judge: str, fault: str, engine: FakeEngine) -> DetectionTrial:
    """Break one engine, wait until it is out, heal it, wait until it is in again."""
    await until(lambda: _everywhere(site, engine, taken=True), f"{engine.config.name} is in")
    await site.answers(20)
    began_s = time.monotonic()
    outs = [asyncio.create_task(_out_at_s(site, envoy, engine)) for envoy in site.envoys]
    drain: asyncio.Task[None] | None = None
    if fault == DRAIN:
        drain = asyncio.create_task(_post(site, f"{site.agents[engine.config.name]}/drain?deadline=30s"))
    else:
        await engine.set_fault(FAULTS[fault])
    at_s = sorted(await asyncio.gather(*outs))
    if drain is not None:
        await drain
        await _post(site, f"{site.agents[engine.config.name]}/undrain")
    else:
        await engine.heal()
    return DetectionTrial(judge=judge, fault=fault, first_s=at_s[0] - began_s, last_s=at_s[-1] - began_s)


async def _out_at_s(site: Testbed, envoy: str, engine: FakeEngine) -> float:
    async with asyncio.timeout(LIMIT_S):
        while await _taken(site, envoy, engine):
            await asyncio.sleep(POLL_S)
    return time.monotonic()


async def _everywhere(site: Testbed, engine: FakeEngine, *, taken: bool) -> bool:
    return {await _taken(site, envoy, engine) for envoy in site.envoys} == {taken}


async def _taken(site: Testbed, envoy: str, engine: FakeEngine) -> bool:
    """Whether this Envoy gives the engine new requests, as far as the control plane has a say."""
    host = await site.host(envoy, engine)
    return host is not None and host["health_status"]["eds_health_status"] == "HEALTHY"


async def _post(site: Testbed, url: str) -> None:
    async with site.http.post(url) as answer:
        await answer.read()
        answer.raise_for_status()


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def table(trials: Sequence[DetectionTrial]) -> Table:
    """The trials for people, by judge and fault."""
    title = f"fault to out of every Envoy ({ENGINES} engines, {ENVOYS} Envoys)"
    shown = Table("judge", "fault", "trials", "first p50", "last p50", "last p99", "target", title=title)
    for judge, fault in dict.fromkeys((trial.judge, trial.fault) for trial in trials):
        some = [trial for trial in trials if (trial.judge, trial.fault) == (judge, fault)]
        last_s = [one.last_s for one in some]
        shown.add_row(
            judge,
            fault,
            str(len(some)),
            f"{1e3 * percentile([one.first_s for one in some], 50):.0f} ms",
            f"{1e3 * percentile(last_s, 50):.0f} ms",
            f"{1e3 * percentile(last_s, 99):.0f} ms",
            f"{1e3 * TARGETS_S[fault]:.0f} ms" if judge == "agent" else "",
        )
    return shown


def missed(trials: Sequence[DetectionTrial]) -> list[str]:
    """The faults whose 99th percentile is above its target, with agents."""
    late = []
    for fault, target_s in TARGETS_S.items():
        last_s = [one.last_s for one in trials if one.judge == "agent" and one.fault == fault]
        if last_s and percentile(last_s, 99) > target_s:
            late.append(fault)
    return late


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="benchmarks.detect", description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=TRIALS, help="per fault")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    parser.add_argument("--judge", nargs="+", choices=["agent", "probe"], default=["agent", "probe"])
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/detect.json"))
    options = parser.parse_args(argv)
    # An engine that crashes on command in the middle of an answer is no news here.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    trials = [
        trial for judge in options.judge for trial in asyncio.run(measure(judge, options.trials, options.rate))
    ]
    Console(width=110).print(table(trials))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    answer = {"targets_s": TARGETS_S, "trials": [asdict(trial) for trial in trials]}
    options.json.write_text(json.dumps(answer, indent=2) + "\n")
    return 1 if missed(trials) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
