"""The shrink guard: holds back policies that remove so much at once that a mistake is likely.

An empty mount, a truncated file, the wrong folder: each of them parses, and Envoy would remove everything at once.
So losing more than half needs permission. The resources of each view count, and the engines behind them: a pool
cut from 60 engines to five is one changed resource, and an outage. Engines count by number, so replacing all of
them, as in a rollout, is not shrinking; their listeners do not count again. Engines ended by their orchestrator do
not count: that is intended. A pool that stays but loses all its engines is held back, however small its part of
the whole.
"""

from collections.abc import Mapping
from typing import Final

from xds_server.model.fleet import Fleet
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import CLUSTER, SHORT_NAMES
from xds_server.model.view import View
from xds_server.translate.internal_listeners import ENGINE_LISTENER_PREFIX, HOP_CLUSTER_PREFIX

MAX_DROPPED_RATIO: Final = 0.5
_SHOWN: Final = 5
_ENGINES_OF: Final = "engines of "


def view_parts(snapshot: Snapshot, fleet: Fleet) -> Mapping[str, int]:
    """What a view is served, and how much of it: 1 for each resource, the number of engines for each cluster.

    Only engines that are to stay are counted.
    """
    counted = {
        f"{SHORT_NAMES.get(url, url)} {name}": 1
        for url, named in snapshot.resources.items()
        for name in named
        if not name.startswith((ENGINE_LISTENER_PREFIX, HOP_CLUSTER_PREFIX))
    }
    pools = snapshot.of(CLUSTER).keys() & fleet.pools.keys()
    return counted | {
        f"{_ENGINES_OF}{pool}": sum(not engine.pod_phase.final for engine in fleet.pools[pool]) for pool in pools
    }


def drop_reason(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """One sentence if over half of ``before`` is missing from ``after``, or a pool is emptied; else empty."""
    for name, count in before.items():
        # A removed pool is intended. One that stays without engines has a selector that matches none.
        if name.startswith(_ENGINES_OF) and count and after.get(name) == 0:
            return f"would leave pool {name.removeprefix(_ENGINES_OF)} with none of its {count} engines"
    gone = {name: count - after.get(name, 0) for name, count in before.items() if count > after.get(name, 0)}
    had, lost = sum(before.values()), sum(gone.values())
    if lost <= MAX_DROPPED_RATIO * had:
        return ""
    names = sorted(gone, key=lambda name: (-gone[name], name))
    shown = ", ".join(f"{gone[name]} {name}" if name.startswith(_ENGINES_OF) else name for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"would remove {lost} of {had} resources and engines at once: {shown}{more}"


def shrink_reason(before: Mapping[View, Mapping[str, int]], after: Mapping[View, Mapping[str, int]]) -> str:
    """Why ``after`` needs permission, for one of the views that lose too much; empty if none does."""
    for view, had in before.items():
        reason = drop_reason(had, after.get(view, {}))
        if reason:
            return reason
    return ""
