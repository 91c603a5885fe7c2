"""Feeds the proxies' telemetry into the control plane's telemetry store."""

from typing import Final

from chaos.faults.actions import FalsifyTelemetry
from chaos.simulator.access_log_entry import AccessLogEntry
from chaos.simulator.header_rules import Headers
from chaos.simulator.simulated_proxy import SimulatedProxy
from policies.model import PolicySet
from policies.route import PriorityClass
from xds_server.model.pool_traffic import DeadlineResult
from xds_server.telemetry.attempt_outcome import (
    RETRYABLE_CLIENT_ERRORS,
    TIMEOUT,
    AttemptOutcome,
    attempt_outcome,
    request_outcome,
)
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.tenant_counts import EntryTenant, QuotaResult, tenants_by_port
from xds_server.telemetry.traffic_store import Attempt, TrafficStore
from xds_server.translate.access_log_config import PORT_TAG

_ALL: Final = 1.0


class _RequestFields:
    __slots__ = ("request_body_bytes", "request_headers")

    def __init__(self, headers: Headers) -> None:
        self.request_headers = headers
        self.request_body_bytes = 0  # simulated requests have estimates, and no bodies


class _ResponseFields:
    __slots__ = ("response_body_bytes",)

    def __init__(self) -> None:
        self.response_body_bytes = 0


class _CommonFields:
    __slots__ = ("custom_tags",)

    def __init__(self, port: str) -> None:
        self.custom_tags = {PORT_TAG: port}


class _LogEntry:
    """The fields of Envoy's entry that tell whose request it was."""

    __slots__ = ("common_properties", "request", "response")

    def __init__(self, port: str, headers: Headers) -> None:
        self.common_properties = _CommonFields(port)
        self.request = _RequestFields(headers)
        self.response = _ResponseFields()


class TelemetryFeed:
    """Telemetry of all proxies in ``book``; ``spoilt`` has the active falsifications by proxy."""

    def __init__(self, policies: PolicySet, port: int) -> None:
        self.book = TrafficStore()
        self.book.set_directory(build_directory(policies, {}))
        self.book.tenants.set_ports(tenants_by_port(policies))
        self._port = str(port)
        self.spoilt: dict[str, FalsifyTelemetry] = {}

    def logs(self, proxy: SimulatedProxy, now_s: float) -> bool:
        """Read its access log; return whether it had entries."""
        entries, proxy.entries = proxy.entries, []
        spoilt = self.spoilt.get(proxy.name)
        if not entries or (spoilt is not None and spoilt.lost):
            return False
        newest_s = entries[-1].ended_s
        for one in entries:
            if one.whole:
                self._request(proxy.name, one, now_s)
            else:
                self._attempt(proxy.name, one, spoilt, newest_s - one.ended_s, now_s)
        return True

    def load(self, proxy: SimulatedProxy, now_s: float) -> None:
        """Read its load report."""
        told = proxy.load()
        spoilt = self.spoilt.get(proxy.name)
        if spoilt is not None and spoilt.lost:
            return
        for pool, counts in told.items():
            self.book.record_load(proxy.name, self.book.directory.pools[pool], counts, now_s)

    def _attempt(
        self, node: str, one: AccessLogEntry, spoilt: FalsifyTelemetry | None, late_s: float, now_s: float
    ) -> None:
        facts = self.book.directory.pools[one.pool]
        outcome = attempt_outcome(
            one.code, one.flags, complete=one.complete, count_statuses=facts.count_statuses, hedged=facts.hedged
        )
        if spoilt is not None and spoilt.says and outcome is not AttemptOutcome.NOT_SENT:
            outcome = AttemptOutcome.FAILURE if spoilt.says == "all-failed" else AttemptOutcome.SUCCESS
        attempt = Attempt(
            engine=one.engine,
            outcome=outcome,
            first=one.number == 1 or (facts.hedged and TIMEOUT in one.flags),
            asks=not 400 <= one.code < 500 or one.code in RETRYABLE_CLIENT_ERRORS,
            complete=one.complete,
            priority=PriorityClass.BATCH if one.batch else PriorityClass.INTERACTIVE,
            streaming=one.streaming,
            duration_s=one.duration_s,
            first_byte_s=one.first_byte_s,
            late_s=late_s,
            prefiller=one.prefiller,
            prefillable=one.prefillable,
        )
        self.book.record_attempt(node, facts, attempt, weight=_ALL, now_s=now_s)
        tenant, entry = self._tenant(one)
        if tenant is not None:
            if attempt.first:
                self.book.tenants.add(tenant, entry, node, tried=True, weight=_ALL, at_s=now_s)
            if tenant.has_share_of(one.pool):
                self.book.record_tenant(facts, tenant.id, attempt, weight=_ALL, now_s=now_s)

    def _tenant(self, one: AccessLogEntry) -> tuple[EntryTenant | None, _LogEntry]:
        """Whose request it was, as the control plane finds it in an entry."""
        entry = _LogEntry(self._port, one.headers)
        return self.book.tenants.of(entry) if self.book.tenants.ports else None, entry

    def _refused(self, node: str, one: AccessLogEntry, now_s: float) -> None:
        """A request that was refused before an attempt; by ``limit``, or by the admission limit."""
        tenant, entry = self._tenant(one)
        if tenant is None:
            return
        self.book.tenants.add(tenant, entry, node, refused=one.limit, weight=_ALL, at_s=now_s)
        if one.limit is not QuotaResult.REFUSED and one.late is None and tenant.has_share_of(one.pool):
            self.book.record_tenant_refusal(
                self.book.directory.pools[one.pool],
                tenant.id,
                above_share=one.limit is QuotaResult.OVER_SHARE,
                weight=_ALL,
                now_s=now_s,
            )

    def _request(self, node: str, one: AccessLogEntry, now_s: float) -> None:
        if one.limit is not None:
            self._refused(node, one, now_s)
            return
        facts = self.book.directory.pools[one.pool]
        if one.late is not None:
            self.book.record_deadline(facts, one.late, weight=_ALL)
            if one.late is DeadlineResult.REFUSED:
                self._refused(node, one, now_s)
            return
        outcome = request_outcome(one.flags, one.details, one.number)
        if outcome is AttemptOutcome.NOT_SENT:
            priority = PriorityClass.BATCH if one.batch else PriorityClass.INTERACTIVE
            self.book.record_shed(node, facts, priority, weight=_ALL, now_s=now_s)
            if one.number == 0:
                self._refused(node, one, now_s)
        elif outcome is AttemptOutcome.FAILURE and one.engine:
            self.book.record_failure(facts, one.engine, weight=_ALL, now_s=now_s)
