"""Access log service: records each attempt that Envoy reports.

``envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs``. Only the first message of a stream names its
sender. Protobuf's C core parses a message; about 12 fields of an entry are read, once each, because this runs for
every call of the fleet.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from envoy_data_plane.envoy.data.accesslog.v3 import AccessLogType
from envoy_data_plane.envoy.service.accesslog.v3 import StreamAccessLogsMessage
from google.protobuf.message import DecodeError

from policies.route import PriorityClass
from xds_server.admin_api.tap_types import TappedTry
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import DeadlineResult, TelemetrySignal
from xds_server.telemetry.attempt_outcome import (
    NO_FLAGS,
    RETRYABLE_CLIENT_ERRORS,
    TIMEOUT,
    AttemptOutcome,
    attempt_outcome,
    deadline_result,
    request_outcome,
)
from xds_server.telemetry.entry_budget import Reporter
from xds_server.telemetry.pool_directory import PoolFacts, RouteFacts
from xds_server.telemetry.pool_totals import call_result
from xds_server.telemetry.request_tap import (
    MAX_ID_CHARACTERS,
    REFUSED,
    TIMED_OUT,
    failure_reason,
    limit_reason,
    refusal_reason,
    slowness,
)
from xds_server.telemetry.stream_service import (
    MaySee,
    TelemetryLimitError,
    TelemetryStreamError,
    validated_node_id,
)
from xds_server.telemetry.tenant_counts import FAULT_INJECTED, RATE_LIMITED, QuotaResult
from xds_server.telemetry.token_use import sent_bytes
from xds_server.telemetry.traffic_store import Attempt, TrafficStore
from xds_server.translate.access_log_config import ATTEMPT_HEADER, LOG_NAME
from xds_server.translate.prefillers import PREFILLER_HEADER
from xds_server.wire.decode import decoder
from xds_server.wire.field_count import count_fields

METHOD: Final = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"

AccessLogs: type[Any] = decoder(
    StreamAccessLogsMessage,
    (
        "Node.extensions",
        "StreamAccessLogsMessage.tcp_logs",
        "AccessLogCommon.tls_properties",
        "AccessLogCommon.metadata",
        "AccessLogCommon.downstream_remote_address",
        "AccessLogCommon.downstream_local_address",
        "AccessLogCommon.downstream_direct_remote_address",
        "AccessLogCommon.upstream_local_address",
    ),
)
"""``StreamAccessLogsMessage`` without unused fields."""

_ATTEMPT: Final = int(AccessLogType.UpstreamEnd)
_REQUEST: Final = int(AccessLogType.DownstreamEnd)
_ERROR: Final = 400
_SUCCESS: Final = AttemptOutcome.SUCCESS
_FAILURE: Final = AttemptOutcome.FAILURE
_NOT_SENT: Final = AttemptOutcome.NOT_SENT

MAX_ENTRIES: Final = 4_096
"""Limit of entries per message; Envoy's buffer of 16 KiB holds about thirty."""

MAX_MESSAGE_BYTES: Final = 256 * 1024
"""Limit of a message: Envoy's buffer of 16 KiB, and one entry beyond it with headers of 60 KiB."""

UNREAD_PRICE: Final = 4.0
"""Times its CPU time that a dropped or refused message is charged: a flood of them gets 0.1 of a core, not 0.4."""

_HTTP_LOGS: Final = (2,)

LONGEST_S: Final = 86_400.0
"""No call lasts longer than a policy allows; longer durations are ignored."""

_LIMITED: Final = frozenset({RATE_LIMITED, FAULT_INJECTED})


class AccessLogPort(Protocol):
    """What a stream of access logs needs: admission and a receiver."""

    traffic_store: TrafficStore

    def visible_pools(self, node: str, signal: TelemetrySignal, identities: tuple[str, ...]) -> MaySee | None:
        """The pools on which ``node`` may report; None unless it is connected for xDS with the same identity."""

    def admitted(self, reporter: Reporter, entries: int, size: int, now_s: float) -> bool:
        """Whether a message of ``size`` bytes with this many entries is read; otherwise it counts as dropped."""

    def logged(self, reporter: Reporter, entries: int, now_s: float) -> float:
        """Entries of a node are about to be counted; returns the share of calls they were sampled with."""


