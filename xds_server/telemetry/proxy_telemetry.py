"""Telemetry as a component: two gRPC services in, traffic by pool out, and alarms about losses.

Everything runs in the server's event loop. Three limits bound its cost: a proxy with too many calls samples them
(``sampling``), proxies report load less often when there are too many (``load_report_service``), and messages
beyond a proxy's part of the budget are dropped and counted (``entry_budget``).
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import grpc
import structlog
from prometheus_client.core import Metric

from engine.report import EngineTotals
from policies.model import PolicySet
from xds_server.admin_api.objective_types import ObjectiveStatus
from xds_server.admin_api.tenant_types import TenantTraffic
from xds_server.admin_api.usage_types import UsageStatus
from xds_server.auth.log_budget import LogBudget
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.peer_budget import ACCESS_LOG_CPU, LOAD_REPORT_CPU, CpuLimits, HostTime
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.auth.stream_limits import PeerPacer, StreamLimits
from xds_server.metrics.control_metrics import TelemetryMetrics
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import PoolTraffic, TelemetrySignal
from xds_server.telemetry import access_log_service, call_latency, load_report_service, pool_totals
from xds_server.telemetry.entry_budget import EntryBudget, Reporter
from xds_server.telemetry.loss_monitor import TelemetryLossMonitor
from xds_server.telemetry.objective_history import ObjectiveHistory, ObjectiveKey, ObjectiveTotals
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.sampling import MESSAGE_COST
from xds_server.telemetry.stream_service import MaySee, StreamService
from xds_server.telemetry.tenant_counts import tenants_by_port
from xds_server.telemetry.token_use import TokenRatios
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.transport import RpcService

BAD_NEWS_S: Final = 0.01
"""How long a failure may wait for others before listeners are called."""

NEWS_S: Final = 0.1
"""The same for everything else: successes are not urgent."""

_CHECK_EACH_S: Final = 1.0
_ENTRY_BYTES: Final = 1024
"""Bytes that cost as much as an entry; Envoy's entries have about 500."""

_log = structlog.get_logger()

Traffic = Mapping[str, PoolTraffic]


def _everything(_pool: str) -> bool:
    return True


