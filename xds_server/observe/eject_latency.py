"""Latency of each hop of an ejection: from the fault of an engine to its last request.

A departure is one round that ejects engines of a pool. Its hops, on the monotonic clock of this process:

- ``detect``: age of the deciding evidence at the decision, by the judge's clock, plus the time since its report
  arrived. A lower bound: the fault precedes its evidence. Engines ejected for their calls or by order have no
  such hop.
- ``decide``: from the arrival of the oldest news in the round to snapshots without the engine.
- ``push``: from there to the first endpoints written to a connected proxy; one per proxy.
- ``ack``: from there to the proxy's ACK; one per proxy.
- ``news_to_ack``: from the arrival of the news to the ACK; one per proxy. Quantiles do not add up.
- ``last_request``: from the snapshots to the start of the last later call to the engine, among calls that ended
  within ``FOLLOWED_S`` and were reported; 0 without one. Proxies report calls with up to 0.1 s delay, so it may
  be that much too long.

A proxy without ACK within ``FOLLOWED_S`` counts as that long: omitting it would flatter the result.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import Histogram
from prometheus_client.core import Metric

from xds_server.decide.decisions import Decisions, Ejector, EngineDecision, Health
from xds_server.metrics.fleet_metrics import HOPS, EngineMetrics
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import GRPC_ROLE, View

FOLLOWED_S: Final = 30.0
"""Time a departure is tracked."""

MOST_FOLLOWED: Final = 100
"""Departures tracked at once; beyond that only ``detect`` and ``decide`` are measured."""

_SAME_MOMENT_S: Final = 0.001


@dataclass(eq=False, slots=True, kw_only=True)
class _Leaving:
    """One departure; ``waiting``: proxies without ACK, with the time of the write."""

    news_s: float
    published_s: float
    engines: set[EngineId]
    waiting: dict[str, float | None]


class EjectLatency:
    """Observes rounds and proxies. ``began_at_s``: start of the latest call to an engine."""

    def __init__(
        self,
        metrics: Metrics,
        began_at_s: Callable[[str, str], float | None] = lambda _, __: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # From the start at 0: a counter that appears with a value shows no increase in Prometheus.
        self._hops: Mapping[str, Histogram] = {hop: metrics.departure_hop_seconds.labels(hop=hop) for hop in HOPS}
        self._began_at_s = began_at_s
        self._clock = clock
        self._decisions: Decisions | None = None
        self._open: list[_Leaving] = []
        self._counts: dict[EngineId, int] = {}

    # -- inputs --------------------------------------------------------------------------------------------

    def on_round(
        self, decisions: Decisions, fleet: Fleet, nodes: Mapping[str, View], news_s: float | None
    ) -> None:
        """Snapshots of these decisions were published; ``news_s``: arrival of the oldest news behind them."""
        now_s = self._clock()
        before, self._decisions = self._decisions, decisions
        self._settle(decisions, now_s)
        if before is None or before.engines is decisions.engines:
            return
        for pool, made in decisions.pools.items():
            was = before.pools.get(pool)
            if was is None or was is made:
                continue
            left = {
                key
                for key, one in made.engines.items()
                if one.health is not Health.HEALTHY
                and (earlier := was.engines.get(key)) is not None
                and earlier.health is Health.HEALTHY
            }
            if left:
                self._begin(pool, left, fleet, nodes, now_s if news_s is None else news_s)
        if len(self._counts) > len(decisions.engines):
            self._counts = {key: count for key, count in self._counts.items() if key in decisions.engines}

    def on_push(self, node: str, type_url: str) -> None:
        """A response was written to a proxy."""
        if type_url != ENDPOINT or not self._open:
            return
        now_s = self._clock()
        for one in self._open:
            # Streams send only the latest version, so any write after a round carries it.
            if one.waiting.get(node, 0.0) is None:
                one.waiting[node] = now_s
                self._observe("push", now_s - one.published_s)

    def on_ack(self, node: str, type_url: str, latency_s: float) -> None:
        """A proxy accepted (ACK) a response written ``latency_s`` ago."""
        if type_url != ENDPOINT or not self._open:
            return
        now_s = self._clock()
        for one in self._open:
            pushed_s = one.waiting.get(node)
            # The write is timed in two places; both use the same clock at the same moment.
            if pushed_s is not None and now_s - latency_s >= pushed_s - _SAME_MOMENT_S:
                del one.waiting[node]
                self._observe("ack", now_s - pushed_s)
                self._observe("news_to_ack", now_s - one.news_s)

    def on_disconnect(self, node: str) -> None:
        """A proxy has disconnected."""
        for one in self._open:
            one.waiting.pop(node, None)

    def families(self) -> Iterable[Metric]:
        """Ejections of each engine."""
        known = self._decisions.engines if self._decisions is not None else {}
        yield EngineMetrics.engine_departures.family({key: self._counts.get(key, 0) for key in known})

    # -- results -------------------------------------------------------------------------------------------

    def _begin(
        self, pool: str, left: set[EngineId], fleet: Fleet, nodes: Mapping[str, View], news_s: float
    ) -> None:
        now_s = self._clock()
        for key in left:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._observe("decide", now_s - news_s)
            detected_s = self._detected_s(key, fleet, now_s)
            if detected_s is not None:
                self._observe("detect", detected_s)
        if len(self._open) < MOST_FOLLOWED:
            # gRPC clients request endpoints one by one: ignore unsent ones.
            waiting: dict[str, float | None] = {
                node: None
                for node, view in nodes.items()
                if view.role != GRPC_ROLE and (not view.pools or pool in view.pools)
            }
            self._open.append(_Leaving(news_s=news_s, published_s=now_s, engines=left, waiting=waiting))

    def _detected_s(self, key: EngineId, fleet: Fleet, now_s: float) -> float | None:
        decision = None if self._decisions is None else self._decisions.engines.get(key)
        engine = fleet.engine(key)
        return None if decision is None or engine is None else detected_s(decision, engine, now_s)

    def _settle(self, decisions: Decisions, now_s: float) -> None:
        """Finish departures: engines back in rotation or tracked long enough, proxies without ACK."""
        for one in list(self._open):
            late = now_s - one.published_s >= FOLLOWED_S
            for key in list(one.engines):
                decision = decisions.engines.get(key)
                if late or decision is None or decision.health is Health.HEALTHY:
                    one.engines.discard(key)
                    began_s = self._began_at_s(*key)
                    if began_s is not None and decision is not None:
                        self._observe("last_request", began_s - one.published_s)
            if late:
                for pushed_s in one.waiting.values():
                    self._observe("push" if pushed_s is None else "ack", now_s - (pushed_s or one.published_s))
                    self._observe("news_to_ack", now_s - one.news_s)
            if late or not (one.engines or one.waiting):
                self._open.remove(one)

    def _observe(self, hop: str, seconds: float) -> None:
        self._hops[hop].observe(max(0.0, seconds))


def detected_s(decision: EngineDecision, engine: Engine, now_s: float) -> float | None:
    """Age of the deciding evidence; None if no verdict decided."""
    if decision.ejector is not Ejector.VERDICT or engine.report is None or engine.received_at_s is None:
        return None
    return engine.report.reasons[0].age_s + now_s - engine.received_at_s if engine.report.reasons else None
