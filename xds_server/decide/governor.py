"""The one place that decides what is out: every ejector asks here, and the pool's capacity has its say.

* Hard evidence (dead, hung, not started) always takes an engine out: it serves nobody.
* Soft evidence (degraded, silent) takes engines out only down to the capacity floor of the pool and of each
  zone: half a fleet that sometimes fails serves more than none. Engines that are out already stay out before
  others follow, so that two bad engines do not take turns.
* A reading that the whole pool shares says more about the judge than about the engines, and is then set aside.
* Draining is an order and is followed. Coming back is never refused.
* Engines of one tensor-parallel group are one unit: the worst member decides for all.

Envoy's own panic mode is off; this is where panic would have been.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from engine.report import Doubt
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.health import Wish
from xds_server.fleet import Engine, EngineId

# Share of a pool's heard engines at which a doubtful reading is taken as the judge's own fault. A refused probe
# is a matter of configuration, which rarely hits one half by accident. Silence takes whole zones with a switch or
# a power feed, so only a pool that is silent altogether, and has more than one engine, is doubted.
_REFUSED_SHARE: Final = 0.5
_SILENT_SHARE: Final = 1.0


def governed(
    engines: Sequence[Engine],
    wishes: Sequence[Wish],
    floor_percent: float,
    previous: Mapping[EngineId, EngineDecision],
    now_s: float,
) -> dict[EngineId, EngineDecision]:
    """The decision for each engine of one pool; ``wishes`` are in the order of ``engines``."""
    if not any(one.health is not Health.HEALTHY for one in wishes):
        return {
            engine.id: _decision(one, previous.get(engine.id), now_s)
            for engine, one in zip(engines, wishes, strict=True)
        }
    joined = _kept_above_floor(
        engines, _joined(engines, _without_doubt(wishes)), floor_percent, _already_out(previous)
    )
    return {
        engine.id: _decision(one, previous.get(engine.id), now_s)
        for engine, one in zip(engines, joined, strict=True)
    }


def _already_out(previous: Mapping[EngineId, EngineDecision]) -> frozenset[EngineId]:
    return frozenset(key for key, decision in previous.items() if decision.health is not Health.HEALTHY)


def _decision(wish: Wish, before: EngineDecision | None, now_s: float) -> EngineDecision:
    """The decision; the very same object as before when it says the same."""
    if before is None or before.health is not wish.health:
        return EngineDecision(health=wish.health, reason=wish.reason, since_s=now_s, verdict=wish.verdict)
    if before.reason == wish.reason and before.verdict is wish.verdict:
        return before
    return EngineDecision(health=wish.health, reason=wish.reason, since_s=before.since_s, verdict=wish.verdict)


def _without_doubt(wishes: Sequence[Wish]) -> Sequence[Wish]:
    """The wishes, less those that rest on a reading the pool shares."""
    heard = sum(one.heard for one in wishes)
    for doubt, share in ((Doubt.REFUSED, _REFUSED_SHARE), (Doubt.SILENT, _SILENT_SHARE)):
        count = sum(one.doubt is doubt for one in wishes)
        if not count or count < share * heard or (doubt is Doubt.SILENT and count < 2):
            continue
        blame = "policy or probe" if doubt is Doubt.REFUSED else "way there"
        wishes = [
            replace(
                one,
                health=Health.HEALTHY,
                soft=False,
                reason=f"kept: {count} of {heard} engines say the same, so the {blame} is in doubt; {one.reason}",
            )
            if one.doubt is doubt and one.health is Health.UNHEALTHY
            else one
            for one in wishes
        ]
    return wishes


def _severity(wish: Wish) -> int:
    if wish.health is Health.UNHEALTHY:
        return 2 if wish.soft else 3
    return 1 if wish.health is Health.DRAINING else 0


def _joined(engines: Sequence[Engine], wishes: Sequence[Wish]) -> list[Wish]:
    """The wishes, those of a tensor-parallel group replaced by the worst of them."""
    worst: dict[str, tuple[Engine, Wish]] = {}
    for engine, one in zip(engines, wishes, strict=True):
        group = engine.tensor_parallel_group
        if group and (group not in worst or _severity(one) > _severity(worst[group][1])):
            worst[group] = (engine, one)
    joined = []
    for engine, one in zip(engines, wishes, strict=True):
        culprit, verdict = worst.get(engine.tensor_parallel_group, (engine, one))
        if _severity(verdict) > _severity(one):
            reason = (
                f"shares GPUs with {culprit.id.engine} (group {engine.tensor_parallel_group}): {verdict.reason}"
            )
            joined.append(replace(one, health=verdict.health, soft=verdict.soft, reason=reason))
        else:
            joined.append(one)
    return joined


@dataclass(slots=True)
class _Room:
    """Slots in use, in all, and in each zone; mutable while units are weighed one after another."""

    total: dict[str, int]
    left: dict[str, int]

    def refusal(self, unit: Sequence[Engine], floor_percent: float) -> str:
        """Why the unit may not leave; empty when it may."""
        for place in ("", *sorted({_zone(engine) for engine in unit})):
            leaving = sum(engine.slots for engine in unit if place in ("", _zone(engine)))
            share = 100 * (self.left[place] - leaving) / self.total[place]
            if share < floor_percent:
                where = f"zone {place.removeprefix('zone ')}" if place else "the pool"
                return f"without it {where} has {share:.0f} % of its slots, floor {floor_percent:g} %"
        return ""

    def leave(self, unit: Sequence[Engine]) -> None:
        for engine in unit:
            self.left[""] -= engine.slots
            self.left[_zone(engine)] -= engine.slots


def _zone(engine: Engine) -> str:
    return f"zone {engine.zone}"


def _room(engines: Sequence[Engine], wishes: Sequence[Wish]) -> _Room:
    """Everything that hard evidence and drains leave."""
    room = _Room(total={"": 0}, left={"": 0})
    for engine, one in zip(engines, wishes, strict=True):
        for place in ("", _zone(engine)):
            room.total[place] = room.total.get(place, 0) + engine.slots
            stays = engine.slots if one.health is Health.HEALTHY or one.soft else 0
            room.left[place] = room.left.get(place, 0) + stays
    return room


def _kept_above_floor(
    engines: Sequence[Engine], wishes: Sequence[Wish], floor_percent: float, out: frozenset[EngineId]
) -> list[Wish]:
    """The wishes, soft ones granted only while the floor holds; who is out already comes first."""
    decided = list(wishes)
    soft = [place for place, one in enumerate(wishes) if one.soft]
    if not soft:
        return decided
    room = _room(engines, wishes)

    def unit_of(place: int) -> str:
        return engines[place].tensor_parallel_group or f" {place}"  # no group name begins with a space

    soft.sort(key=unit_of)
    units = [list(places) for _, places in groupby(soft, key=unit_of)]
    units.sort(key=lambda places: (engines[places[0]].id not in out, engines[places[0]].id))
    for places in units:
        members = [engines[place] for place in places]
        refusal = room.refusal(members, floor_percent)
        if not refusal:
            room.leave(members)
            continue
        for place in places:
            one = decided[place]
            decided[place] = replace(
                one, health=Health.HEALTHY, soft=False, reason=f"kept: {refusal}; {one.reason}"
            )
    return decided
