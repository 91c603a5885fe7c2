"""Builders of status rows: proxies, engines, resources, policy problems. Pure."""

from collections.abc import Callable, Hashable
from typing import Final

from policies.findings import PolicyError
from xds_server.admin.views.context import ViewContext
from xds_server.admin.views.get_tables import proxy_rows
from xds_server.admin_api.status_types import (
    AgentStatus,
    EngineStatus,
    PolicyProblem,
    ProxyStatus,
    RefusedResource,
    ResourceStatus,
    SyncState,
    TypeStatus,
)
from xds_server.decide.decisions import Health
from xds_server.model.fleet import Engine
from xds_server.model.snapshot import Resource, Snapshot
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import View
from xds_server.publish import ProxyState
from xds_server.reconcile.pipeline import BuildResult
from xds_server.xds import SubscriptionStatus

_NOTHING: Final = Snapshot()

UNKNOWN: Final = "in rotation, but unknown: no report and no request yet"
"""Reason of an engine's missing health."""


def proxy_status(
    state: ProxyState, desired_of: Callable[[Hashable], Snapshot | None], scene: ViewContext | None, now_s: float
) -> ProxyStatus:
    """A connected proxy; ``desired_of`` returns a view's desired resources, with the origins of refused ones."""
    view = state.view if isinstance(state.view, View) else View()
    desired = desired_of(view) or _NOTHING
    return ProxyStatus(
        node=state.node.id,
        zone=view.zone,
        role=view.role,
        pools=tuple(sorted(view.pools)),
        peer=state.peer,
        protocol=state.mode.value,
        connected_s=round(now_s - state.connected_at_s, 3),
        types=tuple(type_status(kind, desired, now_s) for kind in state.types),
        traffic=() if scene is None else proxy_rows(state.node.id, scene),
    )


def engine_status(
    engine: Engine, agent: AgentStatus | None, built: BuildResult | None, now_s: float
) -> EngineStatus:
    """A declared engine with its latest decision."""
    decision = built.decisions.engines.get(engine.id) if built else None
    resolved = built.inputs.fleet.engine(engine.id) if built else None
    report = engine.report
    unknown = (
        built is not None
        and decision is not None
        and decision.health is Health.HEALTHY
        and not built.inputs.fleet.is_known(engine)
    )
    reason = decision.reason if decision else f"{engine.address} is not resolved yet" if built else ""
    return EngineStatus(
        pool=engine.id.pool,
        engine=engine.id.engine,
        address=resolved.address if resolved else "",
        port=engine.port,
        zone=engine.zone,
        verdict=report.verdict.value if report else None,
        evidence=report.evidence if report else "",
        report_age_s=None if engine.received_at_s is None else round(now_s - engine.received_at_s, 3),
        health=decision.health.value if decision and not unknown else None,
        reason=UNKNOWN if unknown else reason,
        health_age_s=round(now_s - decision.since_s, 3) if decision else None,
        requests_in_flight=report.requests_in_flight if report else None,
        requests_waiting=report.requests_waiting if report else None,
        source=report.source.value if report else None,
        agent=agent,
        reasons=report.reasons if report else (),
        kv_cache_usage_ratio=report.kv_cache_usage_ratio if report else None,
        tokens_per_s=report.tokens_per_s if report else None,
        time_to_first_token=report.time_to_first_token if report else None,
        time_per_output_token=report.time_per_output_token if report else None,
        model=report.model if report else "",
        revision=report.revision if report else "",
        adapters=report.adapters if report else None,
        gpu=report.gpu if report else None,
        drain=report.drain if report else None,
        standing=engine.pod_phase.value,
        standing_reason="" if engine.pod_state is None else engine.pod_state.reason,
    )


def type_status(kind: SubscriptionStatus, desired: Snapshot, now_s: float) -> TypeStatus:
    """One resource type of one proxy."""
    wanted = desired.of(kind.type_url)
    return TypeStatus(
        type=SHORT_NAMES.get(kind.type_url, kind.type_url),
        state=SyncState(kind.state.value),
        age_s=round(now_s - kind.since_s, 3),
        version=kind.version,
        resources=kind.held,
        refused=tuple(
            RefusedResource(
                name=name,
                version=version,
                origins=wanted[name].origins if name in wanted else (),
                reason=kind.reason,
            )
            for name, version in kind.rejected.items()
        ),
    )


def policy_problem(error: PolicyError) -> PolicyProblem:
    """An error in a policy file, with the fix."""
    return PolicyProblem(
        code=error.code, place=str(error.origin), path=error.path, message=error.message, hint=error.hint
    )


def resource_status(resource: Resource) -> ResourceStatus:
    """A resource without its content."""
    return ResourceStatus(
        type=SHORT_NAMES.get(resource.type_url, resource.type_url),
        name=resource.name,
        version=resource.version,
        size_bytes=len(resource.value),
        origins=resource.origins,
    )
