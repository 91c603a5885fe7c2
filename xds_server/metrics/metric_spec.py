"""One declaration of a metric: its name, help, labels, and what to do about it.

A chapter is a class of declarations. Prometheus' objects, families at a scrape and ``docs/metrics.md`` are made
from them. A label is either a closed set, written out, or one of the few in ``OPEN``, which the policies or the
connected proxies bound. No text of a caller or an engine becomes a label.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar, Final, Literal, Self, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

# A `_created` series doubles every counter, and no rule or panel reads it. The library's one switch is for the
# whole process; every counter of the server is created after this module is loaded.
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
    "secret": "secrets for engines",
    "version": "the program, which has one",
}
"""Labels whose values are declared or connected, and what bounds them."""

FAST_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From one EDS push (1.6 ms to the ACK) to a CDS change stuck behind a missing endpoint set (15 s)."""

_PREFIX: Final = "switchgear_"
_NONE: Final[Mapping[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """The labels of a metric, in order, each with its closed set, or with nothing where it is in ``OPEN``.

    ``per`` names, of open labels that go together, the one that bounds the series: ``engine`` where pool and zone
    follow from the engine.
    """

    labels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    per: tuple[str, ...] = ()


NO_LABELS: Final = LabelSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec(ABC):
    """One metric, named as alerts name it (counters with ``_total``).

    ``do`` is what an operator does about it. ``where``: when the server exposes it; empty: always.
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
        """What Prometheus takes it for."""

    @property
    def labels(self) -> Mapping[str, tuple[str, ...]]:
        """Its labels, in order; see ``LabelSet``."""
        return self.by.labels

    @property
    def per(self) -> tuple[str, ...]:
        """The open labels that bound its series."""
        return self.by.per

    @property
    def samples_per_label_set(self) -> int:
        """Series of each combination of labels."""
        return 1

    def most_series(self, sizes: Mapping[str, int]) -> int:
        """The most series there may be; ``sizes``: how many values each open label has, engines of all pools."""
        found = self.samples_per_label_set
        for values in self.labels.values():
            found *= len(values) or 1
        for name in self.per:
            found *= sizes[name]
        return found

    def closed(self) -> Iterator[Mapping[str, str]]:
        """The labels of each of its series; none where it has no labels, or one of them is open."""
        if self.labels:
            yield from (dict(zip(self.labels, each, strict=True)) for each in product(*self.labels.values()))


class MetricChapter:
    """Metrics that the reference lists under one title, in the order of their declarations."""

    title: ClassVar[str]

    @classmethod
    def specs(cls) -> tuple[MetricSpec, ...]:
        """Every metric of this chapter."""
        return tuple(one for one in vars(cls).values() if isinstance(one, MetricSpec))


class CreatedMetrics:
    """The Prometheus objects of one server, by the full name of their declaration."""

    def __init__(self) -> None:
        self.counters: dict[str, Counter] = {}
        self.gauges: dict[str, Gauge] = {}
        self.histograms: dict[str, Histogram] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSpec(MetricSpec):
    """A counter of the code. As an attribute of ``Metrics`` it is that server's counter."""

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
        """The counter, with every closed label set at 0: to Prometheus one that comes up at 1 has not risen."""
        made = Counter(self.name, self.help, tuple(self.labels), registry=registry)
        for labels in self.closed():
            made.labels(**labels)
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSpec(MetricSpec):
    """A gauge that the code sets. As an attribute of ``Metrics`` it is that server's gauge."""

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
        """The gauge."""
        return Gauge(self.name, self.help, tuple(self.labels), registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramSpec(MetricSpec):
    """A histogram that the code observes into. As an attribute of ``Metrics`` it is that server's histogram."""

    @property
    def kind(self) -> MetricKind:
        return "histogram"

    buckets: tuple[float, ...] = FAST_S

    @property
    def samples_per_label_set(self) -> int:
        """One for each bound, the open end, the sum and the count."""
        return len(self.buckets) + 3

    @overload
    def __get__(self, metrics: None, owner: type) -> Self: ...
    @overload
    def __get__(self, metrics: "CreatedMetrics", owner: type) -> Histogram: ...
    def __get__(self, metrics: "CreatedMetrics | None", owner: type) -> Self | Histogram:
        return self if metrics is None else metrics.histograms[self.name]

    def create(self, registry: CollectorRegistry) -> Histogram:
        """The histogram."""
        return Histogram(self.name, self.help, tuple(self.labels), buckets=self.buckets, registry=registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeFamilySpec(MetricSpec):
    """A gauge whose values are read at a scrape."""

    @property
    def kind(self) -> MetricKind:
        return "gauge"

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """The metric with these values, by the values of its labels in order."""
        family = GaugeMetricFamily(self.name, self.help, labels=tuple(self.labels))
        for key, value in values.items():
            family.add_metric(key, value)
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterFamilySpec(MetricSpec):
    """A counter whose sums are read at a scrape."""

    @property
    def kind(self) -> MetricKind:
        return "counter"

    def family(self, values: Mapping[tuple[str, ...], float]) -> Metric:
        """The metric with these sums, by the values of its labels in order."""
        family = CounterMetricFamily(self.name, self.help, labels=tuple(self.labels))
        for key, value in values.items():
            family.add_metric(key, value)
        return family


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetricSpec(MetricSpec):
    """A metric that every process of ours has; ``engine.process_metrics`` and the library expose it."""

    @property
    def kind(self) -> MetricKind:
        """Counters end in ``_total``; the others are gauges."""
        return "counter" if self.name.endswith("_total") else "gauge"


def counter(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> CounterSpec:
    """A counter that the code increments; ``name`` without the prefix."""
    return CounterSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def gauge(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> GaugeSpec:
    """A gauge that the code sets; ``name`` without the prefix."""
    return GaugeSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def histogram(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> HistogramSpec:
    """A histogram; ``name`` without the prefix."""
    return HistogramSpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by)


def gauge_family(
    name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS, *, where: str = ""
) -> GaugeFamilySpec:
    """A gauge that is read at a scrape; ``name`` without the prefix."""
    return GaugeFamilySpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by, where=where)


def counter_family(
    name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS, *, where: str = ""
) -> CounterFamilySpec:
    """A counter that is read at a scrape; ``name`` without the prefix."""
    return CounterFamilySpec(name=_PREFIX + name, unit=unit, help=help_, do=do, by=by, where=where)


def process_metric(name: str, unit: str, help_: str, do: str, by: LabelSet = NO_LABELS) -> ProcessMetricSpec:
    """A metric of the process; ``name`` in full, for Prometheus' own has no prefix of ours."""
    return ProcessMetricSpec(name=name, unit=unit, help=help_, do=do, by=by)
