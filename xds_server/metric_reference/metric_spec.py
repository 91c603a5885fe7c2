"""What is said of a metric, and the sets that labels come from.

A label is either a closed set, written out, or one of the few in ``OPEN``, whose values are bounded by what the
policies declare or by who is connected. Nothing that a caller or an engine says becomes a label.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal

from policies.route import PriorityClass
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.telemetry.loss_monitor import TelemetrySignal
from xds_server.telemetry.pool_totals import CALL_RESULTS

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

BUCKETS: Final = 17
"""Series of one histogram: 14 bounds, the open end, sum and count."""

TYPES: Final = (*SHORT_NAMES.values(), "other")
SIGNALS: Final = tuple(one.value for one in TelemetrySignal)
CLASSES: Final = tuple(one.value for one in PriorityClass)
_NONE: Final[Mapping[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """One metric, named as alerts name it (counters with ``_total``).

    ``labels`` are in order, each with its closed set, or with nothing where it is in ``OPEN``. ``per`` says of
    open labels that go together what bounds the series: ``engine`` where pool and zone follow from the engine.
    ``where``: when it is there at all; empty: always.
    """

    name: str
    kind: MetricKind
    unit: str
    meaning: str
    do: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    per: tuple[str, ...] = ()
    where: str = ""

    def most_series(self, sizes: Mapping[str, int]) -> int:
        """The most series there may be; ``sizes``: how many values each open label has, engines of all pools."""
        found = BUCKETS if self.kind == "histogram" else 1
        for values in self.labels.values():
            found *= len(values) or 1
        for name in self.per:
            found *= sizes[name]
        return found

    def closed(self) -> Iterator[Mapping[str, str]]:
        """The labels of each of its series; none where it has no labels, or one of them is open."""
        if self.labels:
            yield from (dict(zip(self.labels, each, strict=True)) for each in product(*self.labels.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSet:
    """Labels that several metrics have; see ``MetricSpec``."""

    labels: Mapping[str, tuple[str, ...]]
    per: tuple[str, ...] = ()


BY_ENGINE: Final = LabelSet(labels={"pool": (), "engine": (), "zone": ()}, per=("engine",))
BY_POOL: Final = LabelSet(labels={"pool": ()}, per=("pool",))
BY_CLASS: Final = LabelSet(labels={"pool": (), "class": CLASSES}, per=("pool",))
BY_OUTCOME: Final = LabelSet(labels={"pool": (), "outcome": CALL_RESULTS}, per=("pool",))
BY_TYPE: Final = LabelSet(labels={"type": TYPES})
NO_LABELS: Final = LabelSet(labels=_NONE)


def metric_spec(  # noqa: PLR0917 - a row of a table
    name: str,
    kind: MetricKind,
    unit: str,
    meaning: str,
    do: str,
    by: LabelSet = NO_LABELS,
    *,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    per: tuple[str, ...] = (),
    where: str = "",
) -> MetricSpec:
    """A row of the table; its labels are those of ``by``, where it does not name its own."""
    return MetricSpec(
        name=f"switchgear_{name}",
        kind=kind,
        unit=unit,
        meaning=meaning,
        do=do,
        labels=by.labels if labels is None else labels,
        per=per or by.per,
        where=where,
    )
