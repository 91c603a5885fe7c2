"""The agent's HTTP port: probes, metrics, the report for people, and drain.

``/readyz`` and its kin answer 200 or 503 with one sentence. ``POST /drain?deadline=30s`` comes back when the drain
has ended, and says how. What changes something is open to this machine only, unless the operator says otherwise;
with TLS, other machines then prove by a certificate that they may. Probes and metrics are open to all, as kubelets
and scrapers have no certificates to show.
"""

import ipaddress
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final, Protocol

from aiohttp import web

from engine.agent.agent_config import parse_duration
from engine.agent.drain import DrainResult
from engine.agent.kubelet_probes import KubeletProbeResult
from engine.limited_listener import mark_authenticated

LONGEST_DRAIN_S: Final = 24 * 3600.0


class AgentApi(Protocol):
    """What the port answers from; the agent."""

    @property
    def remote_drain(self) -> bool: ...
    @property
    def permits(self) -> Callable[[tuple[str, ...]], bool] | None: ...
    @property
    def drain_deadline_s(self) -> float: ...
    def ready(self) -> KubeletProbeResult: ...
    def alive(self) -> KubeletProbeResult: ...
    def started(self) -> KubeletProbeResult: ...
    def metrics(self) -> bytes: ...
    def report_json(self) -> bytes: ...
    async def drain(self, deadline_s: float) -> DrainResult: ...
    def undrain(self) -> bool: ...
    def check_soon(self) -> bool: ...


def application(agent: AgentApi) -> web.Application:
    """The routes of the port."""

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
        answer = await agent.drain(_deadline_s(request, agent.drain_deadline_s))
        return web.json_response(asdict(answer) | {"outcome": answer.outcome.value})

    async def undrain(request: web.Request) -> web.Response:
        _permit(request, agent)
        return web.json_response({"was_draining": agent.undrain()})

    async def check(request: web.Request) -> web.Response:
        _permit(request, agent)
        if not agent.check_soon():
            raise web.HTTPConflict(text="no deep check: name a Python with torch by --gpu-check-python\n")
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


def _deadline_s(request: web.Request, default_s: float) -> float:
    text = request.query.get("deadline")
    if text is None:
        return default_s
    try:
        deadline_s = parse_duration(text)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"deadline: {error}\n") from error
    if deadline_s > LONGEST_DRAIN_S:
        raise web.HTTPBadRequest(text=f"deadline: at most {LONGEST_DRAIN_S:g}s\n")
    return deadline_s


def _permit(request: web.Request, agent: AgentApi) -> None:
    """Refuse who may not change anything."""
    # A web page can make a browser on this machine post here, and a browser says so. Nobody else sends it.
    if "Origin" in request.headers:
        raise web.HTTPForbidden(text="not for web pages: this request carries Origin\n")
    if agent.remote_drain:
        if agent.permits is None or _is_local(request) or agent.permits(_proved(request)):
            # A drain is waited for: whoever else connects meanwhile takes no place from it.
            mark_authenticated(request.transport)
            return
        raise web.HTTPForbidden(text="only with a certificate that may, or from the engine's machine\n")
    if not _is_local(request):
        raise web.HTTPForbidden(
            text="only from the engine's own machine; or start the agent with --remote-drain\n"
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
