"""Requests in flight allowed to each proxy: the ceiling in whole places, and when a part moves.

Gateways divide the total by their demand. A gateway without telemetry, or briefly disconnected, keeps an even
part. Sidecars share by demand, too, but a thousandth of a pool is too little for two requests at once.
So while demand is below capacity, each has room for what it, or the mean sidecar, has in flight, plus four
standard deviations, plus two places; or an even part of the total if that is more. For a thousand sidecars with 50
requests in flight that is three places each: more than the pool has, but they do not all ask at once. At capacity
only their shares are left, and one place each.

A thousand sidecars with fluctuating demand would cause a thousand pushes per second. So while there is room for
all, their parts have only a few sizes, grow as soon as they may be too small, and shrink after being far too large
for seconds. Sidecars without reports, or without traffic to this pool, share one part.
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
"""With two places and 0.25 requests in flight on average, a sidecar would refuse 2.4 % of its callers while the
pool idles (Erlang B); with this spread it is one in ten thousand."""

_SPREAD: Final = 3.0
"""Standard deviations of room above the mean in flight."""

_STEP: Final = 0.03
_MIN_INTERVAL_S: Final = 0.2
"""Minimum interval between moves of a drifting part."""

_SIDECAR_STEP: Final = 0.125
_SIDECAR_INTERVAL_S: Final = 0.5
"""The same for sidecars at capacity: each has little, and chance moves it much."""

_LOOSE: Final = 0.7
_LOOSE_S: Final = 5.0
"""While there is room for all, minimum time before a sidecar's part shrinks."""

_SIZES: Final = 8
"""Sizes of a sidecar's part between two powers of two, from this many places on."""

_MATERIAL: Final = 1.1
"""A proxy that refuses callers gets more at once if its new part is larger by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimit:
    """Requests in flight allowed to one proxy by class, including those it holds on ejected engines."""

    interactive: int
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """What is divided: ``total`` places, each held for ``hold_s`` at the full allowed wait, for ``service_s``
    without wait; ``crowded`` at or above capacity."""

    total: int
    hold_s: float
    service_s: float
    crowded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharers:
    """The proxies that share: connected ``gateways``; ``others`` with their own part, because they report demand
    or hold requests; the number of both kinds, silent and briefly disconnected ones included; the demand of each
    that reports it; and what each holds on ejected engines. ``silent_gateways`` are connected gateways that have
    never reported: most likely without callers. ``in_flight`` is each proxy's last report for engines in
    rotation."""

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
    """Places for interactive and batch requests of all proxies; the total if the other class has no route."""
    if len(classes) < 2:
        # Without the other class, batch requests need not be shed.
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
    """The places of each proxy with its own part, as demand would have them now."""
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
    """Whole places of every proxy in ``total``: at least one each, unless there is nothing to divide."""
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
            # A standby gateway may have at most twice its even part, or it would keep capacity idle forever.
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
    """In-flight requests of the mean sidecar, for which each has room; None at capacity."""
    if supply.crowded or not around.demand:
        return None
    asked = math.fsum(
        _share_claim(around.demand[node], of).per_s for node in around.others if node in around.demand
    )
    return asked * supply.service_s / max(1, around.other_count)


def _bursty(held: float) -> float:
    return _SIDECAR_LEAST + held + _SIDECAR_SPREAD * math.sqrt(held)


def quantized(whole: int) -> int:
    """The number, rounded up to one of a few sizes; 0 stays 0."""
    step = max(1, (1 << (whole - 1).bit_length()) // (2 * _SIZES))
    return -(-whole // step) * step


def idle_sidecar_limit(
    supply: Supply,
    of_class: tuple[float, float],
    around: Sharers,
    classes: Collection[PriorityClass],
    known: tuple[int, int] | None,
) -> tuple[int, int]:
    """The places of a sidecar without its own part, by class; ``known`` if they moved little."""
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
    """The part of a gateway without telemetry."""
    # All sidecars together count as one gateway without telemetry: there may be a thousand of them.
    return total / max(1, gateways + sidecars)


def _least(total: float, around: Sharers, *, crowded: bool) -> float:
    """The minimum of a sidecar."""
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
    # In-flight requests are not counted by class: assume the present mix.
    share = per_s / demand.per_s if demand.per_s else 1.0
    return ShareClaim(per_s=per_s, sheds=sheds, in_flight=carried * share)


def _stuck(stuck: int, demand: Demand | None, of_class: tuple[float, float]) -> tuple[int, int]:
    """Stuck requests by class, assuming the present mix: they are not counted by class."""
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
    """The places in force: those in ``known`` if the move is small or too soon after the last.

    A proxy that refuses callers gets more at once. If that, or parts that have not moved yet, would exceed
    ``of_class`` for the gateways together, those with too much shrink at once; if places are left over that
    gateways need, all move at once.
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
    """Whether the gateways exceed a class's total; each part may be rounded up by one."""
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
    """Whether places of a class are left over that gateways should have."""
    interactive = sum(found[node].interactive for node in gateways)
    batch = sum(found[node].batch for node in gateways)
    return interactive < min(of_class[0], sum(wanted[node].interactive for node in gateways)) or batch < min(
        of_class[1], sum(wanted[node].batch for node in gateways)
    )


def _needs(wanted: ProxyLimit, last: ProxyLimit, demand: Demand | None) -> bool:
    """Whether the proxy refuses callers although there are places now."""
    return demand is not None and (
        (demand.sheds_interactive and wanted.interactive > _MATERIAL * last.interactive)
        or (demand.sheds_batch and wanted.batch > _MATERIAL * last.batch)
    )


def _drifts(wanted: ProxyLimit, last: ProxyLimit, since_s: float, sidecar: bool, crowded: bool) -> bool:
    """Whether the part has stayed long enough and is far enough from its target to move."""
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
    """Rounded up, ignoring floating-point noise."""
    return math.ceil(amount - 1e-9 * max(1.0, amount))
