"""Control API of the netem relay: HTTP on loopback.

``PUT /rules/{name}`` sets a rule (JSON), ``DELETE /rules/{name}`` removes it; both are in effect once answered.
``GET /rules`` lists the active rules; ``GET /links`` shows each link's port, target, open connections, and
accepted connections by source address.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web

from chaos.netem.kernel_link import KernelLink, KernelLinkError
from chaos.netem.link_rules import LinkRule, LinkRuleError, parse_link_rule
from chaos.netem.netem_link import NetemLink

_NO_CABLES: Final[Mapping[str, KernelLink]] = MappingProxyType({})


class NetemControl:
    """Active rules by name for these links; ``cables`` are the kernel links."""

    def __init__(self, links: Mapping[str, NetemLink], cables: Mapping[str, KernelLink] = _NO_CABLES) -> None:
        self._links = links
        self._cables = cables
        self._rules: dict[str, LinkRule] = {}
        self._obeying = asyncio.Lock()

    def app(self) -> web.Application:
        """Routes of the control port."""
        app = web.Application()
        app.router.add_put("/rules/{name}", self._put)
        app.router.add_delete("/rules/{name}", self._delete)
        app.router.add_get("/rules", self._all_rules)
        app.router.add_get("/links", self._all_links)
        return app

    async def _put(self, request: web.Request) -> web.Response:
        try:
            rule = parse_link_rule(await request.json(), tuple(self._links))
        except (json.JSONDecodeError, LinkRuleError) as error:
            return web.json_response({"error": str(error)}, status=400)
        self._rules[request.match_info["name"]] = rule
        return await self._obeyed(request)

    async def _delete(self, request: web.Request) -> web.Response:
        self._rules.pop(request.match_info["name"], None)
        return await self._obeyed(request)

    async def _all_rules(self, _: web.Request) -> web.Response:
        return web.json_response({name: asdict(rule) for name, rule in self._rules.items()})

    async def _all_links(self, _: web.Request) -> web.Response:
        return web.json_response({name: _link_object(link) for name, link in self._links.items()})

    async def _obeyed(self, request: web.Request) -> web.Response:
        # One at a time: kernel links change slowly.
        async with self._obeying:
            rules: Mapping[str, LinkRule] = dict(self._rules)
            for name, link in self._links.items():
                try:
                    left = await self._cables[name].carry(rules, name) if name in self._cables else rules
                except KernelLinkError as error:
                    return web.json_response({"error": str(error)}, status=500)
                link.set_rules(left)
        return await self._all_rules(request)


def _link_object(link: NetemLink) -> dict[str, Any]:
    host, port = link.to
    return {"port": link.port, "to": f"{host}:{port}", "open": link.open, "accepted": link.accepted}
