"""Which proxy may have how many requests in flight: the ceiling in whole places, and when a part of it moves.

Gateways divide the total by what arrives at each. One of which nothing is known keeps an even part, and so does
one that is away for a moment. Sidecars share by arrivals, too, but a thousandth of a pool is no room for a caller
that asks two things at once. So while less is asked than can be served each has room for what it, or the mean
sidecar, has in flight, for four standard deviations more, and two places beside; or an even part of the total
where that is more. For a thousand sidecars with fifty requests in flight that is three places each: more than the
pool has, and they do not ask all at once. As soon as as much is asked as can be served, only their shares are
left, and one place each.

A thousand sidecars whose demand goes up and down by chance would be a thousand pushes each second. So while there
is room for all, their parts are of a few sizes only, are made larger as soon as they may be too small, and smaller
when they have been far too large for seconds; those that tell nothing, or nothing of this pool, share one part.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from policies.resilience import PriorityLimits
from policies.route import PriorityClass
from xds_server.decide.admission.fair_shares import STARTING_LIMIT, ShareClaim, class_shares, proxy_shares
from xds_server.decide.decision_memory import Demand

_SIDECAR_LEAST: Final = 2.0
_SIDECAR_SPREAD: Final = 4.0
"""With two places, and a quarter of a request in flight on the mean, a sidecar would refuse 2.4 % of its callers
while the pool idles (Erlang's formula); with these it is one in ten thousand."""

_SPREAD: Final = 3.0
"""Standard deviations of what is in flight that there is room for beyond the mean."""

_STEP: Final = 0.03
_MIN_INTERVAL_S: Final = 0.2
"""A part that only drifts moves by this much or not at all, and at most five times a second."""

_SIDECAR_STEP: Final = 0.125
_SIDECAR_INTERVAL_S: Final = 0.5
"""The same for sidecars while the pool is crowded: each has little, and chance moves it much."""

_LOOSE: Final = 0.7
_LOOSE_S: Final = 5.0
"""While there is room for all, a sidecar's part shrinks to so much of it or less, and so long after a move."""

_SIZES: Final = 8
"""Sizes of a sidecar's part between a power of two and the next, from this number of places on."""

_MATERIAL: Final = 1.1
"""Who refuses callers gets more at once where there is so many times more for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimit:
    """Requests in flight that one proxy may have, per class, those it holds on engines that are out included."""

    interactive: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What is divided: ``total`` places, each taken for ``hold_s`` where the allowed wait is used up, and for
    ``service_s`` where nobody waits; ``crowded`` while as much is asked as can be served."""

    total: int
    hold_s: float
    service_s: float
    crowded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharers:
    """Among whom: the connected ``gateways``, the ``others`` that have a part of their own because they tell their
    demand or hold something, how many there are of both kinds, those included that say nothing or are away for a
    moment, the demand of each that tells it, and what each holds on engines that are out. ``silent_gateways`` are
    connected gateways that were never heard of: most likely nobody asks them for anything. ``in_flight`` is what
    each was last seen to have in flight on engines that are in."""

    gateways: tuple[str, ...]
    others: tuple[str, ...]
    gateway_count: int
    other_count: int
    demand: Mapping[str, Demand]
    stuck: Mapping[str, int]
    silent_gateways: int = 0
    in_flight: Mapping[str, int] = field(default_factory=dict)


def class_limits(
    supply: Supply,
    demand: Mapping[str, Demand],
    classes: Collection[PriorityClass],
    shares: PriorityLimits,
    *,
    shed_batch: bool,
) -> tuple[float, float]:
    """Places for interactive and for batch requests of all proxies; each is the total where no other class is."""
    if len(classes) < 2:
        # Where nobody else asks, there is nobody to shed batch requests for.
        return supply.total, supply.total
    if shed_batch:
        # What interactive requests leave free would only idle.
        shares = shares.model_copy(update={"batch": shares.batch.model_copy(update={"share_percent": 0.0})})
    if not demand:
        return (
            supply.total * shares.interactive.share_percent / 100,
            supply.total * shares.batch.share_percent / 100,
        )
    interactive = ShareClaim(
        per_s=math.fsum(one.interactive_per_s for one in demand.values()),
        sheds=any(one.sheds_interactive for one in demand.values()),
    )
    batch = ShareClaim(
        per_s=math.fsum(one.batch_per_s for one in demand.values()),
        sheds=any(one.sheds_batch for one in demand.values()),
    )
    return class_shares(supply.total, interactive, batch, shares, hold_s=supply.hold_s, service_s=supply.service_s)


def proxy_limits(
    supply: Supply, of_class: tuple[float, float], around: Sharers, classes: Collection[PriorityClass]
) -> dict[str, ProxyLimit]:
    """The places of each proxy that has a part of its own, as demand would have them now."""
    if len(classes) < 2:
        interactive = _divided(supply, of_class[0], around, None)
        batch = interactive if of_class[1] == of_class[0] else _divided(supply, of_class[1], around, None)
    else:
        interactive = _divided(supply, of_class[0], around, PriorityClass.INTERACTIVE)
        batch = _divided(supply, of_class[1], around, PriorityClass.BATCH)
    found = {}
    for node, part in interactive.items():
        stuck = around.stuck.get(node, 0)
        first, second = (stuck, stuck) if len(classes) < 2 else _stuck(stuck, around.demand.get(node), of_class)
        found[node] = ProxyLimit(interactive=part + first, batch=batch[node] + second)
    if around.demand and not supply.crowded:
        for node in around.others:
            one = found[node]
            found[node] = ProxyLimit(interactive=quantized(one.interactive), batch=quantized(one.batch))
    return found


def _divided(supply: Supply, total: float, around: Sharers, of: PriorityClass | None) -> dict[str, int]:
    """Whole places of every proxy in ``total``: at least one each, and none where there is nothing to divide."""
    if total <= 0:
        return dict.fromkeys((*around.gateways, *around.others), 0)
    even = even_share(total, around.gateway_count, sidecars=around.other_count > 0 and bool(around.demand))
    least = _least(total, around, crowded=supply.crowded)
    parts = dict.fromkeys(around.gateways, even)
    telling = [node for node in (*around.gateways, *around.others) if node in around.demand]
    if telling:
        silent = around.gateway_count - sum(node in around.demand for node in around.gateways)
        askers = [_share_claim(around.demand[node], of, around.in_flight.get(node, 0)) for node in telling]
        rest = max(0.0, total - silent * even)
        if around.silent_gateways:
            # A gateway that stands by may have its even part twice over, or it would keep capacity idle for ever.
            needed = math.fsum(asker.per_s for asker in askers) * supply.hold_s
            needed += _SPREAD * math.sqrt(needed) + STARTING_LIMIT * len(askers)
            rest = min(max(rest, needed), total - (silent - around.silent_gateways) * even)
        parts.update(zip(telling, proxy_shares(rest, askers, supply.hold_s, supply.service_s), strict=True))
    if around.others:
        spare = _spare(supply, around, of)
        for node in around.others:
            part = max(parts.get(node, 0.0), least)
            if spare is not None:
                demand = around.demand.get(node)
                asked = 0.0 if demand is None else _share_claim(demand, of).per_s * supply.service_s
                part = max(part, _bursty(max(spare, asked)))
            parts[node] = part
    return {node: max(1, round_up(part)) for node, part in parts.items()}


def _spare(supply: Supply, around: Sharers, of: PriorityClass | None) -> float | None:
    """What the mean sidecar has in flight, for which each has room; None while there is no room to spare."""
    if supply.crowded or not around.demand:
        return None
    asked = math.fsum(
        _share_claim(around.demand[node], of).per_s for node in around.others if node in around.demand
    )
    return asked * supply.service_s / max(1, around.other_count)


def _bursty(held: float) -> float:
    return _SIDECAR_LEAST + held + _SIDECAR_SPREAD * math.sqrt(held)


def quantized(whole: int) -> int:
    """The number, rounded up to the next of a few sizes; 0 stays."""
    step = max(1, (1 << (whole - 1).bit_length()) // (2 * _SIZES))
    return -(-whole // step) * step


def idle_sidecar_limit(
    supply: Supply,
    of_class: tuple[float, float],
    around: Sharers,
    classes: Collection[PriorityClass],
    known: tuple[int, int] | None,
) -> tuple[int, int]:
    """The places of a sidecar that has no part of its own, per class; ``known`` where they moved by a trifle."""
    kinds = (PriorityClass.INTERACTIVE, PriorityClass.BATCH) if len(classes) > 1 else (None, None)
    wanted = []
    for total, of in zip(of_class, kinds, strict=True):
        least = _least(total, around, crowded=supply.crowded) if total > 0 else 0.0
        spare = _spare(supply, around, of)
        wanted.append(
            round_up(least) if spare is None or total <= 0 else quantized(round_up(max(least, _bursty(spare))))
        )
    if known is not None and all(_LOOSE * had <= one <= had for one, had in zip(wanted, known, strict=True)):
        return known
    return wanted[0], wanted[1]


def even_share(total: float, gateways: int, *, sidecars: bool) -> float:
    """The part of a gateway of which nothing is known."""
    # All sidecars together count as one gateway where nobody knows better: there may be a thousand of them.
    return total / max(1, gateways + sidecars)


def _least(total: float, around: Sharers, *, crowded: bool) -> float:
    """The least that a sidecar has."""
    if not around.demand:
        return total
    return 1.0 if crowded else max(_SIDECAR_LEAST, total / max(1, around.other_count))


def _share_claim(demand: Demand, of: PriorityClass | None, carried: int = 0) -> ShareClaim:
    match of:
        case PriorityClass.INTERACTIVE:
            per_s, sheds = demand.interactive_per_s, demand.sheds_interactive
        case PriorityClass.BATCH:
            per_s, sheds = demand.batch_per_s, demand.sheds_batch
        case _:
            per_s, sheds = demand.per_s, demand.sheds_interactive or demand.sheds_batch
    # Nobody counts what is in flight by class: it came as requests come now.
    share = per_s / demand.per_s if demand.per_s else 1.0
    return ShareClaim(per_s=per_s, sheds=sheds, in_flight=carried * share)


def _stuck(stuck: int, demand: Demand | None, of_class: tuple[float, float]) -> tuple[int, int]:
    """Stuck requests by class: nobody counts them so, and they came as the others do."""
    if not stuck:
        return 0, 0
    weights = (demand.interactive_per_s, demand.batch_per_s) if demand is not None else of_class
    whole = sum(weights)
    interactive = round_up(stuck * weights[0] / whole) if whole > 0 else stuck
    return interactive, stuck - interactive


def damped_limits(
    wanted: Mapping[str, ProxyLimit],
    known: Mapping[str, ProxyLimit],
    of_class: tuple[float, float],
    around: Sharers,
    *,
    crowded: bool,
    moved_at_s: Mapping[str, float],
    now_s: float,
) -> dict[str, ProxyLimit]:
    """The places in force: as ``known`` where the move is a trifle or comes too soon after the last.

    Whoever refuses callers gets more at once. Where that, or what has not moved yet, would give the gateways more
    than ``of_class`` together, those that have too much give it back in the same moment; where they are
    left with less, all move at once.
    """
    if not known:
        return dict(wanted)
    found = {}
    gateways = frozenset(around.gateways)
    for node, one in wanted.items():
        last = known.get(node)
        if last is None or (
            one != last
            and (
                _needs(one, last, around.demand.get(node))
                or _drifts(one, last, now_s - moved_at_s.get(node, -math.inf), node not in gateways, crowded)
            )
        ):
            found[node] = one
        else:
            found[node] = last
    if _too_many(found, wanted, around.gateways, of_class):
        for node in around.gateways:
            one, now = wanted[node], found[node]
            if now is not one:
                found[node] = ProxyLimit(
                    interactive=min(one.interactive, now.interactive), batch=min(one.batch, now.batch)
                )
    if _too_few(found, wanted, around.gateways, of_class):
        found.update((node, wanted[node]) for node in around.gateways)
    return found


def _too_many(
    found: Mapping[str, ProxyLimit],
    wanted: Mapping[str, ProxyLimit],
    gateways: Collection[str],
    of_class: tuple[float, float],
) -> bool:
    """Whether the gateways have more of a class than there is; each part may be rounded up by one."""
    interactive = sum(found[node].interactive for node in gateways)
    batch = sum(found[node].batch for node in gateways)
    return interactive > max(
        of_class[0] + len(gateways), sum(wanted[node].interactive for node in gateways)
    ) or batch > max(of_class[1] + len(gateways), sum(wanted[node].batch for node in gateways))


def _too_few(
    found: Mapping[str, ProxyLimit],
    wanted: Mapping[str, ProxyLimit],
    gateways: Collection[str],
    of_class: tuple[float, float],
) -> bool:
    """Whether places of a class are left over that the gateways should have."""
    interactive = sum(found[node].interactive for node in gateways)
    batch = sum(found[node].batch for node in gateways)
    return interactive < min(of_class[0], sum(wanted[node].interactive for node in gateways)) or batch < min(
        of_class[1], sum(wanted[node].batch for node in gateways)
    )


def _needs(wanted: ProxyLimit, last: ProxyLimit, demand: Demand | None) -> bool:
    """Whether the proxy refuses callers for whom there are places now."""
    return demand is not None and (
        (demand.sheds_interactive and wanted.interactive > _MATERIAL * last.interactive)
        or (demand.sheds_batch and wanted.batch > _MATERIAL * last.batch)
    )


def _drifts(wanted: ProxyLimit, last: ProxyLimit, since_s: float, sidecar: bool, crowded: bool) -> bool:
    """Whether the part has been where it is for long enough, and is far enough from where it should be."""
    if since_s < _MIN_INTERVAL_S:
        return False
    if not sidecar:
        return _far(wanted, last, _STEP)
    if crowded:
        return since_s >= _SIDECAR_INTERVAL_S and _far(wanted, last, _SIDECAR_STEP)
    if wanted.interactive > last.interactive or wanted.batch > last.batch:
        return True
    return since_s >= _LOOSE_S and (
        wanted.interactive < _LOOSE * last.interactive or wanted.batch < _LOOSE * last.batch
    )


def _far(wanted: ProxyLimit, last: ProxyLimit, step: float) -> bool:
    return abs(wanted.interactive - last.interactive) >= max(1, step * last.interactive) or abs(
        wanted.batch - last.batch
    ) >= max(1, step * last.batch)


def round_up(amount: float) -> int:
    """Rounded up, forgiving the last digits of floating point."""
    return math.ceil(amount - 1e-9 * max(1.0, amount))
