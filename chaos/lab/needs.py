"""What an experiment needs of its lab, so that nothing stands there that only makes noise. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chaos.faults.pulls import (
    Corrupt,
    Freeze,
    Gpu,
    Kill,
    Part,
    Pull,
    PushPolicy,
    Reports,
    Telemetry,
    Wire,
)
from chaos.lab.levers.wires import links_of
from chaos.scenario.plan import Outage


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """``alone`` are engines whose process is killed or stopped, ``links`` those between which a wire is laid."""

    alone: frozenset[str] = frozenset()
    links: frozenset[str] = frozenset()
    reports: bool = False
    gpus: bool = False


def pulls_of(outage: Outage) -> tuple[Pull, ...]:
    """Everything that is done in one outage."""
    return tuple(pull for target in outage.targets for pull in outage.fault.pulls(target))


def needs(pulls: Iterable[Pull], engine_zones: Mapping[str, str], proxy_zones: Mapping[str, str]) -> Needs:
    """What must stand there so that these pulls can be done; zones are those of all engines and proxies."""
    alone: set[str] = set()
    links: set[str] = set()
    reports = gpus = False
    for pull in pulls:
        match pull:
            case Kill(part=Part.ENGINE, target=engine) | Freeze(part=Part.ENGINE, target=engine):
                alone.add(engine)
            case Wire(end=end) if end != "xds":
                links.update(links_of(pull, engine_zones, proxy_zones))
            case Reports():
                reports = True
            case Gpu():
                gpus = True
    return Needs(alone=frozenset(alone), links=frozenset(links), reports=reports, gpus=gpus)


def everything(engines: Iterable[str], *, gpus: bool = False) -> Needs:
    """A lab in which any fault can be pulled; those of GPUs need a double, which needs a compiler."""
    names = frozenset(engines)
    links = frozenset(f"{end}:{name}" for end in ("engine", "agent") for name in names)
    return Needs(alone=names, links=links, reports=True, gpus=gpus)


def is_of(pull: Pull, *, control_plane: bool, agents: bool) -> bool:
    """Whether there is anything to pull at: who has no control plane, or no agents, cannot lose them."""
    if _agent_s(pull):
        return control_plane and agents
    return control_plane or not _control_plane_s(pull)


def _agent_s(pull: Pull) -> bool:
    if isinstance(pull, Kill | Freeze):
        return pull.part is Part.AGENT
    return isinstance(pull, Gpu | Reports) or (isinstance(pull, Wire) and pull.end == "agent")


def _control_plane_s(pull: Pull) -> bool:
    if isinstance(pull, Kill | Freeze):
        return pull.part is Part.CONTROL_PLANE
    return isinstance(pull, Telemetry | Corrupt | PushPolicy) or (isinstance(pull, Wire) and pull.end == "xds")
