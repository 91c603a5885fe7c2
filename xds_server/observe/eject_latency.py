"""How long each hop takes on the way of an engine that leaves: from what is wrong with it to its last request.

A departure is one round that takes engines of a pool out. Its hops, all on the monotonic clock of this process:

- ``detect``: how long what the judge goes by had been so when it was decided on: the age of the deciding evidence,
  by the judge's own clock, and the time since its report came. What was wrong before anyone could read it is in no
  report, so this is a lower bound; engines that are taken out for their calls, or on order, have none.
- ``decide``: from the arrival of the oldest news that the round took up to snapshots without the engine.
- ``push``: from there to the first endpoints that are written to a proxy that was connected; one per proxy.
- ``ack``: from there to the proxy's confirmation; one per proxy.
- ``news_to_ack``: from the arrival of the news to the confirmation; one per proxy. Quantiles do not add up.
- ``last_request``: from the snapshots to the beginning of the last call that a proxy sent there all the same, of
  those that ended within ``FOLLOWED_S`` and were told of; 0 where none began later. Proxies wait up to 0.1 s
  before they tell of a call, and by as much it may be too long.

A proxy that does not confirm within ``FOLLOWED_S`` counts as that long: leaving it out would flatter.
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
"""How long a departure is followed."""

MOST_FOLLOWED: Final = 100
"""Departures that are followed at once; of those beyond only ``detect`` and ``decide`` are measured."""

_SAME_MOMENT_S: Final = 0.001


@dataclass(eq=False, slots=True, kw_only=True)
class _Leaving:
    """One departure; ``waiting`` has the proxies that are to hear of it, and when they were written to."""

    news_s: float
    published_s: float
    engines: set[EngineId]
    waiting: dict[str, float | None]


class EjectLatency:
    """Watches rounds and proxies go by. ``began_at_s`` says when the newest call to an engine began."""

    def __init__(
        self,
        metrics: Metrics,
        began_at_s: Callable[[str, str], float | None] = lambda _, __: None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hops: Histogram = metrics.departure_hop_seconds
        for hop in HOPS:
            # At 0 from the start: to Prometheus what comes up with a count has not risen, and would count nobody.
            self._hops.labels(hop=hop)
        self._began_at_s = began_at_s
        self._clock = clock
        self._decisions: Decisions | None = None
        self._open: list[_Leaving] = []
        self._counts: dict[EngineId, int] = {}

    # -- what is told --------------------------------------------------------------------------------------

    def on_round(
        self, decisions: Decisions, fleet: Fleet, nodes: Mapping[str, View], news_s: float | None
    ) -> None:
        """Snapshots of these decisions were published; ``news_s``: when the oldest news came that led to them."""
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
            # Streams know only the newest: whatever is written after a round carries it.
            if one.waiting.get(node, 0.0) is None:
                one.waiting[node] = now_s
                self._observe("push", now_s - one.published_s)

    def on_ack(self, node: str, type_url: str, latency_s: float) -> None:
        """A proxy confirmed what was written to it ``latency_s`` ago."""
        if type_url != ENDPOINT or not self._open:
            return
        now_s = self._clock()
        for one in self._open:
            pushed_s = one.waiting.get(node)
            # Both times of the write are taken at the same moment, by the same clock, in two places.
            if pushed_s is not None and now_s - latency_s >= pushed_s - _SAME_MOMENT_S:
                del one.waiting[node]
                self._observe("ack", now_s - pushed_s)
                self._observe("news_to_ack", now_s - one.news_s)

    def on_disconnect(self, node: str) -> None:
        """A proxy has left: it sends nothing more."""
        for one in self._open:
            one.waiting.pop(node, None)

    def families(self) -> Iterable[Metric]:
        """How often each engine was taken out."""
        known = self._decisions.engines if self._decisions is not None else {}
        yield EngineMetrics.engine_departures.family({key: self._counts.get(key, 0) for key in known})

    # -- what comes of it ----------------------------------------------------------------------------------

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
            # Clients of gRPC ask for endpoints one by one: that they are not written to says nothing.
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
        """Close what is over: engines that are back or were followed long enough, proxies that never answered."""
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
        self._hops.labels(hop=hop).observe(max(0.0, seconds))


def detected_s(decision: EngineDecision, engine: Engine, now_s: float) -> float | None:
    """How long what the judge goes by has been so; None where no judge decided."""
    if decision.ejector is not Ejector.VERDICT or engine.report is None or engine.received_at_s is None:
        return None
    return engine.report.reasons[0].age_s + now_s - engine.received_at_s if engine.report.reasons else None
