"""The endpoints of the admin port: method, path, parameters, and the types of request and answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from xds_server.admin_api.access_types import AccessStatus, AuditLog
from xds_server.admin_api.answers import (
    ChangeRefusal,
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
    """One parameter: of the query, or of the path where the path names it in braces."""

    name: str
    text: str
    required: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminEndpoint(Generic[_T]):
    """One method of one path. ``answer`` is the type of the JSON, or ``str`` for text.

    ``messages`` are the types of a stream by event name; ``refusals`` are answers by HTTP status that have more
    than ``Refusal``.
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
        """Path and query of a request; ``path`` has the values of the parameters in braces, in their order."""
        found = self.path
        for value in path:
            before, _, rest = found.partition("{")
            found = f"{before}{quote(str(value), safe='')}{rest.partition('}')[2]}"
        return f"{found}?{urlencode(query, quote_via=quote, safe='')}" if query else found


_BY: Final = Parameter(name="by", text="Who makes the change. The server adds the proved identity.")
_NAME: Final = Parameter(
    name="name",
    text="`pool/engine`, an engine's own name, a pool or a zone; `pool:NAME`, `zone:NAME` or `engine:NAME` where "
    "one name is several things.",
    required=True,
)
_CHANGE: Final = ((409, ChangeRefusal), (422, TextRefusal))

