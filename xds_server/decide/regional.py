"""Who serves the callers of a region, as decided at one moment.

Only where a pool's engines are in more than one region; how it comes about is in ``routing.regions``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_server.fleet import EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionShares:
    """The part of each region in the requests of one region's callers.

    ``home`` is the region that is to serve them; empty: none is, and all do by capacity. ``shares`` come to 1 and
    are those of the regions that serve now; ``then`` is who does when none of these has an engine left, one tier
    after another, with their parts in each. ``barred`` are engines of another revision, which never do.

    ``helped``: home is short of what is asked, or another took over. ``towards_s`` is since when (monotonic) the
    opposite is asked for (None: it is not), ``since_s`` when the shares last moved. ``order`` is that of the
    policy by which ``home`` was found. ``in_force`` is False in shadow mode: all regions serve by capacity then.
    """

    home: str
    shares: Mapping[str, float]
    then: tuple[Mapping[str, float], ...]
    barred: frozenset[EngineId]
    reason: str
    since_s: float
    helped: bool = False
    towards_s: float | None = None
    order: tuple[str, ...] = field(default=(), compare=False)
    in_force: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRevisions:
    """Revisions of the engines of a region, and when (monotonic) it last had any engine."""

    revisions: frozenset[str]
    seen_at_s: float
