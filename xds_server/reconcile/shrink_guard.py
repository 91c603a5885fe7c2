"""Whether new policies take away so much at once that it is more likely a mistake than a wish.

An empty mount, a file cut in half, the wrong folder: each of them parses, and an Envoy that is told of it
removes everything at once. So more than half needs to be allowed. Counted are the resources of each view and
the engines behind them: a pool cut from sixty engines to five is one changed resource, and an outage.
Engines count by number, so that replacing all of them, as a rollout does, is no shrinking; the listeners that
they are reached through do not count again. Those whose orchestrator ends them do not count at all: somebody
wants that. A pool that loses every other engine and stays is held back however small its part of the whole is.
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
    """One sentence when over half of ``before`` is missing from ``after``, or a pool is emptied; else empty."""
    for name, count in before.items():
        # Whoever takes a pool away says so. One that stays and has nobody is a selector that finds nobody.
        if name.startswith(_ENGINES_OF) and count and after.get(name) == 0:
            return f"would leave the pool {name.removeprefix(_ENGINES_OF)} without any of its {count} engines"
    gone = {name: count - after.get(name, 0) for name, count in before.items() if count > after.get(name, 0)}
    had, lost = sum(before.values()), sum(gone.values())
    if lost <= MAX_DROPPED_RATIO * had:
        return ""
    names = sorted(gone, key=lambda name: (-gone[name], name))
    shown = ", ".join(f"{gone[name]} {name}" if name.startswith(_ENGINES_OF) else name for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"would drop {lost} of {had} resources and engines at once: {shown}{more}"


def shrink_reason(before: Mapping[View, Mapping[str, int]], after: Mapping[View, Mapping[str, int]]) -> str:
    """Why ``after`` needs to be allowed, for one of the views that lose too much; empty when none does."""
    for view, had in before.items():
        reason = drop_reason(had, after.get(view, {}))
        if reason:
            return reason
    return ""
