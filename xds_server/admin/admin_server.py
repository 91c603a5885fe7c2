"""The admin port: health, metrics and status over HTTP, for people, probes and scrapers.

It reads, and it takes three things: orders for engines, other policies, and the word to let go of policies that
are held back because they drop too much. Who may ask is for ``access.door`` to say. An order must say that it is
JSON and may not come from a page in a browser: such a page reaches loopback too, for anybody. Every answer but
``/metrics`` is JSON, refusals too, and its shapes are the dataclasses of ``status``.
"""

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final, Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter

from engine.address import ListenAddress
from engine.limited_listener import LimitedListener
from xds_server.admin.config_dump_routes import ConfigDumpBackend, add_config_dump
from xds_server.admin.dashboard.dashboard_routes import add_dashboard
from xds_server.admin.history_routes import VersionsBackend, add_history
from xds_server.admin.json_http import (
    AdminRequestError,
    as_json_dict,
    json_response,
    parse_body,
    read_body,
    reject_browser_requests,
    require_json,
)
from xds_server.admin.views.context import UnknownNameError
from xds_server.auth.admin_auth import AUDIT_DETAIL, PRINCIPAL, AdminAuth
from xds_server.auth.authorization import Principal
from xds_server.ledger.operator_orders import ImpossibleOrderError, RefusedOrderError
from xds_server.metrics import Metrics
from xds_server.model.order import OrderAction
from xds_server.model.status_types import (
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
    ShadowStatus,
    SnapshotStatus,
    ZoneStatus,
)
from xds_server.publish.nack_log import RolledBackResource
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

_ORDER: Final = TypeAdapter(OrderRequest)


class AdminBackend(Protocol):
    """Who can answer; see ``status`` for the shapes."""

    def readiness(self) -> Readiness: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def policies(self) -> PoliciesStatus: ...

    def file_problems(self) -> Sequence[FileProblem]: ...

    def rolled_back(self) -> Sequence[RolledBackResource]: ...

    def canary(self) -> Mapping[str, Any] | None: ...

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
        _only(request)
        return json_response({"status": "ok"})

    async def readyz(request: web.Request) -> web.Response:
        _only(request)
        readiness = facts.readiness()
        return json_response(asdict(readiness), 200 if readiness.ready else 503)

    async def scrape(request: web.Request) -> web.Response:
        _only(request)
        return web.Response(body=await metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def proxies(request: web.Request) -> web.Response:
        _only(request)
        return json_response({"proxies": [asdict(proxy) for proxy in facts.proxies()]})

    async def engines(request: web.Request) -> web.Response:
        asked = _only(request, "pool")
        found = [as_json_dict(engine) for engine in facts.engines() if asked.get("pool") in (None, engine.pool)]
        return json_response({"engines": found})

    async def policies(request: web.Request) -> web.Response:
        _only(request)
        return json_response(asdict(facts.policies()))

    async def troubles(request: web.Request) -> web.Response:
        _only(request)
        return json_response(
            {
                "troubles": [asdict(one) for one in facts.file_problems()],
                "rolled_back": [asdict(one) for one in facts.rolled_back()],
            }
        )

    async def snapshot(request: web.Request) -> web.Response:
        asked = _only(request, "zone", "role")
        role = asked.get("role", "gateway")
        if role not in ROLES:
            raise AdminRequestError(400, f"role is {role!r}; allowed: {', '.join(ROLES)}")
        return json_response(asdict(facts.snapshot(asked.get("zone", ""), role)))

    async def allow_shrink(request: web.Request) -> web.Response:
        _only(request)
        reject_browser_requests(request)
        if why_not := facts.release_shrink():
            raise AdminRequestError(409, why_not)
        return json_response({"released": True})

    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/v1/proxies", proxies)
    app.router.add_get("/v1/engines", engines)
    app.router.add_get("/v1/policies", policies)
    app.router.add_get("/v1/troubles", troubles)
    app.router.add_get("/v1/snapshot", snapshot)
    app.router.add_post("/v1/allow-shrink", allow_shrink)


def _add_reasons(app: web.Application, facts: AdminBackend) -> None:
    """What was decided, and why."""

    async def why(request: web.Request) -> web.Response:
        asked = _only(request, "name")
        return json_response(asdict(facts.why(_named(asked))))

    async def events(request: web.Request) -> web.Response:
        asked = _only(request, "name", "since")
        since = asked.get("since", "0")
        if not (since.isdecimal() and len(since) <= MAX_DIGITS):
            raise AdminRequestError(400, f"since is {since!r}; it is the number of an event")
        found = facts.events(asked.get("name", ""), int(since))
        return json_response({"events": [asdict(event) for event in found]})

    async def pools(request: web.Request) -> web.Response:
        _only(request)
        return json_response({"pools": [asdict(pool) for pool in facts.pools()]})

    async def zones(request: web.Request) -> web.Response:
        _only(request)
        return json_response({"zones": [asdict(zone) for zone in facts.zones()]})

    async def shadow(request: web.Request) -> web.Response:
        _only(request)
        return json_response(asdict(facts.shadow()))

    app.router.add_get("/v1/why", why)
    app.router.add_get("/v1/events", events)
    app.router.add_get("/v1/pools", pools)
    app.router.add_get("/v1/zones", zones)
    app.router.add_get("/v1/shadow", shadow)


def _add_orders(app: web.Application, facts: AdminBackend) -> None:
    """What operators order."""

    async def orders(request: web.Request) -> web.Response:
        _only(request)
        return json_response({"orders": [asdict(order) for order in facts.orders()]})

    async def give_order(request: web.Request) -> web.Response:
        _only(request)
        return json_response(asdict(facts.order(await _order(request))), 201)

    async def end_order(request: web.Request) -> web.Response:
        asked = _only(request, "name", "by")
        reject_browser_requests(request)
        if not facts.end_order(_named(asked), _signed(request, asked.get("by", ""))):
            raise AdminRequestError(409, f"there is no order for {asked['name']}")
        return json_response({"ended": True})

    app.router.add_get("/v1/orders", orders)
    app.router.add_post("/v1/orders", give_order)
    app.router.add_delete("/v1/orders", end_order)


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


def _only(request: web.Request, *known: str) -> dict[str, str]:
    """The query; ``AdminRequestError`` when it names a parameter twice or one that does not exist."""
    for name in request.query:
        if name not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "none is allowed"
            raise AdminRequestError(400, f"unknown parameter {name!r}; {allowed}")
        if len(request.query.getall(name)) > 1:
            raise AdminRequestError(400, f"parameter {name!r} is given twice")
    return dict(request.query)


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
        return json_response({"error": str(refusal)}, refusal.status)
    except UnknownNameError as refusal:
        return json_response({"error": str(refusal)}, 404)
    except ImpossibleOrderError as refusal:
        return json_response({"error": str(refusal)}, 400)
    except RefusedOrderError as refusal:
        return json_response({"error": str(refusal)}, 409)
    except web.HTTPException as refusal:
        return json_response({"error": f"{request.method} {request.path}: {refusal.reason}"}, refusal.status)
