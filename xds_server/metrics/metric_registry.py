"""Prometheus registry of one server: base units, ``_total`` on counters, labels from closed sets.

Each server has its own registry, so that two servers in one process (as in tests) keep separate counts. Gauges of
current state (connections, report ages) are read from their owner at each scrape.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from engine.process_metrics import CONTROL_PLANE, add_process
from engine.report_wire import ReportDropReason
from xds_server.metrics.control_metrics import ControlPlaneMetrics, ProxyMetrics, TelemetryMetrics
from xds_server.metrics.fleet_metrics import CallerMetrics, EngineMetrics, PoolMetrics
from xds_server.metrics.metric_spec import CounterSpec, CreatedMetrics, GaugeSpec, HistogramSpec
from xds_server.metrics.metric_table import TABLE

SLICE_S: Final = 0.005
"""CPU time of a scrape between two turns of the event loop. With a turn for each metric, a scrape took up to 1.4 s
while peers kept the loop busy.
"""


class Metrics(
    CreatedMetrics, CallerMetrics, EngineMetrics, PoolMetrics, ProxyMetrics, TelemetryMetrics, ControlPlaneMetrics
):
    """All metrics of one server; each declared counter, gauge and histogram is an attribute."""

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
        # Cached: label lookup costs more than counting, and a thousand agents report every second.
        counter = self._by_report.get((source, verdict))
        if counter is None:
            counter = self._by_report[source, verdict] = self.reports.labels(source=source, verdict=verdict)
        counter.inc()

    def count_probe(self, kind: str, outcome: str, seconds: float) -> None:
        """Record one health probe or canary request."""
        self.probe_seconds.labels(kind=kind, outcome=outcome).observe(seconds)

    def count_stream_flaw(self, flaw: StrEnum) -> None:
        """Count one discovery stream closed because of a peer error."""
        self.stream_errors.labels(flaw=flaw.value).inc()

    def count_dropped_report(self, flaw: ReportDropReason) -> None:
        """Count one dropped agent report."""
        self.agent_report_errors.labels(flaw=flaw.value).inc()

    def observe(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Register ``families`` to be collected at each scrape."""
        self.registry.register(_AtScrape(families))

    def text(self) -> bytes:
        """All metrics in Prometheus text format."""
        return generate_latest(self.registry)

    async def page(self) -> bytes:
        """Like ``text``, but yields to other tasks after each ``SLICE_S``; large fleets take long."""
        made = []
        until_s = time.thread_time() + SLICE_S
        for family in list(self.registry.collect()):
            made.append(_text(family))
            if time.thread_time() >= until_s:
                await asyncio.sleep(0)
                until_s = time.thread_time() + SLICE_S
        return b"".join(made)


class _AtScrape(Collector):
    """Metrics collected at each scrape."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        # Called at registration, before there are values.
        return ()


def _text(family: Metric) -> bytes:
    return generate_latest(_AtScrape(lambda: (family,)))
