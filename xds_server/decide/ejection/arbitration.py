"""Arbitration: every ejector asks here, and the pool's capacity floor limits what is granted.

* Hard evidence (dead, hung, not started) always ejects: the engine serves nothing.
* Soft evidence (degraded, silent, failing, slow) ejects only down to the capacity floor of the pool and of each
  zone: half a fleet that sometimes fails serves more than none. The worst go first. Ejected engines stay ejected
  before others follow, so that two bad engines do not alternate.
* The floor counts ability, not slots: an engine that fails half of its calls, or takes twice as long, is half an
  engine, and gets half a share if it is kept. One that yields next to nothing adds nothing to the floor: it goes
  while a good engine of its zone, or of another one that can help, remains. Many slow ones may yield much
  together, compared with the good ones of their zone: then they go only while those have room for all requests.
* A zone's floor yields where other zones can serve its callers: the engines without evidence against them, in
  all zones, must suffice for all requests, with a margin. Then a bad engine alone in its zone is ejected, too.
* Most of a zone bad at once while the rest is healthy is one event: a switch, a rollout, a power feed. The zone's
  floor then yields, because its callers are better served elsewhere. The pool's floor holds.
* A symptom that the whole pool shares points at the observer, not at the engines, and is ignored. A refused probe
  is one only while no peer answers the same probe: an engine with another key or model refuses its callers too.
* An agent's drain is always followed. An operator order is followed down to the floor unless it is forced.
* The orchestrator's deletions are final: a leaving engine drains, a gone one gets nothing. An unfit node or an
  unready pod is soft evidence, doubted when it covers the whole pool (``pod_evidence``).
* Returning is never refused. A trial is soft, too: an engine that the floor keeps gets its full share at once,
  or the pool would refuse callers because an engine recovered.
* Engines of one tensor-parallel group are one unit: the worst member decides for all.

Envoy's own panic mode is off; this replaces it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from engine.report import Doubt, Verdict
from xds_server.decide.decisions import Ejector, Health
from xds_server.decide.ejection.report_evidence import EjectionRequest
from xds_server.model.fleet import Engine, EngineId

# Share of a pool's reporting engines from which a doubtful symptom is blamed on the observer. An untrusted
# certificate is a configuration error, which rarely hits half a pool by accident. Silence takes whole zones with a
# switch or a power feed, so only a completely silent pool of more than one engine is doubted.
_REFUSED_SHARE: Final = 0.5
_SILENT_SHARE: Final = 1.0

ZONE_EVENT_SHARE: Final = 0.6
"""Share of a zone's engines, bad at the same time, from which the zone itself counts as failed."""

ZONE_OTHERS_HEALTHY_SHARE: Final = 0.5
"""More than this share of the other zones' engines must be healthy; otherwise the whole pool has failed."""

_WHOLE_PERCENT: Final = 100.0
"""The floor that keeps every engine, whatever it yields."""

ZONE_EVENT_ENGINES: Final = 2
"""Minimum bad engines for a zone event: one is none, even if it is alone in its zone."""


NEGLIGIBLE: Final = 0.2
"""Ability up to which a floor below 100 % does not keep an engine: to ten engines, one ten times slower adds a
hundredth of goodput, and each of its answers takes longer than callers were promised."""

NEGLIGIBLE_OUTSIDE: Final = 0.3
"""The same for an engine that is out: noise in its ability must not return it."""

LITTLE: Final = 0.1
"""What slow ones of them may yield together, over what the good ones of their zone yield. With five of eight
engines ten times slower, and twice the load of the others, they gave 7 of 49 answers that callers got."""

LITTLE_OUTSIDE: Final = 0.15
"""The same for engines that are out."""

SHARE_STEP_PERCENT: Final = 5.0
"""Step, and minimum, of the share of an engine that the floor keeps: its ability must stay measurable."""

