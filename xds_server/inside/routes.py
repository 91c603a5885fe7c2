"""``/v1/about`` and ``/v1/resources?node=`` as routes of the admin port."""

import asyncio
from dataclasses import asdict
from typing import Protocol

from aiohttp import web

from xds_server.answers.answering import answer
from xds_server.inside.about import About
from xds_server.inside.contents import contents
from xds_server.snapshot import Snapshot


class Inside(Protocol):
    """Who knows the process and what each proxy is served."""

    def about(self) -> About: ...

    def served(self, node: str) -> Snapshot:
        """What a connected proxy is served, its own resources included; ``UnknownNameError`` for another."""
        ...


def add_inside(app: web.Application, inside: Inside) -> None:
    """Both routes; each only reads."""

    async def about(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
        return answer(asdict(inside.about()))

    async def resources(request: web.Request) -> web.Response:
        node = request.query.get("node", "")
        served = inside.served(node)
        # A thousand endpoints take some tenths of a second: not in the loop that serves proxies.
        found = await asyncio.to_thread(contents, served)
        return answer({"node": node, "resources": [asdict(one) for one in found]})

    app.router.add_get("/v1/about", about)
    app.router.add_get("/v1/resources", resources)
