"""Endpoints of the admin port: method, path, parameters, request and answer types."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from xds_server.admin_api.access_types import AccessStatus, AuditLog
from xds_server.admin_api.answers import (
    ChangeRefusal,
    ConditionList,
    EngineList,
    EventList,
    Liveness,
    OrderEnd,
    OrderList,
    PoolList,
    ProblemList,
    ProxyList,
    ProxyResources,
    Refusal,
    ShrinkRelease,
    TextRefusal,
    ZoneList,
)
from xds_server.admin_api.live_types import LiveChange, LiveFrame
from xds_server.admin_api.objective_types import ObjectiveList
from xds_server.admin_api.pool_history_types import PoolHistoryList
from xds_server.admin_api.server_types import ServerInfo
from xds_server.admin_api.status_types import (
    Explanation,
    OrderRequest,
    OrderStatus,
    PoliciesStatus,
    Readiness,
    ShadowStatus,
    SnapshotStatus,
)
from xds_server.admin_api.tap_types import TapBatch
from xds_server.admin_api.tenant_types import TenantList
from xds_server.admin_api.usage_types import UsageList
from xds_server.admin_api.version_types import (
    ApplyRequest,
    CanaryStatus,
    ChangeStatus,
    HistoryStatus,
    RollbackRequest,
    VersionTexts,
)

JSON: Final = "application/json"
TEXT: Final = "text/plain"
EVENT_STREAM: Final = "text/event-stream"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One query parameter, or a path parameter if the path names it in braces."""

    name: str
    text: str
    required: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminEndpoint(Generic[_T]):
    """One method of one path. ``answer``: type of the JSON, or ``str`` for text.

    ``messages``: types of a stream by event name. ``refusals``: answer types by HTTP status that extend
    ``Refusal``.
    """

    method: str = "GET"
    path: str
    answer: type[_T]
    text: str
    parameters: tuple[Parameter, ...] = ()
    request: type[Any] | None = None
    status: int = 200
    media_type: str = JSON
    messages: tuple[tuple[str, type[Any]], ...] = ()
    refusals: tuple[tuple[int, type[Any]], ...] = ()

    def url(self, *path: str | int, query: Sequence[tuple[str, str]] = ()) -> str:
        """Path and query of a request; ``path``: values of the path parameters, in order."""
        found = self.path
        for value in path:
            before, _, rest = found.partition("{")
            found = f"{before}{quote(str(value), safe='')}{rest.partition('}')[2]}"
        return f"{found}?{urlencode(query, quote_via=quote, safe='')}" if query else found


_BY: Final = Parameter(name="by", text="Author of the change. The server adds the proven identity.")
_NAME: Final = Parameter(
    name="name",
    text="`pool/engine`, a unique engine name, a pool or a zone; prefix `pool:`, `zone:` or "
    "`engine:` if the name is ambiguous.",
    required=True,
)
_CHANGE: Final = ((409, ChangeRefusal), (422, TextRefusal))

