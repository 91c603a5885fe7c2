"""Which engines were better left alone, when, and in what way: faults as what is measured needs them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from chaos.fake_engine.faults import (
    BadHealth,
    Crash,
    Drain,
    ErrorAfterWork,
    Flap,
    GrayFailure,
    HangMidStream,
    KvCacheFull,
    Pacing,
    ResetMidStream,
    Shed,
    Sigterm,
    Slow,
    rate,
)
from chaos.fake_engine.faults import Fault as EngineFault
from chaos.faults.fault import Aim, Fault
from chaos.faults.library import AnyFault
from chaos.faults.pulls import EVERYBODY, OTHER_ZONES, BreakEngine, Freeze, Kill, Part, Pull, Restart, Wire
from chaos.history.history import History, Outage

_FAULTS: TypeAdapter[Fault] = TypeAdapter(AnyFault)
_SOME = ErrorAfterWork | Shed | HangMidStream | ResetMidStream | GrayFailure
_LOST_PERCENT: Final = 50.0
"""A wire that loses more than this carries nothing worth having."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nature:
    """What is wrong with an engine, as far as measuring goes.

    ``capacity_left``: share of its work that is still worth having. ``stands_still``: it takes calls and hands out
    no slots. ``unseen``: what is sent there does not reach its book, so the proxies' counters are read.
    ``flaps``: it is well in between. ``takes_streams``: those in flight end by the fault and by nobody's choice.
    """

    capacity_left: float = 0.0
    stands_still: bool = False
    unseen: bool = False
    flaps: bool = False
    takes_streams: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One engine had something in ``[start_s, end_s)``, for ``proxies`` only or, where that is None, for all.
    ``end_s`` is infinite where it lasted when the history ended. ``bad``: it had better been left alone; others
    are only worth less than usual.
    """

    outage: str
    kind: str
    engine: str
    start_s: float
    end_s: float
    nature: Nature
    bad: bool = True
    proxies: frozenset[str] | None = None

    def at(self, at_s: float) -> bool:
        """Whether it lasts at this moment."""
        return self.start_s <= at_s < self.end_s


def fault_of(said: Mapping[str, Any]) -> Fault | None:
    """The fault of an event; None for one that this version does not know."""
    try:
        return _FAULTS.validate_python(dict(said))
    except ValidationError:
        return None


def aimed(history: History, aim: Aim) -> list[Outage]:
    """The outages of faults that hit this sort of target."""
    return [one for one in history.outages if (fault := fault_of(one.fault)) is not None and fault.aim is aim]


def bad(some: Iterable[Trouble]) -> list[Trouble]:
    """Those in which the engine had better been left alone by everybody."""
    return [one for one in some if one.bad and one.proxies is None]


def troubles(history: History) -> tuple[Trouble, ...]:
    """Every engine's, by the time it began. Faults that this version does not know are left out."""
    slots = history.slots
    found = []
    for outage in history.outages:
        fault = fault_of(outage.fault)
        if fault is None or fault.aim not in {Aim.ENGINES, Aim.ZONES} or _harmless(fault):
            continue
        for engine in (target for target in outage.targets if target in slots):
            pulls = fault.pulls(engine)
            healed_s = float("inf") if outage.end_s is None or stays_dead(pulls) else outage.end_s
            found.append(
                Trouble(
                    outage=outage.id,
                    kind=outage.kind,
                    engine=engine,
                    start_s=outage.start_s,
                    end_s=healed_s,
                    nature=nature(pulls, max(fault.capacity_left(), _spared(pulls))),
                    bad=fault.breaks,
                    proxies=_only_for(history, engine, pulls),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.start_s, one.engine)))


def stays_dead(pulls: Iterable[Pull]) -> bool:
    """Whether what is pulled is not undone before the end."""
    return any(isinstance(one, Kill) and one.stays_dead for one in pulls)


def nature(pulls: Sequence[Pull], capacity_left: float) -> Nature:
    """Of a fault that pulls these."""
    of_engine = [_of_engine_fault(one.fault) for one in pulls if isinstance(one, BreakEngine)]
    restarts = [one for one in pulls if isinstance(one, Restart)]
    gone = any(isinstance(one, Kill | Freeze) and one.part is Part.ENGINE for one in pulls)
    cut_off = any(isinstance(one, Wire) and one.end == "engine" and _carries_nothing(one) for one in pulls)
    return Nature(
        capacity_left=capacity_left,
        stands_still=any(one.stands_still for one in of_engine),
        unseen=gone or cut_off or bool(restarts) or any(one.unseen for one in of_engine),
        flaps=any(one.flaps for one in of_engine)
        or any(isinstance(one, Freeze) and one.on_share < 1.0 for one in pulls),
        takes_streams=gone
        or cut_off
        or any(one.drain_within_s is None and not one.shutdown_timeout_s for one in restarts)
        or any(one.takes_streams for one in of_engine),
    )


def of_engine_fault(fault: EngineFault, capacity_left: float = 0.0) -> Nature:
    """Of a simulated engine that misbehaves in this way."""
    return nature([BreakEngine(engine="", fault=fault)], capacity_left)


def _of_engine_fault(fault: EngineFault) -> Nature:
    if isinstance(fault, Flap):
        inner = _of_engine_fault(fault.fault)
        return Nature(flaps=True, unseen=inner.unseen, takes_streams=inner.takes_streams)
    # What only refuses, or is only slow, lets every stream that it has end.
    lets_end = isinstance(fault, Drain | Shed | GrayFailure | BadHealth | Slow | Pacing | KvCacheFull) or (
        isinstance(fault, Sigterm) and fault.shutdown_timeout_s > 0
    )
    return Nature(
        stands_still=rate(fault) == 0.0, unseen=isinstance(fault, Crash | Sigterm), takes_streams=not lets_end
    )


def _carries_nothing(wire: Wire) -> bool:
    return wire.black_hole or wire.reset or wire.loss_percent > _LOST_PERCENT


def _spared(pulls: Sequence[Pull]) -> float:
    """Share of the calls that a fault which hits some of them leaves alone."""
    return min(
        (1.0 - one.fault.share for one in pulls if isinstance(one, BreakEngine) and isinstance(one.fault, _SOME)),
        default=0.0,
    )


def _harmless(fault: Fault) -> bool:
    return not fault.breaks and fault.capacity_left() >= 1.0


def _only_for(history: History, engine: str, pulls: Sequence[Pull]) -> frozenset[str] | None:
    """The proxies that alone notice; None when everybody does."""
    links = [one for one in pulls if isinstance(one, Wire) and one.end == "engine"]
    sources = {source for one in links for source in one.sources}
    if not links or EVERYBODY in sources or any(isinstance(one, BreakEngine | Kill | Freeze) for one in pulls):
        return None
    here = next((one.zone for one in history.began.engines if one.name == engine), "")
    others = {one.name for one in history.began.proxies if one.zone != here} if OTHER_ZONES in sources else set()
    found = frozenset(sources - {OTHER_ZONES} | others)
    return None if found >= {one.name for one in history.began.proxies} else found
