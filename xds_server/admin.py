"""The admin port: health, metrics and status over HTTP, for people, probes and scrapers.

It reads; the one thing it can change is to let go of policies that are held back because they drop too much.
On loopback by default, because it has no authentication. Every answer but ``/metrics`` is JSON, refusals too,
and its shapes are the dataclasses of ``status``.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, Protocol

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from xds_server.config import Address, ConfigError
from xds_server.metrics import Metrics
from xds_server.status import EngineStatus, PoliciesStatus, ProxyStatus, Readiness, SnapshotStatus

ROLES: Final = ("gateway", "sidecar")


class Facts(Protocol):
    """Who can answer; see ``status`` for the shapes."""

    def readiness(self) -> Readiness: ...

    def proxies(self) -> Sequence[ProxyStatus]: ...

    def engines(self) -> Sequence[EngineStatus]: ...

    def policies(self) -> PoliciesStatus: ...

    def snapshot(self, zone: str, role: str) -> SnapshotStatus: ...

    def release_shrink(self) -> bool:
        """Let go of held policies; False when none are held."""
        ...


def application(facts: Facts, metrics: Metrics) -> web.Application:
    """The aiohttp application that answers from ``facts``."""

    async def healthz(request: web.Request) -> web.Response:
        _only(request)
        return _json({"status": "ok"})

    async def readyz(request: web.Request) -> web.Response:
        _only(request)
        readiness = facts.readiness()
        return _json(asdict(readiness), 200 if readiness.ready else 503)

    async def scrape(request: web.Request) -> web.Response:
        _only(request)
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def proxies(request: web.Request) -> web.Response:
        _only(request)
        return _json({"proxies": [asdict(proxy) for proxy in facts.proxies()]})

    async def engines(request: web.Request) -> web.Response:
        asked = _only(request, "pool")
        found = [asdict(engine) for engine in facts.engines() if asked.get("pool") in (None, engine.pool)]
        return _json({"engines": found})

    async def policies(request: web.Request) -> web.Response:
        _only(request)
        return _json(asdict(facts.policies()))

    async def snapshot(request: web.Request) -> web.Response:
        asked = _only(request, "zone", "role")
        role = asked.get("role", "gateway")
        if role not in ROLES:
            raise _RefusalError(400, f"role is {role!r}; allowed: {', '.join(ROLES)}")
        return _json(asdict(facts.snapshot(asked.get("zone", ""), role)))

    async def allow_shrink(request: web.Request) -> web.Response:
        _only(request)
        if not facts.release_shrink():
            raise _RefusalError(409, "no policies are held back")
        return _json({"released": True})

    app = web.Application(middlewares=[_answer_refusals])
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", scrape)
    app.router.add_get("/v1/proxies", proxies)
    app.router.add_get("/v1/engines", engines)
    app.router.add_get("/v1/policies", policies)
    app.router.add_get("/v1/snapshot", snapshot)
    app.router.add_post("/v1/allow-shrink", allow_shrink)
    return app


class AdminServer:
    """The admin port while it is open: ``async with AdminServer(...) as admin: admin.port``."""

    def __init__(self, address: Address, facts: Facts, metrics: Metrics) -> None:
        self._address = address
        self._runner = web.AppRunner(application(facts, metrics), access_log=None, shutdown_timeout=1.0)
        self.port = address.port

    async def __aenter__(self) -> "AdminServer":
        """Open the port; ``ConfigError`` when it cannot be had."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise ConfigError(f"cannot listen on --admin {self._address}: {error.strerror or error}") from error
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the port; requests under way get a second."""
        await self._runner.cleanup()


class _RefusalError(Exception):
    """The request cannot be answered as it was asked."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _only(request: web.Request, *known: str) -> dict[str, str]:
    """The query; ``_RefusalError`` when it names a parameter twice or one that does not exist."""
    for name in request.query:
        if name not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "none is allowed"
            raise _RefusalError(400, f"unknown parameter {name!r}; {allowed}")
        if len(request.query.getall(name)) > 1:
            raise _RefusalError(400, f"parameter {name!r} is given twice")
    return dict(request.query)


def _json(answer: Any, status: int = 200) -> web.Response:
    return web.json_response(answer, status=status, dumps=lambda value: json.dumps(value, ensure_ascii=False))


@web.middleware
async def _answer_refusals(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except _RefusalError as refusal:
        return _json({"error": str(refusal)}, refusal.status)
    except web.HTTPException as refusal:
        return _json({"error": f"{request.method} {request.path}: {refusal.reason}"}, refusal.status)