HEALTHZ: Final = AdminEndpoint(path="/healthz", answer=Liveness, text="Liveness: the process answers.")
READYZ: Final = AdminEndpoint(
    path="/readyz", answer=Readiness, text="Readiness: the server serves proxies.", refusals=((503, Readiness),)
)
METRICS: Final = AdminEndpoint(
    path="/metrics", answer=str, media_type=TEXT, text="Metrics in Prometheus text format."
)
SERVER_INFO: Final = AdminEndpoint(
    path="/v1/about", answer=ServerInfo, text="The server process, its libraries, and the proxies."
)
ACCESS: Final = AdminEndpoint(
    path="/v1/access", answer=AccessStatus, text="Certificate and access rules in force."
)
AUDIT: Final = AdminEndpoint(path="/v1/audit", answer=AuditLog, text="Audit log of attempted changes.")
CANARY: Final = AdminEndpoint(path="/v1/apply", answer=CanaryStatus, text="The running or latest canary.")
APPLY: Final = AdminEndpoint(
    method="POST",
    path="/v1/apply",
    request=ApplyRequest,
    answer=ChangeStatus,
    refusals=_CHANGE,
    text="Apply these policies, optionally to a canary share of proxies first.",
)
END_CANARY: Final = AdminEndpoint(
    method="DELETE",
    path="/v1/apply",
    answer=CanaryStatus,
    parameters=(_BY,),
    refusals=_CHANGE[:1],
    text="Roll back the running canary.",
)
ALLOW_SHRINK: Final = AdminEndpoint(
    method="POST",
    path="/v1/allow-shrink",
    answer=ShrinkRelease,
    text="Release policies held by the shrink guard.",
)
CONDITIONS: Final = AdminEndpoint(
    path="/v1/conditions", answer=ConditionList, text="Conditions of the server, the most severe first."
)
ENGINES: Final = AdminEndpoint(
    path="/v1/engines",
    answer=EngineList,
    parameters=(Parameter(name="pool", text="Only engines of this pool."),),
    text="Declared engines, with last report and decisions.",
)
EVENTS: Final = AdminEndpoint(
    path="/v1/events",
    answer=EventList,
    parameters=(
        Parameter(name="name", text="Only events of this engine, zone, pool or proxy."),
        Parameter(name="since", text="Only events with a higher number."),
    ),
    text="Ledger events, oldest first.",
)
HISTORY: Final = AdminEndpoint(path="/v1/history", answer=HistoryStatus, text="Policy versions, oldest first.")
VERSION: Final = AdminEndpoint(
    path="/v1/history/{number}",
    answer=VersionTexts,
    parameters=(
        Parameter(name="number", text="Version number, or `serving` for the served version.", required=True),
    ),
    text="Texts of one policy version.",
)
LIVE: Final = AdminEndpoint(
    path="/v1/live",
    answer=str,
    media_type=EVENT_STREAM,
    messages=(("frame", LiveFrame), ("change", LiveChange)),
    text="Server-sent events: one full frame, then changes each second.",
)
OBJECTIVES: Final = AdminEndpoint(
    path="/v1/objectives",
    answer=ObjectiveList,
    text="Objectives of routes: share of good calls, burn rates and budget left, as this replica measured them.",
)
TENANTS: Final = AdminEndpoint(
    path="/v1/tenants",
    answer=TenantList,
    text="Tenants of listeners: quotas, and requests within and above them, as this replica measured them.",
)
USAGE: Final = AdminEndpoint(
    path="/v1/usage",
    answer=UsageList,
    text="Answered requests and estimated tokens of tenants by day and model, for the last 62 days with usage.",
)
ORDERS: Final = AdminEndpoint(path="/v1/orders", answer=OrderList, text="Operator orders in force.")
ORDER: Final = AdminEndpoint(
    method="POST",
    path="/v1/orders",
    request=OrderRequest,
    answer=OrderStatus,
    status=201,
    text="Eject, drain or restore an engine, or degrade a pool, for a limited time.",
)
END_ORDER: Final = AdminEndpoint(
    method="DELETE",
    path="/v1/orders",
    answer=OrderEnd,
    parameters=(_NAME, _BY),
    text="End the order for an engine or pool.",
)
POLICIES: Final = AdminEndpoint(
    path="/v1/policies", answer=PoliciesStatus, text="State of the policy files, and the served version."
)
POOL_HISTORY: Final = AdminEndpoint(
    path="/v1/pool-history",
    answer=PoolHistoryList,
    parameters=(Parameter(name="pool", text="Only this pool."),),
    text="Rates, percentiles and load of pools over the last 15 minutes, as this replica recorded them.",
)
POOLS: Final = AdminEndpoint(
    path="/v1/pools", answer=PoolList, text="Pools: engines, admission limit, traffic, degradation level."
)
PROXIES: Final = AdminEndpoint(
    path="/v1/proxies", answer=ProxyList, text="Connected proxies, with sync state per resource type."
)
RESOURCES: Final = AdminEndpoint(
    path="/v1/resources",
    answer=ProxyResources,
    parameters=(
        Parameter(name="node", text="Node id of a proxy.", required=True),
        Parameter(
            name="absent",
            text="`true`: also answer for a proxy that is not connected, described by the parameters below.",
        ),
        Parameter(name="zone", text="Zone of the proxy."),
        Parameter(name="region", text="Region of the proxy."),
        Parameter(name="role", text="Role: `gateway` or `sidecar`."),
        Parameter(name="pool", text="Pool that the proxy calls.", repeated=True),
        Parameter(name="listen_address", text="Listener address of the proxy."),
        Parameter(name="cuts", text="`true`: the proxy can cut requests held by an engine."),
    ),
    text="Resources of one proxy, with content.",
)
ROLLBACK: Final = AdminEndpoint(
    method="POST",
    path="/v1/rollback",
    request=RollbackRequest,
    answer=ChangeStatus,
    refusals=_CHANGE,
    text="Roll back to an earlier policy version.",
)
SHADOW: Final = AdminEndpoint(
    path="/v1/shadow",
    answer=ShadowStatus,
    text="Effects that decisions in shadow mode would have had since the start.",
)
SNAPSHOT: Final = AdminEndpoint(
    path="/v1/snapshot",
    answer=SnapshotStatus,
    parameters=(
        Parameter(name="zone", text="Zone of the proxies; empty for proxies without zone."),
        Parameter(name="role", text="Role: `gateway` (default) or `sidecar`."),
    ),
    text="Resources of one zone and role, without content.",
)
PROBLEMS: Final = AdminEndpoint(
    path="/v1/troubles", answer=ProblemList, text="Problems with files, and rolled-back resources."
)
TAP_FILTERS: Final = ("refused", "slow", "failed")
TAP: Final = AdminEndpoint(
    path="/v1/tap",
    answer=str,
    media_type=EVENT_STREAM,
    messages=(("tries", TapBatch),),
    parameters=(
        Parameter(name="pool", text="Only tries of this pool."),
        Parameter(name="only", text="Only these, separated by commas: `refused`, `slow`, `failed`."),
        Parameter(name="slower_than", text="Slow are answers that took longer than this, such as `2s`."),
    ),
    text="Server-sent events: tries of requests as their access logs arrive.",
)
WHY: Final = AdminEndpoint(
    path="/v1/why", answer=Explanation, parameters=(_NAME,), text="Explain the state of an engine, zone or pool."
)
ZONES: Final = AdminEndpoint(
    path="/v1/zones", answer=ZoneList, text="Pools by zone, with the zone split of their calls."
)

ENDPOINTS: Final[tuple[AdminEndpoint[Any], ...]] = (
    HEALTHZ,
    READYZ,
    METRICS,
    SERVER_INFO,
    ACCESS,
    ALLOW_SHRINK,
    CANARY,
    APPLY,
    END_CANARY,
    AUDIT,
    CONDITIONS,
    ENGINES,
    EVENTS,
    HISTORY,
    VERSION,
    LIVE,
    OBJECTIVES,
    ORDERS,
    ORDER,
    END_ORDER,
    POLICIES,
    POOL_HISTORY,
    POOLS,
    PROXIES,
    RESOURCES,
    ROLLBACK,
    SHADOW,
    SNAPSHOT,
    TAP,
    TENANTS,
    USAGE,
    PROBLEMS,
    WHY,
    ZONES,
)
"""All endpoints by path, except browser pages (``/``, ``/dashboard/``, ``/login``)."""

REFUSAL: Final = Refusal
"""Default answer to a refused request."""
