"""Degradation: serve less before serving nothing, one level at a time, and back in reverse.

Other signs of strain (``pool_strain``) enter their level, and the levels below it, at any pressure, and hold it
until they are ``marginPercent`` below.

Levels 1 and 2 use the whole demand of the pool, 3 and 4 what is left after the fallback's share: batch is not shed
for requests that another pool serves. The pool's own pressure does not show what the fallback takes. That is at
most the share if every route had the fallback, and at most the fallback's whole demand; the smaller is added
back. A new share gets time to show its effect.

An operator's order holds one level for its time; its actions are taken even if the policy turned that level off.
When it ends, the level falls at once to what the pressure asks for.

Unknown pressure never raises a level. It holds the present one for a while, and then counts as none. The policy
explains times and thresholds; the steps and intervals of the share are here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from policies.resilience import Degradation
from policies.resilience.degradation import Step
from xds_server.decide.admission.pool_strain import PoolStrain
from xds_server.decide.decision_memory import DegradationMemory
from xds_server.decide.decisions import DegradationState
from xds_server.model.memo import reuse_equal
from xds_server.model.order import TOP_LEVEL, Order, OrderAction
from xds_server.model.pool_traffic import RATE_S, STALE_S

SHARE_STEP_PERCENT: Final = 5.0
"""Step of the fallback's share: each move pushes weights to every proxy."""

SHARE_INTERVAL_S: Final = RATE_S + 2.0
"""Minimum time between moves of the share. Pressure is a mean over ``RATE_S``, then smoothed over a second: judged
earlier, a share is judged by the previous one, and the next one overshoots."""

LESS_INTERVAL_S: Final = 15.0
"""Minimum time before the share shrinks within a level: what the fallback takes is only estimated."""

_MOST_PERCENT: Final = 95.0  # some requests must still arrive, or it is unknown when the pool has room again
_ROOM_PERCENT: Final = 90.0  # remaining pressure below which the pool may take back part of the share
_OVERFULL: Final = 1.05  # pressure from which a fallback is relieved; from 1 to this it just gets no more
_HIGHEST: Final = 1000.0  # cap: higher pressures have the same effect, and infinity breaks arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackView:
    """The pools that may take the excess, as one.

    ``pressure`` is their own, 1.0 at capacity; None: no requests. ``relative_capacity`` is their capacity over
    that of the pool (slots / service time, summed over engines in rotation); if it is wrong, their pressure shows
    it and the share follows. Only ready ones count. What the first cannot take moves on by that pool's own level.
    """

    ready: bool
    pressure: float | None
    relative_capacity: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What is known of the pool in this round: pressures in percent; ``asked`` includes what the fallback took.

    ``settled``: the share is old enough for ``asked`` to be valid; ``rested``: old enough to shrink it.
    """

    left: float
    asked: float
    settled: bool
    rested: bool


def degradation_state(
    policy: Degradation,
    before: DegradationMemory | None,
    *,
    strain: PoolStrain,
    lost: str,
    fallback: FallbackView | None,
    ordered: Order | None,
    shadow: bool,
    now_s: float,
) -> DegradationMemory:
    """The level now; the same ``decided`` as before if nothing changed.

    ``strain``: pressure and other signs. ``lost``: why the pool serves nothing,
    empty if it serves. A lost pool's requests all go to the fallback at once, and the level stays as without
    pressure. In shadow mode level and reason are as they would be, and every action is off, unless ``ordered``.
    """
    known = None if before is None else replace(before, decided=before.decided.shadow or before.decided)
    memory = _next(policy, known, strain=strain, lost=lost, fallback=fallback, ordered=ordered, now_s=now_s)
    state = memory.decided
    if shadow and ordered is None:
        state = DegradationState(
            level=state.level,
            reason=f"shadow mode, no action at level {state.level}: {state.reason}",
            since_s=state.since_s,
            shadow=state,
        )
    return replace(memory, decided=reuse_equal(None if before is None else before.decided, state))


def ordered_level(orders: Iterable[Order]) -> Order | None:
    """The order for the pool's level, of all orders for the pool and its engines."""
    return next((order for order in orders if order.action is OrderAction.DEGRADE), None)


