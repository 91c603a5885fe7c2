"""Telemetry as one part of the control plane: two gRPC services in, traffic by pool out, and alarms about losses.

Everything runs in the event loop of the server. Reading costs are bounded three times over: proxies are asked for
a sample when there are too many calls (``sampling``) and for fewer load reports when there are too many proxies
(``load_reports``); what comes regardless is read, dropped and counted.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import grpc
import structlog
from prometheus_client.core import Metric

from policies.model import PolicySet
from xds_server.metrics.control_metrics import TelemetryMetrics
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.pool_traffic import PoolTraffic, TelemetrySignal
from xds_server.telemetry import access_log_service, load_report_service, pool_totals
from xds_server.telemetry.loss_monitor import TelemetryLossMonitor
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.sampling import BUDGET_PER_S, MESSAGE_COST, Sampling
from xds_server.telemetry.stream_service import MaySee, StreamService
from xds_server.telemetry.traffic_store import TrafficStore

BAD_NEWS_S: Final = 0.01
"""How long a failure may wait for others before anyone is told."""

NEWS_S: Final = 0.1
"""The same for everything else: no decision hurries because a call went well."""

_CHECK_EACH_S: Final = 1.0
_MOST_PER_S: Final = 2 * BUDGET_PER_S
"""What is read at all: proxies need a moment to follow a lower sampling."""

_log = structlog.get_logger()

Traffic = Mapping[str, PoolTraffic]


def _everything(_pool: str) -> bool:
    return True


class Telemetry:
    """What proxies tell. ``handlers`` are its gRPC services, ``traffic`` is what came of it.

    ``on_news`` is called in the event loop, at most once each ``NEWS_S``, or sooner for failures and refusals.
    ``watch`` says which pools and routes there are; ``connected`` which Envoys ought to be heard; ``speaks_for``
    which pools that node may see, and None where whoever proved these identities is not that node.
    """

    def __init__(
        self,
        metrics: Metrics,
        on_news: Callable[[], None] = lambda: None,
        *,
        speaks_for: Callable[[str, tuple[str, ...]], MaySee | None] = lambda _node, _identities: _everything,
        traffic_store: TrafficStore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.traffic_store = traffic_store or TrafficStore()
        self._speaks_for = speaks_for
        self.on_news = on_news
        self._metrics = metrics
        self._clock = clock
        self._losses = TelemetryLossMonitor()
        self._known: Collection[str] | None = None
        self._sampling = Sampling()
        self._streams = 0
        self._room = _MOST_PER_S
        self._room_at_s = clock()
        self._read = 0.0
        self._checked_at_s = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._intakes = [
            StreamService(
                access_log_service.METHOD,
                lambda identities: access_log_service.AccessLogHandler(self, self._news, identities),
                self._flaw(TelemetrySignal.ACCESS_LOG),
                clock,
            ),
            StreamService(
                load_report_service.METHOD,
                lambda identities: load_report_service.LoadReportHandler(self, identities),
                self._flaw(TelemetrySignal.LOAD_REPORT),
                clock,
            ),
        ]

    # -- face ----------------------------------------------------------------------------------------------

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The services, for the port that proxies know."""
        return list(self._intakes)

    def stop(self) -> None:
        """End every stream: a server that stops waits for those that are open."""
        for intake in self._intakes:
            intake.stop()
        if self._timer is not None:
            self._timer.cancel()

    def watch(self, policies: PolicySet, addresses: Mapping[str, str] | None = None) -> None:
        """Go by these policies from now on; ``addresses`` are the IP addresses of their host names."""
        self.traffic_store.set_directory(build_directory(policies, addresses or {}))

    def connected(self, nodes: Collection[str]) -> None:
        """The ids of the Envoys (not of gRPC clients) that are connected now; what others tell counts no more."""
        self._known = nodes
        self._losses.set_connected(nodes, self._clock())

    @property
    def sampling(self) -> float:
        """The share of calls that proxies are to report, 0.01 to 1."""
        return self._sampling.share

    def traffic(self, now_s: float) -> Traffic:
        """What the proxies saw lately, by pool; the same object where nothing has changed."""
        self._check(now_s)
        return self.traffic_store.traffic(self._sampling.counted(now_s), now_s)

    def last_signals_s(self) -> Mapping[str, Mapping[TelemetrySignal, float]]:
        """When each proxy was last heard, by signal, in monotonic seconds; a signal that never came is absent."""
        return {node: dict(heard.at_s) for node, heard in self._losses.signals.items()}

    @property
    def lost(self) -> Mapping[str, frozenset[str]]:
        """By signal, the connected proxies of which it is missing."""
        return {signal.value: nodes for signal, nodes in self._losses.lost.items()}

    def families(self) -> Iterable[Metric]:
        """Ages, losses and sums, for a scrape."""
        yield from pool_totals.families(self.traffic_store.totals())
        now_s = self._clock()
        yield TelemetryMetrics.telemetry_age_seconds.family(
            {
                (node, signal.value): now_s - at_s
                for node, heard in self._losses.signals.items()
                for signal, at_s in heard.at_s.items()
            }
        )
        yield TelemetryMetrics.telemetry_lost.family(
            {(signal.value,): float(len(nodes)) for signal, nodes in self._losses.lost.items()}
        )
        yield TelemetryMetrics.telemetry_sampling_ratio.family({(): self.sampling})
        yield TelemetryMetrics.telemetry_load_report_interval_seconds.family(
            {(): load_report_service.interval_s(self._streams)}
        )

    # -- what streams need ---------------------------------------------------------------------------------

    def visible_pools(self, node: str, signal: TelemetrySignal, identities: tuple[str, ...] = ()) -> MaySee | None:
        """Of which pools ``node`` may tell; None unless it is connected for configuration by this identity."""
        if self._known is None or node in self._known:
            may_see = self._speaks_for(node, identities)
            if may_see is not None:
                return may_see
        self._metrics.telemetry_errors.labels(signal=signal.value, flaw="stranger").inc()
        return None

    def admitted(self, entries: int, now_s: float) -> bool:
        """Whether a message with so many entries is read."""
        cost = entries + MESSAGE_COST
        self._read += cost
        self._room = min(_MOST_PER_S, self._room + (now_s - self._room_at_s) * _MOST_PER_S)
        self._room_at_s = now_s
        if self._room <= 0:
            self._metrics.telemetry_dropped.labels(signal=TelemetrySignal.ACCESS_LOG.value).inc(entries)
            return False
        self._room -= cost
        return True

    def logged(self, node: str, entries: int, now_s: float) -> float:
        """Entries of ``node`` are counted; the share of calls they stand for."""
        self._metrics.telemetry_entries.inc(entries)
        self._losses.record(node, TelemetrySignal.ACCESS_LOG, now_s).unlogged = 0.0
        return self._sampling.counted(now_s)

    def proxies(self) -> int:
        """Open streams of load reports of proxies that are known."""
        return self._streams

    def opened(self, by: int) -> None:
        """One more stream of load reports, or one less."""
        self._streams += by

    def reported(self, node: str, issued: int, now_s: float) -> None:
        """``node`` has reported its load."""
        self._metrics.telemetry_load_reports.inc()
        self._losses.record(node, TelemetrySignal.LOAD_REPORT, now_s).unlogged += issued * self.sampling
        self._news(False)

    def _flaw(self, signal: TelemetrySignal) -> Callable[[str], None]:
        def count(flaw: str) -> None:
            self._metrics.telemetry_errors.labels(signal=signal.value, flaw=flaw).inc()
            _log.warning("telemetry.refused", signal=signal.value, flaw=flaw)

        return count

    # -- what time does ------------------------------------------------------------------------------------

    def _news(self, bad: bool) -> None:
        due_s = self._clock() + (BAD_NEWS_S if bad else NEWS_S)
        if self._timer is not None:
            if due_s >= self._due_s:
                return
            self._timer.cancel()
        self._due_s = due_s
        self._timer = asyncio.get_running_loop().call_later(BAD_NEWS_S if bad else NEWS_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self.on_news()

    def _check(self, now_s: float) -> None:
        passed_s = now_s - self._checked_at_s
        if passed_s < _CHECK_EACH_S:
            return
        self._checked_at_s = now_s
        self._losses.check(now_s)
        before = self._sampling
        self._sampling = before.after(self._read / passed_s, now_s)
        self._read = 0.0
        if self._sampling.share != before.share:
            _log.info("telemetry.sampling", share=self._sampling.share, before=before.share)