class Telemetry:
    """Proxy telemetry. ``handlers`` are its gRPC services, ``traffic`` is the result.

    ``on_news`` is called in the event loop, at most once per ``NEWS_S``, or sooner for failures and refusals.
    ``watch`` sets the pools and routes; ``connected`` the Envoys expected to report; ``speaks_for`` returns the
    pools that a node may see, and None if these identities are not that node's.
    """

    def __init__(
        self,
        metrics: Metrics,
        on_news: Callable[[], None] = lambda: None,
        *,
        speaks_for: Callable[[str, tuple[str, ...]], MaySee | None] = lambda _node, _identities: _everything,
        traffic_store: TrafficStore | None = None,
        memory: MemoryGuard | None = None,
        reached: ReachedLimits | None = None,
        host_time: HostTime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host_time = host_time or HostTime()
        self.traffic_store = traffic_store or TrafficStore()
        self._speaks_for = speaks_for
        self.on_news = on_news
        self._metrics = metrics
        self._clock = clock
        self._reached = reached or ReachedLimits(clock)
        self._losses = TelemetryLossMonitor(metrics.log_lines_suppressed.inc)
        self._objectives = ObjectiveHistory()
        self._known: Collection[str] | None = None
        self._budget = EntryBudget()
        self._lines = LogBudget()
        self._streams = 0
        self._checked_at_s = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._intakes = [
            StreamService(
                access_log_service.METHOD,
                lambda identities, host: access_log_service.AccessLogHandler(self, self._news, identities, host),
                self._flaw(TelemetrySignal.ACCESS_LOG),
                clock,
                max_bytes=access_log_service.MAX_MESSAGE_BYTES,
                limits=self._limits(ACCESS_LOG_CPU, TelemetrySignal.ACCESS_LOG, memory),
            ),
            StreamService(
                load_report_service.METHOD,
                lambda identities, _host: load_report_service.LoadReportHandler(self, identities),
                self._flaw(TelemetrySignal.LOAD_REPORT),
                clock,
                max_bytes=load_report_service.MAX_MESSAGE_BYTES,
                limits=self._limits(LOAD_REPORT_CPU, TelemetrySignal.LOAD_REPORT, memory),
            ),
        ]

    # -- API -----------------------------------------------------------------------------------------------

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """The services, for the port that proxies use."""
        return list(self._intakes)

    def services(self) -> list[RpcService]:
        """The services, for the same port on our own transport."""
        return [one.rpc_service() for one in self._intakes]

    def stop(self) -> None:
        """End every stream: a stopping server waits for open ones."""
        for intake in self._intakes:
            intake.stop()
        if self._timer is not None:
            self._timer.cancel()

    def watch(self, policies: PolicySet, addresses: Mapping[str, str] | None = None) -> None:
        """Use these policies from now on; ``addresses`` are the IP addresses of their host names."""
        self.traffic_store.set_directory(build_directory(policies, addresses or {}))
        self.traffic_store.tenants.set_ports(tenants_by_port(policies))

    def connected(self, nodes: Collection[str]) -> None:
        """Set the ids of the connected Envoys (not gRPC clients); reports of others are ignored."""
        self._known = nodes
        self._losses.set_connected(nodes, self._clock())

    @property
    def sampling(self) -> Mapping[str, float]:
        """The share of calls that a proxy reports, by node id; absent: all. The same object until it changes."""
        return self._budget.shares

    def traffic(self, now_s: float) -> Traffic:
        """Recent traffic by pool; the same object if nothing changed."""
        self._check(now_s)
        return self.traffic_store.traffic(now_s)

    def last_signals_s(self) -> Mapping[str, Mapping[TelemetrySignal, float]]:
        """When each signal of each proxy last arrived, in monotonic seconds; absent if never."""
        return {node: dict(heard.at_s) for node, heard in self._losses.signals.items()}

    def objectives(self) -> Sequence[ObjectiveStatus]:
        """Every objective of every route and pool, over the last minutes and hours."""
        return tuple(self._objectives.statuses(self._objective_totals(), self._clock()))

    def record_totals(self, engine: EngineId, boot_id: str, totals: EngineTotals) -> None:
        """Record the growing counters of an engine."""
        self.traffic_store.record_totals(engine, boot_id, totals, self._clock())

    def token_ratios(self) -> Mapping[str, TokenRatios]:
        """What requests really cost, by pool."""
        return self.traffic_store.token_use.pools()

    def tenants(self) -> Mapping[tuple[int, str], TenantTraffic]:
        """Requests of every tenant, by port and name."""
        return self.traffic_store.tenants.traffic(self._clock())

    def usage(self) -> Sequence[UsageStatus]:
        """What tenants used, by day and model; the oldest day first."""
        book = self.traffic_store.tenants.usage
        return [
            UsageStatus(
                day=day.isoformat(),
                port=row.port,
                tenant=row.tenant,
                model=row.model,
                requests=row.requests,
                tokens=row.tokens,
                corrected=row.corrected,
            )
            for day in book.days
            for row in book.rows(day)
        ]

    @property
    def lost(self) -> Mapping[str, frozenset[str]]:
        """By signal, the connected proxies that do not send it."""
        return {signal.value: nodes for signal, nodes in self._losses.lost.items()}

    def families(self) -> Iterable[Metric]:
        """Ages, losses and totals, for a scrape."""
        yield from pool_totals.families(self.traffic_store.totals())
        yield from self.traffic_store.tenants.families()
        yield from self.traffic_store.token_gaps.families()
        yield from self.traffic_store.token_use.families()
        yield from call_latency.families(self.traffic_store.latency(), self.traffic_store.objectives_of_pools())
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
        yield TelemetryMetrics.telemetry_sampling_ratio.family({(): min(self.sampling.values(), default=1.0)})
        yield TelemetryMetrics.telemetry_load_report_interval_seconds.family(
            {(): load_report_service.interval_s(self._streams)}
        )

    # -- ports of streams ----------------------------------------------------------------------------------

    def visible_pools(self, node: str, signal: TelemetrySignal, identities: tuple[str, ...] = ()) -> MaySee | None:
        """The pools on which ``node`` may report; None unless it is connected for xDS with this identity."""
        if self._known is None or node in self._known:
            may_see = self._speaks_for(node, identities)
            if may_see is not None:
                return may_see
        self._metrics.telemetry_errors.labels(signal=signal.value, flaw="stranger").inc()
        return None

    def admitted(self, reporter: Reporter, entries: int, size: int, now_s: float) -> bool:
        """Whether a message of ``size`` bytes with this many entries is read."""
        if self._budget.admits(reporter, max(entries, size / _ENTRY_BYTES) + MESSAGE_COST, now_s):
            return True
        self._reached.add(PeerLimit.TELEMETRY, reporter.host, reporter.node)
        self._metrics.telemetry_dropped.labels(signal=TelemetrySignal.ACCESS_LOG.value).inc(entries)
        if self._budget.begins_to_drop(reporter) and self._lines.take(reporter.host, f"budget {reporter.node}"):
            _log.warning("telemetry.over_budget", node=reporter.node, host=reporter.host)
        return False

    def logged(self, reporter: Reporter, entries: int, now_s: float) -> float:
        """Entries of a node are counted; returns the share of calls they stand for."""
        self._metrics.telemetry_entries.inc(entries)
        self._losses.record(reporter.node, TelemetrySignal.ACCESS_LOG, now_s).unlogged = 0.0
        return self._budget.share(reporter, now_s)

    def proxies(self) -> int:
        """Open load report streams of known proxies."""
        return self._streams

    def opened(self, by: int) -> None:
        """Change the number of load report streams by 1 or -1."""
        self._streams += by

    def reported(self, node: str, pools: int, issued: int, now_s: float) -> None:
        """``node`` reported the load of this many pools."""
        self._metrics.telemetry_load_reports.inc()
        self._losses.record(node, TelemetrySignal.LOAD_REPORT, now_s).unlogged += issued * self.sampling.get(
            node, 1.0
        )
        if pools:
            self._news(False)

    def _limits(self, cpu: CpuLimits, signal: TelemetrySignal, memory: MemoryGuard | None) -> StreamLimits:
        waits = self._metrics.peer_waits.labels(signal=signal.value)
        return StreamLimits(
            pacer=PeerPacer(cpu, signal.value, waits.inc, self._reached, self._host_time),
            memory=memory or MemoryGuard(),
            reached=self._reached,
        )

    def _flaw(self, signal: TelemetrySignal) -> Callable[[str, str], None]:
        def count(flaw: str, host: str) -> None:
            self._metrics.telemetry_errors.labels(signal=signal.value, flaw=flaw).inc()
            if self._lines.take(host, f"{signal.value} {flaw}"):
                _log.warning("telemetry.refused", signal=signal.value, flaw=flaw, host=host)

        return count

    def _objective_totals(self) -> Mapping[ObjectiveKey, ObjectiveTotals]:
        """Calls by pool, route and objective; zero for those without calls."""
        directory = self.traffic_store.directory
        idle = {
            ("", name, one.name): ObjectiveTotals(
                objective=one,
                pools=tuple(pool for pool, facts in directory.pools.items() if name in facts.routes),
                calls=0.0,
                good=0.0,
            )
            for name, route in directory.routes.items()
            for one in route.objectives
        }
        idle |= {
            (name, "", one.name): ObjectiveTotals(objective=one, pools=(name,), calls=0.0, good=0.0)
            for name, facts in directory.pools.items()
            for one in facts.objectives
        }
        counted = call_latency.objective_totals(
            self.traffic_store.latency(), self.traffic_store.objectives_of_pools()
        )
        return {key: replace(counted.get(key, none), pools=none.pools) for key, none in idle.items()}

    # -- timers --------------------------------------------------------------------------------------------

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
        self._objectives.sample(self._objective_totals(), now_s)
        for reporter, share, before in self._budget.review(passed_s, now_s):
            if self._lines.take(reporter.host, f"sampling {reporter.node}"):
                _log.info("telemetry.sampling", node=reporter.node, share=share, before=before)