class AccessLogHandler:
    """One stream of access logs."""

    def __init__(
        self,
        desk: AccessLogPort,
        news: Callable[[bool], None],
        identities: tuple[str, ...] = (),
        host: str = "",
    ) -> None:
        self._desk = desk
        self._identities = identities
        self._host = host
        self._news = news
        self.node = ""
        self.price = 1.0

    def take(self, data: bytes, now_s: float) -> None:
        """Count the entries of a message; messages over the node's budget are not decoded."""
        self.price = UNREAD_PRICE
        count = count_entries(data)
        message = None
        if not self.node:
            message = _decoded(data)
            self.node = validated_node_id(message.identifier.node.id)
            if message.identifier.log_name != LOG_NAME:
                raise TelemetryStreamError("foreign", f"the log {message.identifier.log_name!r} is not ours")
        may_see = self._desk.visible_pools(self.node, TelemetrySignal.ACCESS_LOG, self._identities)
        reporter = Reporter(self._host, self.node)
        if may_see is None or not self._desk.admitted(reporter, count, len(data), now_s):
            return
        self.price = 1.0
        entries = (message or _decoded(data)).http_logs.log_entry
        if entries:
            weight = 1 / self._desk.logged(reporter, len(entries), now_s)
            self._news(
                record_entries(self._desk.traffic_store, self.node, entries, weight, now_s, may_see=may_see)
            )

    def close(self) -> None:
        """Nothing to release: records expire by age."""


def count_entries(data: bytes) -> int:
    """Fields of an undecoded message and entries in it: some more than entries, for two fields are around them.

    ``TelemetryStreamError`` for too many, and for data that is not protobuf.
    """
    try:
        count = count_fields(data, _HTTP_LOGS, MAX_ENTRIES)
    except ValueError as error:
        raise TelemetryStreamError("garbage", "not a StreamAccessLogsMessage") from error
    if count > MAX_ENTRIES:
        raise TelemetryLimitError("size", f"more than {MAX_ENTRIES} access log entries in one message")
    return count


def _decoded(data: bytes) -> Any:
    try:
        return AccessLogs.FromString(data)
    except DecodeError as error:
        raise TelemetryStreamError("garbage", "not a StreamAccessLogsMessage") from error


def record_entries(
    book: TrafficStore, node: str, entries: Any, weight: float, now_s: float, *, may_see: MaySee
) -> bool:
    """Count ``entries`` of visible pools, each for ``weight`` calls; returns whether any is bad news."""
    pools, route_of = book.directory.pools, book.directory.route
    note = book.record_attempt
    bad, tapped, tenants = False, bool(book.tap), book.tenants if book.tenants.ports else None
    # Without a receiver Envoy queues entries and then sends them all at once: they must not count as if they ended
    # now. Both times are from the proxy's clock, so its offset does not matter.
    newest_s = _ended_s(entries[-1].common_properties)
    for entry in entries:
        common = entry.common_properties
        kind = common.access_log_type
        if kind != _ATTEMPT:
            if kind == _REQUEST:
                bad |= _request(book, node, entry, weight, now_s, may_see=may_see)
            continue
        facts = pools.get(common.upstream_cluster)
        if facts is None or not may_see(facts.name):
            continue
        engine = _engine(facts, common.upstream_remote_address)
        if engine is None:
            continue
        route = route_of(common.route_name)
        flags = _flags(common)
        code = entry.response.response_code.value
        complete = common.HasField("time_to_last_upstream_rx_byte")
        hedged = facts.hedged
        outcome = attempt_outcome(
            code, flags, complete=complete, count_statuses=facts.count_statuses, hedged=hedged
        )
        attempt = entry.request.request_headers.get(ATTEMPT_HEADER, "1")
        start, duration_s = common.start_time, _seconds(common.duration)
        began_s = start.seconds + start.nanos * 1e-9
        ended = Attempt(
            engine=engine,
            outcome=outcome,
            # Envoy counts attempts in the request, so when a hedged first attempt ends the header is 2.
            first=attempt == "1" or (hedged and TIMEOUT in flags),
            asks=not 400 <= code < 500 or code in RETRYABLE_CLIENT_ERRORS,
            # Envoy drops the body of an answer that it retries: headers with an error are the whole answer.
            complete=complete or code >= _ERROR,
            priority=PriorityClass.INTERACTIVE if route is None else route.priority,
            streaming=route is not None and route.streaming,
            duration_s=duration_s,
            first_byte_s=_seconds(common.time_to_first_upstream_rx_byte),
            late_s=newest_s - began_s - duration_s,
            # Most calls are successful first tries, whose ID nothing needs.
            request=entry.request.request_id if outcome is not _SUCCESS or attempt != "1" else "",
            route="" if route is None else route.name,
            began_s=began_s,
            # Envoy's filters remove what a caller sends under this name.
            prefiller=facts.prefilled and PREFILLER_HEADER in entry.request.request_headers,
            prefillable=not facts.prefilled
            or route is None
            or (route.prefill_above_bytes is not None and sent_bytes(entry) > route.prefill_above_bytes),
        )
        note(node, facts, ended, weight=weight, now_s=now_s)
        if tenants is not None and (tenant := tenants.of(entry)) is not None:
            if ended.first:
                tenants.add(tenant, entry, node, tried=True, weight=weight, at_s=now_s)
            if 200 <= code < _ERROR:
                tenants.add_answer(tenant, entry, EngineId(facts.name, engine), weight=weight)
            if tenant.has_share_of(facts.name):
                book.record_tenant(facts, tenant.id, ended, weight=weight, now_s=now_s)
        if tapped:
            _tap_attempt(book, node, entry, facts, ended, weight=weight)
        bad |= outcome is _FAILURE or outcome is _NOT_SENT
    return bad


