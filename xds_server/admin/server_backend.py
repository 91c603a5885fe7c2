"""Answers about the running server, read from the parts that hold the data."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from prometheus_client.core import Metric

from engine.report import GpuSummary
from xds_server.admin.status_builders import engine_status, policy_problem, proxy_status, resource_status
from xds_server.admin.views.context import UnknownNameError, ViewContext, event_status, subject_named
from xds_server.admin.views.get_tables import (
    order_rows,
    pool_rows,
    shadow_report,
    silent_proxies,
    with_decision_status,
    zone_rows,
)
from xds_server.admin.views.pool_metrics import pool_metrics
from xds_server.admin.views.tenant_rows import tenant_rows
from xds_server.admin.views.why_subject import why
from xds_server.admin_api.objective_types import ObjectiveStatus
from xds_server.admin_api.pool_history_types import PoolHistoryList
from xds_server.admin_api.status_types import (
    AgentStatus,
    Condition,
    EngineStatus,
    EventStatus,
    Explanation,
    FileProblem,
    OrderRequest,
    OrderStatus,
    PoliciesStatus,
    PoolStatus,
    ProxyStatus,
    ReachedLimit,
    Readiness,
    RejectedObject,
    RolledBackResource,
    ShadowStatus,
    SnapshotStatus,
    SyncState,
    ZoneStatus,
)
from xds_server.admin_api.tenant_types import TenantStatus, TenantTraffic
from xds_server.admin_api.usage_types import UsageStatus
from xds_server.admin_api.version_types import CanaryStatus, HistoryStatus
from xds_server.diagnosis.condition_log import ConditionLog
from xds_server.diagnosis.conditions import ServerState, applied_version, objects_by_code
from xds_server.ledger.event import ClockReading
from xds_server.ledger.ledger import Ledger
from xds_server.ledger.operator_orders import Orders, RefusedOrderError, floor_violation
from xds_server.metrics.control_metrics import ControlPlaneMetrics, ProxyMetrics
from xds_server.metrics.fleet_metrics import CallerMetrics, EngineMetrics, PoolMetrics
from xds_server.model.fleet import EngineId
from xds_server.model.order import Order, OrderAction
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import ROLES, View
from xds_server.publish import ProxyState, Publisher
from xds_server.publish.rollback_status import rolled_back_metric, rolled_back_resources
from xds_server.reconcile.reconciler import Reconciler
from xds_server.telemetry.pool_recorder import INTERVAL_S, PoolGauges, PoolRecorder
from xds_server.telemetry.token_use import TokenRatios
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.xds import Sync, XdsVariant

_NOTHING: Final = Snapshot()
_EJECTING: Final = frozenset({OrderAction.EJECT, OrderAction.DRAIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSources:
    """Further sources next to reconciler and publisher; the defaults are empty.

    ``gpu``: latest summary of one engine. ``lost_s``: time without contact, by plural of the Kubernetes kind.
    """

    agents: Callable[[], Mapping[EngineId, AgentStatus]] = dict
    gpu: Callable[[EngineId], GpuSummary | None] = lambda _: None
    ledger: Ledger | None = None
    orders: Orders | None = None
    policy_source: str = "files"
    lost_s: Callable[[], Mapping[str, float]] = dict
    file_problems: Callable[[], Sequence[FileProblem]] = tuple
    canary: Callable[[], CanaryStatus | None] = lambda: None
    objectives: Callable[[], Sequence[ObjectiveStatus]] = tuple
    tenants: Callable[[], Mapping[tuple[int, str], TenantTraffic]] = dict
    usage: Callable[[], Sequence[UsageStatus]] = tuple
    token_ratios: Callable[[], Mapping[str, TokenRatios]] = dict
    history: Callable[[], HistoryStatus | None] = lambda: None
    rejected: Callable[[], Sequence[RejectedObject]] = tuple
    limits: Callable[[], Sequence[ReachedLimit]] = tuple
    recorder: PoolRecorder | None = None
    adapter_troubles: Callable[[], Mapping[tuple[str, str], str]] = dict


class ServerBackend:
    """Computes the answers of the admin port and the metrics on request."""

    def __init__(
        self,
        reconciler: Reconciler,
        publisher: Publisher,
        sources: BackendSources | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._reconciler = reconciler
        self._publisher = publisher
        self._sources = sources or BackendSources()
        self._ledger = self._sources.ledger or Ledger(clock=clock, wall=wall)
        self._orders = self._sources.orders or Orders(clock=clock, wall=wall)
        self._clock = clock
        self._wall = wall
        self._recorder = self._sources.recorder or PoolRecorder(TrafficStore(), clock, wall)
        self.condition_log = ConditionLog(self._server_state, clock=clock)
        self.listening = False
        """Whether the xDS port is open."""

    def readiness(self) -> Readiness:
        """Ready once the xDS port is open."""
        if self.listening:
            return Readiness(ready=True, reason="serving")
        if self._reconciler.serving is not None:
            return Readiness(ready=False, reason="waiting for a first verdict on every engine")
        state = self._reconciler.source_state.state
        reasons = {
            "unread": "reading policies",
            "unreached": self._reconciler.source_state.reason,
            "refused": "policies refused: see /v1/policies",
        }
        return Readiness(ready=False, reason=reasons.get(state, "building snapshots"))

    def proxies(self) -> Sequence[ProxyStatus]:
        """Every connected proxy."""
        return self._proxy_statuses(self._publisher.proxies(), self._scene())

    def _noticed_proxies(self) -> Sequence[ProxyStatus]:
        """Proxies that are not in sync, or report no traffic; all of them would cost a large fleet too much."""
        scene = self._scene()
        nodes = dict.fromkeys(
            one.node.id
            for one in self._publisher.sync_states()
            if any(kind.state is not Sync.SYNCED for kind in one.types)
        )
        if scene is not None:
            nodes.update(dict.fromkeys(silent_proxies(scene)))
        return self._proxy_statuses(self._publisher.proxies(nodes), scene)

    def _proxy_statuses(self, states: Iterable[ProxyState], scene: ViewContext | None) -> Sequence[ProxyStatus]:
        now_s = self._clock()
        return [proxy_status(state, self._publisher.desired, scene, now_s) for state in states]

    def engines(self) -> Sequence[EngineStatus]:
        """Every declared engine."""
        gpu = self._sources.gpu
        return [
            replace(one, gpu=gpu(EngineId(one.pool, one.engine)) or one.gpu) for one in self._decided_engines()
        ]

    def _decided_engines(self) -> Sequence[EngineStatus]:
        """Like ``engines``, without GPU summaries."""
        scene = self._scene()
        return [with_decision_status(one, EngineId(one.pool, one.engine), scene) for one in self._engines()]

    def _engines(self) -> Sequence[EngineStatus]:
        """Their reports and health; decisions in full cost more."""
        fleet = self._reconciler.fleet
        if fleet is None:
            return []
        now_s = self._clock()
        agents, built = self._sources.agents(), self._reconciler.built
        return [
            engine_status(engine, agents.get(engine.id), built, now_s)
            for engines in fleet.pools.values()
            for engine in engines
        ]

    def policies(self) -> PoliciesStatus:
        """State of the policy files, and the served version."""
        files, serving = self._reconciler.source_state, self._reconciler.serving
        return PoliciesStatus(
            state=files.state,
            digest=files.digest,
            serving_digest=serving.digest if serving else "",
            stale=serving is not None and serving.stale,
            age_s=round(self._clock() - files.since_s, 3),
            pools=tuple(serving.policies.pools) if serving else (),
            routes=tuple(serving.policies.routes) if serving else (),
            errors=tuple(map(policy_problem, files.refused.errors)) if files.refused else (),
            held="" if files.state == "unreached" else files.reason,
            source=self._sources.policy_source,
            lost_s=dict(self._sources.lost_s()),
        )

    def canary(self) -> CanaryStatus | None:
        """The running or latest canary; None if canaries are unavailable."""
        return self._sources.canary()

    def file_problems(self) -> Sequence[FileProblem]:
        """Problems with files needed for trust or restart."""
        return self._sources.file_problems()

    def rolled_back(self) -> Sequence[RolledBackResource]:
        """Resources that a proxy refused and that are served in an earlier version."""
        return rolled_back_resources(self._publisher, self._wall())

    def conditions(self) -> Sequence[Condition]:
        """Conditions now, the most severe first."""
        return self.condition_log.current()

    def recent_conditions(self) -> Sequence[Condition]:
        """Conditions of a moment ago, for views that are drawn often."""
        return self.condition_log.recent()

    def _server_state(self) -> ServerState:
        readiness = self.readiness()
        return ServerState(
            now_unix_s=self._wall(),
            policies=self.policies(),
            proxies=self._noticed_proxies(),
            connected=sum(self._publisher.proxies_by_view.values()),
            engines=self._decided_engines(),
            pools=self.pools(),
            file_problems=self.file_problems(),
            rolled_back=self.rolled_back(),
            canary=self.canary(),
            rejected=self._sources.rejected(),
            limits=self._sources.limits(),
            not_ready="" if readiness.ready else readiness.reason,
            applied=applied_version(self._sources.history()),
        )

    def snapshot(self, zone: str, role: str) -> SnapshotStatus:
        """Resources served to proxies of this zone and role."""
        view = View(zone=zone, role=role)
        snapshot = self._publisher.effective(view) or self._reconciler.peek(view) or _NOTHING
        return SnapshotStatus(
            zone=zone,
            role=role,
            resources=tuple(
                resource_status(resource) for named in snapshot.resources.values() for resource in named.values()
            ),
        )

    def release_shrink(self) -> str:
        """Release held policies; returns the reason if refused."""
        return self._reconciler.release_shrink()

    # -- explanations and operator orders ------------------------------------------------------------------

    def _scene(self) -> ViewContext | None:
        """State that explanations are computed from; None before the first decision."""
        built = self._reconciler.built
        if built is None:
            return None
        now = ClockReading(s=self._clock(), unix_s=self._wall())
        return ViewContext(
            policies=built.inputs.policies,
            fleet=built.inputs.fleet,
            decisions=built.decisions,
            event_store=self._ledger.book,
            now=now,
            orders=self._orders.active(now.s),
            objectives=self._sources.objectives,
            tenants=self.tenants,
            adapter_troubles=self._sources.adapter_troubles(),
            token_ratios=self._sources.token_ratios,
        )

    def why(self, name: str) -> Explanation:
        """Explain an engine, zone, pool or tenant; ``UnknownNameError`` if the name matches none."""
        scene = self._scene()
        if scene is None:
            raise UnknownNameError("no decision yet")
        return why(name, scene)

    def events(self, name: str, since: int) -> Sequence[EventStatus]:
        """Stored events, oldest first; with ``name``, only those of that engine, zone, pool or proxy."""
        now = ClockReading(s=self._clock(), unix_s=self._wall())
        book, scene = self._ledger.book, self._scene()
        if not name:
            found = book.since(since)
        elif book.related(proxy=name):
            found = book.related(proxy=name)
        elif scene is None:
            raise UnknownNameError("no decision yet")
        else:
            subject = subject_named(name, scene)
            found = book.related(pool=subject.pool, engine=subject.engine, zone=subject.zone)
        return [event_status(event, now) for event in found if event.number > since]

    def pools(self) -> Sequence[PoolStatus]:
        """Statistics of every pool."""
        scene = self._scene()
        return [] if scene is None else pool_rows(scene)

    def pool_history(self, pool: str) -> PoolHistoryList:
        """Recent history of every pool, or of one."""
        return self._recorder.history(pool)

    async def record_pools(self) -> None:
        """Record the history of pools until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            self._recorder.sample(
                {
                    one.pool: PoolGauges(
                        ceiling=one.ceiling, in_flight=one.in_flight, heard=one.telemetry_age_s is not None
                    )
                    for one in self.pools()
                },
                {one.node.id: one.node.zone for one in self._publisher.sync_states()},
            )

    def zones(self) -> Sequence[ZoneStatus]:
        """Statistics of every pool by zone; the empty zone only if it has an engine or a proxy."""
        scene = self._scene()
        rows = [] if scene is None else zone_rows(scene, self._recorder.flows())
        nowhere = any(not one.node.zone for one in self._publisher.sync_states())
        return [row for row in rows if row.zone or row.engines or nowhere]

    def objectives(self) -> Sequence[ObjectiveStatus]:
        """Every objective of every route."""
        return self._sources.objectives()

    def tenants(self) -> Sequence[TenantStatus]:
        """Every tenant of every port."""
        built = self._reconciler.built
        if built is None:
            return ()
        inputs = built.inputs
        return tenant_rows(inputs.policies, built.decisions, self._sources.tenants(), inputs.usage)

    def usage(self) -> Sequence[UsageStatus]:
        """What tenants used, by day and model."""
        return self._sources.usage()

    def shadow(self) -> ShadowStatus:
        """What decisions in shadow mode would have done."""
        return shadow_report(self._ledger.shadow)

    def orders(self) -> Sequence[OrderStatus]:
        """Every order in force."""
        now_s = self._clock()
        return order_rows(self._orders.active(now_s), now_s)

    def order(self, request: OrderRequest) -> OrderStatus:
        """Accept an order; raises ``UnknownNameError`` or ``RefusedOrderError``."""
        action = OrderAction(request.action)
        scene, key = self._meant(request.engine)
        if (action is OrderAction.DEGRADE) is bool(key.engine):
            takes = "a pool" if action is OrderAction.DEGRADE else "an engine"
            raise UnknownNameError(f"{request.engine!r} is not {takes}: {action} takes {takes}")
        note = ""
        if action in _EJECTING and not request.force:
            short = floor_violation(
                key,
                scene.fleet.pools[key.pool],
                scene.decisions.engines,
                scene.policies.effective[key.pool].breaker,
            )
            if short is not None and short.now:
                raise RefusedOrderError(f"{short.sentence}. Use --force to override")
            note = "" if short is None else short.later
        self._orders.give(
            Order(
                engine=key,
                action=action,
                until_s=scene.now.s + request.for_s,
                reason=request.reason,
                by=request.by,
                force=request.force,
                level=request.level or 0,
            )
        )
        given = next(one for one in self.orders() if EngineId(one.pool, one.engine) == key)
        return replace(given, note=note)

    def end_order(self, name: str, by: str) -> bool:
        """End the order for an engine or pool; False if there is none."""
        _, key = self._meant(name)
        return self._orders.end(key, by) is not None

    def _meant(self, name: str) -> tuple[ViewContext, EngineId]:
        """The engine or pool with this name; ``UnknownNameError`` for a zone."""
        scene = self._scene()
        if scene is None:
            raise UnknownNameError("no decision yet")
        subject = subject_named(name, scene)
        if subject.zone and not subject.engine:
            raise UnknownNameError(f"{name!r} is a zone; orders apply to engines and pools")
        return scene, EngineId(subject.pool, subject.engine)

    def families(self) -> Iterable[Metric]:
        """Gauges of current state: connections, sync states, report ages."""
        # Zeros included: an alert must see that no proxy is connected.
        connections: dict[tuple[str, ...], float] = {
            (role, mode.value): 0 for role in ROLES for mode in XdsVariant
        }
        states: dict[tuple[str, ...], float] = {}
        behind: dict[tuple[str, ...], float] = {}
        now_s = self._clock()
        for state in self._publisher.proxies():
            proxy = proxy_status(state, self._publisher.desired, None, now_s)
            key = (proxy.role, proxy.protocol)
            connections[key] += 1
            for kind in proxy.types:
                states[kind.type, str(kind.state)] = states.get((kind.type, str(kind.state)), 0) + 1
                late_s = 0.0 if kind.state is SyncState.SYNCED else kind.age_s
                behind[kind.type,] = max(behind.get((kind.type,), 0.0), late_s)
        yield ProxyMetrics.xds_connections.family(connections)
        yield ProxyMetrics.xds_streams.family(states)
        yield ProxyMetrics.xds_behind_seconds.family(behind)
        yield rolled_back_metric(self.rolled_back())
        yield ControlPlaneMetrics.condition.family(objects_by_code(self.recent_conditions()))
        ages: dict[tuple[str, ...], float] = {}
        healths: dict[tuple[str, ...], float] = {}
        for engine in self._engines():
            key = (engine.pool, engine.zone)
            if engine.report_age_s is not None:
                ages[key] = max(ages.get(key, 0.0), engine.report_age_s)
            by_health = (*key, engine.health or "UNKNOWN")
            healths[by_health] = healths.get(by_health, 0) + 1
        yield EngineMetrics.engine_report_age_seconds.family(ages)
        found: dict[tuple[str, ...], float] = {("connected",): 0, ("lost",): 0}
        for agent in self._sources.agents().values():
            found["connected" if agent.connected else "lost",] += 1
        yield EngineMetrics.agents.family(found)
        yield EngineMetrics.engines.family(healths)
        scene = self._scene()
        if scene is not None:
            yield from pool_metrics(scene)
            yield CallerMetrics.tenant_quota_requests_per_second.family(
                {
                    (str(one.port), one.tenant): one.quota_per_s
                    for one in scene.tenants()
                    if one.quota_per_s is not None
                }
            )
            yield CallerMetrics.tenant_share_ratio.family(
                {
                    (str(one.port), one.tenant): 1 - limited / 100
                    for one in scene.tenants()
                    if (limited := one.limited_percent) is not None
                }
            )
            yield CallerMetrics.tenant_period_used_ratio.family(
                {
                    (str(one.port), one.tenant, period.period): period.used_ratio
                    for one in scene.tenants()
                    for period in one.periods
                }
            )
        orders = self._orders.active(self._clock())
        by_action: dict[tuple[str, ...], float] = {
            (action.value,): sum(one.action is action for one in orders.values()) for action in OrderAction
        }
        yield PoolMetrics.orders.family(by_action)
