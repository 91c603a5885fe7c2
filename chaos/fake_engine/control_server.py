"""Control API of a fleet of fake engines: set faults, heal, read call logs.

Other harnesses may use it: ``docs/chaos/fake-engine.md`` documents it, and a test compares both. It has its own
port, because a crashed engine has none and clients behind the proxy must not reach it. All bodies are JSON;
``ENGINE`` is the engine's name.

====== ========================== ==============================================================================
GET    ``/_fake``                 every engine: name, url, listening, calls in flight, fault
GET    ``/_fake/ENGINE/fault``    the fault as an object, or null
PUT    ``/_fake/ENGINE/fault``    replace it: ``{"kind": "hang"}``, ``{"kind": "slow", "factor": 4}``; 400
                                  names the error; the fault is active once the answer arrives
DELETE ``/_fake/ENGINE/fault``    heal; a crashed engine listens again once the answer arrives
GET    ``/_fake/ENGINE/book``     totals; ``?calls=N`` adds the newest N calls
====== ========================== ==============================================================================
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from chaos.fake_engine.engine_faults import EngineFaultError, engine_fault_object, parse_engine_fault
from chaos.fake_engine.fake_engine import FakeEngine
from engine.address import ListenAddress

_FAULT_PATH = "/_fake/{engine}/fault"


class ControlServer:
    """``await start()``, then use ``url``; ``await stop()``. It does not start or stop the engines."""

    def __init__(self, engines: Sequence[FakeEngine], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._engines = {engine.config.name: engine for engine in engines}
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """URL of ``/_fake``."""
        return f"http://{ListenAddress(self._host, self._port)}/_fake"

    def engine_url(self, name: str) -> str:
        """Base URL of one engine's ``fault`` and ``book``."""
        return f"{self.url}/{name}"

    def application(self) -> web.Application:
        """Routes of the control API."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/_fake", self._list),
                web.get(_FAULT_PATH, self._get_fault),
                web.put(_FAULT_PATH, self._put_fault),
                web.delete(_FAULT_PATH, self._delete_fault),
                web.get("/_fake/{engine}/book", self._book),
            ]
        )
        return app

    async def start(self) -> None:
        """Listen; OSError when the port is taken."""
        self._runner = web.AppRunner(self.application(), access_log=None, shutdown_timeout=0.0)
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101 -- setup() made it
        listener = await asyncio.get_running_loop().create_server(self._runner.server, self._host, self._port)
        self._listener = listener
        self._port = listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._runner is not None:
            self._listener.close()
            await self._runner.cleanup()
            self._runner = None

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response([self._describe(engine) for engine in self._engines.values()])

    async def _get_fault(self, request: web.Request) -> web.Response:
        return web.json_response(engine_fault_object(self._engine(request).fault))

    async def _put_fault(self, request: web.Request) -> web.Response:
        engine = self._engine(request)
        try:
            fault = parse_engine_fault(await request.read())
        except EngineFaultError as problem:
            return web.json_response({"error": str(problem)}, status=400)
        await engine.set_fault(fault)
        return web.json_response(engine_fault_object(fault))

    async def _delete_fault(self, request: web.Request) -> web.Response:
        await self._engine(request).heal()
        return web.json_response(None)

    async def _book(self, request: web.Request) -> web.Response:
        asked = request.query.get("calls", "0")
        if not asked.isdecimal():
            return web.json_response({"error": "calls must be an integer >= 0"}, status=400)
        engine = self._engine(request)
        return web.json_response(
            {**self._describe(engine), **engine.book.as_object(calls=int(asked))},
        )

    def _engine(self, request: web.Request) -> FakeEngine:
        name = request.match_info["engine"]
        if name not in self._engines:
            raise web.HTTPNotFound(text=f"unknown engine {name!r}; use one of {', '.join(self._engines)}\n")
        return self._engines[name]

    def _describe(self, engine: FakeEngine) -> dict[str, Any]:
        return {
            "name": engine.config.name,
            "url": engine.url,
            "listening": engine.listening,
            "in_flight": engine.calls_in_flight,
            "fault": engine_fault_object(engine.fault),
        }
