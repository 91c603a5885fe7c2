"""Lab parts that an experiment needs, so that no unused process disturbs it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chaos.faults.actions import (
    CorruptConfig,
    FalsifyReports,
    FalsifyTelemetry,
    FaultAction,
    FreezeProcess,
    KillProcess,
    ProcessRole,
    PushPolicy,
    SetGpuState,
    ShapeLink,
)
from chaos.lab.injectors.link_injector import link_names
from chaos.scenario.experiment_plan import PlannedOutage


@dataclass(frozen=True, slots=True, kw_only=True)
class LabRequirements:
    """``alone`` are engines that need their own process; ``links`` are the netem links needed."""

    alone: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    reports: bool = False
    gpus: bool = False


def outage_actions(outage: PlannedOutage) -> tuple[FaultAction, ...]:
    """All actions of one outage."""
    return tuple(pull for target in outage.targets for pull in outage.fault.actions(target))


def lab_requirements(
    pulls: Iterable[FaultAction], engine_zones: Mapping[str, str], proxy_zones: Mapping[str, str]
) -> LabRequirements:
    """Requirements of these actions; ``zones`` are those of all engines and proxies."""
    alone: set[str] = set()
    links: set[str] = set()
    reports = gpus = False
    for pull in pulls:
        match pull:
            case (
                KillProcess(part=ProcessRole.ENGINE, target=engine)
                | FreezeProcess(part=ProcessRole.ENGINE, target=engine)
            ):
                alone.add(engine)
            case ShapeLink(end=end) if end != "xds":
                links.update(link_names(pull, engine_zones, proxy_zones))
            case FalsifyReports():
                reports = True
            case SetGpuState():
                gpus = True
    return LabRequirements(alone=frozenset(alone), links=frozenset(links), reports=reports, gpus=gpus)


def all_requirements(engines: Iterable[str], *, gpus: bool = False) -> LabRequirements:
    """Requirements of a lab for any fault; GPU faults need the NVML double and so a C compiler."""
    names = frozenset(engines)
    links = frozenset(f"{end}:{name}" for end in ("engine", "agent") for name in names)
    return LabRequirements(alone=names, links=links, reports=True, gpus=gpus)


def concerns_lab(pull: FaultAction, *, control_plane: bool, agents: bool) -> bool:
    """Whether the lab has the action's target: a control plane or agents may be absent."""
    if _agent_s(pull):
        return control_plane and agents
    return control_plane or not _control_plane_s(pull)


def _agent_s(pull: FaultAction) -> bool:
    if isinstance(pull, KillProcess | FreezeProcess):
        return pull.part is ProcessRole.AGENT
    return isinstance(pull, SetGpuState | FalsifyReports) or (isinstance(pull, ShapeLink) and pull.end == "agent")


def _control_plane_s(pull: FaultAction) -> bool:
    if isinstance(pull, KillProcess | FreezeProcess):
        return pull.part is ProcessRole.CONTROL_PLANE
    return isinstance(pull, FalsifyTelemetry | CorruptConfig | PushPolicy) or (
        isinstance(pull, ShapeLink) and pull.end == "xds"
    )
