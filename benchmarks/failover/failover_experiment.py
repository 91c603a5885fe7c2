"""One experiment from start to end: everything is started, loaded, broken, healed, read, and gone again."""

import asyncio
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import aiohttp

from benchmarks.failover.contestants import Contestant
from benchmarks.failover.engine_fleet import MODEL, EngineFleet, call_records, set_fault, start_fleet
from benchmarks.failover.experiment_history import CpuUse, EngineAttempt, ExperimentHistory, attempts_of
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_scenarios import EngineOutage, FailoverScenario, outages
from benchmarks.failover.health_watch import HealthWatch, watched
from benchmarks.failover.proxy_tier import ProxyTier, peer_tier, picker_tier, ready, static_tier, switchgear_tier
from chaos.history.history_events import ProxySample
from chaos.history.request_outcomes import RequestOutcome
from chaos.lab.cpu_meter import CpuMeter
from chaos.lab.envoy_sampler import EnvoySampler
from chaos.load.open_loop import LoadProfile, WeightShift, run_load
from chaos.processes import ChildProcess, ChildProcesses

AGENT_LEAD_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentCell:
    """One experiment to make: all of it is in the values."""

    scenario: FailoverScenario
    contestant: Contestant
    setting: ExperimentSetting


async def run(cell: ExperimentCell) -> ExperimentHistory:
    """Make the experiment. Everything it started is gone when it returns, fails or is cancelled."""
    with tempfile.TemporaryDirectory(prefix="switchgear-failover-") as name:
        async with (
            ChildProcesses() as children,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
        ):
            fleet = await start_fleet(children, cell.setting, as_pods=cell.contestant.picker)
            side = await _side(children, Path(name), cell, fleet, session)
            try:
                await ready(session, side, cell.setting, fleet)
                return await _observed(cell, session, fleet, side)
            finally:
                await side.end()


async def _side(
    children: ChildProcesses,
    folder: Path,
    cell: ExperimentCell,
    fleet: EngineFleet,
    session: aiohttp.ClientSession,
) -> ProxyTier:
    if cell.contestant.static is not None:
        return await static_tier(children, folder, cell.contestant, cell.setting, fleet)
    if cell.contestant.picker:
        return await picker_tier(children, folder, cell.setting, fleet, session)
    if cell.contestant.peer is not None:
        return await peer_tier(children, folder, cell.contestant, cell.setting, fleet)
    relayed = cell.scenario.telemetry_lost_at is not None
    return await switchgear_tier(children, folder, cell.contestant, cell.setting, fleet, relayed=relayed)


async def _observed(
    cell: ExperimentCell, session: aiohttp.ClientSession, fleet: EngineFleet, side: ProxyTier
) -> ExperimentHistory:
    setting = cell.setting
    parts = _parts(fleet, side)
    meter = CpuMeter(lambda: {part: [one.pid for one in some] for part, some in parts.items()})
    outcomes: list[RequestOutcome] = []
    samples: list[ProxySample] = []
    began_s = time.monotonic()
    verdicts = HealthWatch(session, side, fleet)
    watch = EnvoySampler(session, watched(side, fleet), samples.append, began_s=began_s)
    watching = [asyncio.create_task(one.run()) for one in (watch, verdicts)]
    fault_s = began_s + setting.before_s
    async with asyncio.TaskGroup() as group:
        load = group.create_task(run_load(_profile(cell, side), outcomes.append, seconds=setting.seconds))
        faults = group.create_task(_faults(cell, session, fleet, side, fault_s))
        await _until_s(began_s + setting.seconds)
        used = meter.usage(setting.seconds)
        await load
    for one in watching:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    attempts: list[EngineAttempt] = []
    for engine, book in enumerate(await call_records(session, fleet)):
        attempts += attempts_of(engine, book)
    return ExperimentHistory(
        began_s=began_s,
        fault_s=fault_s,
        healed_s=fault_s + setting.fault_s,
        end_s=began_s + setting.seconds,
        outages=await faults,
        outcomes=outcomes,
        attempts=sorted(attempts, key=lambda one: one.arrived_at_s),
        samples=samples,
        verdicts=verdicts.verdicts,
        use=CpuUse(processes=used.processes, machine=used.machine, ours=used.ours),
    )


def _profile(cell: ExperimentCell, side: ProxyTier) -> LoadProfile:
    setting = cell.setting
    turns: tuple[WeightShift, ...] = ()
    if cell.scenario.demand_turns_at is not None:
        at_s = setting.before_s + cell.scenario.demand_turns_at * setting.fault_s
        turns = (WeightShift(at_s=at_s, weights=tuple(reversed(setting.demand))),)
    shortest, longest = setting.tokens
    return LoadProfile(
        targets=side.targets,
        rate_per_s=setting.rate_per_s,
        turns=turns,
        streaming_share=setting.streaming_share,
        max_tokens=dict.fromkeys(range(shortest, longest + 1), 1.0),
        deadline_s=setting.deadline_s,
        model=MODEL,
        seed=setting.seed,
    )


async def _faults(
    cell: ExperimentCell, session: aiohttp.ClientSession, fleet: EngineFleet, side: ProxyTier, fault_s: float
) -> tuple[EngineOutage, ...]:
    """Break and heal on time; return what really happened, when."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_outage(session, fleet, side, one, fault_s))
            for one in outages(cell.scenario, cell.setting)
        ]
        if cell.scenario.control_plane_dies:
            await _until_s(fault_s)
            side.kill_control_plane()
        if cell.scenario.telemetry_lost_at is not None:
            await _until_s(fault_s + cell.scenario.telemetry_lost_at * cell.setting.fault_s)
            await side.lose_telemetry(session)
    return tuple(task.result() for task in tasks)


async def _outage(
    session: aiohttp.ClientSession, fleet: EngineFleet, side: ProxyTier, planned: EngineOutage, fault_s: float
) -> EngineOutage:
    await _until_s(fault_s + planned.start_s)
    if planned.agents:
        await side.lose_agent(planned.engine)
    await set_fault(session, fleet, planned.engine, planned.fault)
    start_s = time.monotonic()
    if planned.agents:
        # A host that comes back has its agent before its engine, whose model takes minutes to load.
        lead_s = min(AGENT_LEAD_S, 0.5 * (planned.end_s - planned.start_s))
        await _until_s(fault_s + planned.end_s - lead_s)
        await side.restore_agent(planned.engine)
    await _until_s(fault_s + planned.end_s)
    await set_fault(session, fleet, planned.engine, None)
    end_s = time.monotonic()
    return replace(planned, start_s=start_s, end_s=end_s)


def _parts(fleet: EngineFleet, side: ProxyTier) -> dict[str, list[ChildProcess]]:
    return {
        "engines": list(fleet.children),
        "Envoys": list(side.envoys),
        "control plane": [] if side.server is None else [side.server],
        "picker": [] if side.picker is None else [side.picker],
        "API server": list(side.cluster),
        "router": list(side.routers),
        "relay": [] if side.relay is None else [side.relay],
        "agents": [one.child for one in side.agents.values() if one.child is not None],
    }


async def _until_s(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))