FILL: Final = 0.8
"""Load of the others below which a zone's last engines may go; they stay out until the others are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneRelief:
    """How engines can help the callers of others: answers per second of each, requests per second of all callers.

    ``apart``: by region, the engines that may not serve all of its callers.
    """

    per_s: Mapping[EngineId, float]
    asked_per_s: float
    apart: Mapping[str, frozenset[EngineId]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFloor:
    """What soft evidence must leave: percent of the slots of pool and zone, and engines of the pool.

    ``relief`` is None where callers may not leave their zone, one of several, or their demand is unknown.
    """

    percent: float
    engines: int
    relief: ZoneRelief | None = None


def credible_requests(
    engines: Sequence[Engine], wishes: Mapping[int, Sequence[EjectionRequest]], heard: Callable[[], list[Engine]]
) -> dict[int, EjectionRequest]:
    """The strongest request by place in ``engines``, without doubtful ones, one per tensor-parallel group.

    ``heard`` returns the engines of the pool with fresh reports.
    """
    confirmed = _without_unconfirmed_refusals(engines, wishes, heard)
    asked = {place: _joined_evidence(those) for place, those in confirmed.items()}
    return _joined_groups(engines, _without_doubt(asked, heard))


def granted_requests(
    engines: Sequence[Engine],
    asked: dict[int, EjectionRequest],
    floor: CapacityFloor,
    out: Callable[[EngineId], bool],
) -> dict[int, EjectionRequest]:
    """The requests as granted, by place in ``engines``.

    Soft requests, trials included, are granted only while the floor holds. Engines that are already ``out`` come
    first. A share that the floor would keep too, such as that of working ranks, needs no floor.
    """
    if not asked:
        return asked
    decided = dict(asked)
    soft = [
        place
        for place, one in asked.items()
        if one.soft or (one.traffic_percent < 100 * one.ability and not one.paced)
    ]
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
        refusal = room.floor_violation(members, out=out(members[0].id))
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
                traffic_percent=room.kept_percent(engines[place]),
                paced=one.ejector is Ejector.SLOWNESS,
                reason=f"kept in rotation: {refusal}; {one.reason}",
                returns=f"other engines recover, or {one.returns}" if one.returns else "other engines recover",
            )
    return decided


def share_percent(ability: float) -> float:
    """Share of its traffic for an engine of this ability, in steps."""
    return SHARE_STEP_PERCENT * max(1, round(100 * ability / SHARE_STEP_PERCENT))


def strongest_request(wishes: Sequence[EjectionRequest]) -> EjectionRequest:
    """The strongest request of all ejectors for one engine; ``wishes`` is not empty."""
    return max(wishes, key=_rank)


def _joined_evidence(wishes: Sequence[EjectionRequest]) -> EjectionRequest:
    """The strongest request, with the lowest ability that any of them measured."""
    strongest, ability = strongest_request(wishes), min(one.ability for one in wishes)
    return strongest if strongest.ability == ability else replace(strongest, ability=ability)


def _rank(wish: EjectionRequest) -> tuple[int, float]:
    """Priority of a request: hard, leaving, ordered, soft, trial, none.

    Leaving outranks an order: the floor may refuse the order, and that would keep the engine in rotation.
    """
    if wish.health is not Health.HEALTHY:
        out = wish.health is Health.UNHEALTHY
        if not wish.soft:
            return (5 if out else 4), 0.0
        return (3, out) if wish.ejector is Ejector.OPERATOR else (2, wish.severity)
    return (1 if wish.traffic_percent < 100 else 0), 100 - wish.traffic_percent


def _without_unconfirmed_refusals(
    engines: Sequence[Engine], wishes: Mapping[int, Sequence[EjectionRequest]], heard: Callable[[], list[Engine]]
) -> Mapping[int, Sequence[EjectionRequest]]:
    """The requests without refused probes that no peer answers.

    Only a canary proves an answer, and only of the same source: agents and prober may have different keys.
    """
    refused = [place for place, those in wishes.items() if any(_is_hard_refusal(one) for one in those)]
    if not refused:
        return wishes
    answered = {
        one.report.source
        for one in heard()
        if one.report is not None
        and one.report.verdict.good
        and one.report.canary is not None
        and one.report.canary.in_row
    }
    kept = dict(wishes)
    for place in refused:
        report = engines[place].report
        if report is not None and report.source not in answered:
            kept[place] = [
                replace(
                    one,
                    health=Health.HEALTHY,
                    reason=f"kept in rotation: no peer answers this probe, so suspect the probe; {one.reason}",
                    returns="",
                )
                if _is_hard_refusal(one)
                else one
                for one in wishes[place]
            ]
    return kept


def _is_hard_refusal(one: EjectionRequest) -> bool:
    return (
        one.doubt is Doubt.REFUSED
        and one.health is Health.UNHEALTHY
        and one.ejector is Ejector.VERDICT
        and not one.soft
    )


def _without_doubt(
    asked: Mapping[int, EjectionRequest], heard: Callable[[], list[Engine]]
) -> dict[int, EjectionRequest]:
    """The requests without those that rest on a symptom of the whole pool."""
    wishes = dict(asked)
    counts = Counter(one.doubt for one in asked.values() if one.doubt is not None and one.soft)
    for doubt, share in ((Doubt.REFUSED, _REFUSED_SHARE), (Doubt.SILENT, _SILENT_SHARE)):
        count = counts[doubt]
        if not count or (doubt is Doubt.SILENT and count < 2):
            continue
        known = len(heard())
        if count < share * known:
            continue
        blame = "policy or probe" if doubt is Doubt.REFUSED else "network path"
        for place, one in wishes.items():
            if one.doubt is doubt and one.soft and one.ejector is Ejector.VERDICT:
                why = f"kept in rotation: {count} of {known} engines agree, so suspect the {blame}; {one.reason}"
                wishes[place] = replace(one, health=Health.HEALTHY, soft=False, reason=why, returns="")
    return wishes


def _joined_groups(engines: Sequence[Engine], wishes: dict[int, EjectionRequest]) -> dict[int, EjectionRequest]:
    """The requests, with those of a tensor-parallel group replaced by its worst."""
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
    """Ability, in slots, and engines left in rotation, in total and by zone; updated as units are granted.

    ``abilities`` are relative to the best engine's, 1 for engines that it lacks. ``good``: by zone, slots of the
    engines without evidence against them. ``slow``: slow engines that may go, with their zone. ``loads``: by zone,
    the requests of all callers over what good engines serve that may help the zone; absent if none may.
    """

    floor: CapacityFloor
    engines: int
    total: dict[str, int]
    left: dict[str, float]
    abilities: Mapping[EngineId, float]
    good: Mapping[str, int]
    slow: Mapping[EngineId, tuple[str, int]]
    events: Mapping[str, str]
    loads: Mapping[str, float]

    def ability(self, engine: Engine) -> float:
        """Ability of an engine as a share of the best one's."""
        return self.abilities.get(engine.id, 1.0)

    def kept_percent(self, engine: Engine) -> float:
        """Share of its traffic that an engine gets that the floor keeps."""
        return share_percent(self.ability(engine))

    def floor_violation(self, unit: Sequence[Engine], *, out: bool) -> str:
        """Why the unit may not be ejected; empty if it may. ``out``: it is already."""
        fill = 1.0 if out else FILL  # load up to which other zones help
        if self.engines - len(unit) < self.floor.engines:
            return (
                f"this would leave the pool with {self.engines - len(unit)} engines (floor: {self.floor.engines})"
            )
        zones = sorted({_zone(engine) for engine in unit})
        if self._adds_little(unit, zones, out=out):
            return ""
        for place in ("", *zones):
            if place in self.events or self._helped(place, fill):
                continue
            leaving = sum(engine.slots * self.ability(engine) for engine in unit if place in ("", _zone(engine)))
            share = 100 * (self.left[place] - leaving) / self.total[place]
            if share < self.floor.percent - 1e-9:
                where = f"zone {place.removeprefix('zone ')}" if place else "the pool"
                return (
                    f"this would leave {where} with {share:.0f} % of its slots (floor: {self.floor.percent:g} %)"
                )
        return ""

    def _helped(self, zone: str, fill: float) -> bool:
        """Whether engines without evidence against them, in all zones, have room for the callers of this one."""
        return self.loads.get(zone, math.inf) <= fill

    def _adds_little(self, unit: Sequence[Engine], zones: Sequence[str], *, out: bool) -> bool:
        """Whether the unit yields next to nothing, and good engines serve its callers."""
        least = NEGLIGIBLE_OUTSIDE if out else NEGLIGIBLE
        return (
            self.floor.percent < _WHOLE_PERCENT
            and all(self.ability(engine) <= least for engine in unit)
            and all(
                self._slow_share(unit, place, least) <= (LITTLE_OUTSIDE if out else LITTLE) + 1e-9
                or self._helped(place, 1.0 if out else FILL)
                for place in zones
            )
        )

    def _slow_share(self, unit: Sequence[Engine], zone: str, most: float) -> float:
        """What a slow unit and all like it yield, over what the zone's good engines do; failing ones waste."""
        if not self.good.get(zone):
            return math.inf
        if not any(engine.id in self.slow for engine in unit):
            return 0.0
        yields = (
            slots * self.abilities.get(key, 1.0)
            for key, (place, slots) in self.slow.items()
            if place == zone and self.abilities.get(key, 1.0) <= most
        )
        return sum(yields) / self.good[zone]

    def eject(self, unit: Sequence[Engine]) -> None:
        self.engines -= len(unit)
        for engine in unit:
            left = engine.slots * self.ability(engine)
            self.left[""] -= left
            self.left[_zone(engine)] -= left


