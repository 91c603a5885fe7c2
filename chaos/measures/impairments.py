"""Impairments: which engines requests should avoid, when and why, derived from the faults."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from chaos.fake_engine.engine_faults import (
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineFault,
    EngineFlap,
    EngineGrayFailure,
    EngineHangMidStream,
    EngineKvCacheFull,
    EnginePacing,
    EngineResetMidStream,
    EngineShed,
    EngineSigterm,
    EngineSlow,
    gpu_rate,
)
from chaos.faults.actions import (
    EVERYBODY,
    OTHER_ZONES,
    FaultAction,
    FreezeProcess,
    KillProcess,
    ProcessRole,
    RestartEngine,
    SetEngineFault,
    ShapeLink,
)
from chaos.faults.fault import Fault
from chaos.faults.fault_registry import AnyFault
from chaos.faults.target_kind import TargetKind
from chaos.history.recorded_history import History, Outage

_FAULTS: TypeAdapter[Fault] = TypeAdapter(AnyFault)
_SOME = EngineErrorAfterWork | EngineShed | EngineHangMidStream | EngineResetMidStream | EngineGrayFailure
_LOST_PERCENT: Final = 50.0
"""A link with more loss than this counts as down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpairmentKind:
    """Effect of a fault on an engine, for the measures.

    ``capacity_left``: usable share of its capacity. ``is_at_standstill``: it accepts calls but gives out no slots.
    ``unseen``: calls do not reach its log, so proxy counters are used. ``flaps``: it is healthy in between.
    ``takes_streams``: the fault itself cuts running streams.
    """

    capacity_left: float = 0.0
    is_at_standstill: bool = False
    unseen: bool = False
    flaps: bool = False
    takes_streams: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Impairment:
    """Impairment of one engine in ``[start_s, end_s)``, seen by ``proxies``, or by all if None.

    ``end_s`` is infinite if it outlasted the history. ``ejectable``: requests should avoid the engine; otherwise
    it only has less capacity.
    """

    outage: str
    kind: str
    engine: str
    start_s: float
    end_s: float
    nature: ImpairmentKind
    bad: bool = True
    proxies: frozenset[str] | None = None

    def at(self, at_s: float) -> bool:
        """Whether it is active at this time."""
        return self.start_s <= at_s < self.end_s


def fault_of_event(said: Mapping[str, Any]) -> Fault | None:
    """The fault of an event; None if this version does not know it."""
    try:
        return _FAULTS.validate_python(dict(said))
    except ValidationError:
        return None


def outages_of_target_kind(history: History, aim: TargetKind) -> list[Outage]:
    """Outages whose faults hit this kind of target."""
    return [
        one for one in history.outages if (fault := fault_of_event(one.fault)) is not None and fault.aim is aim
    ]


def ejectable(some: Iterable[Impairment]) -> list[Impairment]:
    """Impairments in which every proxy should avoid the engine."""
    return [one for one in some if one.bad and one.proxies is None]


def impairments(history: History, *, of_all_pools: bool = False) -> tuple[Impairment, ...]:
    """Impairments of engines under test, or of all, by start time. Unknown faults are skipped."""
    engines = {one.name for one in history.began.engines} if of_all_pools else set(history.slots)
    found = []
    for outage in history.outages:
        fault = fault_of_event(outage.fault)
        if fault is None or fault.aim not in {TargetKind.ENGINES, TargetKind.ZONES} or _harmless(fault):
            continue
        for engine in (target for target in outage.targets if target in engines):
            pulls = fault.actions(engine)
            healed_s = float("inf") if outage.end_s is None or stays_dead(pulls) else outage.end_s
            found.append(
                Impairment(
                    outage=outage.id,
                    kind=outage.kind,
                    engine=engine,
                    start_s=outage.start_s,
                    end_s=healed_s,
                    nature=impairment_kind(pulls, max(fault.capacity_left(), _spared(pulls))),
                    bad=fault.breaks,
                    proxies=_only_for(history, engine, pulls),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.start_s, one.engine)))


