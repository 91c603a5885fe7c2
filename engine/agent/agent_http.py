"""The agent's HTTP port: probes, metrics, report and drain.

``/readyz``, ``/livez`` and ``/startupz`` answer 200 or 503 with one sentence. ``POST /drain?deadline=30s`` returns
at the end of the drain with its outcome. Changes are allowed from this machine only, unless configured; with TLS,
other machines then need a permitted certificate. Probes and metrics need none, as kubelets and scrapers have none.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Protocol

from aiohttp import web

from engine.agent.agent_config import parse_duration
from engine.agent.drain import DrainResult
from engine.agent.kubelet_probes import KubeletProbeResult
from engine.limited_listener import mark_authenticated
from engine.report import LONGEST_DRAIN_S


class AgentApi(Protocol):
    """The agent as the port uses it."""

    @property
    def remote_drain(self) -> bool: ...
    @property
    def permits(self) -> Callable[[tuple[str, ...]], bool] | None: ...
    def ready(self) -> KubeletProbeResult: ...
    def alive(self) -> KubeletProbeResult: ...
    def started(self) -> KubeletProbeResult: ...
    def metrics(self) -> bytes: ...
    def report_json(self) -> bytes: ...
    async def drain(self, deadline_s: float | None) -> DrainResult: ...
    def undrain(self) -> bool: ...
    def check_soon(self) -> bool: ...


def application(agent: AgentApi) -> web.Application:
    """The HTTP application."""

    def probe(ask: Callable[[], KubeletProbeResult]) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def answered(_request: web.Request) -> web.Response:
            reply = ask()
            return web.Response(status=200 if reply.yes else 503, text=reply.sentence + "\n")

        return answered

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(
            body=agent.metrics(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    async def report(_request: web.Request) -> web.Response:
        return web.Response(body=agent.report_json(), content_type="application/json")

    async def drain(request: web.Request) -> web.Response:
        _permit(request, agent)
        answer = await agent.drain(_deadline_s(request))
        return web.json_response(asdict(answer) | {"outcome": answer.outcome.value})

    async def undrain(request: web.Request) -> web.Response:
        _permit(request, agent)
        return web.json_response({"was_draining": agent.undrain()})

    async def check(request: web.Request) -> web.Response:
        _permit(request, agent)
        if not agent.check_soon():
            raise web.HTTPConflict(text="no deep check: set --gpu-check-python to a Python with torch\n")
        return web.json_response({"check": "soon"}, status=202)

    app = web.Application(client_max_size=1024)
    app.add_routes(
        [
            web.get("/readyz", probe(agent.ready)),
            web.get("/livez", probe(agent.alive)),
            web.get("/startupz", probe(agent.started)),
            web.get("/metrics", metrics),
            web.get("/report", report),
            web.post("/drain", drain),
            web.post("/undrain", undrain),
            web.post("/gpu-check", check),
        ]
    )
    return app


def _deadline_s(request: web.Request) -> float | None:
    text = request.query.get("deadline")
    if text is None:
        return None
    try:
        deadline_s = parse_duration(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"deadline: {error}\n") from error
    if deadline_s > LONGEST_DRAIN_S:
        raise web.HTTPBadRequest(text=f"deadline: at most {LONGEST_DRAIN_S:g}s\n")
    return deadline_s


def _permit(request: web.Request, agent: AgentApi) -> None:
    """Refuse clients that may not change state (403)."""
    # Only browsers send Origin: a web page must not post here through a local browser.
    if "Origin" in request.headers:
        raise web.HTTPForbidden(text="refused: requests from web pages (header Origin) are not allowed\n")
    if agent.remote_drain:
        if agent.permits is None or _is_local(request) or agent.permits(_proved(request)):
            # A drain takes long: keep its connection when new ones need room.
            mark_authenticated(request.transport)
            return
        raise web.HTTPForbidden(text="refused: needs a permitted certificate, or run it on the engine's machine\n")
    if not _is_local(request):
        raise web.HTTPForbidden(
            text="refused: run it on the engine's machine, or start the agent with --remote-drain\n"
        )
    mark_authenticated(request.transport)


def _proved(request: web.Request) -> tuple[str, ...]:
    from engine.tls.contexts import peer_identities  # noqa: PLC0415 -- cryptography, only where there is TLS

    return peer_identities(None if request.transport is None else request.transport.get_extra_info("ssl_object"))


def _is_local(request: web.Request) -> bool:
    try:
        return request.remote is not None and ipaddress.ip_address(request.remote).is_loopback
    except ValueError:
        return False
