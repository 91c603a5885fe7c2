"""Faults in a simulated lab. Unsupported faults are refused before the start."""

from collections.abc import Iterable, Mapping
from typing import Final

from chaos.fake_engine.engine_faults import EngineCrash, EngineFault, EngineSigterm
from chaos.faults.actions import (
    ChangeLoad,
    CorruptConfig,
    FalsifyReports,
    FalsifyTelemetry,
    FaultAction,
    FreezeProcess,
    KillProcess,
    ProcessRole,
    PushPolicy,
    RestartEngine,
    SetEngineFault,
    SetGpuState,
    ShapeLink,
)
from chaos.scenario.experiment_plan import PlannedOutage
from chaos.simulator.simulated_lab import SimulatedLab

_WHY: Final[Mapping[type, str]] = {
    ShapeLink: "links are not simulated",
    SetGpuState: "GPU drivers are not simulated",
    FalsifyReports: "falsified agent reports are not simulated",
    CorruptConfig: "refused configuration is not simulated",
    PushPolicy: "policy changes are not simulated",
}


class NotSimulatedError(Exception):
    """The simulator does not support this; the message has the cause."""


def refuse_unsupported(outages: Iterable[PlannedOutage], *, agents: bool) -> None:
    """Raise NotSimulatedError if the simulator does not support one of these outages."""
    for outage in outages:
        for target in outage.targets:
            for pull in outage.fault.actions(target):
                why = _refusal(pull, agents=agents)
                if why:
                    raise NotSimulatedError(
                        f"the simulator does not support {outage.id} ({type(outage.fault).__name__}): {why}; "
                        "run it in the lab: switchgear-chaos run"
                    )


def _refusal(pull: FaultAction, *, agents: bool) -> str:
    if isinstance(pull, FreezeProcess):
        if pull.part is ProcessRole.PROXY:
            return "frozen proxies are not simulated"
        return "processes cannot be frozen for part of the time" if pull.on_share < 1 else ""
    if isinstance(pull, KillProcess):
        return "killed proxies are not simulated" if pull.part is ProcessRole.PROXY else ""
    if isinstance(pull, RestartEngine) and pull.drain_within_s is not None and agents:
        return "draining is not simulated"
    if isinstance(pull, SetEngineFault | RestartEngine | ChangeLoad | FalsifyTelemetry):
        return ""
    return _WHY[type(pull)]


class SimulatedInjector:
    """Applies and reverts fault actions; of several on one engine the newest wins."""

    def __init__(self, site: SimulatedLab) -> None:
        self._site = site
        self._faults: dict[str, list[tuple[FaultAction, EngineFault]]] = {}

    def inject(self, pull: FaultAction) -> None:
        """Apply the action."""
        site = self._site
        if isinstance(pull, SetEngineFault):
            self._break(pull.engine, pull, pull.fault)
        elif isinstance(pull, RestartEngine):
            self._break(pull.engine, pull, EngineSigterm(shutdown_timeout_s=pull.shutdown_timeout_s))
        elif isinstance(pull, ChangeLoad):
            site.callers.inject(pull)
        elif isinstance(pull, FalsifyTelemetry):
            if site.control_plane is not None:
                site.control_plane.hearing.spoilt[pull.proxy] = pull
        elif isinstance(pull, KillProcess):
            self._kill(pull)
        elif isinstance(pull, FreezeProcess):
            self._freeze(pull, frozen=True)

    def revert(self, pull: FaultAction) -> None:
        """Undo the action."""
        site = self._site
        if isinstance(pull, SetEngineFault | RestartEngine):
            self._heal(pull.engine, pull)
        elif isinstance(pull, ChangeLoad):
            site.callers.revert(pull)
        elif isinstance(pull, FalsifyTelemetry):
            if site.control_plane is not None:
                site.control_plane.hearing.spoilt.pop(pull.proxy, None)
        elif isinstance(pull, KillProcess):
            self._revive(pull)
        elif isinstance(pull, FreezeProcess):
            self._freeze(pull, frozen=False)

    def _break(self, engine: str, pull: FaultAction, fault: EngineFault) -> None:
        self._faults.setdefault(engine, []).append((pull, fault))
        self._site.engines[engine].set_fault(fault)

    def _heal(self, engine: str, pull: FaultAction) -> None:
        held = self._faults.get(engine, [])
        found = next((one for one in held if one[0] == pull), None)
        if found is not None:
            held.remove(found)
            self._site.engines[engine].set_fault(held[-1][1] if held else None)

    def _kill(self, pull: KillProcess) -> None:
        if pull.part is ProcessRole.ENGINE:
            self._break(pull.target, pull, EngineCrash())
        elif pull.part is ProcessRole.AGENT and pull.target in self._site.agents:
            self._site.agents[pull.target].kill()
            # A broken stream is noticed at once.
            self._site.probers[pull.target].start()
        elif pull.part is ProcessRole.CONTROL_PLANE and self._site.control_plane is not None:
            self._site.control_plane.stop()

    def _revive(self, pull: KillProcess) -> None:
        if pull.stays_dead:
            return
        if pull.part is ProcessRole.ENGINE:
            self._heal(pull.target, pull)
        elif pull.part is ProcessRole.AGENT and pull.target in self._site.agents:
            self._site.agents[pull.target].start()
            self._site.receive_report(pull.target, heard=True)
        elif pull.part is ProcessRole.CONTROL_PLANE and self._site.control_plane is not None:
            self._site.control_plane.start(afresh=True)

    def _freeze(self, pull: FreezeProcess, *, frozen: bool) -> None:
        site = self._site
        if pull.part is ProcessRole.ENGINE:
            site.engines[pull.target].freeze(frozen)
        elif pull.part is ProcessRole.AGENT and pull.target in site.agents:
            agent = site.agents[pull.target]
            if frozen:
                agent.stop()
            else:
                agent.go_on()
            site.receive_report(pull.target, heard=not frozen)
        elif pull.part is ProcessRole.CONTROL_PLANE and site.control_plane is not None:
            if frozen:
                site.control_plane.stop()
            else:
                site.control_plane.start(afresh=False)
