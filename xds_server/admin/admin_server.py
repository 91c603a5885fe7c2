"""The admin port: health, metrics and status over HTTP, for people, probes and scrapers.

It reads, and it takes three things: orders for engines, other policies, and the word to let go of policies that
are held back because they drop too much. Who may ask is for ``access.door`` to say. An order must say that it is
JSON and may not come from a page in a browser: such a page reaches loopback too, for anybody. Every answer but
``/metrics`` is JSON, refusals too; ``xds_server.admin_api`` has its types.
"""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from engine.address import ListenAddress
from engine.limited_listener import LimitedListener
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
)
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api import endpoints
from xds_server.admin_api.answers import (
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
from xds_server.admin_api.parse import adapter
from xds_server.admin_api.status_types import (
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
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.auth.admin_auth import AUDIT_DETAIL, PRINCIPAL, AdminAuth
from xds_server.auth.authorization import Principal
from xds_server.ledger.operator_orders import ImpossibleOrderError, RefusedOrderError
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.order import OrderAction
from xds_server.serve_config import ConfigError

ROLES: Final = ("gateway", "sidecar")
MAX_BODY_BYTES: Final = 64 * 1024
IDLE_S: Final = 75.0
"""A connection that has asked nothing, or nothing more, for so long is closed, be it in half a request."""

MOST: Final = 512
"""Connections at once: half of the 1024 descriptors that a process has where nobody gave it more. The port of the
proxies and the connections to agents need theirs as well."""

MOST_OF_HOST: Final = 128
"""All pages of the dashboard that are watched behind one gateway, and as many others."""

MAX_DIGITS: Final = 18
"""Of the number of an event: Python itself refuses those of thousands, in its own words."""

_ORDER: Final = adapter(OrderRequest)


class AdminBackend(Protocol):
    """The source of the answers."""

    def readiness(self) -> Readiness: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def policies(self) -> PoliciesStatus: ...

    def file_problems(self) -> Sequence[FileProblem]: ...

    def rolled_back(self) -> Sequence[RolledBackResource]: ...

    def canary(self) -> CanaryStatus | None: ...

    def snapshot(self, zone: str, role: str) -> SnapshotStatus: ...

    def release_shrink(self) -> str:
        """Let go of held policies; else why not."""
        ...

    def why(self, name: str) -> Explanation: ...

    def events(self, name: str, since: int) -> Sequence[EventStatus]: ...

    def pools(self) -> Sequence[PoolStatus]: ...

    def zones(self) -> Sequence[ZoneStatus]: ...

    def shadow(self) -> ShadowStatus: ...

    def orders(self) -> Sequence[OrderStatus]: ...

    def order(self, asked: OrderRequest) -> OrderStatus: ...

    def end_order(self, name: str, by: str) -> bool:
        """End the order for an engine; False when there is none."""
        ...


def application(
    facts: AdminBackend,
    metrics: Metrics,
    door: AdminAuth | None = None,
    inside: ConfigDumpBackend | None = None,
    changer: VersionsBackend | None = None,
) -> web.Application:
    """The aiohttp application that answers from ``facts`` and the rest: to whom the ``door`` lets in."""
    door = door or AdminAuth()
    app = web.Application(middlewares=[door.middleware, _answer_refusals], client_max_size=MAX_BODY_BYTES)
    door.add_routes(app)
    _add_state(app, facts, metrics)
    _add_reasons(app, facts)
    _add_orders(app, facts)
    add_dashboard(app, facts, door.still_authorized)
    if inside is not None:
        add_config_dump(app, inside)
    if changer is not None:
        add_history(app, changer, signed=_signed)
    return app


def _add_state(app: web.Application, facts: AdminBackend, metrics: Metrics) -> None:
    """What is served, to whom, and from what."""

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

    async def troubles(request: web.Request) -> web.Response:
        query_of(request, endpoints.PROBLEMS)
        return json_response(
            ProblemList(troubles=tuple(facts.file_problems()), rolled_back=tuple(facts.rolled_back()))
        )

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
    add_endpoint(app, endpoints.PROBLEMS, troubles)
    add_endpoint(app, endpoints.SNAPSHOT, snapshot)
    add_endpoint(app, endpoints.ALLOW_SHRINK, allow_shrink)


def _add_reasons(app: web.Application, facts: AdminBackend) -> None:
    """What was decided, and why."""

    async def why(request: web.Request) -> web.Response:
        return json_response(facts.why(_named(query_of(request, endpoints.WHY))))

    async def events(request: web.Request) -> web.Response:
        query = query_of(request, endpoints.EVENTS)
        since = query.get("since", "0")
        if not (since.isdecimal() and len(since) <= MAX_DIGITS):
            raise AdminRequestError(400, f"since is {since!r}; it is the number of an event")
        return json_response(EventList(events=tuple(facts.events(query.get("name", ""), int(since)))))

    async def pools(request: web.Request) -> web.Response:
        query_of(request, endpoints.POOLS)
        return json_response(PoolList(pools=tuple(facts.pools())))

    async def zones(request: web.Request) -> web.Response:
        query_of(request, endpoints.ZONES)
        return json_response(ZoneList(zones=tuple(facts.zones())))

    async def shadow(request: web.Request) -> web.Response:
        query_of(request, endpoints.SHADOW)
        return json_response(facts.shadow())

    add_endpoint(app, endpoints.WHY, why)
    add_endpoint(app, endpoints.EVENTS, events)
    add_endpoint(app, endpoints.POOLS, pools)
    add_endpoint(app, endpoints.ZONES, zones)
    add_endpoint(app, endpoints.SHADOW, shadow)


def _add_orders(app: web.Application, facts: AdminBackend) -> None:
    """What operators order."""

    async def orders(request: web.Request) -> web.Response:
        query_of(request, endpoints.ORDERS)
        return json_response(OrderList(orders=tuple(facts.orders())))

    async def give_order(request: web.Request) -> web.Response:
        return json_response(facts.order(await _order(request)), endpoints.ORDER.status)

    async def end_order(request: web.Request) -> web.Response:
        query = query_of(request, endpoints.END_ORDER)
        reject_browser_requests(request)
        if not facts.end_order(_named(query), _signed(request, query.get("by", ""))):
            raise AdminRequestError(409, f"there is no order for {query['name']}")
        return json_response(OrderEnd(ended=True))

    add_endpoint(app, endpoints.ORDERS, orders)
    add_endpoint(app, endpoints.ORDER, give_order)
    add_endpoint(app, endpoints.END_ORDER, end_order)


class AdminServer:
    """The admin port while it is open: ``async with AdminServer(...) as admin: admin.port``."""

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
    ) -> None:
        self._address = address
        self._tls = tls
        self._door = door or AdminAuth()
        self._runner = web.AppRunner(
            application(facts, metrics, self._door, inside, changer),
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=IDLE_S,
            auto_decompress=False,
        )
        self._visitors: LimitedListener | None = None
        self.port = address.port

    async def __aenter__(self) -> "AdminServer":
        """Open the port; ``ConfigError`` when it cannot be had."""
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
        """Close the port; requests under way get a second."""
        if self._visitors is not None:
            self._visitors.close()
        await self._runner.cleanup()


def _named(asked: dict[str, str]) -> str:
    if not asked.get("name"):
        raise AdminRequestError(400, "the name is empty: say which engine, zone or pool (?name=)")
    return asked["name"]


async def _order(request: web.Request) -> OrderRequest:
    require_json(request, "an order")
    asked = parse_body(await read_body(request, MAX_BODY_BYTES), _ORDER)
    if asked.action not in tuple(OrderAction):
        raise AdminRequestError(400, f"action is {asked.action!r}; allowed: {', '.join(OrderAction)}")
    # Who is proved to ask stands beside it; this is what they say of themselves.
    request[AUDIT_DETAIL] = f"{asked.action} {asked.engine}" + (f", signed {asked.by}" if asked.by else "")
    return replace(asked, by=_signed(request, asked.by))


def _signed(request: web.Request, by: str) -> str:
    """Who gave an order: what they say of themselves, and whom they proved to be."""
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