def _request(book: TrafficStore, node: str, entry: Any, weight: float, now_s: float, *, may_see: MaySee) -> bool:
    common = entry.common_properties
    flags = _flags(common)
    route = book.directory.route(common.route_name)
    if not flags.isdisjoint(_LIMITED):
        _limited_request(book, node, entry, flags, route, weight=weight, now_s=now_s, may_see=may_see)
        return False
    if route is None:
        return False
    header = entry.request.request_headers.get(ATTEMPT_HEADER, "0")
    attempt = int(header) if header.isdecimal() and len(header) < 4 else 0
    details = entry.response.response_code_details
    late = deadline_result(common.route_name, details)
    if late is not None:
        _late_request(book, node, entry, route, late, attempt=attempt, weight=weight, may_see=may_see)
        if late is DeadlineResult.REFUSED and (tenant := book.tenants.of(entry)) is not None:
            book.tenants.add(tenant, entry, node, weight=weight, at_s=now_s)
        return False
    outcome = request_outcome(flags, details, attempt)
    if book.tap and (outcome is AttemptOutcome.NOT_SENT or limit_reason(details)):
        _tap_request(book, node, entry, route, attempt, weight=weight, may_see=may_see)
    if outcome is AttemptOutcome.NOT_SENT:
        facts = book.directory.pools.get(route.pool)
        if facts is not None and may_see(facts.name):
            book.record_shed(node, facts, route.priority, route=route.name, weight=weight, now_s=now_s)
            if attempt == 0:
                _refused_request(book, node, entry, facts, None, weight=weight, now_s=now_s)
            return True
    elif outcome is AttemptOutcome.FAILURE:
        facts = book.directory.pools.get(common.upstream_cluster)
        engine = None if facts is None else _engine(facts, common.upstream_remote_address)
        if facts is not None and engine is not None and may_see(facts.name):
            book.record_failure(
                facts,
                engine,
                node=node,
                request=entry.request.request_id,
                route=route.name,
                weight=weight,
                now_s=now_s,
            )
            return True
    return False


def _limited_request(
    book: TrafficStore,
    node: str,
    entry: Any,
    flags: frozenset[str],
    route: RouteFacts | None,
    *,
    weight: float,
    now_s: float,
    may_see: MaySee,
) -> None:
    """Count a request that was refused by its tenant's quota, or because the tenant was above its share."""
    if RATE_LIMITED in flags:
        # Refused before the pool was chosen.
        tenant = book.tenants.of(entry)
        if tenant is not None and any(map(may_see, tenant.facts.pools)):
            book.tenants.add(tenant, entry, node, refused=QuotaResult.REFUSED, weight=weight, at_s=now_s)
        return
    facts = None if route is None else book.directory.pools.get(route.pool)
    if facts is not None and may_see(facts.name):
        _refused_request(book, node, entry, facts, QuotaResult.OVER_SHARE, weight=weight, now_s=now_s)


def _refused_request(
    book: TrafficStore,
    node: str,
    entry: Any,
    facts: PoolFacts,
    refused: QuotaResult | None,
    *,
    weight: float,
    now_s: float,
) -> None:
    """Count a request to a pool that was refused without a try; ``refused`` is None at the admission limit."""
    tenant = book.tenants.of(entry)
    if tenant is None:
        return
    book.tenants.add(tenant, entry, node, refused=refused, weight=weight, at_s=now_s)
    if tenant.has_share_of(facts.name):
        book.record_tenant_refusal(
            facts, tenant.id, above_share=refused is QuotaResult.OVER_SHARE, weight=weight, now_s=now_s
        )


