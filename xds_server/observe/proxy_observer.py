"""Logs and counts proxy activity: a line per state change, none per push except for debugging; limited by peer."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client import Counter, Histogram

from xds_server.auth.log_budget import EventLines
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.observe.eject_latency import EjectLatency
from xds_server.observe.tracing.change_tracer import ChangeTracer
from xds_server.publish import Nack
from xds_server.xds import NodeInfo, StuckResponse, XdsVariant

OTHER: Final = "other"
"""Label for unknown types: peers choose type URLs, but label sets must stay closed."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _TypeMetrics:
    """Metrics of a type, looked up once: finding a labelled metric costs more than counting."""

    label: str
    pushes: Counter
    push_bytes: Counter
    push_to_ack_seconds: Histogram


class ProxyObserver:
    """A ``publish.Observer`` that logs and counts."""

    def __init__(self, metrics: Metrics, lines: EventLines | None = None) -> None:
        self._metrics = metrics
        self._lines = lines or EventLines(metrics.log_lines_suppressed.inc)
        self._by_type: dict[str, _TypeMetrics] = {}
        self._debugs = _log.is_enabled_for(logging.DEBUG)

    def on_connect(self, node: NodeInfo, mode: XdsVariant) -> None:
        """A stream sent its node."""
        if self._logs("xds.connected", node):
            _log.info(
                "xds.connected",
                node=node.id,
                zone=node.zone,
                protocol=mode.value,
                agent=f"{node.user_agent_name} {node.user_agent_version}".strip(),
            )

    def on_disconnect(self, node: NodeInfo, mode: XdsVariant, reason: str) -> None:
        """A stream has ended."""
        log = _log.warning if reason else _log.info
        if self._logs("xds.disconnected", node):
            log("xds.disconnected", node=node.id, zone=node.zone, protocol=mode.value, reason=reason)

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None:
        """A response is sent."""
        counted = self._counted(type_url)
        counted.pushes.inc()
        counted.push_bytes.inc(size_bytes)
        if self._debugs:
            _log.debug("xds.push", node=node.id, type=counted.label, size_bytes=size_bytes)

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:
        """A response was accepted (ACK)."""
        counted = self._counted(type_url)
        counted.push_to_ack_seconds.observe(latency_s)
        if self._debugs:
            _log.debug("xds.ack", node=node.id, type=counted.label, latency_s=round(latency_s, 6))

    def on_nack(self, nack: Nack) -> None:
        """A response was refused (NACK): the log line gives the origin in the policies."""
        label = _label(nack.type_url)
        self._metrics.nacks.labels(type=label).inc()
        if not nack.resources and self._logs("xds.nack", nack.node):
            _log.error("xds.nack", node=nack.node.id, zone=nack.node.zone, type=label, reason=nack.reason)
        for item in nack.resources:
            if self._logs("xds.nack", nack.node):
                _log.error(
                    "xds.nack",
                    node=nack.node.id,
                    zone=nack.node.zone,
                    type=label,
                    resource=item.name,
                    version=item.version,
                    policy=list(item.origins),
                    rolled_back_for=nack.scope.value,
                    reason=nack.reason,
                )

    def on_refusals_cleared(self) -> None:
        """A proxy accepted content that others had refused."""

    def on_stuck(self, node: NodeInfo, stuck: StuckResponse) -> None:
        """A response has had no ACK or NACK for long."""
        label = _label(stuck.type_url)
        self._metrics.stuck.labels(type=label).inc()
        if self._logs("xds.stuck", node):
            _log.warning(
                "xds.stuck",
                node=node.id,
                type=label,
                waiting_s=round(stuck.waiting_s, 1),
                resources=[item.name for item in stuck.resources][:10],
            )

    def on_unknown_type(self, node: NodeInfo, type_url: str) -> None:
        """A peer requests an unknown type."""
        if self._logs("xds.unknown_type", node):
            _log.info("xds.unknown_type", node=node.id, type=type_url)

    def _counted(self, type_url: str) -> _TypeMetrics:
        label = _label(type_url)
        found = self._by_type.get(label)
        if found is None:
            metrics = self._metrics
            found = self._by_type[label] = _TypeMetrics(
                label,
                metrics.pushes.labels(type=label),
                metrics.push_bytes.labels(type=label),
                metrics.push_to_ack_seconds.labels(type=label),
            )
        return found

    def _logs(self, event: str, node: NodeInfo) -> bool:
        return self._lines.take(event, node.host, node.id)


def _label(type_url: str) -> str:
    return SHORT_NAMES.get(type_url, OTHER)


class NotifyingObserver(ProxyObserver):
    """Also notifies about connects, disconnects, ACKs and NACKs."""

    def __init__(
        self,
        metrics: Metrics,
        changed: Callable[[], None],
        refusals_changed: Callable[[], None],
        confirmed: Callable[[str], None],
        departures: EjectLatency,
        *,
        following: ChangeTracer | None = None,
        lines: EventLines | None = None,
    ) -> None:
        super().__init__(metrics, lines)
        self._following = following
        self._departures = departures
        self._changed = changed
        self._refusals_changed = refusals_changed
        self._confirmed = confirmed

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None:
        super().on_push(node, type_url, size_bytes)
        self._departures.on_push(node.id, type_url)
        if self._following is not None:
            self._following.on_push(node.id, type_url)

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:
        super().on_ack(node, type_url, latency_s)
        self._departures.on_ack(node.id, type_url, latency_s)
        if self._following is not None:
            self._following.on_ack(node.id, type_url, latency_s)
        self._confirmed(type_url)

    def on_nack(self, nack: Nack) -> None:
        super().on_nack(nack)
        self._refusals_changed()
        if self._following is not None:
            self._following.on_nack(nack)

    def on_refusals_cleared(self) -> None:
        super().on_refusals_cleared()
        self._refusals_changed()

    def on_connect(self, node: NodeInfo, mode: XdsVariant) -> None:
        super().on_connect(node, mode)
        self._changed()

    def on_disconnect(self, node: NodeInfo, mode: XdsVariant, reason: str) -> None:
        super().on_disconnect(node, mode, reason)
        self._departures.on_disconnect(node.id)
        if self._following is not None:
            self._following.on_disconnect(node.id)
        self._changed()
