"""How a number of places is divided: over the priority classes of a pool, then over its proxies.

Envoy counts each class of each proxy by itself, and none of them can lend a place to another. So places are given
to whoever is seen to need them, again and again, and what nobody needs to whoever refuses callers now.

All amounts are of requests in flight. ``hold_s`` is how long each one holds its place when the wait the policy
allows is used up; ``service_s`` how long when there is no wait at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.resilience import PriorityLimits

_SPREAD: Final = 3.0
"""Standard deviations of what it has in flight that a proxy has room for beyond the mean, where there is room."""

_QUEUE_KEPT: Final = 0.25
"""Of the places for waiting: what may be kept free for the bursts of one class."""

_QUIET_SHARE: Final = 0.1
"""Of an even part: what a gateway keeps that asks for nothing, so that it can begin."""


STARTING_LIMIT: Final = 4.0
"""Places for the first callers who turn to a proxy, where nobody needs them; what they ask is known soon after."""

_HEADROOM: Final = 2.0
"""Places beside what a proxy carries, where nobody needs them more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareClaim:
    """One proxy, or one class of all proxies: requests per second, and whether it refuses some of them now.

    ``in_flight``: what it was last seen to have in flight, 0 where nobody tells.
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

    Each class is sure of its share while it wants that much. What one leaves free the other gets; where both want
    more, interactive requests come first, and what nobody wants is divided by the shares.
    """
    sure_interactive, sure_batch = _guaranteed(shares)
    queue = total * max(0.0, 1 - service_s / hold_s)
    want_interactive, want_batch = _want(interactive, total, hold_s, queue), _want(batch, total, hold_s, queue)
    # A class that is quiet keeps the room to begin with; what it asks for then gets it the rest.
    keep_batch = max(min(want_batch, sure_batch * total), _QUIET_SHARE * sure_batch * total)
    keep_interactive = max(want_interactive, _QUIET_SHARE * sure_interactive * total)
    places_interactive = min(keep_interactive, total - keep_batch)
    places_batch = min(max(want_batch, keep_batch), total - places_interactive)
    free = total - places_interactive - places_batch
    both = sure_interactive + sure_batch
    lead = sure_interactive / both if both else 1.0
    return places_interactive + free * lead, places_batch + free * (1 - lead)


def _guaranteed(shares: PriorityLimits) -> tuple[float, float]:
    """The shares, of which more than everything cannot be promised."""
    interactive, batch = shares.interactive.share_percent / 100, shares.batch.share_percent / 100
    most = max(1.0, interactive + batch)
    return interactive / most, batch / most


def _want(asker: ShareClaim, total: float, hold_s: float, queue: float) -> float:
    """What a class has in flight, and room for its bursts.

    Places kept free for one class are refused to the other. While they are places in a queue no capacity idles for
    it; where there is no queue to speak of, one standard deviation must do, and the next round lends the rest.
    """
    if asker.sheds:
        return total
    held = asker.per_s * hold_s
    spread = math.sqrt(held)
    return min(total, held + max(spread, min(_SPREAD * spread, _QUEUE_KEPT * queue)))


def proxy_shares(total: float, askers: Sequence[ShareClaim], hold_s: float, service_s: float) -> list[float]:
    """A part of ``total`` for each asker, in their order; they add up to it.

    In proportion to what is asked where that is more than there is. Otherwise each gets what it asks and room for
    its bursts, which are larger for small askers, or what it carries and a little more. Of what is left those that
    have least get a few places, so that callers who turn to a proxy find some, and the rest goes to those that
    refuse callers all the same, or, where none does, about in proportion.
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
    # One each beside it: where next to nothing is asked, what little there was must not divide an idle pool.
    weights = [
        part + 1 if asker.sheds or not shedding else 0.0 for part, asker in zip(lifted, askers, strict=True)
    ]
    scale = room / math.fsum(weights)
    return [part + scale * weight for part, weight in zip(lifted, weights, strict=True)]


def _lifted(parts: Sequence[float], room: float) -> list[float]:
    """The parts, the smallest of them made larger until all have enough to begin with, or ``room`` is used up."""
    ordered = sorted(parts)
    level = below = 0.0
    for count, part in enumerate(ordered, start=1):
        below += part
        level = (room + below) / count
        if count == len(ordered) or level <= ordered[count]:
            break
    return [max(part, min(level, STARTING_LIMIT)) for part in parts]


def _floored(parts: Sequence[float], floor: float) -> list[float]:
    """The parts, none below ``floor``, with the same sum: those above it give in proportion to what they have."""
    missing = math.fsum(floor - part for part in parts if part < floor)
    above = math.fsum(part - floor for part in parts if part > floor)
    if missing <= 0 or above <= 0:
        return list(parts)
    left = 1 - missing / above
    return [floor + (part - floor) * left if part > floor else floor for part in parts]
