"""Which proxy may have how many requests in flight: the ceiling in whole places, and when a part of it moves.

Gateways divide the total by what arrives at each. One of which nothing is known keeps an even part, and so does
one that is away for a moment. Sidecars share by arrivals, too, but a thousandth of a pool is no room for a caller
that asks two things at once. So while less is asked than can be served each has room for what it, or the mean
sidecar, has in flight, for four standard deviations more, and two places beside; or an even part of the total
where that is more. For a thousand sidecars with fifty requests in flight that is three places each: more than the
pool has, and they do not ask all at once. As soon as as much is asked as can be served, only their shares are
left, and one place each.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from policies.resilience import PriorityLimits
from policies.route import PriorityClass
from xds_server.decide.demand import Demand
from xds_server.decide.parts import Asker, by_class, by_proxy

_SIDECAR_LEAST: Final = 2.0
_SIDECAR_SPREAD: Final = 4.0
"""With two places, and a quarter of a request in flight on the mean, a sidecar would refuse 2.4 % of its callers
while the pool idles (Erlang's formula); with these it is one in ten thousand."""

_SPREAD: Final = 3.0
"""Standard deviations of what is in flight that there is room for beyond the mean."""

_STEP: Final = 0.03
_MIN_INTERVAL_S: Final = 0.2
"""A part that only drifts moves by this much or not at all, and at most five times a second."""

_MATERIAL: Final = 1.1
"""Who refuses callers gets more at once where there is so many times more for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
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
class Around:
    """Among whom: the connected ``gateways`` and ``others``, how many there are when those that are away for a
    moment count too, the demand of each that tells it, and what each holds on engines that are out. ``strangers``
    are connected gateways that were never heard of: most likely nobody asks them for anything."""

    gateways: tuple[str, ...]
    others: tuple[str, ...]
    gateway_count: int
    other_count: int
    demand: Mapping[str, Demand]
    held: Mapping[str, int]
    strangers: int = 0


def by_classes(
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
    interactive = Asker(
        per_s=math.fsum(one.interactive_per_s for one in demand.values()),
        sheds=any(one.sheds_interactive for one in demand.values()),
    )
    batch = Asker(
        per_s=math.fsum(one.batch_per_s for one in demand.values()),
        sheds=any(one.sheds_batch for one in demand.values()),
    )
    return by_class(supply.total, interactive, batch, shares, hold_s=supply.hold_s, service_s=supply.service_s)


def places(
    supply: Supply, of_class: tuple[float, float], around: Around, classes: Collection[PriorityClass]
) -> dict[str, Places]:
    """The places of each connected proxy, as demand would have them now."""
    if len(classes) < 2:
        interactive = _divided(supply, of_class[0], around, None)
        batch = interactive if of_class[1] == of_class[0] else _divided(supply, of_class[1], around, None)
    else:
        interactive = _divided(supply, of_class[0], around, PriorityClass.INTERACTIVE)
        batch = _divided(supply, of_class[1], around, PriorityClass.BATCH)
    found = {}
    for node, part in interactive.items():
        stuck = around.held.get(node, 0)
        first, second = (stuck, stuck) if len(classes) < 2 else _stuck(stuck, around.demand.get(node), of_class)
        found[node] = Places(interactive=part + first, batch=batch[node] + second)
    return found


def _divided(supply: Supply, total: float, around: Around, of: PriorityClass | None) -> dict[str, int]:
    """Whole places of every proxy in ``total``: at least one each, and none where there is nothing to divide."""
    if total <= 0:
        return dict.fromkeys((*around.gateways, *around.others), 0)
    even, least = quiet_parts(total, around, crowded=supply.crowded)
    parts = dict.fromkeys(around.gateways, even)
    telling = [node for node in (*around.gateways, *around.others) if node in around.demand]
    if telling:
        silent = around.gateway_count - sum(node in around.demand for node in around.gateways)
        askers = [_asker(around.demand[node], of) for node in telling]
        rest = max(0.0, total - silent * even)
        if around.strangers:
            # A gateway that stands by may have its even part twice over, or it would keep capacity idle for ever.
            needed = math.fsum(asker.per_s for asker in askers) * supply.hold_s
            needed += _SPREAD * math.sqrt(needed)
            rest = min(max(rest, needed), total - (silent - around.strangers) * even)
        parts.update(zip(telling, by_proxy(rest, askers, supply.hold_s, supply.service_s), strict=True))
    if around.others:
        held = {
            node: _asker(around.demand[node], of).per_s * supply.service_s
            for node in around.others
            if node in around.demand
        }
        mean = math.fsum(held.values()) / len(around.others)
        for node in around.others:
            parts[node] = max(parts.get(node, 0.0), least)
            if held and not supply.crowded:
                parts[node] = max(parts[node], _bursty(max(mean, held.get(node, 0.0))))
    return {node: max(1, up(part)) for node, part in parts.items()}


def _bursty(held: float) -> float:
    return _SIDECAR_LEAST + held + _SIDECAR_SPREAD * math.sqrt(held)


def quiet_parts(total: float, around: Around, *, crowded: bool) -> tuple[float, float]:
    """The part of a gateway of which nothing is known, and the least that any other proxy has."""
    told = bool(around.demand)
    # All sidecars together count as one gateway where nobody knows better: there may be a thousand of them.
    even = total / max(1, around.gateway_count + (1 if around.others and told else 0))
    if not told:
        return even, total
    return even, 1.0 if crowded else max(_SIDECAR_LEAST, total / max(1, around.other_count))


def _asker(demand: Demand, of: PriorityClass | None) -> Asker:
    match of:
        case PriorityClass.INTERACTIVE:
            return Asker(per_s=demand.interactive_per_s, sheds=demand.sheds_interactive)
        case PriorityClass.BATCH:
            return Asker(per_s=demand.batch_per_s, sheds=demand.sheds_batch)
        case _:
            return Asker(per_s=demand.per_s, sheds=demand.sheds_interactive or demand.sheds_batch)


def _stuck(stuck: int, demand: Demand | None, of_class: tuple[float, float]) -> tuple[int, int]:
    """Stuck requests by class: nobody counts them so, and they came as the others do."""
    if not stuck:
        return 0, 0
    weights = (demand.interactive_per_s, demand.batch_per_s) if demand is not None else of_class
    whole = sum(weights)
    interactive = up(stuck * weights[0] / whole) if whole > 0 else stuck
    return interactive, stuck - interactive


def settled(
    wanted: Mapping[str, Places],
    known: Mapping[str, Places],
    of_class: tuple[float, float],
    around: Around,
    *,
    moved_at_s: Mapping[str, float],
    now_s: float,
) -> dict[str, Places]:
    """The places in force: as ``known`` where the move is a trifle or comes too soon after the last.

    Whoever refuses callers gets more at once. Where that, or what has not moved yet, would give the gateways more
    than ``of_class`` together, those that have too much give it back in the same moment.
    """
    found = {}
    for node, one in wanted.items():
        last = known.get(node)
        if last is None or _moves(one, last, around.demand.get(node), now_s - moved_at_s.get(node, -math.inf)):
            found[node] = one
        else:
            found[node] = last
    if _too_many(found, wanted, around.gateways, of_class):
        for node in around.gateways:
            one, now = wanted[node], found[node]
            if now is not one:
                found[node] = Places(
                    interactive=min(one.interactive, now.interactive), batch=min(one.batch, now.batch)
                )
    return found


def _too_many(
    found: Mapping[str, Places],
    wanted: Mapping[str, Places],
    gateways: Collection[str],
    of_class: tuple[float, float],
) -> bool:
    """Whether the gateways have more of a class than there is; each part may be rounded up by one."""
    interactive = sum(found[node].interactive for node in gateways)
    batch = sum(found[node].batch for node in gateways)
    return interactive > max(
        of_class[0] + len(gateways), sum(wanted[node].interactive for node in gateways)
    ) or batch > max(of_class[1] + len(gateways), sum(wanted[node].batch for node in gateways))


def _moves(wanted: Places, last: Places, demand: Demand | None, since_s: float) -> bool:
    pairs = ((wanted.interactive, last.interactive), (wanted.batch, last.batch))
    if demand is not None:
        refused = (demand.sheds_interactive, demand.sheds_batch)
        if any(sheds and want > _MATERIAL * have for sheds, (want, have) in zip(refused, pairs, strict=True)):
            return True
    return since_s >= _MIN_INTERVAL_S and any(abs(want - have) >= max(1, _STEP * have) for want, have in pairs)


def up(amount: float) -> int:
    """Rounded up, forgiving the last digits of floating point."""
    return math.ceil(amount - 1e-9 * max(1.0, amount))
