"""How a wire takes orders: HTTP on loopback.

``PUT /rules/{name}`` with a rule as JSON makes it hold, and ``DELETE /rules/{name}`` takes it back; both have
happened when they are answered. ``GET /rules`` are those that hold, ``GET /links`` says for each link its port,
where it leads, how many connections are open, and how many came from which address.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aiohttp import web

from chaos.wire.link import WireLink
from chaos.wire.rules import Rule, RuleError, parse_rule


class Control:
    """The rules that hold, by name, for these links."""

    def __init__(self, links: Mapping[str, WireLink]) -> None:
        self._links = links
        self._rules: dict[str, Rule] = {}

    def app(self) -> web.Application:
        """The control port's pages."""
        app = web.Application()
        app.router.add_put("/rules/{name}", self._put)
        app.router.add_delete("/rules/{name}", self._delete)
        app.router.add_get("/rules", self._all_rules)
        app.router.add_get("/links", self._all_links)
        return app

    async def _put(self, request: web.Request) -> web.Response:
        try:
            rule = parse_rule(await request.json(), tuple(self._links))
        except (json.JSONDecodeError, RuleError) as error:
            return web.json_response({"error": str(error)}, status=400)
        self._rules[request.match_info["name"]] = rule
        self._obey()
        return await self._all_rules(request)

    async def _delete(self, request: web.Request) -> web.Response:
        self._rules.pop(request.match_info["name"], None)
        self._obey()
        return await self._all_rules(request)

    async def _all_rules(self, _: web.Request) -> web.Response:
        return web.json_response({name: asdict(rule) for name, rule in self._rules.items()})

    async def _all_links(self, _: web.Request) -> web.Response:
        return web.json_response({name: _link_object(link) for name, link in self._links.items()})

    def _obey(self) -> None:
        for link in self._links.values():
            link.obey(self._rules)


def _link_object(link: WireLink) -> dict[str, Any]:
    host, port = link.to
    return {"port": link.port, "to": f"{host}:{port}", "open": link.open, "accepted": link.accepted}
