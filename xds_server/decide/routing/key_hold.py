"""Which returned engines get their keys back early, although ``affinity.returnAfter`` holds them back.

Good capacity must not idle while others are full. So a held engine is released as soon as the engines that are
not held, in the pool or in its zone, use ``FULL_RATIO`` of their slots, or one of them has more requests than
slots, or callers ask for all that the pool can serve, or no such engine is left. It stays released until it leaves
rotation again. Without reports of proxies only time releases.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from xds_server.decide.decision_memory import SlowStartMemory
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.pool_inputs import PoolEngines
from xds_server.model.fleet import Engine, EngineId

FULL_RATIO: Final = 0.8
"""Slots in use: keys are uneven, and one engine has up to 1.2 times the mean (``docs/affinity.md``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyHold:
    """``after_s``: until a healthy engine that returned has its keys; ``released`` ones have them now."""

    after_s: float = 0.0
    released: frozenset[EngineId] = frozenset()


NO_HOLD: Final = KeyHold()
"""Keys come back with their engine."""


def key_hold(after_s: float, engines: PoolEngines, before: SlowStartMemory, *, crowded: bool) -> KeyHold:
    """The hold of a pool in this round; ``crowded``: demand is at or above its capacity."""
    if not after_s:
        return NO_HOLD
    ready = [one for one in engines.engines if engines.decisions[one.id].health is Health.HEALTHY]
    held = [one for one in ready if one.id in before.absent or _is_held(before, one.id)]
    if not held:
        return KeyHold(after_s=after_s)
    there = {one.id for one in held}
    others = [one for one in ready if one.id not in there]
    # Few engines of a pool may be all that have an adapter, or that a region allows.
    everyone = (
        crowded or not others or _is_full(others, engines) or any(engines.waiting(one.id) > 0 for one in others)
    )
    return KeyHold(
        after_s=after_s,
        released=frozenset(
            one.id
            for one in held
            # The floor keeps an engine because the pool has too few without it.
            if everyone
            or engines.decisions[one.id].floor
            or _is_full([other for other in others if _place(other) == _place(one)], engines)
        ),
    )


def is_on_trial(decision: EngineDecision) -> bool:
    """Whether the engine has to prove itself first; one that is only slow gets what it can serve."""
    return decision.traffic_percent < 100 and not decision.paced


def _is_held(before: SlowStartMemory, key: EngineId) -> bool:
    ramp = before.ramps.get(key)
    return ramp is not None and ramp.held_s > 0


def _is_full(those: Iterable[Engine], engines: PoolEngines) -> bool:
    """Whether these engines have little room; False without any."""
    in_use, slots = 0.0, 0.0
    for one in those:
        in_use += engines.in_flight.get(one.id.engine, 0)
        slots += engines.capacities[one.id].slots
    return slots > 0 and in_use >= FULL_RATIO * slots


def _place(engine: Engine) -> tuple[str, str]:
    return engine.region, engine.zone
