"""The metrics of one server, for Prometheus: base units, ``_total`` on counters, labels from closed sets.

Each server has its own registry, so that two servers in one process (as in tests) do not share counts. Gauges of
the present (connections, report ages) are read at a scrape from the part that knows them.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from engine.process_metrics import CONTROL_PLANE, add_process
from engine.report_wire import ReportDropReason
from xds_server.metrics.control_metrics import ControlPlaneMetrics, ProxyMetrics, TelemetryMetrics
from xds_server.metrics.fleet_metrics import CallerMetrics, EngineMetrics, PoolMetrics
from xds_server.metrics.metric_spec import CounterSpec, CreatedMetrics, GaugeSpec, HistogramSpec
from xds_server.metrics.metric_table import TABLE


class Metrics(
    CreatedMetrics, CallerMetrics, EngineMetrics, PoolMetrics, ProxyMetrics, TelemetryMetrics, ControlPlaneMetrics
):
    """Every metric of one server. Each counter, gauge and histogram that a chapter declares is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        add_process(self.registry, CONTROL_PLANE)
        for one in TABLE.values():
            match one:
                case CounterSpec():
                    self.counters[one.name] = one.create(self.registry)
                case GaugeSpec():
                    self.gauges[one.name] = one.create(self.registry)
                case HistogramSpec():
                    self.histograms[one.name] = one.create(self.registry)
        self._by_report: dict[tuple[str, str], Counter] = {}

    def count_report(self, source: str, verdict: str) -> None:
        """Count one report on an engine."""
        # Looking a label set up costs more than counting, and a thousand agents report every second.
        counter = self._by_report.get((source, verdict))
        if counter is None:
            counter = self._by_report[source, verdict] = self.reports.labels(source=source, verdict=verdict)
        counter.inc()

    def count_probe(self, kind: str, outcome: str, seconds: float) -> None:
        """Count one look at an engine, or one canary."""
        self.probe_seconds.labels(kind=kind, outcome=outcome).observe(seconds)

    def count_stream_flaw(self, flaw: StrEnum) -> None:
        """Count one discovery stream that ended because of its peer."""
        self.stream_errors.labels(flaw=flaw.value).inc()

    def count_dropped_report(self, flaw: ReportDropReason) -> None:
        """Count one dropped report of an agent."""
        self.agent_report_errors.labels(flaw=flaw.value).inc()

    def observe(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Collect ``families`` at every scrape, too."""
        self.registry.register(_AtScrape(families))

    def text(self) -> bytes:
        """Every metric in Prometheus' text format."""
        return generate_latest(self.registry)

    async def page(self) -> bytes:
        """``text``, of one moment; other tasks run after each metric, because a large fleet takes long."""
        made = []
        for family in list(self.registry.collect()):
            made.append(_text(family))
            await asyncio.sleep(0)
        return b"".join(made)


class _AtScrape(Collector):
    """Metrics that are collected at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        # The registry calls this at registration, before there are any values.
        return ()


def _text(family: Metric) -> bytes:
    return generate_latest(_AtScrape(lambda: (family,)))
