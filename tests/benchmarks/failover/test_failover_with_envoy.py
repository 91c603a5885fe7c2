"""The bench itself, with real Envoys: a configuration Envoy takes, and a short experiment from start to end."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from benchmarks.failover.chaos_history import experiment_measures
from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell, run
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.result import result
from chaos.history.request_outcomes import OutcomeReason
from chaos.testbed.static_envoy import static_bootstrap
from tests.benchmarks.failover.on_time_run import run_on_time

# Some seconds each, and several times so long where the machine was too busy.
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(400)]

STATIC = [one for one in CONTESTANTS.values() if one.static is not None]
SHORT = ExperimentSetting(
    engines=4, engine_processes=1, load_percent=60.0, deadline_s=2.0, before_s=2.0, fault_s=2.0, after_s=2.0
)


def children() -> set[int]:
    """Processes that have this one as parent: field 4 of stat, behind the name in parentheses (proc(5))."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(path.parent.name))
    return found


@pytest.mark.parametrize("contestant", STATIC, ids=lambda one: one.name)
def test_envoy_takes_every_static_configuration(contestant, tmp_path: Path, envoy_takes) -> None:
    path = tmp_path / "envoy.json"
    assert contestant.static is not None
    path.write_text(
        static_bootstrap(
            contestant.static,
            engine_ports=[10001, 10002],
            slots=16,
            proxies=2,
            deadline_s=10.0,
            listener_port=10003,
            admin_port=10004,
        )
    )
    envoy_takes(path)
    limits = json.loads(path.read_text())["static_resources"]["clusters"][0]["circuit_breakers"]["thresholds"][0]
    if contestant.name == "static":
        assert limits["max_requests"] == 16 * 5 / 2


async def test_a_hang_costs_plain_envoy_what_the_hung_engine_was_sent() -> None:
    cell = ExperimentCell(scenario=SCENARIOS["S2"], contestant=CONTESTANTS["envoy"], setting=SHORT)
    history = await run_on_time(cell)
    found = experiment_measures(history, SHORT)
    assert found.before.requests > 10
    assert (
        found.fault.reasons.get(OutcomeReason.TIMEOUT.value, 0) + found.fault.reasons.get("http_error 504", 0) > 0
    )
    (silence,) = found.silences
    # Never quiet: if this machine itself paused that long, requests to the engine continued afterwards.
    assert silence.quiet_s is None or silence.strays
    assert silence.sent > 5
    assert found.waste.any_s > 0
    sampled = history.samples[-1]
    assert set(sampled.sent) == {f"e{engine}" for engine in range(SHORT.engines)}
    assert history.use.processes["Envoys"] >= 0
    json.dumps(result(cell, history))


async def test_switchgear_is_measured_and_killed_by_the_scenario() -> None:
    cell = ExperimentCell(
        scenario=SCENARIOS["dead-S3"], contestant=CONTESTANTS["switchgear-agentless"], setting=SHORT
    )
    history = await run_on_time(cell)
    assert {one.engine for one in history.verdicts} == set(range(SHORT.engines))
    # No agent reports after the fault began.
    assert max(one.at_s for one in history.verdicts) < history.fault_s + 1.0
    assert any(one.ok for one in history.outcomes if one.arrived_at_s > history.healed_s)
    assert {one.ceiling for one in history.samples if one.ceiling is not None}


async def test_cancelled_experiment_leaves_nothing_behind() -> None:
    known = children()
    cell = ExperimentCell(scenario=SCENARIOS["S2"], contestant=CONTESTANTS["envoy"], setting=SHORT)
    task = asyncio.create_task(run(cell))
    async with asyncio.timeout(60):
        # Engines and Envoy.
        while len(children() - known) < 2:
            await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children() - known
