"""One experiment from start to end: start the lab, send load, inject and heal faults, record, stop.

``python -m chaos.lab.experiment SCENARIO SUBJECT HISTORY`` runs one and prints a summary line.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.history.history_events import ExperimentAborted
from chaos.history.recorded_history import History
from chaos.lab.history_recorder import HistoryRecorder, record_history
from chaos.lab.injectors.injector_registry import INJECTORS
from chaos.lab.lab_handles import InjectorFactory
from chaos.lab.lab_session import BlastRadiusError, Lab
from chaos.scenario.abort_condition import abort_reason
from chaos.scenario.experiment_plan import Experiment, PlannedOutage
from chaos.scenario.scenario_reader import read_scenarios
from chaos.testbed.subjects import Subject, subjects

_GUARD_S: Final = 0.25


async def run_experiment(
    experiment: Experiment,
    subject: Subject,
    history_path: Path | None = None,
    *,
    levers: Sequence[InjectorFactory] = INJECTORS,
    folder: Path | None = None,
) -> History:
    """Run the experiment; write the history to the file, if given, while it runs.

    On return, failure or cancellation everything is healed and stopped. Meeting the abort condition is not an
    error: the history has an ``aborted`` event. Raises what ``Lab.open`` raises.
    """
    async with (
        Lab.open(experiment, subject, folder, levers=levers) as lab,
        record_history(lab, history_path) as recording,
    ):
        await _rehearsed(lab, recording)
    return recording.history


async def _rehearsed(lab: Lab, recording: HistoryRecorder) -> None:
    """Send the load, inject and heal faults on time, and stop early if the abort condition is met."""
    experiment, stop = lab.plan.experiment, asyncio.Event()
    load = asyncio.create_task(recording.load(stop=stop))
    faults = asyncio.create_task(_faults(lab, recording, experiment.outages))
    guard = asyncio.create_task(_guard(lab, recording))
    tasks = (load, faults, guard)
    try:
        while not load.done():
            waiting = {load, *(one for one in (faults, guard) if not one.done())}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            why = _why_stop(faults, guard)
            if why and not stop.is_set():
                recording.record(ExperimentAborted(at_s=recording.now_s(), why=why))
                stop.set()
                faults.cancel()
        await load
        if not stop.is_set():
            await asyncio.wait([faults])  # the last one may still be restarting a process
    finally:
        # Heal all faults before collecting the records.
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    _raise_what_went_wrong(faults)


def _raise_what_went_wrong(faults: "asyncio.Task[None]") -> None:
    problem = None if faults.cancelled() else faults.exception()
    if problem is not None and not isinstance(problem, BlastRadiusError):
        raise problem


def _why_stop(faults: "asyncio.Task[None]", guard: "asyncio.Task[str]") -> str:
    """Why to stop now; raises the error of a fault that could not be injected."""
    if faults.done() and not faults.cancelled():
        _raise_what_went_wrong(faults)
        if isinstance(problem := faults.exception(), BlastRadiusError):
            return str(problem)
    return guard.result() if guard.done() and not guard.cancelled() else ""


async def _faults(lab: Lab, recording: HistoryRecorder, outages: Sequence[PlannedOutage]) -> None:
    """Inject and heal on time; the first error heals and ends all faults."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in outages:
                group.create_task(_fault(lab, recording, one))
    except BaseExceptionGroup as problems:
        raise problems.exceptions[0] from None


async def _fault(lab: Lab, recording: HistoryRecorder, outage: PlannedOutage) -> None:
    await _until_s(recording.began_s + outage.start_s)
    async with lab.outage(outage):
        await _until_s(recording.began_s + outage.end_s)


async def _guard(lab: Lab, recording: HistoryRecorder) -> str:
    """Wait for a reason to stop and return it; return an empty one at once if none is possible."""
    abort, experiment = lab.plan.experiment.spec.abort, lab.plan.experiment
    if not abort.goodput_below_percent:
        return ""
    while True:
        await asyncio.sleep(_GUARD_S)
        ended = ((one.ended_at_s, one.ok) for one in recording.requests)
        why = abort_reason(abort, ended, recording.now_s(), experiment.rate_per_s)
        if why:
            return why


async def _until_s(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


def main(argv: Sequence[str]) -> int:
    """Run one experiment; return 0 if it ran to its end, 1 if it was stopped early."""
    parser = argparse.ArgumentParser(prog="python -m chaos.lab.experiment", description=__doc__.splitlines()[0])
    parser.add_argument("scenario", type=Path)
    parser.add_argument("subject", help="policies, or envoy, naive, tuned or static")
    parser.add_argument("history", type=Path, help="file to write")
    arguments = parser.parse_args(argv)
    (scenario, *_) = read_scenarios([arguments.scenario])
    (subject, *_) = subjects([arguments.subject])
    history = asyncio.run(run_experiment(scenario.experiment(), subject, arguments.history))
    good = sum(one.ok for one in history.requests)
    print(f"{good} of {len(history.requests)} requests succeeded")  # noqa: T201 -- the answer
    return 0 if history.aborted is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
