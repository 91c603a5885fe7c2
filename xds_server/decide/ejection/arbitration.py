"""The one place that decides what is out: every ejector asks here, and the pool's capacity has its say.

* Hard evidence (dead, hung, not started) always takes an engine out: it serves nobody.
* Soft evidence (degraded, silent, failing, slow) takes engines out only down to the capacity floor of the pool and
  of each zone: half a fleet that sometimes fails serves more than none. The worst leave first; but who is out
  already stays out before others follow, so that two bad engines do not take turns.
* Most of a zone bad at once, and the rest well, is one event and not many: a switch, a rollout, a power feed. Then
  the zone's floor yields, for its callers are better served elsewhere; the pool's floor holds.
* A reading that the whole pool shares says more about the judge than about the engines, and is then set aside.
* An order is followed: an agent's to drain always, an operator's down to the floor unless it is forced.
* What the orchestrator ends is over: an engine that is leaving drains, one that is gone gets nothing. That a node
  is unfit, or an engine not ready, is soft, and doubted where it is said of the whole pool (``orchestrated``).
* Coming back is never refused. A trial is soft, too: an engine that cannot be spared has all of its share at once,
  or a pool whose engines were kept would refuse callers for being well again.
* Engines of one tensor-parallel group are one unit: the worst member decides for all.

Envoy's own panic mode is off; this is where panic would have been.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from engine.report import Doubt, Verdict
from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.model.fleet import Engine, EngineId

# Share of a pool's heard engines at which a doubtful reading is taken as the judge's own fault. A refused probe
# is a matter of configuration, which rarely hits one half by accident. Silence takes whole zones with a switch or
# a power feed, so only a pool that is silent altogether, and has more than one engine, is doubted.
_REFUSED_SHARE: Final = 0.5
_SILENT_SHARE: Final = 1.0

ZONE_EVENT_SHARE: Final = 0.6
"""Share of a zone's engines, all bad at once, from which it is the zone that has failed."""

ZONE_OTHERS_HEALTHY_SHARE: Final = 0.5
"""More than this share of the engines elsewhere is well then: or else it is the whole pool that has failed."""

