"""Which engines were better left alone, when, and in what way: faults as what is measured needs them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from chaos.fake_engine.faults import BadHealth, Crash, Drain, Flap, KvCacheFull, Shed, Sigterm, Slow, rate
from chaos.fake_engine.faults import Fault as EngineFault
from chaos.faults.fault import Aim, Fault
from chaos.faults.library import AnyFault
from chaos.faults.pulls import BreakEngine, Freeze, Kill, Part, Pull, Wire
from chaos.history.history import History, Outage

_FAULTS: TypeAdapter[Fault] = TypeAdapter(AnyFault)
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
    """One engine was bad in ``[start_s, end_s)``, for ``proxies`` only or, where that is None, for everybody.
    ``end_s`` is infinite for one that was still bad when the history ended.
    """

    outage: str
    kind: str
    engine: str
    start_s: float
    end_s: float
    nature: Nature
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


def troubles(history: History) -> tuple[Trouble, ...]:
    """Every engine's, by the time it began. Faults that this version does not know are left out."""
    found = []
    for outage in history.outages:
        fault = fault_of(outage.fault)
        if fault is None or fault.aim is not Aim.ENGINES or not fault.breaks:
            continue
        for engine in outage.targets:
            pulls = fault.pulls(engine)
            healed_s = float("inf") if outage.end_s is None or stays_dead(pulls) else outage.end_s
            found.append(
                Trouble(
                    outage=outage.id,
                    kind=outage.kind,
                    engine=engine,
                    start_s=outage.start_s,
                    end_s=healed_s,
                    nature=nature(pulls, fault.capacity_left()),
                    proxies=_only_for(pulls),
                )
            )
    return tuple(sorted(found, key=lambda one: (one.start_s, one.engine)))


def stays_dead(pulls: Iterable[Pull]) -> bool:
    """Whether what is pulled is not undone before the end."""
    return any(isinstance(one, Kill) and one.stays_dead for one in pulls)


def nature(pulls: Sequence[Pull], capacity_left: float) -> Nature:
    """Of a fault that pulls these."""
    of_engine = [_of_engine_fault(one.fault) for one in pulls if isinstance(one, BreakEngine)]
    gone = any(isinstance(one, Kill | Freeze) and one.part is Part.ENGINE for one in pulls)
    cut_off = any(isinstance(one, Wire) and one.end == "engine" and _carries_nothing(one) for one in pulls)
    return Nature(
        capacity_left=capacity_left,
        stands_still=any(one.stands_still for one in of_engine),
        unseen=gone or cut_off or any(one.unseen for one in of_engine),
        flaps=any(one.flaps for one in of_engine)
        or any(isinstance(one, Freeze) and one.on_share < 1.0 for one in pulls),
        takes_streams=gone or cut_off or any(one.takes_streams for one in of_engine),
    )


def of_engine_fault(fault: EngineFault, capacity_left: float = 0.0) -> Nature:
    """Of a simulated engine that misbehaves in this way."""
    return nature([BreakEngine(engine="", fault=fault)], capacity_left)


def _of_engine_fault(fault: EngineFault) -> Nature:
    if isinstance(fault, Flap):
        inner = _of_engine_fault(fault.fault)
        return Nature(flaps=True, unseen=inner.unseen, takes_streams=inner.takes_streams)
    # What only refuses, or is only slow, lets every stream that it has end.
    lets_end = isinstance(fault, Drain | Shed | BadHealth | Slow | KvCacheFull) or (
        isinstance(fault, Sigterm) and fault.shutdown_timeout_s > 0
    )
    return Nature(
        stands_still=rate(fault) == 0.0, unseen=isinstance(fault, Crash | Sigterm), takes_streams=not lets_end
    )


def _carries_nothing(wire: Wire) -> bool:
    return wire.black_hole or wire.reset or wire.loss_percent > _LOST_PERCENT


def _only_for(pulls: Sequence[Pull]) -> frozenset[str] | None:
    """The proxies that alone notice; None when everybody does."""
    if not pulls or not all(isinstance(one, Wire) and "*" not in one.sources for one in pulls):
        return None
    return frozenset(source for one in pulls if isinstance(one, Wire) for source in one.sources)