def _zone(engine: Engine) -> str:
    return f"zone {engine.zone}"


def _remaining_capacity(
    engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest], floor: CapacityFloor
) -> _RemainingCapacity:
    """Capacity left after hard evidence and orders already carried out."""
    total, left, count = {"": 0}, {"": 0.0}, 0
    abilities, good, slow = _relative_abilities(engines, wishes), Counter[str](), {}
    for place, engine in enumerate(engines):
        one = wishes.get(place)
        stays = one is None or one.health is Health.HEALTHY or one.soft
        count += stays
        able = engine.slots * abilities.get(engine.id, 1.0) if stays else 0.0
        for where in ("", _zone(engine)):
            total[where] = total.get(where, 0) + engine.slots
            left[where] = left.get(where, 0.0) + able
        if one is None:
            good[_zone(engine)] += engine.slots
        elif one.soft and one.ejector is Ejector.SLOWNESS and one.health is not Health.HEALTHY:
            slow[engine.id] = _zone(engine), engine.slots
    return _RemainingCapacity(
        floor=floor,
        engines=count,
        total=total,
        left=left,
        abilities=abilities,
        good=good,
        slow=slow,
        events=_zone_events(engines, wishes),
        loads=_loads_with_help(engines, wishes, floor.relief),
    )


