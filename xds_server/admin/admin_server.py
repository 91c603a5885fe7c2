"""Admin port: health, metrics and status over HTTP, for operators, probes and scrapers.

Besides reads it accepts orders for engines, policy changes, and the release of held policies (shrink guard).
``access.door`` authorizes each request. An order must be JSON and must not come from a web page: pages in any
browser can reach loopback. Every answer except ``/metrics`` is JSON, refusals included; types are in
``xds_server.admin_api``.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from engine.address import ListenAddress
from engine.limited_listener import LINGERING_S, LimitedListener, http_logger
from xds_server.admin.config_dump_routes import ConfigDumpBackend, add_config_dump
from xds_server.admin.dashboard.dashboard_routes import add_dashboard
from xds_server.admin.history_routes import VersionsBackend, add_history
from xds_server.admin.json_http import (
    AdminRequestError,
    add_endpoint,
    json_response,
    parse_body,
    query_of,
    read_body,
    refusal_response,
    reject_browser_requests,
    require_json,
    require_line,
)
from xds_server.admin.tap_stream import TapSource, add_tap
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api import endpoints
from xds_server.admin_api.answers import (
    ConditionList,
    EngineList,
    EventList,
    Liveness,
    OrderEnd,
    OrderList,
    PoolList,
    ProblemList,
    ProxyList,
    ShrinkRelease,
    ZoneList,
)
from xds_server.admin_api.objective_types import ObjectiveList, ObjectiveStatus
from xds_server.admin_api.parse import adapter
from xds_server.admin_api.pool_history_types import PoolHistoryList
from xds_server.admin_api.status_types import (
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
    Readiness,
    RolledBackResource,
    ShadowStatus,
    SnapshotStatus,
    ZoneStatus,
)
from xds_server.admin_api.tenant_types import TenantList, TenantStatus
from xds_server.admin_api.usage_types import UsageList, UsageStatus
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.auth.admin_auth import AUDIT_DETAIL, PRINCIPAL, AdminAuth
from xds_server.auth.authorization import Principal
from xds_server.ledger.operator_orders import ImpossibleOrderError, RefusedOrderError
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.order import TOP_LEVEL, OrderAction
from xds_server.serve_config import ConfigError

ROLES: Final = ("gateway", "sidecar")
MAX_BODY_BYTES: Final = 64 * 1024
IDLE_S: Final = 75.0
"""Idle timeout of a connection, also in the middle of a request."""

MOST: Final = 512
"""Connection limit: half of the default 1024 descriptors of a process. Proxies and agents need theirs, too."""

MOST_OF_HOST: Final = 128
"""Connection limit per host: all dashboard watchers behind one gateway, and as many other connections."""

MAX_DIGITS: Final = 18
"""Maximum digits of an event number; for thousands of digits Python raises its own error."""

_ORDER: Final = adapter(OrderRequest)


class AdminBackend(Protocol):
    """Source of all answers."""

    def readiness(self) -> Readiness: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def policies(self) -> PoliciesStatus: ...

    def file_problems(self) -> Sequence[FileProblem]: ...

    def rolled_back(self) -> Sequence[RolledBackResource]: ...

    def canary(self) -> CanaryStatus | None: ...

    def conditions(self) -> Sequence[Condition]: ...

    def recent_conditions(self) -> Sequence[Condition]: ...

    def snapshot(self, zone: str, role: str) -> SnapshotStatus: ...

    def release_shrink(self) -> str:
        """Release held policies; returns the reason if refused."""
        ...

    def why(self, name: str) -> Explanation: ...

    def events(self, name: str, since: int) -> Sequence[EventStatus]: ...

    def pools(self) -> Sequence[PoolStatus]: ...

    def pool_history(self, pool: str) -> PoolHistoryList: ...

    def zones(self) -> Sequence[ZoneStatus]: ...

    def objectives(self) -> Sequence[ObjectiveStatus]: ...

    def tenants(self) -> Sequence[TenantStatus]: ...

    def usage(self) -> Sequence[UsageStatus]: ...

    def shadow(self) -> ShadowStatus: ...

    def orders(self) -> Sequence[OrderStatus]: ...

    def order(self, requested: OrderRequest) -> OrderStatus: ...

    def end_order(self, name: str, by: str) -> bool:
        """End the order for an engine or pool; False if there is none."""
        ...


def application(
    facts: AdminBackend,
    metrics: Metrics,
    door: AdminAuth | None = None,
    inside: ConfigDumpBackend | None = None,
    changer: VersionsBackend | None = None,
    *,
    tap: TapSource | None = None,
) -> web.Application:
    """aiohttp application that answers from ``facts``, for clients that ``door`` admits."""
    door = door or AdminAuth()
    app = web.Application(middlewares=[door.middleware, _answer_refusals], client_max_size=MAX_BODY_BYTES)
    door.add_routes(app)
    _add_state(app, facts, metrics)
    _add_conditions(app, facts)
    _add_reasons(app, facts)
    _add_orders(app, facts)
    add_dashboard(app, facts, door.still_authorized)
    if inside is not None:
        add_config_dump(app, inside)
    if changer is not None:
        add_history(app, changer, signed=_signed)
    if tap is not None:
        add_tap(app, tap, door.still_authorized)
    return app


def _add_state(app: web.Application, facts: AdminBackend, metrics: Metrics) -> None:
    """Add the routes for served resources, proxies and metrics."""

    async def healthz(request: web.Request) -> web.Response:
        query_of(request, endpoints.HEALTHZ)
        return json_response(Liveness(status="ok"))

    async def readyz(request: web.Request) -> web.Response:
        query_of(request, endpoints.READYZ)
        readiness = facts.readiness()
        return json_response(readiness, 200 if readiness.ready else 503)

    async def scrape(request: web.Request) -> web.Response:
        query_of(request, endpoints.METRICS)
        return web.Response(body=await metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def proxies(request: web.Request) -> web.Response:
        query_of(request, endpoints.PROXIES)
        return json_response(ProxyList(proxies=tuple(facts.proxies())))

    async def engines(request: web.Request) -> web.Response:
        pool = query_of(request, endpoints.ENGINES).get("pool")
        return json_response(EngineList(engines=tuple(one for one in facts.engines() if pool in (None, one.pool))))

    async def policies(request: web.Request) -> web.Response:
        query_of(request, endpoints.POLICIES)
        return json_response(facts.policies())

    async def snapshot(request: web.Request) -> web.Response:
        query = query_of(request, endpoints.SNAPSHOT)
        role = query.get("role", "gateway")
        if role not in ROLES:
            raise AdminRequestError(400, f"role is {role!r}; allowed: {', '.join(ROLES)}")
        return json_response(facts.snapshot(query.get("zone", ""), role))

    async def allow_shrink(request: web.Request) -> web.Response:
        query_of(request, endpoints.ALLOW_SHRINK)
        reject_browser_requests(request)
        if why_not := facts.release_shrink():
            raise AdminRequestError(409, why_not)
        return json_response(ShrinkRelease(released=True))

    add_endpoint(app, endpoints.HEALTHZ, healthz)
    add_endpoint(app, endpoints.READYZ, readyz)
    add_endpoint(app, endpoints.METRICS, scrape)
    add_endpoint(app, endpoints.PROXIES, proxies)
    add_endpoint(app, endpoints.ENGINES, engines)
    add_endpoint(app, endpoints.POLICIES, policies)
    add_endpoint(app, endpoints.SNAPSHOT, snapshot)
    add_endpoint(app, endpoints.ALLOW_SHRINK, allow_shrink)


def _add_conditions(app: web.Application, facts: AdminBackend) -> None:
    """Add the routes for conditions and what they are computed from."""

    async def troubles(request: web.Request) -> web.Response:
        query_of(request, endpoints.PROBLEMS)
        return json_response(
            ProblemList(troubles=tuple(facts.file_problems()), rolled_back=tuple(facts.rolled_back()))
        )

    async def conditions(request: web.Request) -> web.Response:
        query_of(request, endpoints.CONDITIONS)
        return json_response(ConditionList(conditions=tuple(facts.conditions())))

    add_endpoint(app, endpoints.PROBLEMS, troubles)
    add_endpoint(app, endpoints.CONDITIONS, conditions)


def _add_reasons(app: web.Application, facts: AdminBackend) -> None:
    """Add the routes for decisions and their reasons."""

    async def why(request: web.Request) -> web.Response:
        return json_response(facts.why(_named(query_of(request, endpoints.WHY))))

    async def events(request: web.Request) -> web.Response:
        query = query_of(request, endpoints.EVENTS)
        since = query.get("since", "0")
        if not (since.isdecimal() and len(since) <= MAX_DIGITS):
            raise AdminRequestError(400, f"since is {since!r}; expected an event number")
        return json_response(EventList(events=tuple(facts.events(query.get("name", ""), int(since)))))

    async def pools(request: web.Request) -> web.Response:
        query_of(request, endpoints.POOLS)
        return json_response(PoolList(pools=tuple(facts.pools())))

    async def pool_history(request: web.Request) -> web.Response:
        pool = query_of(request, endpoints.POOL_HISTORY).get("pool", "")
        return json_response(facts.pool_history(pool))

    async def zones(request: web.Request) -> web.Response:
        query_of(request, endpoints.ZONES)
        return json_response(ZoneList(zones=tuple(facts.zones())))

    async def objectives(request: web.Request) -> web.Response:
        query_of(request, endpoints.OBJECTIVES)
        return json_response(ObjectiveList(objectives=tuple(facts.objectives())))

    async def tenants(request: web.Request) -> web.Response:
        query_of(request, endpoints.TENANTS)
        return json_response(TenantList(tenants=tuple(facts.tenants())))

    async def usage(request: web.Request) -> web.Response:
        query_of(request, endpoints.USAGE)
        return json_response(UsageList(usage=tuple(facts.usage())))

    async def shadow(request: web.Request) -> web.Response:
        query_of(request, endpoints.SHADOW)
        return json_response(facts.shadow())

    add_endpoint(app, endpoints.WHY, why)
    add_endpoint(app, endpoints.EVENTS, events)
    add_endpoint(app, endpoints.POOLS, pools)
    add_endpoint(app, endpoints.POOL_HISTORY, pool_history)
    add_endpoint(app, endpoints.ZONES, zones)
    add_endpoint(app, endpoints.OBJECTIVES, objectives)
    add_endpoint(app, endpoints.TENANTS, tenants)
    add_endpoint(app, endpoints.USAGE, usage)
    add_endpoint(app, endpoints.SHADOW, shadow)


def _add_orders(app: web.Application, facts: AdminBackend) -> None:
    """Add the routes for operator orders."""

    async def orders(request: web.Request) -> web.Response:
        query_of(request, endpoints.ORDERS)
        return json_response(OrderList(orders=tuple(facts.orders())))

    async def give_order(request: web.Request) -> web.Response:
        return json_response(facts.order(await _order(request)), endpoints.ORDER.status)

    async def end_order(request: web.Request) -> web.Response:
        query = query_of(request, endpoints.END_ORDER)
        reject_browser_requests(request)
        if not facts.end_order(_named(query), _signed(request, query.get("by", ""))):
            raise AdminRequestError(409, f"no order for {query['name']}")
        return json_response(OrderEnd(ended=True))

    add_endpoint(app, endpoints.ORDERS, orders)
    add_endpoint(app, endpoints.ORDER, give_order)
    add_endpoint(app, endpoints.END_ORDER, end_order)


class AdminServer:
    """The open admin port: ``async with AdminServer(...) as admin: admin.port``."""

    def __init__(
        self,
        address: ListenAddress,
        facts: AdminBackend,
        metrics: Metrics,
        *,
        door: AdminAuth | None = None,
        tls: ssl.SSLContext | None = None,
        inside: ConfigDumpBackend | None = None,
        changer: VersionsBackend | None = None,
        tap: TapSource | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._door = door or AdminAuth()
        self._runner = web.AppRunner(
            application(facts, metrics, self._door, inside, changer, tap=tap),
            access_log=None,
            logger=http_logger(),
            shutdown_timeout=1.0,
            keepalive_timeout=IDLE_S,
            lingering_time=LINGERING_S,
            auto_decompress=False,
        )
        self._visitors: LimitedListener | None = None
        self.port = address.port

    async def __aenter__(self) -> "AdminServer":
        """Open the port; raises ``ConfigError`` if it is unavailable."""
        await self._runner.setup()
        assert self._runner.server is not None, "setup makes it"  # noqa: S101  # for the type checker
        self._visitors = LimitedListener(
            self._runner.server,
            what="connections to the admin port",
            most=MOST,
            most_of_host=MOST_OF_HOST,
            turned_away=self._door.count_rejected_connection,
            tls=self._tls,
        )
        try:
            self.port = await self._visitors.open(self._address)
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on --admin {self._address}: {error.strerror or error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the port; running requests get one second."""
        if self._visitors is not None:
            self._visitors.close()
        await self._runner.cleanup()


