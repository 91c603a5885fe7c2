"""What the control plane counts, for Prometheus: base units, ``_total`` on counters, labels from closed sets.

One object per server with its own registry, so that two servers in one process (as in tests) do not share
counts. Gauges that describe the present (connections, report ages) are read at scrape time from whoever knows.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.process_metrics import CONTROL_PLANE, add_process
from engine.report_wire import ReportDropReason

# When each counter began: as many series again, which no rule or panel asks for. The library's one switch is for
# the whole process; whoever makes a counter for this server does so with this module loaded.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotations here

_FAST_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From one EDS push (1.6 ms to the ACK) to a CDS change stuck behind a missing endpoint set (15 s)."""


class Metrics:
    """Every metric of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        add_process(self.registry, CONTROL_PLANE)
        self.pushes = Counter(
            "switchgear_xds_pushes", "Responses sent to proxies.", ["type"], registry=self.registry
        )
        self.push_to_ack_seconds = Histogram(
            "switchgear_xds_push_to_ack_seconds",
            "Time from a response to the proxy's answer to it.",
            ["type"],
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.push_bytes = Counter(
            "switchgear_xds_push_bytes", "Bytes of responses sent to proxies.", ["type"], registry=self.registry
        )
        self.stream_errors = Counter(
            "switchgear_xds_stream_errors",
            "Discovery streams ended for what the peer did, by what was wrong with it.",
            ["flaw"],
            registry=self.registry,
        )
        self.stuck = Counter(
            "switchgear_xds_stuck",
            "Responses that a proxy answered neither way for long.",
            ["type"],
            registry=self.registry,
        )
        self.nacks = Counter(
            "switchgear_xds_nacks", "Responses that proxies refused.", ["type"], registry=self.registry
        )
        self.snapshot_build_seconds = Histogram(
            "switchgear_snapshot_build_seconds",
            "Time from policies and reports to snapshots of every view in use.",
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.report_to_push_seconds = Histogram(
            "switchgear_report_to_push_seconds",
            "Time from a report that changes a decision to the snapshot that carries it.",
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.departure_hop_seconds = Histogram(
            "switchgear_departure_hop_seconds",
            "Time of each hop on the way of an engine that leaves.",
            ["hop"],
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.policy_reloads = Counter(
            "switchgear_policy_reloads",
            "Readings of changed policy files, by result: accepted, refused or held back.",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_failures = Counter(
            "switchgear_reconcile_failures",
            "Rounds that failed from a bug; the last good snapshot stayed in place.",
            registry=self.registry,
        )
        self.store_failures = Counter(
            "switchgear_store_failures",
            "Failed attempts to write what a restart begins with.",
            registry=self.registry,
        )
        self.probe_seconds = Histogram(
            "switchgear_probe_seconds",
            "Time of one look at an engine or one canary, by how it ended.",
            ["kind", "outcome"],
            buckets=_FAST_S,
            registry=self.registry,
        )
        self.reports = Counter(
            "switchgear_engine_reports",
            "Reports on engines, by who judged and by verdict.",
            ["source", "verdict"],
            registry=self.registry,
        )
        self.agent_report_errors = Counter(
            "switchgear_agent_report_errors",
            "Reports of agents that were dropped, by what was wrong with them.",
            ["flaw"],
            registry=self.registry,
        )
        self.telemetry_entries = Counter(
            "switchgear_telemetry_entries",
            "Entries of access logs that were counted, as they came: not divided by the sampling.",
            registry=self.registry,
        )
        self.telemetry_load_reports = Counter(
            "switchgear_telemetry_load_reports", "Load reports of proxies.", registry=self.registry
        )
        self.telemetry_dropped = Counter(
            "switchgear_telemetry_dropped",
            "Entries that were read and not counted because there were too many.",
            ["signal"],
            registry=self.registry,
        )
        self.telemetry_errors = Counter(
            "switchgear_telemetry_errors",
            "Telemetry streams ended for what the proxy sent, by what was wrong with it.",
            ["signal", "flaw"],
            registry=self.registry,
        )
        self._by_report: dict[tuple[str, str], Counter] = {}
        self.policy_stale = Gauge(
            "switchgear_policy_stale", "1 while policies from the last run are served.", registry=self.registry
        )
        self.policy_refused = Gauge(
            "switchgear_policy_refused", "1 while the policy files are refused.", registry=self.registry
        )
        self.shrink_held = Gauge(
            "switchgear_shrink_held",
            "1 while policies are held back because they drop too much.",
            registry=self.registry,
        )
        self.resources = Gauge(
            "switchgear_snapshot_resources",
            "Resources of the view that sees everything.",
            ["type"],
            registry=self.registry,
        )

    def begin(self, known: Mapping[str, Iterable[Mapping[str, str]]]) -> None:
        """Tell these series of counters from the start: to Prometheus one that comes up at 1 has not risen."""
        for one in vars(self).values():
            if isinstance(one, Counter):
                (told,) = one.describe()
                for labels in known.get(f"{told.name}_total", ()):
                    one.labels(**labels)

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
        """Count one discovery stream that was ended for what its peer did."""
        self.stream_errors.labels(flaw=flaw.value).inc()

    def count_dropped_report(self, flaw: ReportDropReason) -> None:
        """Count one report of an agent that could not be used."""
        self.agent_report_errors.labels(flaw=flaw.value).inc()

    def observe(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Ask ``families`` for further metrics at every scrape."""
        self.registry.register(_AtScrape(families))

    def text(self) -> bytes:
        """Every metric in Prometheus' text format."""
        return generate_latest(self.registry)

    async def page(self) -> bytes:
        """``text``, of one moment; after each metric others have a turn, for all take long in a large fleet."""
        made = []
        for family in list(self.registry.collect()):
            made.append(_text(family))
            await asyncio.sleep(0)
        return b"".join(made)


class _AtScrape(Collector):
    """Metrics that exist only while someone looks."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families()

    def describe(self) -> Iterable[Metric]:
        # Asked at registration, before there is anything to see.
        return ()


def _text(family: Metric) -> bytes:
    return generate_latest(_AtScrape(lambda: (family,)))


def gauge(name: str, says: str, labels: tuple[str, ...], values: dict[tuple[str, ...], float]) -> Metric:
    """A gauge family with one value per label combination."""
    family = GaugeMetricFamily(name, says, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family
