"""The share of a pool's keys that each engine has with soft affinity, computed from the endpoints that Envoy gets.

Envoy's table has each engine in rotation in proportion to the weights of its zone and its own. Zones differ by the
caller's, so a share is a range.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xds_server.decide.decisions import Decisions, Health, PoolDecisions
from xds_server.model.fleet import Engine
from xds_server.model.memo import Memo
from xds_server.translate.endpoints import ENGINE_LABEL, HEALTH_STATUS, EndpointForm, load_assignment
from xds_server.wire.assignment import AssignmentSpec, EndpointSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """Percent of a pool's keys: the least and the most that any zone's callers have there."""

    least_percent: float
    most_percent: float


def key_shares(pool: str, engines: tuple[Engine, ...], decisions: Decisions) -> Mapping[str, KeyShare]:
    """The share of each engine in rotation, by name; the others have no keys."""
    zones = {caller for of, caller in decisions.zone_weights if of == pool} or {""}
    found: dict[str, list[float]] = {}
    for zone in sorted(zones):
        spec = load_assignment(pool, engines, decisions, zone, Memo(), form=EndpointForm(hashed=True))
        shares = _shares(spec)
        for engine in engines:
            found.setdefault(engine.id.engine, []).append(shares.get(engine.id.engine, 0.0))
    return {
        name: KeyShare(least_percent=min(those), most_percent=max(those))
        for name, those in found.items()
        if max(those) > 0
    }


def keys_away(engines: Sequence[Engine], pool: PoolDecisions) -> Mapping[str, float]:
    """Percent of the pool's keys, by slots, that other engines have instead of these; without those that have all.

    An engine has none of its keys out of rotation, and a part of them on trial, in slow start, or while they are
    held back.
    """
    total = sum(one.weight * one.slots for one in engines)
    found = {}
    for one in engines:
        decision, ramp = pool.engines.get(one.id), pool.ramps.get(one.id)
        if decision is None:
            continue
        has_percent = 0.0
        if decision.health is Health.HEALTHY:
            # A paced engine has as many keys as it can serve.
            has_percent = 100.0 if decision.paced else decision.traffic_percent
            has_percent = min(has_percent, 100.0 if ramp is None else ramp.percent)
        if has_percent < 100:
            found[one.id.engine] = (100 - has_percent) * one.weight * one.slots / total
    return found


def _shares(spec: AssignmentSpec) -> Mapping[str, float]:
    """Percent of the keys by engine, in the first priority with engines in rotation."""
    ready = [
        (one.priority, one.weight, [each for each in one.endpoints if _is_ready(each)]) for one in spec.localities
    ]
    filled = [(priority, weight, those) for priority, weight, those in ready if weight and those]
    first = min((priority for priority, _, _ in filled), default=0)
    here = [(weight, those) for priority, weight, those in filled if priority == first]
    total = sum(weight for weight, _ in here)
    return {
        str(dict(each.labels)[ENGINE_LABEL]): 100.0 * weight / total * (each.weight or 1) / within
        for weight, those in here
        for within in (sum(one.weight or 1 for one in those),)
        for each in those
    }


def _is_ready(endpoint: EndpointSpec) -> bool:
    return endpoint.health == HEALTH_STATUS[Health.HEALTHY]
