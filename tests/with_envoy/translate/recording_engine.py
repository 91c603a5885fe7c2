"""An engine that keeps what it hears: the headers that came through a real Envoy."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Hearing:
    """``seen`` are the headers of each request, in lower case, ``paths`` its raw path. Answers take ``wait_s``,
    carry ``says`` and have this ``status``;
    they wait until ``open`` is set.
    """

    port: int = 0
    wait_s: float = 0.0
    says: Mapping[str, str] = field(default_factory=dict)
    status: int = 200
    open: asyncio.Event | None = None
    seen: list[Mapping[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.seen.append({name.lower(): value for name, value in request.headers.items()})
        self.paths.append(request.raw_path)
        await asyncio.sleep(self.wait_s)
        if self.open is not None:
            await self.open.wait()
        return web.json_response({"choices": []}, headers=dict(self.says), status=self.status)

    async def listen(self, host: str = "127.0.0.1") -> web.AppRunner:
        """Take connections on a free port of this address until the runner is cleaned up."""
        app = web.Application()
        app.router.add_post("/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, host, 0).start()
        self.port = runner.addresses[0][1]
        return runner
