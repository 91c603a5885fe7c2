"""Callers -> nginx or HAProxy, with the files of docs/where.md -> Envoy -> engines; and a gateway as an engine."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web

from chaos.processes import free_ports
from tests.typed.test_where import shown_files
from tests.with_envoy.serve.conftest import PATIENT, STEADY, Site, document, eventually

pytestmark = pytest.mark.envoy

EDGES: Final = {"nginx": "nginx.conf", "haproxy": "haproxy.cfg"}
"""Each proxy, and the page's file for it."""
CALLER: Final = "127.0.0.9"
TOKENS: Final = 8
TOKEN_S: Final = 0.25
"""Few and slow: an edge with buffers has not filled one before the last comes."""


def command(edge: str, folder: Path) -> list[str]:
    """How to run it in the foreground; skips where it is not installed."""
    found = shutil.which(edge) or shutil.which(edge, path="/usr/sbin")
    if found is None:
        pytest.skip(f"no {edge} on this machine")
    if edge == "nginx":
        own = f"daemon off; pid {folder}/pid; error_log {folder}/errors; user root;"
        return [found, "-p", str(folder), "-c", str(folder / EDGES[edge]), "-g", own]
    return [found, "-db", "-f", str(folder / EDGES[edge])]


async def edge_in_front(site: Site, edge: str) -> int:
    """Start it with the page's file, on a port of its own and in front of the site's listener."""
    (port,) = free_ports(1)
    text = shown_files()[EDGES[edge]]
    assert text.count("127.0.0.1:10000") == 1
    assert text.count("8080") == 1
    text = text.replace("127.0.0.1:10000", f"127.0.0.1:{site.port}").replace("8080", str(port))
    (site.folder / EDGES[edge]).write_text(text)
    await site.processes.start(edge, command(edge, site.folder))

    async def listening() -> bool:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{port}/"):
                    return True
            except aiohttp.ClientConnectionError:
                return False

    await eventually(listening, f"{edge} listening")
    return port


async def in_front(site: Site) -> Any:
    """The control plane and its Envoy; the Envoy writes a line for each request."""
    listener = {"port": site.port, "address": "127.0.0.1", "trustedHops": 1, "accessLog": "stdout"}
    site.write(
        "all.yaml",
        site.pool(probe=PATIENT),
        site.route(listener=listener),
        document("ResiliencePolicy", "default", STEADY),
    )
    await site.serve()
    envoy = await site.envoy()
    await site.answered()
    return envoy


def logged_callers(envoy: Any) -> list[str]:
    lines = [json.loads(line) for line in envoy.log_path.read_text().splitlines() if line.startswith("{")]
    return [line["caller"] for line in lines]


@pytest.mark.parametrize("edge", EDGES)
async def test_edge_passes_tokens_on_as_they_come_and_names_its_callers(site: Site, edge: str) -> None:
    await site.start_engines(1, token_s=TOKEN_S)
    envoy = await in_front(site)
    port = await edge_in_front(site, edge)
    body = json.dumps({"model": "fake-model", "prompt": "hello", "max_tokens": TOKENS, "stream": True})
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(local_addr=(CALLER, 0))) as session,
        session.post(
            f"http://127.0.0.1:{port}/v1/completions", data=body, headers={"content-type": "application/json"}
        ) as answer,
    ):
        assert answer.status == 200
        clock = asyncio.get_running_loop().time
        times_s = [clock() async for line in answer.content if line.startswith(b"data:")]
    # An edge that gathers the answer sends all of it at its end.
    assert times_s[-1] - times_s[0] > TOKENS * TOKEN_S / 2
    await eventually(lambda: CALLER in logged_callers(envoy), "the caller's address in the log")


class Gateway:
    """A picker's gateway: it passes the OpenAI API on, and has no metrics and no health of an engine."""

    def __init__(self, engine_port: int) -> None:
        self._engine = f"http://127.0.0.1:{engine_port}"
        self.port = 0
        self._runner = web.AppRunner(self._app())

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/v1/{path:.*}", self._pass_on)
        return app

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {"content-type": request.content_type}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, self._engine + request.path, data=body, headers=headers) as answer,
        ):
            said = await answer.read()
            return web.Response(status=answer.status, body=said, content_type=answer.content_type)

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()


async def test_gateways_of_a_picker_serve_as_engines(site: Site) -> None:
    engines = await site.start_engines(2)
    gateways = [Gateway(one.port) for one in engines]
    for one in gateways:
        await one.start()
    try:
        endpoints = [
            {"name": f"gateway-{number}", "address": "127.0.0.1", "port": one.port}
            for number, one in enumerate(gateways)
        ]
        site.write(
            "all.yaml",
            site.pool(probe=PATIENT, endpoints=endpoints),
            site.route(),
            document("ResiliencePolicy", "default", STEADY),
        )
        await site.serve()
        await site.envoy()
        await site.answered()

        async def health() -> dict[str, str]:
            return {one["engine"]: one["health"] for one in (await site.get("/v1/engines"))["engines"]}

        async def both() -> bool:
            return set((await health()).values()) == {"HEALTHY"}

        await eventually(both, "both gateways healthy")
        await gateways[0].stop()
        load = site.load()
        await load.more(30)
        outcomes = await load.end()
        assert {one.status for one in outcomes} == {200}

        async def lost() -> bool:
            return (await health())["gateway-0"] == "UNHEALTHY"

        await eventually(lost, "the stopped gateway ejected")
    finally:
        for one in gateways:
            await one.stop()