def _late_request(
    book: TrafficStore,
    node: str,
    entry: Any,
    route: RouteFacts,
    result: DeadlineResult,
    *,
    attempt: int,
    weight: float,
    may_see: MaySee,
) -> None:
    facts = book.directory.pools.get(route.pool)
    if facts is None or not may_see(facts.name):
        return
    book.record_deadline(facts, result, weight=weight)
    if book.tap:
        _tap_request(book, node, entry, route, attempt, weight=weight, may_see=may_see)


def _tap_attempt(
    book: TrafficStore, node: str, entry: Any, facts: PoolFacts, ended: Attempt, *, weight: float
) -> None:
    """Show a try to the watchers of the tap."""
    common, code = entry.common_properties, entry.response.response_code.value
    header = entry.request.request_headers.get(ATTEMPT_HEADER, "1")
    number = int(header) if header.isdecimal() and len(header) < 4 else 1
    request, route = entry.request.request_id, book.directory.route(common.route_name)
    result = (
        REFUSED
        if ended.outcome is _NOT_SENT
        else call_result(ended.outcome, complete=ended.complete, asks=ended.asks).value
    )
    earlier_s = book.earlier_s(node, request, ended.began_s) if number > 1 else 0.0
    seen = TappedTry(
        at_unix_s=book.tap.ended_unix_s(ended.late_s),
        request=request[:MAX_ID_CHARACTERS],
        proxy=node,
        route=ended.route,
        priority=ended.priority.value,
        pool=facts.name,
        engine="" if ended.outcome is _NOT_SENT else ended.engine,
        number=number,
        result=result,
        status=code,
        duration_s=round(ended.duration_s, 6),
        total_s=round(ended.duration_s + earlier_s, 6),
        first_byte_s=round(ended.first_byte_s + earlier_s, 6) if ended.streaming and ended.first_byte_s else None,
        slow=False,
        reason=failure_reason(result, code, _flags(common)),
        calls=round(weight, 3),
    )
    slow = slowness(seen, route, book.tails(facts.name))
    book.tap.record(replace(seen, slow=True, reason=slow) if slow else seen)


def _tap_request(
    book: TrafficStore, node: str, entry: Any, route: RouteFacts, attempts: int, *, weight: float, may_see: MaySee
) -> None:
    """Show a request to the watchers of the tap that was refused without a try, or ended by its route's limit."""
    common = entry.common_properties
    late = limit_reason(entry.response.response_code_details)
    facts = book.directory.pools.get((late and common.upstream_cluster) or route.pool)
    if facts is None or not may_see(facts.name):
        return
    duration_s = round(_seconds(common.duration), 6)
    book.tap.record(
        TappedTry(
            at_unix_s=book.tap.ended_unix_s(),
            request=entry.request.request_id[:MAX_ID_CHARACTERS],
            proxy=node,
            route=route.name,
            priority=route.priority.value,
            pool=facts.name,
            engine=(late and _engine(facts, common.upstream_remote_address)) or "",
            number=attempts if late else 0,
            result=TIMED_OUT if late else REFUSED,
            status=entry.response.response_code.value,
            duration_s=duration_s,
            total_s=duration_s,
            first_byte_s=None,
            slow=False,
            reason=late or refusal_reason(common.route_name, _flags(common)),
            calls=round(weight, 3),
        )
    )


def _engine(facts: Any, address: Any) -> str | None:
    place = address.socket_address
    name: str | None = facts.at.get((place.address, place.port_value))
    if name is None and address.HasField("envoy_internal_address"):
        name = facts.behind.get(address.envoy_internal_address.server_listener_name)
    return name


def _flags(common: Any) -> frozenset[str]:
    # Most entries have none, and reading the flags one by one costs more than listing those that are set.
    if not common.HasField("response_flags"):
        return NO_FLAGS
    return frozenset(field.name for field, _ in common.response_flags.ListFields())


def _ended_s(common: Any) -> float:
    start = common.start_time
    return float(start.seconds + start.nanos * 1e-9 + _seconds(common.duration))


def _seconds(duration: Any) -> float:
    seconds: float = duration.seconds + duration.nanos * 1e-9
    return min(max(seconds, 0.0), LONGEST_S)