def degradation_due_s(policy: Degradation, state: DegradationMemory, now_s: float) -> float:
    """When to decide again without new evidence; infinite if time alone changes nothing."""
    level = state.decided.level
    due_s = []
    if state.towards_s is not None and state.next_level is not None:
        rising = state.next_level > level
        due_s.append(state.towards_s + (policy.enter_after if rising else policy.leave_after))
    if state.unknown_since_s is not None and level:
        due_s.append(state.unknown_since_s + STALE_S)
    if state.fallback_since_s is not None:
        due_s += (state.fallback_since_s + SHARE_INTERVAL_S, state.fallback_since_s + LESS_INTERVAL_S)
    return min((moment for moment in due_s if moment > now_s), default=math.inf)


def level_thresholds(policy: Degradation) -> tuple[float, ...]:
    """Pressure in percent from which levels 1 to 4 are entered; infinite for those that never are.

    A level that is off is skipped, and no level is entered before the one below it.
    """
    above = math.inf
    wanted = []
    for step in reversed(_steps(policy)):
        above = step.above_pressure_percent if step.enabled else above
        wanted.append(above)
    thresholds: list[float] = []
    for threshold in reversed(wanted):
        thresholds.append(max(threshold, thresholds[-1]) if thresholds else threshold)
    return tuple(thresholds)


def _steps(policy: Degradation) -> tuple[Step, ...]:
    """The levels 1 to 4."""
    return policy.no_hedging, policy.fallback, policy.shed, policy.maintenance


def _leave_threshold(policy: Degradation, level: int) -> float:
    """Pressure in percent below which a level ends; above 0, or a level might never end."""
    threshold = level_thresholds(policy)[level - 1]
    return max(threshold - policy.margin_percent, threshold / 2)


def _next(
    policy: Degradation,
    before: DegradationMemory | None,
    *,
    strain: PoolStrain,
    lost: str,
    fallback: FallbackView | None,
    ordered: Order | None,
    now_s: float,
) -> DegradationMemory:
    if before is None:
        before = DegradationMemory(decided=DegradationState(level=0, reason="", since_s=now_s))
    last = before.decided
    pressure = None if lost else strain.pressure
    told = pressure is not None
    unknown_since_s = None
    if not told:
        unknown_since_s = before.unknown_since_s if before.unknown_since_s is not None else now_s
    held = unknown_since_s is not None and now_s - unknown_since_s < STALE_S
    reading = _reading(before, pressure or 0.0, fallback, now_s)
    signs = _signs(policy, strain)
    level, since_s, next_level, towards_s = last.level, last.since_s, None, None
    if ordered is not None:
        level, since_s = ordered.level, last.since_s if ordered.level == last.level else now_s
    elif last.ordered:
        level = _fallen(policy, level, reading, signs)
        since_s = last.since_s if level == last.level else now_s
    else:
        next_level = _wanted(policy, level, reading, signs)
        if held and next_level is not None and next_level < level:
            next_level = None
        towards_s = _towards_s(before, next_level, now_s)
        if next_level is not None and towards_s is not None:
            wait_s = policy.enter_after if next_level > level else policy.leave_after
            if now_s - towards_s >= wait_s:
                level, since_s = next_level, now_s
                next_level = _wanted(policy, level, reading, signs)
                towards_s = None if next_level is None else now_s
    forced = None if ordered is None else ordered.level
    on = [step.enabled or number == forced for number, step in enumerate(_steps(policy), 1)]
    share = 0.0
    if on[1] or lost:
        share = _share(policy, level, last, reading, lost=bool(lost), held=held, fallback=fallback)
    memory = DegradationMemory(
        decided=replace(
            last,
            level=level,
            since_s=since_s,
            ordered="" if ordered is None else f"by {ordered.by or 'unknown'}: {ordered.reason}",
            hedging_off=level >= 1 and on[0],
            retries_minimum=level >= 1 and on[0],
            fallback_percent=share,
            shed_batch=level >= 3 and on[2],
            max_tokens=policy.shed.max_tokens if level >= 3 and on[2] else None,
            reduces_answers=level >= 3 and on[2] and policy.shed.reduces_answers,
            maintenance=policy.maintenance.message if level >= TOP_LEVEL and on[3] else "",
        ),
        towards_s=towards_s,
        next_level=next_level,
        fallback_since_s=before.fallback_since_s if share == last.fallback_percent else now_s,
        unknown_since_s=unknown_since_s,
        strained=signs.above[level] or signs.held[level],
    )
    if _reason_inputs(memory) == _reason_inputs(before) and last.reason:
        return memory
    known = f"pressure {reading.asked:.0f} %" if told else "pressure unknown"
    reason = _reason(
        policy, last, memory.decided, ", ".join((lost or known, *signs.sentences)), strained=memory.strained
    )
    return replace(memory, decided=replace(memory.decided, reason=reason))


