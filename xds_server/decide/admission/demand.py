"""What each proxy asks of a pool, smoothed: the arrivals that the admission ceiling is divided by.

Arrivals are counted, never admissions: those follow the ceiling, so a split by them would never change again. Nor
is anything known of a proxy whose telemetry is old: it is absent here, and gets an even part.
"""

from collections.abc import Collection, Mapping
from typing import Final

from policies.route import PriorityClass
from xds_server.decide.remembered import Demand
from xds_server.fleet.traffic import STALE_S, PoolTraffic, ProxyTraffic

_KEPT: Final = 0.6
_PER_S: Final = 0.5
"""Of what was known, 0.6 is left after half a second: this made two proxies with a demand of 3:1, swapped in the
middle of a fault, share without loss. Rates are already over two seconds."""

_LONGEST_LOOK_S: Final = 1.0
_TRIFLE: Final = 0.01


def demands(
    nodes: Collection[str], traffic: PoolTraffic | None, before: Mapping[str, Demand], now_s: float
) -> dict[str, Demand]:
    """The demand at each of ``nodes`` of which there is fresh telemetry."""
    if traffic is None:
        return {}
    oldest_s = now_s - STALE_S
    return {
        node: _demand(seen, before.get(node), now_s)
        for node, seen in traffic.proxies.items()
        if seen.heard_at_s >= oldest_s and node in nodes
    }


def _demand(seen: ProxyTraffic, known: Demand | None, now_s: float) -> Demand:
    interactive = seen.arrivals_per_s.get(PriorityClass.INTERACTIVE, 0.0)
    batch = seen.arrivals_per_s.get(PriorityClass.BATCH, 0.0)
    sheds_interactive = seen.shed_per_s.get(PriorityClass.INTERACTIVE, 0.0) > 0
    sheds_batch = seen.shed_per_s.get(PriorityClass.BATCH, 0.0) > 0
    if known is not None:
        if (
            _same(interactive, known.interactive_per_s)
            and _same(batch, known.batch_per_s)
            and sheds_interactive == known.sheds_interactive
            and sheds_batch == known.sheds_batch
        ):
            return known
        # A long pause between two looks is no reason to jump.
        kept = _KEPT ** (min(now_s - known.at_s, _LONGEST_LOOK_S) / _PER_S)
        interactive = _smoothed(known.interactive_per_s, interactive, kept, sheds_interactive)
        batch = _smoothed(known.batch_per_s, batch, kept, sheds_batch)
    return Demand(
        interactive_per_s=interactive,
        batch_per_s=batch,
        sheds_interactive=sheds_interactive,
        sheds_batch=sheds_batch,
        at_s=now_s,
    )


def _smoothed(known: float, seen: float, kept: float, sheds: bool) -> float:
    smooth = kept * known + (1 - kept) * seen
    # Who refuses callers now must not wait until an average believes in them.
    return max(smooth, seen) if sheds else smooth


def _same(seen: float, known: float) -> bool:
    return abs(seen - known) <= _TRIFLE * known