ZONE_EVENT_ENGINES: Final = 2
"""Engines that takes at least: one bad engine is no event, be it alone in its zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFloor:
    """What soft evidence leaves in: a share of the slots of pool and zone, and a number of engines of the pool."""

    percent: float
    engines: int


def credible_requests(
    engines: Sequence[Engine], asked: Mapping[int, EjectionRequest], heard: Callable[[], int]
) -> dict[int, EjectionRequest]:
    """What is ``asked``, by place in ``engines``, less what is in doubt, and one for all of a group.

    ``heard`` says how many engines of the pool have fresh reports.
    """
    return _joined_groups(engines, _without_doubt(asked, heard))


def granted_requests(
    engines: Sequence[Engine],
    asked: dict[int, EjectionRequest],
    floor: CapacityFloor,
    out: Callable[[EngineId], bool],
) -> dict[int, EjectionRequest]:
    """What is granted of what is ``asked``, both by place in ``engines``; nothing is asked for all others.

    Soft wishes, trials among them, are granted only while the floor holds. ``out`` says who is out already, and
    comes first.
    """
    if not asked:
        return asked
    decided = dict(asked)
    soft = [place for place, one in asked.items() if one.soft or one.traffic_percent < 100]
    room = _remaining_capacity(engines, asked, floor)
    if room.events:
        for place, one in asked.items():
            event = room.events.get(_zone(engines[place]), "")
            if event and one.health is Health.UNHEALTHY and not one.ordered:
                decided[place] = replace(one, reason=f"{one.reason}; {event}")
    if not soft:
        return decided

    def unit_of(place: int) -> str:
        return engines[place].tensor_parallel_group or f" {place}"  # no group name begins with a space

    def urgency(places: Sequence[int]) -> tuple[bool, int, float, EngineId]:
        first = engines[places[0]].id
        order, severity = max(_rank(asked[place]) for place in places)
        return not out(first), -order, -severity, first

    soft.sort(key=unit_of)
    units = [list(places) for _, places in groupby(soft, key=unit_of)]
    units.sort(key=urgency)
    for places in units:
        members = [engines[place] for place in places]
        refusal = room.floor_violation(members)
        if not refusal:
            room.eject(members)
            continue
        for place in places:
            one = asked[place]
            decided[place] = replace(
                one,
                health=Health.HEALTHY,
                soft=False,
                floor=True,
                traffic_percent=100.0,
                reason=f"kept: {refusal}; {one.reason}",
                returns=f"others are well again, or {one.returns}" if one.returns else "others are well again",
            )
    return decided


def strongest_request(wishes: Sequence[EjectionRequest]) -> EjectionRequest:
    """The wish that decides among those of all ejectors for one engine; there is at least one."""
    return max(wishes, key=_rank)


def _rank(wish: EjectionRequest) -> tuple[int, float]:
    """How much a wish outweighs others: useless, leaving, ordered away, worse than others, on trial, nothing.

    What is leaving outweighs an order that the floor may refuse: the engine would be kept in for the order.
    """
    if wish.health is not Health.HEALTHY:
        out = wish.health is Health.UNHEALTHY
        if not wish.soft:
            return (5 if out else 4), 0.0
        return (3, out) if wish.ejector is Ejector.OPERATOR else (2, wish.severity)
    return (1 if wish.traffic_percent < 100 else 0), 100 - wish.traffic_percent


def _without_doubt(asked: Mapping[int, EjectionRequest], heard: Callable[[], int]) -> dict[int, EjectionRequest]:
    """The wishes, less those that rest on a reading the pool shares."""
    wishes = dict(asked)
    counts = Counter(one.doubt for one in asked.values() if one.doubt is not None)
    for doubt, share in ((Doubt.REFUSED, _REFUSED_SHARE), (Doubt.SILENT, _SILENT_SHARE)):
        count = counts[doubt]
        if not count or (doubt is Doubt.SILENT and count < 2):
            continue
        known = heard()
        if count < share * known:
            continue
        blame = "policy or probe" if doubt is Doubt.REFUSED else "way there"
        for place, one in wishes.items():
            if one.doubt is doubt and one.health is Health.UNHEALTHY and one.ejector is Ejector.VERDICT:
                why = f"kept: {count} of {known} engines say the same, so the {blame} is in doubt; {one.reason}"
                wishes[place] = replace(one, health=Health.HEALTHY, soft=False, reason=why, returns="")
    return wishes


def _joined_groups(engines: Sequence[Engine], wishes: dict[int, EjectionRequest]) -> dict[int, EjectionRequest]:
    """The wishes, those of a tensor-parallel group replaced by the worst of them."""
    worst: dict[str, int] = {}
    for place, one in wishes.items():
        group = engines[place].tensor_parallel_group
        if group and (group not in worst or _rank(one) > _rank(wishes[worst[group]])):
            worst[group] = place
    if not worst:
        return wishes
    joined = dict(wishes)
    for place, engine in enumerate(engines):
        culprit = worst.get(engine.tensor_parallel_group)
        if culprit is None or culprit == place:
            continue
        verdict, own = wishes[culprit], wishes.get(place)
        if _rank(verdict)[0] > (_rank(own)[0] if own is not None else 0):
            group = engine.tensor_parallel_group
            reason = f"shares GPUs with {engines[culprit].id.engine} (group {group}): {verdict.reason}"
            said = engine.report.verdict if engine.report is not None else None
            joined[place] = replace(verdict, reason=reason, verdict=said, doubt=None)
    return joined


@dataclass(slots=True)
class _RemainingCapacity:
    """Slots and engines in use, in all, and in each zone; mutable while units are weighed one after another."""

    floor: CapacityFloor
    engines: int
    total: dict[str, int]
    left: dict[str, int]
    events: Mapping[str, str]

    def floor_violation(self, unit: Sequence[Engine]) -> str:
        """Why the unit may not leave; empty when it may."""
        if self.engines - len(unit) < self.floor.engines:
            return f"without it the pool has {self.engines - len(unit)} engines, floor {self.floor.engines}"
        for place in ("", *sorted({_zone(engine) for engine in unit})):
            if place in self.events:
                continue
            leaving = sum(engine.slots for engine in unit if place in ("", _zone(engine)))
            share = 100 * (self.left[place] - leaving) / self.total[place]
            if share < self.floor.percent - 1e-9:
                where = f"zone {place.removeprefix('zone ')}" if place else "the pool"
                return f"without it {where} has {share:.0f} % of its slots, floor {self.floor.percent:g} %"
        return ""

    def eject(self, unit: Sequence[Engine]) -> None:
        self.engines -= len(unit)
        for engine in unit:
            self.left[""] -= engine.slots
            self.left[_zone(engine)] -= engine.slots


def _zone(engine: Engine) -> str:
    return f"zone {engine.zone}"


def _remaining_capacity(
    engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest], floor: CapacityFloor
) -> _RemainingCapacity:
    """Everything that hard evidence and orders already followed leave."""
    total, left, count = {"": 0}, {"": 0}, 0
    for place, engine in enumerate(engines):
        one = wishes.get(place)
        stays = one is None or one.health is Health.HEALTHY or one.soft
        count += stays
        for where in ("", _zone(engine)):
            total[where] = total.get(where, 0) + engine.slots
            left[where] = left.get(where, 0) + (engine.slots if stays else 0)
    return _RemainingCapacity(
        floor=floor, engines=count, total=total, left=left, events=_zone_events(engines, wishes)
    )


def _zone_events(engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest]) -> dict[str, str]:
    """Zones that failed as one, and the words for it."""
    size = Counter(map(_zone, engines))
    if len(size) < 2:
        return {}
    bad = Counter(
        _zone(engines[place])
        for place, one in wishes.items()
        if one.health is Health.UNHEALTHY and not one.ordered
    )
    # Engines that were ill when last heard count as ill elsewhere: their silence must eject nobody here.
    ill = Counter(
        _zone(engine)
        for place, engine in enumerate(engines)
        if place in wishes
        or (
            engine.report is not None
            and not (engine.report.verdict.good or engine.report.verdict is Verdict.DRAINING)
        )
    )
    events = {}
    for zone, count in bad.items():
        elsewhere = ill.total() - ill[zone]
        others = len(engines) - size[zone]
        if (
            count >= max(ZONE_EVENT_ENGINES, ZONE_EVENT_SHARE * size[zone])
            and elsewhere < (1 - ZONE_OTHERS_HEALTHY_SHARE) * others
        ):
            events[zone] = (
                f"{count} of {size[zone]} engines of zone {zone.removeprefix('zone ')} at once: zone event"
            )
    return events