def _reading(before: DegradationMemory, pressure: float, fallback: FallbackView | None, now_s: float) -> _Reading:
    share = _share_of_pool(before.decided) / 100
    left = 100 * min(pressure, _HIGHEST)
    asked = left / (1 - share)
    if fallback is not None:
        asked = min(asked, left + 100 * fallback.relative_capacity * (fallback.pressure or 0.0))
    lasted_s = math.inf if before.fallback_since_s is None else now_s - before.fallback_since_s
    return _Reading(
        left=left,
        asked=asked if share else left,
        settled=lasted_s >= SHARE_INTERVAL_S,
        rested=lasted_s >= LESS_INTERVAL_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    """Signs besides pressure, by level 0 to 4.

    ``above``: one asks for a higher level. ``held``: one is not yet clearly below the threshold of this level or a
    higher one. ``sentences``: all that are above a threshold.
    """

    above: tuple[bool, ...]
    held: tuple[bool, ...]
    sentences: tuple[str, ...]


def _signs(policy: Degradation, strain: PoolStrain) -> _Signs:
    above, held = [False] * (TOP_LEVEL + 1), [False] * (TOP_LEVEL + 1)
    sentences: dict[str, None] = {}
    for level, step in enumerate(_steps(policy), 1):
        if not step.enabled:
            continue
        for value, threshold, sentence in strain.signs(step):
            if value >= threshold:
                above[:level] = [True] * level
                sentences[sentence] = None
            if value >= threshold * (1 - policy.margin_percent / 100):
                held[: level + 1] = [True] * (level + 1)
    return _Signs(above=tuple(above), held=tuple(held), sentences=tuple(sentences))


def _share_of_pool(before: DegradationState) -> float:
    """The share of a serving pool; if everything left because no engine was in rotation, all of it is back."""
    return before.fallback_percent if before.fallback_percent <= _MOST_PERCENT else 0.0


def _wanted(policy: Degradation, level: int, reading: _Reading, signs: _Signs) -> int | None:
    """The adjacent level that is asked for; None if the level should stay."""
    if signs.above[level]:
        return level + 1
    if level < TOP_LEVEL:
        seen = reading.asked if level < 2 else reading.left
        if seen >= level_thresholds(policy)[level] and (level < 2 or reading.settled):
            return level + 1
    if level and not signs.held[level]:
        seen = reading.asked if level <= 2 else reading.left
        if seen < _leave_threshold(policy, level) and (level > 2 or reading.settled):
            return level - 1
    return None


def _fallen(policy: Degradation, level: int, reading: _Reading, signs: _Signs) -> int:
    """The level that strain keeps, at most ``level``."""
    while level and _wanted(policy, level, reading, signs) == level - 1:
        level -= 1
    return level


def _towards_s(before: DegradationMemory, next_level: int | None, now_s: float) -> float | None:
    if next_level is None:
        return None
    return before.towards_s if before.next_level == next_level and before.towards_s is not None else now_s


def _share(
    policy: Degradation,
    level: int,
    before: DegradationState,
    reading: _Reading,
    *,
    lost: bool,
    held: bool,
    fallback: FallbackView | None,
) -> float:
    """Percent of requests for the fallback: the excess, as far as the fallback has room."""
    if fallback is None or not fallback.ready:
        return 0.0
    if lost:
        return 100.0
    if level < 2:
        return 0.0
    share = _share_of_pool(before)
    if not held and reading.settled:
        share = _moved(share, reading, fallback)
    return min(share, policy.fallback.max_share_percent, _MOST_PERCENT)


def _moved(share: float, reading: _Reading, fallback: FallbackView) -> float:
    """The share in whole steps: up while more is left than fits, down when there is clearly room again."""
    slack = SHARE_STEP_PERCENT / 2
    moved = share
    if reading.left > 100:
        overflow = 100 - (100 - share) * 100 / reading.left
        moved = SHARE_STEP_PERCENT * math.ceil(overflow / SHARE_STEP_PERCENT)
    elif reading.left < _ROOM_PERCENT and reading.rested:
        overflow = 100 - 10_000 / reading.asked if reading.asked > 100 else 0.0
        if overflow < share - SHARE_STEP_PERCENT - slack or not overflow:
            moved = SHARE_STEP_PERCENT * math.ceil(overflow / SHARE_STEP_PERCENT)
    full = fallback.pressure or 0.0
    if full > _OVERFULL:
        # If all of the fallback's load came from here, this share would leave it just full; it never needs less.
        return min(moved, _whole_steps(share / full))
    if moved <= share:
        return moved
    # As shares of this pool's demand: the fallback's room beyond its present load.
    room = share + 10_000 * fallback.relative_capacity * (1 - full) / reading.asked
    return max(share, min(moved, _whole_steps(room - slack)))


def _whole_steps(percent: float) -> float:
    return max(0.0, SHARE_STEP_PERCENT * math.floor(percent / SHARE_STEP_PERCENT))


def _reason_inputs(memory: DegradationMemory) -> tuple[object, ...]:
    """What the reason mentions."""
    known, state = memory.unknown_since_s is None, memory.decided
    return (
        state.level,
        memory.strained,
        state.ordered,
        known,
        state.fallback_percent,
        state.shed_batch,
        state.max_tokens,
        state.reduces_answers,
        state.maintenance,
    )


def _reason(
    policy: Degradation, before: DegradationState, state: DegradationState, reason: str, *, strained: bool
) -> str:
    thresholds = level_thresholds(policy)
    if state.ordered:
        reason += f"; level ordered {state.ordered}"
    elif before.ordered:
        reason += "; the order for the level ended"
    elif state.level > before.level:
        reason += (
            f", entered at {thresholds[state.level - 1]:g} %" if not strained else f", level {state.level} entered"
        )
    elif state.level < before.level:
        reason += f", level {before.level} left below {_leave_threshold(policy, before.level):g} %"
    actions = [
        "no hedging, minimal retries" if state.hedging_off else "",
        f"{state.fallback_percent:g} % of requests go to the fallback" if state.fallback_percent else "",
        "batch gets only idle capacity" if state.shed_batch else "",
        _long_answers(state),
        "all requests get the maintenance response" if state.maintenance else "",
    ]
    done = ", ".join(action for action in actions if action)
    if done:
        reason += f"; {done}"
    if not state.ordered and state.level < TOP_LEVEL and math.isfinite(thresholds[state.level]):
        reason += f"; level {state.level + 1} at {thresholds[state.level]:g} %"
    return reason


def _long_answers(state: DegradationState) -> str:
    if state.max_tokens is None:
        return ""
    if state.reduces_answers:
        return f"answers get at most {state.max_tokens} tokens"
    return f"requests for more than {state.max_tokens} tokens are refused"
