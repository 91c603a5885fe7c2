"""Declaration of a metric: name, help, labels, and what an operator does about it.

A chapter is a class of declarations; Prometheus objects, scrape families and ``docs/metrics.md`` are generated
from them. A label is a closed set or one of ``OPEN``, bounded by the policies or the connected proxies. Labels
never contain text from callers or engines.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar, Final, Literal, Self, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

# A `_created` series doubles every counter, and no rule or panel reads it. The library's only switch is per
# process; every counter of the server is created after this module is loaded.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no annotations here

MetricKind = Literal["counter", "gauge", "histogram"]

OPEN: Final[Mapping[str, str]] = {
    "pool": "pools",
    "zone": "zones",
    "engine": "engines",
    "node": "proxies",
    "region": "regions",
    "from": "regions",
    "to": "regions",
    "route": "routes, once for each of their pools",
    "adapter": "adapters of routes and pools, once for each pool",
    "secret": "engine secrets",
    "port": "ports with tenants",
    "tenant": "tenants, and `others` of each port",
    "version": "1 (the running version)",
}
"""Labels with open value sets, and what bounds them."""

FAST_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From one EDS push (1.6 ms to the ACK) to a CDS change waiting for a missing endpoint set (15 s)."""

_PREFIX: Final = "switchgear_"
_NONE: Final[Mapping[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """Ordered labels of a metric, each with its closed set; empty for labels in ``OPEN``.

    ``per`` names the open labels that bound the number of series: ``engine`` where pool and zone follow from the
    engine. ``given`` names closed labels that follow from another one, and add no series.
    """

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    per: tuple[str, ...] = ()
    given: tuple[str, ...] = ()


NO_LABELS: Final = LabelSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec(ABC):
    """One metric, under its name in alerts (counters with ``_total``).

    ``do``: what an operator does about it. ``where``: flags that expose it; empty: always.
    """

    name: str
    unit: str
    help: str
    do: str
    by: LabelSet = NO_LABELS
    where: str = ""

    @property
    @abstractmethod
    def kind(self) -> MetricKind:
        """Prometheus metric type."""

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """Ordered labels; see ``LabelSet``."""
        return self.by.labels

    @property
    def per(self) -> tuple[str, ...]:
        """Open labels that bound the number of series."""
        return self.by.per

    @property
    def samples_per_label_set(self) -> int:
        """Series for each label combination."""
        return 1

    def most_series(self, sizes: Mapping[str, int]) -> int:
        """Maximum number of series; ``sizes``: number of values of each open label (engines of all pools)."""
        found = self.samples_per_label_set
        for name, values in self.labels.items():
            found *= 1 if name in self.by.given else len(values) or 1
        for name in self.per:
            found *= sizes[name]
        return found

    def closed(self) -> Iterator[Mapping[str, str]]:
        """Label sets of all series; empty without labels or with an open label."""
        if self.labels:
            yield from (dict(zip(self.labels, each, strict=True)) for each in product(*self.labels.values()))


class MetricChapter:
    """Metrics listed under one title in the reference, in declaration order."""

    title: ClassVar[str]

    @classmethod
    def specs(cls) -> tuple[MetricSpec, ...]:
        """All metrics of this chapter."""
        return tuple(one for one in vars(cls).values() if isinstance(one, MetricSpec))


class CreatedMetrics:
    """Prometheus objects of one server, by full metric name."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self.histograms: dict[str, Histogram] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpec(MetricSpec):
    """A counter incremented by the code. On ``Metrics``, this attribute is the server's counter."""

    @property
    def kind(self) -> MetricKind:
        return "counter"

    @overload
    def __get__(self, metrics: None, owner: type) -> Self: ...
    @overload
    def __get__(self, metrics: "CreatedMetrics", owner: type) -> Counter: ...
    def __get__(self, metrics: "CreatedMetrics | None", owner: type) -> Self | Counter:
        return self if metrics is None else metrics.counters[self.name]

    def create(self, registry: CollectorRegistry) -> Counter:
        """Create the counter with every closed label set at 0: a series that appears at 1 has no increase in
        Prometheus.
        """
        made = Counter(self.name, self.help, tuple(self.labels), registry=registry)
        for labels in self.closed():
            made.labels(**labels)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSpec(MetricSpec):
    """A gauge set by the code. On ``Metrics``, this attribute is the server's gauge."""

    @property
    def kind(self) -> MetricKind:
        return "gauge"

    @overload
    def __get__(self, metrics: None, owner: type) -> Self: ...
    @overload
    def __get__(self, metrics: "CreatedMetrics", owner: type) -> Gauge: ...
    def __get__(self, metrics: "CreatedMetrics | None", owner: type) -> Self | Gauge:
        return self if metrics is None else metrics.gauges[self.name]

    def create(self, registry: CollectorRegistry) -> Gauge:
        """Create the gauge."""
        return Gauge(self.name, self.help, tuple(self.labels), registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec(MetricSpec):
    """A histogram observed by the code. On ``Metrics``, this attribute is the server's histogram."""

    @property
    def kind(self) -> MetricKind:
        return "histogram"

    buckets: tuple[float, ...] = FAST_S

    @property
    def samples_per_label_set(self) -> int:
        """One for each bucket, +Inf, the sum and the count."""
        return len(self.buckets) + 3

    @overload
    def __get__(self, metrics: None, owner: type) -> Self: ...
    @overload
    def __get__(self, metrics: "CreatedMetrics", owner: type) -> Histogram: ...
    def __get__(self, metrics: "CreatedMetrics | None", owner: type) -> Self | Histogram:
        return self if metrics is None else metrics.histograms[self.name]

    def create(self, registry: CollectorRegistry) -> Histogram:
        """Create the histogram."""
        return Histogram(self.name, self.help, tuple(self.labels), buckets=self.buckets, registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeFamilySpec(MetricSpec):
    """A gauge read at each scrape."""

    @property
    def kind(self) -> MetricKind:
        return "gauge"

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """Metric with ``values``, keyed by label values in order."""
        family = GaugeMetricFamily(self.name, self.help, labels=tuple(self.labels))
        for key, value in values.items():
            family.add_metric(key, value)
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFamilySpec(MetricSpec):
    """A counter whose sums are read at each scrape."""

    @property
    def kind(self) -> MetricKind:
        return "counter"

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """Metric with ``values``, keyed by label values in order."""
        family = CounterMetricFamily(self.name, self.help, labels=tuple(self.labels))
        for key, value in values.items():
            family.add_metric(key, value)
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramFamilySpec(MetricSpec):
    """A histogram whose buckets are read at each scrape."""

    buckets: tuple[float, ...]

    @property
    def kind(self) -> MetricKind:
        return "histogram"

    @property
    def samples_per_label_set(self) -> int:
        """One for each bucket, +Inf, the sum and the count."""
        return len(self.buckets) + 3

    def family(self, values: Mapping[tuple[str, ...], tuple[Sequence[tuple[str, float]], float]]) -> Metric:
        """Metric with ``values``: cumulative buckets and the sum, keyed by label values in order."""
        family = HistogramMetricFamily(self.name, self.help, labels=tuple(self.labels))
        for key, (buckets, sum_value) in values.items():
            family.add_metric(key, buckets, sum_value)
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetricSpec(MetricSpec):
    """A metric of every Switchgear process, exposed by ``engine.process_metrics`` and the client library."""

    @property
    def kind(self) -> MetricKind:
        """Counter if the name ends in ``_total``, else gauge."""
        return "counter" if self.name.endswith("_total") else "gauge"


def counter(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> CounterSpec:
    """Declare a counter incremented by the code; ``name`` without the prefix."""
    return CounterSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def gauge(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> GaugeSpec:
    """Declare a gauge set by the code; ``name`` without the prefix."""
    return GaugeSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def histogram(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> HistogramSpec:
    """Declare a histogram; ``name`` without the prefix."""
    return HistogramSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def gauge_family(
    name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS, *, where: str = ""
) -> GaugeFamilySpec:
    """Declare a gauge read at each scrape; ``name`` without the prefix."""
    return GaugeFamilySpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by, where=where)


def counter_family(
    name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS, *, where: str = ""
) -> CounterFamilySpec:
    """Declare a counter read at each scrape; ``name`` without the prefix."""
    return CounterFamilySpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by, where=where)


def histogram_family(
    name: str, unit: str, help_: str, do: str, by: LabelSet, *, buckets: tuple[float, ...]
) -> HistogramFamilySpec:
    """Declare a histogram read at each scrape; ``name`` without the prefix."""
    return HistogramFamilySpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by, buckets=buckets)


def process_metric(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> ProcessMetricSpec:
    """Declare a process metric; ``name`` in full, since Prometheus' own metrics lack our prefix."""
    return ProcessMetricSpec(name=name, unit=unit, help=help_, do=do, by=by)