def stays_dead(pulls: Iterable[FaultAction]) -> bool:
    """Whether the actions are not undone before the experiment ends."""
    return any(isinstance(one, KillProcess) and one.stays_dead for one in pulls)


def impairment_kind(pulls: Sequence[FaultAction], capacity_left: float) -> ImpairmentKind:
    """Impairment kind of a fault with these actions."""
    of_engine = [_of_engine_fault(one.fault) for one in pulls if isinstance(one, SetEngineFault)]
    restarts = [one for one in pulls if isinstance(one, RestartEngine)]
    gone = any(isinstance(one, KillProcess | FreezeProcess) and one.part is ProcessRole.ENGINE for one in pulls)
    cut_off = any(isinstance(one, ShapeLink) and one.end == "engine" and _carries_nothing(one) for one in pulls)
    return ImpairmentKind(
        capacity_left=capacity_left,
        is_at_standstill=any(one.is_at_standstill for one in of_engine),
        unseen=gone or cut_off or bool(restarts) or any(one.unseen for one in of_engine),
        flaps=any(one.flaps for one in of_engine)
        or any(isinstance(one, FreezeProcess) and one.on_share < 1.0 for one in pulls),
        takes_streams=gone
        or cut_off
        or any(one.drain_within_s is None and not one.shutdown_timeout_s for one in restarts)
        or any(one.takes_streams for one in of_engine),
    )


def engine_impairment_kind(fault: EngineFault, capacity_left: float = 0.0) -> ImpairmentKind:
    """Impairment kind of a simulated engine's fault."""
    return impairment_kind([SetEngineFault(engine="", fault=fault)], capacity_left)


def _of_engine_fault(fault: EngineFault) -> ImpairmentKind:
    if isinstance(fault, EngineFlap):
        inner = _of_engine_fault(fault.fault)
        return ImpairmentKind(flaps=True, unseen=inner.unseen, takes_streams=inner.takes_streams)
    # An engine that only refuses or is slow still finishes its streams.
    lets_end = isinstance(
        fault,
        EngineDrain
        | EngineShed
        | EngineGrayFailure
        | EngineBadHealth
        | EngineSlow
        | EnginePacing
        | EngineKvCacheFull,
    ) or (isinstance(fault, EngineSigterm) and fault.shutdown_timeout_s > 0)
    return ImpairmentKind(
        is_at_standstill=gpu_rate(fault) == 0.0,
        unseen=isinstance(fault, EngineCrash | EngineSigterm),
        takes_streams=not lets_end,
    )


def _carries_nothing(wire: ShapeLink) -> bool:
    return wire.black_hole or wire.reset or wire.loss_percent > _LOST_PERCENT


def _spared(pulls: Sequence[FaultAction]) -> float:
    """Share of calls that the fault does not affect."""
    return min(
        (
            1.0 - one.fault.share
            for one in pulls
            if isinstance(one, SetEngineFault) and isinstance(one.fault, _SOME)
        ),
        default=0.0,
    )


def _harmless(fault: Fault) -> bool:
    return not fault.breaks and fault.capacity_left() >= 1.0


def _only_for(history: History, engine: str, pulls: Sequence[FaultAction]) -> frozenset[str] | None:
    """The only proxies affected; None if all are."""
    links = [one for one in pulls if isinstance(one, ShapeLink) and one.end == "engine"]
    sources = {source for one in links for source in one.sources}
    if (
        not links
        or EVERYBODY in sources
        or any(isinstance(one, SetEngineFault | KillProcess | FreezeProcess) for one in pulls)
    ):
        return None
    here = next((one.zone for one in history.began.engines if one.name == engine), "")
    others = {one.name for one in history.began.proxies if one.zone != here} if OTHER_ZONES in sources else set()
    found = frozenset(sources - {OTHER_ZONES} | others)
    return None if found >= {one.name for one in history.began.proxies} else found
