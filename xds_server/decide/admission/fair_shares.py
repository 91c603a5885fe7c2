"""Divides places: over the priority classes of a pool, then over its proxies.

Envoy counts each class of each proxy separately, and they cannot lend places to each other. So places go
repeatedly to proxies with demand, and unused places to those that refuse callers now.

All amounts are requests in flight. ``hold_s`` is how long each holds its place at the full allowed wait,
``service_s`` how long without wait.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.resilience import PriorityLimits

_SPREAD: Final = 3.0
"""Standard deviations of room above a proxy's mean in flight, while there is room."""

_QUEUE_KEPT: Final = 0.25
"""Share of the queue places that may stay free for bursts of one class."""

_QUIET_SHARE: Final = 0.1
"""Share of an even part that an idle gateway keeps, so that it can start."""


STARTING_LIMIT: Final = 4.0
"""Places for the first callers of a proxy, while they are free; its demand is known soon after."""

_HEADROOM: Final = 2.0
"""Places above what a proxy carries, while they are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareClaim:
    """One proxy, or one class of all proxies: requests per second, and whether it refuses some now.

    ``in_flight``: its last reported count, 0 if unknown.
    """

    per_s: float
    sheds: bool
    in_flight: float = 0.0


def class_shares(
    total: float,
    interactive: ShareClaim,
    batch: ShareClaim,
    shares: PriorityLimits,
    *,
    hold_s: float,
    service_s: float,
) -> tuple[float, float]:
    """Places for interactive and batch requests; they add up to ``total``.

    Each class is guaranteed its share while it needs it, and gets what the other leaves free. If both need more,
    interactive requests come first; unused places are divided by the shares.
    """
    sure_interactive, sure_batch = _guaranteed(shares)
    queue = total * max(0.0, 1 - service_s / hold_s)
    want_interactive, want_batch = _want(interactive, total, hold_s, queue), _want(batch, total, hold_s, queue)
    # An idle class keeps room to start; its demand then gets it the rest.
    keep_batch = max(min(want_batch, sure_batch * total), _QUIET_SHARE * sure_batch * total)
    keep_interactive = max(want_interactive, _QUIET_SHARE * sure_interactive * total)
    places_interactive = min(keep_interactive, total - keep_batch)
    places_batch = min(max(want_batch, keep_batch), total - places_interactive)
    free = total - places_interactive - places_batch
    both = sure_interactive + sure_batch
    lead = sure_interactive / both if both else 1.0
    return places_interactive + free * lead, places_batch + free * (1 - lead)


def _guaranteed(shares: PriorityLimits) -> tuple[float, float]:
    """The shares, scaled down if they exceed the total."""
    interactive, batch = shares.interactive.share_percent / 100, shares.batch.share_percent / 100
    most = max(1.0, interactive + batch)
    return interactive / most, batch / most


def _want(asker: ShareClaim, total: float, hold_s: float, queue: float) -> float:
    """A class's requests in flight, plus room for its bursts.

    Places kept free for one class are refused to the other. While they are queue places, no capacity idles for
    them. Without a real queue, one standard deviation must do, and the next round lends the rest.
    """
    if asker.sheds:
        return total
    held = asker.per_s * hold_s
    spread = math.sqrt(held)
    return min(total, held + max(spread, min(_SPREAD * spread, _QUEUE_KEPT * queue)))


def proxy_shares(total: float, askers: Sequence[ShareClaim], hold_s: float, service_s: float) -> list[float]:
    """A part of ``total`` for each asker, in their order; they add up to it.

    In proportion to demand if that exceeds the total. Otherwise each gets its demand plus room for bursts, larger
    for small askers, or what it carries and a little more. From the rest, the smallest parts are raised to a few
    places, so that first callers find some. The remainder goes to those that still refuse callers, or, without
    any, roughly in proportion.
    """
    if not askers:
        return []
    asked = [asker.per_s * hold_s for asker in askers]
    whole = math.fsum(asked)
    if whole <= 0 and not any(asker.in_flight for asker in askers):
        return [total / len(askers)] * len(askers)
    fits = min(1.0, total / max(whole, 1e-9))
    parts = [fits * one for one in asked]
    room = max(0.0, total - math.fsum(parts))
    if room > 0:
        more = [
            max(
                _SPREAD * math.sqrt(asker.per_s * service_s),
                asker.in_flight + _HEADROOM - part if asker.in_flight else 0,
            )
            for asker, part in zip(askers, parts, strict=True)
        ]
        given = min(1.0, room / max(math.fsum(more), 1e-9))
        parts = [part + given * one for part, one in zip(parts, more, strict=True)]
        parts = _added(parts, askers, max(0.0, total - math.fsum(parts)))
    return _floored(parts, _QUIET_SHARE * total / len(askers))


def _added(parts: Sequence[float], askers: Sequence[ShareClaim], room: float) -> list[float]:
    shedding = any(asker.sheds for asker in askers)
    lifted = _lifted(parts, room / 2 if shedding else room)
    room -= math.fsum(lifted) - math.fsum(parts)
    # One extra each: with almost no demand, tiny differences must not divide an idle pool.
    weights = [
        part + 1 if asker.sheds or not shedding else 0.0 for part, asker in zip(lifted, askers, strict=True)
    ]
    scale = room / math.fsum(weights)
    return [part + scale * weight for part, weight in zip(lifted, weights, strict=True)]


def _lifted(parts: Sequence[float], room: float) -> list[float]:
    """The parts, the smallest raised until all can start, or ``room`` is used up."""
    ordered = sorted(parts)
    level = below = 0.0
    for count, part in enumerate(ordered, start=1):
        below += part
        level = (room + below) / count
        if count == len(ordered) or level <= ordered[count]:
            break
    return [max(part, min(level, STARTING_LIMIT)) for part in parts]


def _floored(parts: Sequence[float], floor: float) -> list[float]:
    """The parts, none below ``floor``, with the same sum: those above it give in proportion."""
    missing = math.fsum(floor - part for part in parts if part < floor)
    above = math.fsum(part - floor for part in parts if part > floor)
    if missing <= 0 or above <= 0:
        return list(parts)
    left = 1 - missing / above
    return [floor + (part - floor) * left if part > floor else floor for part in parts]
