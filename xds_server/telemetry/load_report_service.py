"""Load reporting service: records the requests that each Envoy has open on each engine.

``envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats``. The server sets the interval and detail once;
the peer then reports until its stream ends. Envoy repeats its whole node in every report (60 KB with extension
names), which is most of a report's cost: it is not decoded after the first. Many proxies get longer intervals.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.service.load_stats import v3 as load_stats
from google.protobuf.message import DecodeError

from xds_server.model.pool_traffic import TelemetrySignal
from xds_server.telemetry.pool_directory import PoolFacts
from xds_server.telemetry.stream_service import (
    MaySee,
    TelemetryLimitError,
    TelemetryStreamError,
    validated_node_id,
)
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.wire.decode import decoder
from xds_server.wire.field_count import count_fields

METHOD: Final = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"

Node: type[Any] = decoder(core.Node, ("Node.extensions",))
LoadReport: type[Any] = decoder(load_stats.LoadStatsRequest, ("LoadStatsRequest.node",))
ReportOrder: type[Any] = decoder(load_stats.LoadStatsResponse)

INTERVALS_S: Final = (0.25, 0.5, 1.0, 2.0)
"""Reporting intervals. The longest still leaves two reports before one is stale."""

REPORTS_PER_S: Final = 500.0
"""Reports per second over all proxies (benchmarks/results/signals.json); above, each reports less often."""

MOST: Final = 10_000_000
"""Requests on one engine from which a report is rejected: more than an Envoy has connections."""


MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Limit of a report: 10 000 engines of 70 bytes each, and the node."""

MIN_FIELDS: Final = 2_048
"""Clusters, localities and engines in one report, with their other fields, that is always read."""

FIELDS_PER_ENGINE: Final = 64
"""As many more for each pool and engine of the policies: an engine has 7, and its own locality and cluster 15."""

_FIELD_BYTES: Final = 2
"""Least size of a field: shorter reports are decoded without counting."""

_ENGINES: Final = (2, 2, 7)
"""Field numbers of cluster_stats, upstream_locality_stats and upstream_endpoint_stats."""


def interval_s(proxies: int) -> float:
    """The reporting interval in seconds for this many proxies."""
    return next((step for step in INTERVALS_S if proxies / step <= REPORTS_PER_S), INTERVALS_S[-1])


class LoadReportPort(Protocol):
    """What a stream of load reports needs."""

    traffic_store: TrafficStore

    def proxies(self) -> int:
        """Open load report streams of known proxies."""

    def visible_pools(self, node: str, signal: TelemetrySignal, identities: tuple[str, ...]) -> MaySee | None:
        """The pools on which ``node`` may report; None unless it is connected for xDS with the same identity."""

    def reported(self, node: str, pools: int, issued: int, now_s: float) -> None:
        """``node`` reported on this many pools, and has issued this many requests since its last report."""

    def opened(self, by: int) -> None:
        """Change the number of open streams of known proxies (1 or -1)."""


class LoadReportHandler:
    """One stream of load reports."""

    def __init__(self, desk: LoadReportPort, identities: tuple[str, ...] = ()) -> None:
        self._desk = desk
        self._identities = identities
        self.node = ""
        self.price = 1.0
        self._told_s = 0.0
        self._counted = False

    def take(self, data: bytes, now_s: float) -> bytes | None:
        """Handle a report; returns the order with a new interval, if it changed."""
        try:
            most = MIN_FIELDS + FIELDS_PER_ENGINE * self._desk.traffic_store.directory.size
            if len(data) > most * _FIELD_BYTES and count_fields(data, _ENGINES, most) > most:
                raise TelemetryLimitError("size", f"more than {most} clusters and engines in one report")
            message = LoadReport.FromString(data)
            if not self.node:
                self.node = validated_node_id(Node.FromString(message.node).id)
        except (DecodeError, ValueError) as error:
            raise TelemetryStreamError("garbage", "not a LoadStatsRequest") from error
        if self._told_s:  # the first message only subscribes
            self._report(message, now_s)
        wanted_s = interval_s(self._desk.proxies())
        if wanted_s == self._told_s:
            return None
        self._told_s = wanted_s
        return report_order(wanted_s)

    def close(self) -> None:
        """Release the stream; its last report expires by age, in case the proxy reconnects at once."""
        if self._counted:
            self._desk.opened(-1)

    def _report(self, message: Any, now_s: float) -> None:
        may_see = self._desk.visible_pools(self.node, TelemetrySignal.LOAD_REPORT, self._identities)
        if may_see is None:
            return
        if not self._counted:  # not before: this number sets the interval of all others
            self._counted = True
            self._desk.opened(1)
        book, pools, issued = self._desk.traffic_store, 0, 0
        for cluster in message.cluster_stats:
            facts = book.directory.pools.get(cluster.cluster_name)
            if facts is None or not may_see(facts.name):
                continue
            counts = by_engine(facts, cluster)
            pools += 1
            issued += sum(new for _, new in counts.values())
            book.record_load(self.node, facts, counts, now_s)
        self._desk.reported(self.node, pools, issued, now_s)


def report_order(wanted_s: float) -> bytes:
    """The response that requests reports of all clusters, by endpoint."""
    message = ReportOrder(send_all_clusters=True, report_endpoint_granularity=True)
    message.load_reporting_interval.FromMicroseconds(round(wanted_s * 1e6))
    done: bytes = message.SerializeToString()
    return done


def by_engine(facts: PoolFacts, cluster: Any) -> Mapping[str, tuple[int, int]]:
    """Requests in progress and issued, by engine; engines in several localities are added up.

    ``TelemetryStreamError`` for impossible numbers.
    """
    at, behind = facts.at, facts.behind
    found: dict[str, tuple[int, int]] = {}
    for locality in cluster.upstream_locality_stats:
        for one in locality.upstream_endpoint_stats:
            address = one.address
            place = address.socket_address
            name = at.get((place.address, place.port_value))
            if name is None:
                name = behind.get(address.envoy_internal_address.server_listener_name)
                if name is None:
                    continue
            progress, issued = one.total_requests_in_progress, one.total_issued_requests
            if progress > MOST or issued > MOST:
                raise TelemetryStreamError("absurd", f"{progress} requests in progress on {name}, {issued} issued")
            if name in found:
                before = found[name]
                progress, issued = progress + before[0], issued + before[1]
            found[name] = (progress, issued)
    return found