def _relative_abilities(engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest]) -> dict[EngineId, float]:
    """Ability of engines with evidence, as a share of the best engine's: if all are equally bad, none is.

    An engine on trial does not count as the best: its ability is not known yet.
    """
    known = {
        place: one.ability
        for place, one in wishes.items()
        if one.ability < 1 or (one.soft and one.health is Health.UNHEALTHY)
    }
    best = 1.0 if len(wishes) < len(engines) else max(known.values(), default=0.0)
    if not best:
        return {}
    return {engines[place].id: min(1.0, able / best) for place, able in known.items() if able < best}


def _loads_with_help(
    engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest], relief: ZoneRelief | None
) -> dict[str, float]:
    """By zone: all requests over what engines without evidence against them serve that may help its callers."""
    if relief is None:
        return {}
    loads: dict[str, float] = {}
    for region, zone in {(engine.region, _zone(engine)) for engine in engines}:
        apart = relief.apart.get(region, frozenset())
        per_s = sum(
            relief.per_s.get(engine.id, 0.0)
            for place, engine in enumerate(engines)
            if place not in wishes and engine.id not in apart
        )
        load = relief.asked_per_s / per_s if per_s else math.inf
        # Regions may have zones of the same name.
        loads[zone] = max(load, loads.get(zone, 0.0))
    return loads


def _zone_events(engines: Sequence[Engine], wishes: Mapping[int, EjectionRequest]) -> dict[str, str]:
    """Zones that failed as a unit, with the sentence for the reason."""
    size = Counter(map(_zone, engines))
    if len(size) < 2:
        return {}
    bad = Counter(
        _zone(engines[place])
        for place, one in wishes.items()
        if one.health is Health.UNHEALTHY and not one.ordered
    )
    # Engines that were unhealthy at their last report count as such elsewhere: their silence must eject none here.
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