HEALTHZ: Final = AdminEndpoint(path="/healthz", answer=Liveness, text="Whether the process answers.")
READYZ: Final = AdminEndpoint(
    path="/readyz", answer=Readiness, text="Whether the server serves proxies.", refusals=((503, Readiness),)
)
METRICS: Final = AdminEndpoint(
    path="/metrics", answer=str, media_type=TEXT, text="Metrics in Prometheus text format."
)
SERVER_INFO: Final = AdminEndpoint(
    path="/v1/about", answer=ServerInfo, text="The process, its libraries, and proxies."
)
ACCESS: Final = AdminEndpoint(
    path="/v1/access", answer=AccessStatus, text="Certificate and rules of access in force."
)
AUDIT: Final = AdminEndpoint(path="/v1/audit", answer=AuditLog, text="Attempts to change something.")
CANARY: Final = AdminEndpoint(path="/v1/apply", answer=CanaryStatus, text="The canary that runs or ran last.")
APPLY: Final = AdminEndpoint(
    method="POST",
    path="/v1/apply",
    request=ApplyRequest,
    answer=ChangeStatus,
    refusals=_CHANGE,
    text="Serve these policies, on a share of the proxies first where a canary is requested.",
)
END_CANARY: Final = AdminEndpoint(
    method="DELETE",
    path="/v1/apply",
    answer=CanaryStatus,
    parameters=(_BY,),
    refusals=_CHANGE[:1],
    text="Roll back the canary that runs.",
)
ALLOW_SHRINK: Final = AdminEndpoint(
    method="POST",
    path="/v1/allow-shrink",
    answer=ShrinkRelease,
    text="Serve policies that are held back because they drop too much.",
)
ENGINES: Final = AdminEndpoint(
    path="/v1/engines",
    answer=EngineList,
    parameters=(Parameter(name="pool", text="Only engines of this pool."),),
    text="Declared engines: last report, and decisions.",
)
EVENTS: Final = AdminEndpoint(
    path="/v1/events",
    answer=EventList,
    parameters=(
        Parameter(name="name", text="Only events of this engine, zone, pool or proxy."),
        Parameter(name="since", text="Only events with a higher number."),
    ),
    text="Events of the ledger, oldest first.",
)
HISTORY: Final = AdminEndpoint(path="/v1/history", answer=HistoryStatus, text="Policy versions, oldest first.")
VERSION: Final = AdminEndpoint(
    path="/v1/history/{number}",
    answer=VersionTexts,
    parameters=(
        Parameter(
            name="number", text="The number of a version, or `serving` for what is served now.", required=True
        ),
    ),
    text="The texts of one policy version.",
)
LIVE: Final = AdminEndpoint(
    path="/v1/live",
    answer=str,
    media_type=EVENT_STREAM,
    messages=(("frame", LiveFrame), ("change", LiveChange)),
    text="Server-sent events: one whole frame, then each second the differences.",
)
ORDERS: Final = AdminEndpoint(path="/v1/orders", answer=OrderList, text="Operators' orders in force.")
ORDER: Final = AdminEndpoint(
    method="POST",
    path="/v1/orders",
    request=OrderRequest,
    answer=OrderStatus,
    status=201,
    text="Eject, drain or restore an engine for a limited time.",
)
END_ORDER: Final = AdminEndpoint(
    method="DELETE",
    path="/v1/orders",
    answer=OrderEnd,
    parameters=(_NAME, _BY),
    text="End the order for an engine.",
)
POLICIES: Final = AdminEndpoint(
    path="/v1/policies", answer=PoliciesStatus, text="The policy files, and what is served."
)
POOLS: Final = AdminEndpoint(
    path="/v1/pools", answer=PoolList, text="Pools: engines, ceiling, traffic and degradation."
)
PROXIES: Final = AdminEndpoint(
    path="/v1/proxies", answer=ProxyList, text="Connected proxies, and the sync state of each resource type."
)
RESOURCES: Final = AdminEndpoint(
    path="/v1/resources",
    answer=ProxyResources,
    parameters=(
        Parameter(name="node", text="The node id of a proxy.", required=True),
        Parameter(name="absent", text="`true`: answer also for a proxy that is not connected, by what follows."),
        Parameter(name="zone", text="Its zone."),
        Parameter(name="region", text="Its region."),
        Parameter(name="role", text="`gateway` or `sidecar`."),
        Parameter(name="pool", text="A pool that it calls.", repeated=True),
        Parameter(name="listen_address", text="The address of its listeners."),
        Parameter(name="cuts", text="`true`: it can end requests that an engine holds."),
    ),
    text="The resources of one proxy, with their content.",
)
ROLLBACK: Final = AdminEndpoint(
    method="POST",
    path="/v1/rollback",
    request=RollbackRequest,
    answer=ChangeStatus,
    refusals=_CHANGE,
    text="Serve an earlier policy version again.",
)
SHADOW: Final = AdminEndpoint(
    path="/v1/shadow", answer=ShadowStatus, text="What decisions in shadow mode would have done since the start."
)
SNAPSHOT: Final = AdminEndpoint(
    path="/v1/snapshot",
    answer=SnapshotStatus,
    parameters=(
        Parameter(name="zone", text="The zone of the proxies; empty for those without one."),
        Parameter(name="role", text="`gateway` (the default) or `sidecar`."),
    ),
    text="The resources of one zone and role, without content.",
)
PROBLEMS: Final = AdminEndpoint(
    path="/v1/troubles", answer=ProblemList, text="Problems with files, and resources that are rolled back."
)
WHY: Final = AdminEndpoint(
    path="/v1/why", answer=Explanation, parameters=(_NAME,), text="Why an engine, a zone or a pool is as it is."
)
ZONES: Final = AdminEndpoint(
    path="/v1/zones", answer=ZoneList, text="Pools by zone, and where calls from there go."
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
    ENGINES,
    EVENTS,
    HISTORY,
    VERSION,
    LIVE,
    ORDERS,
    ORDER,
    END_ORDER,
    POLICIES,
    POOLS,
    PROXIES,
    RESOURCES,
    ROLLBACK,
    SHADOW,
    SNAPSHOT,
    PROBLEMS,
    WHY,
    ZONES,
)
"""All of them, by path. Pages for browsers (``/``, ``/dashboard/``, ``/login``) are not among them."""

REFUSAL: Final = Refusal
"""The answer to a request that is refused, where an endpoint names no other."""
