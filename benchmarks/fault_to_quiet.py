"""Fault to quiet: time until a broken engine gets no more requests, with real Envoy and control plane.

A few fake engines behind one Envoy serve a steady load; one of them hangs (its /health still says 200) or
crashes. Time runs from the fault to the last request that Envoy sent to that engine, by Envoy's
counters per host. Probing and ejection use the defaults. Between two
requests of the load to one engine lie some 40 ms: that is the resolution.
"""

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
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
from benchmarks.testbed import LIMIT_S, POLL_S, Testbed, until
from chaos.fake_engine import EngineCrash, EngineFault, EngineHang, FakeEngine
from chaos.history.request_outcomes import OutcomeReason
from chaos.processes import ChildProcesses

ENGINES: Final = 4
RATE_PER_S: Final = 100.0
TRIALS: Final = 10
FAULTS: Final[dict[str, EngineFault]] = {"hang": EngineHang(health="ok"), "crash": EngineCrash()}
QUIET_ANSWERS: Final = 100
"""Quiet: the other engines gave this many answers and the faulty one got no request."""


async def run_trial(site: Testbed, name: str, fault: EngineFault, engine: FakeEngine) -> Trial:
    """Break one engine, wait until it is quiet, heal it, wait until it is back."""
    await site.answers(20)
    began_with = len(site.outcomes)
    known = await _sent(site, engine) or 0
    at_fault_s = time.monotonic()
    await engine.set_fault(fault)
    known = await _sent(site, engine) or known
    last_s, after, decided_s, quiet_from = at_fault_s, 0, 0.0, len(site.outcomes)
    give_up_at = at_fault_s + LIMIT_S
    while len(site.outcomes) < quiet_from + QUIET_ANSWERS or not decided_s:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{engine.config.name} is not quiet {LIMIT_S:g} s after {name}")
        sent = await _sent(site, engine)
        if sent is not None and sent > known:
            last_s, after, known, quiet_from = time.monotonic(), after + sent - known, sent, len(site.outcomes)
        if not decided_s and await site.health(engine) != "HEALTHY":
            decided_s = time.monotonic() - at_fault_s
        await asyncio.sleep(POLL_S)
    failed = sum(one.reason is not OutcomeReason.OK for one in site.outcomes[began_with:])
    await engine.heal()

    async def back() -> bool:
        return await site.health(engine) == "HEALTHY" and (await _sent(site, engine) or 0) > 0

    await until(back, f"{engine.config.name} is back")
    return Trial(
        labels={"fault": name},
        values={
            "decided_s": decided_s,
            "quiet_s": last_s - at_fault_s,
            "requests_after": after,
            "failed": failed,
        },
    )


async def _sent(site: Testbed, engine: FakeEngine) -> int | None:
    """Requests and failed connections that Envoy has counted for an engine; None when it does not know it."""
    host = await site.host(site.envoys[0], engine)
    if host is None:
        return None
    counts = {stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]}
    return counts["rq_total"] + counts["cx_connect_fail"]


async def measure(trials: int, rate_per_s: float) -> list[Trial]:
    """All trials of all faults, one after another on the same site."""
    with tempfile.TemporaryDirectory(prefix="switchgear-bench-") as folder:
        async with (
            ChildProcesses() as processes,
            Testbed(Path(folder), processes, engines=ENGINES) as site,
            site.under_load(rate_per_s),
        ):
            return [
                await run_trial(site, name, fault, site.engines[number % ENGINES])
                for name, fault in FAULTS.items()
                for number in range(trials)
            ]


COLUMNS: Final[Sequence[ResultColumn[TrialGroup]]] = (
    ResultColumn(heading="fault", cell=lambda some: some.labels["fault"], left=True),
    ResultColumn(heading="trials", cell=lambda some: str(len(some.trials))),
    ResultColumn(heading="decided p50", cell=lambda some: f"{median(some.values('decided_s')):.2f} s"),
    ResultColumn(heading="quiet p50", cell=lambda some: f"{median(some.values('quiet_s')):.2f} s"),
    ResultColumn(heading="quiet max", cell=lambda some: f"{max(some.values('quiet_s')):.2f} s"),
    ResultColumn(heading="requests after p50", cell=lambda some: f"{median(some.values('requests_after')):.0f}"),
    ResultColumn(heading="failed", cell=lambda some: f"{sum(some.values('failed')):.0f}"),
)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write."""
    parser = option_parser("fault_to_quiet", __doc__)
    parser.add_argument("--trials", type=int, default=TRIALS, help="per fault")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, help="requests per second")
    options = parser.parse_args(argv)
    # Engines crash on command: aiohttp need not log their errors.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    trials = asyncio.run(measure(options.trials, options.rate))
    table = result_table("fault to last request on the bad engine", COLUMNS, trial_groups(trials))
    return publish([table], options.json, {"trials": [trial.record() for trial in trials]})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