def _named(requested: dict[str, str]) -> str:
    if not requested.get("name"):
        raise AdminRequestError(400, "name is empty: pass an engine, zone or pool (?name=)")
    return requested["name"]


async def _order(request: web.Request) -> OrderRequest:
    require_json(request, "an order")
    requested = parse_body(await read_body(request, MAX_BODY_BYTES), _ORDER)
    if requested.action not in tuple(OrderAction):
        raise AdminRequestError(400, f"action is {requested.action!r}; allowed: {', '.join(OrderAction)}")
    if requested.action == OrderAction.DEGRADE:
        if requested.level is None or not 0 <= requested.level <= TOP_LEVEL:
            raise AdminRequestError(400, f"level is {requested.level}; allowed: 0 to {TOP_LEVEL}")
    elif requested.level is not None:
        raise AdminRequestError(400, f"level is only for action degrade, not {requested.action}")
    require_line("reason", requested.reason)
    # The proved identity is recorded separately; this is the name that the client claims.
    level = "" if requested.level is None else f" to level {requested.level}"
    request[AUDIT_DETAIL] = f"{requested.action} {requested.engine}{level}" + (
        f", signed {requested.by}" if requested.by else ""
    )
    return replace(requested, by=_signed(request, requested.by))


def _signed(request: web.Request, by: str) -> str:
    """Author of an order: the claimed name plus the proved identity."""
    require_line("by", by)
    caller: Principal | None = request.get(PRINCIPAL)
    if caller is None or caller.name in ("", by):
        return by
    return f"{by} ({caller.name})" if by else caller.name


@web.middleware
async def _answer_refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except AdminRequestError as refusal:
        return refusal_response(str(refusal), refusal.status)
    except UnknownNameError as refusal:
        return refusal_response(str(refusal), 404)
    except ImpossibleOrderError as refusal:
        return refusal_response(str(refusal), 400)
    except RefusedOrderError as refusal:
        return refusal_response(str(refusal), 409)
    except web.HTTPException as refusal:
        return refusal_response(f"{request.method} {request.path}: {refusal.reason}", refusal.status)
