"""Parts that serve proxies: authorization, publisher, secrets, telemetry, and ejection latency."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from engine.allocator import release_memory
from xds_server.app.adapters import PublisherAdapter
from xds_server.app.server_events import ServerEvents
from xds_server.auth.log_budget import EventLines
from xds_server.auth.memory_guard import MemoryGuard
from xds_server.auth.peer_budget import HostTime
from xds_server.auth.reached_limits import ReachedLimits
from xds_server.auth.server_auth import ServerAuth
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.observe.eject_latency import EjectLatency
from xds_server.observe.proxy_observer import NotifyingObserver
from xds_server.observe.tracing.change_tracer import ChangeTracer
from xds_server.publish import Publisher
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.canary_controller import CanaryController
from xds_server.secrets.distribution import SecretDistributor
from xds_server.serve_config import ServeConfig
from xds_server.telemetry import Telemetry
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.xds import NodeInfo


class ViewSource:
    """Supplies the publisher with each proxy's view and each view's first snapshot.

    Until ``follow``, views come from the access rules alone and snapshots are empty.
    """

    def __init__(self, auth: ServerAuth) -> None:
        self._auth = auth
        self._reconciler: Reconciler | None = None
        self._canaries: CanaryController | None = None

    def follow(self, reconciler: Reconciler, canaries: CanaryController) -> None:
        """Use the snapshots of this reconciler, and move canary proxies to its views."""
        self._reconciler, self._canaries = reconciler, canaries

    def view_of(self, node: NodeInfo) -> View:
        """View of a proxy; ``DeniedPeerError`` if it is not authorized."""
        view = self._auth.view_of(node)
        in_canary = self._canaries is not None and self._canaries.has(node.id)
        return replace(view, canary=True) if in_canary else view

    def snapshot_for(self, view: object) -> Snapshot:
        """Snapshot for the first proxy of a view."""
        if self._reconciler is None or not isinstance(view, View):
            return Snapshot()
        return self._reconciler.snapshot_for(view)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyParts:
    """Parts that communicate with proxies."""

    auth: ServerAuth
    views: ViewSource
    publisher: Publisher
    connected: PublisherAdapter
    secrets: SecretDistributor
    telemetry: Telemetry
    memory: MemoryGuard
    reached: ReachedLimits
    host_time: HostTime
    eject_latency: EjectLatency

    @classmethod
    def build(
        cls,
        config: ServeConfig,
        metrics: Metrics,
        events: ServerEvents,
        *,
        epoch: str,
        traffic_store: TrafficStore,
        change_tracer: ChangeTracer | None,
    ) -> Self:
        """Build the parts; ``ConfigError`` if the certificate or the access rules are unusable."""
        auth = ServerAuth(config)
        views = ViewSource(auth)
        eject_latency = EjectLatency(metrics, traffic_store.began_at_s)
        reached = ReachedLimits()
        publisher = Publisher(
            view_of=views.view_of,
            snapshot_for=views.snapshot_for,
            observer=NotifyingObserver(
                metrics,
                events.proxies_changed,
                events.refusals_changed,
                events.ack,
                eject_latency,
                following=change_tracer,
                lines=EventLines(metrics.log_lines_suppressed.inc, reached),
            ),
            epoch=epoch,
            identifier="switchgear",
        )
        connected = PublisherAdapter(publisher, reached)
        host_time = HostTime()
        memory = MemoryGuard(
            on_shed=metrics.streams_shed.inc,
            release=release_memory,
            reached=reached,
        )
        return cls(
            auth=auth,
            views=views,
            publisher=publisher,
            connected=connected,
            secrets=SecretDistributor(config, connected.nodes),
            telemetry=Telemetry(
                metrics,
                on_news=events.round_requested,
                speaks_for=connected.speaks_for,
                traffic_store=traffic_store,
                memory=memory,
                reached=reached,
                host_time=host_time,
            ),
            memory=memory,
            reached=reached,
            host_time=host_time,
            eject_latency=eject_latency,
        )

    def start(
        self,
        tasks: asyncio.TaskGroup,
        *,
        on_other_keys: Callable[[], None],
        on_other_secrets: Iterable[Callable[[], None]],
    ) -> None:
        """Watch certificates, access rules and secrets in this task group."""
        auth = self.auth.run(on_rules=self.publisher.reauthorize, on_keys=on_other_keys)
        tasks.create_task(auth, name="guard")
        tasks.create_task(self.secrets.run(*on_other_secrets), name="secrets")
