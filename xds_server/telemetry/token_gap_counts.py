"""Time between tokens by pool since the server started, from the engine histograms that agents report.

Access logs have no tokens, and engines do not know routes: these are of all requests of a pool. Each replica hears
every agent, so replicas count the same gaps. Histograms of engines may have other bounds, so counts are
interpolated at bounds of our own; those are vLLM's.
"""

from collections.abc import Iterator, Mapping, Set
from itertools import chain

from prometheus_client.core import Metric

from engine.report import TokenGaps
from xds_server.metrics.fleet_metrics import TOKEN_GAP_BOUNDS_S, PoolMetrics
from xds_server.model.fleet import EngineId


class TokenGapHistogram:
    """Gaps of one pool; ``counts`` are cumulative, the last are all."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0.0] * (len(TOKEN_GAP_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, gaps: TokenGaps) -> None:
        """Add these gaps."""
        for place, count in enumerate(chain(map(gaps.within, TOKEN_GAP_BOUNDS_S), (gaps.total,))):
            self.counts[place] += count
        self.sum_s += gaps.sum_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus buckets: upper bound and number of gaps up to it."""
        return list(zip((*map(str, TOKEN_GAP_BOUNDS_S), "+Inf"), self.counts, strict=True))


class TokenGapCounts:
    """The newest histogram of each engine, and what its pool gained from them."""

    def __init__(self) -> None:
        self._engines: dict[EngineId, tuple[str, TokenGaps]] = {}
        self._pools: dict[str, TokenGapHistogram] = {}

    def grown(self, engine: EngineId, boot_id: str, gaps: TokenGaps) -> TokenGaps | None:
        """Gaps since the engine's last histogram, which are counted; None after the first of a boot."""
        before_boot, before = self._engines.get(engine, ("", None))
        self._engines[engine] = boot_id, gaps
        fresh = gaps.since(before) if before is not None and before_boot == boot_id else None
        if fresh is not None and fresh.total:
            self._pools.setdefault(engine.pool, TokenGapHistogram()).add(fresh)
        return fresh

    def keep(self, engines: Mapping[str, Set[str]]) -> None:
        """Forget all but these engines, by pool."""
        for pool in [pool for pool in self._pools if pool not in engines]:
            del self._pools[pool]
        for one in [one for one in self._engines if one.engine not in engines.get(one.pool, ())]:
            del self._engines[one]

    def families(self) -> Iterator[Metric]:
        """The histograms, for a scrape."""
        yield PoolMetrics.pool_token_gap_seconds.family(
            {(pool,): (one.cumulative(), one.sum_s) for pool, one in self._pools.items()}
        )
