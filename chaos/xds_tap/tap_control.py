"""Control API of the xDS tap on loopback; the package documents it."""

import json
import time
from dataclasses import asdict
from typing import Any

from aiohttp import web

from chaos.xds_tap.tap_rules import TapRule, TapRuleError, parse_tap_rule, stream_treatment
from chaos.xds_tap.tapped_stream import Note
from chaos.xds_tap.xds_tap import XdsTap


class TapControl:
    """Active rules by name, applied to ``taps`` by proxy, and the record of what passed."""

    def __init__(self) -> None:
        self.taps: dict[str, XdsTap] = {}
        self._orders: dict[str, TapRule] = {}
        self._seen: list[str] = []

    def note_of(self, proxy: str) -> Note:
        """Callback with which this proxy's tap records a message."""

        def note(what: dict[str, str]) -> None:
            self._seen.append(json.dumps({"at_s": time.monotonic(), "proxy": proxy, **what}))

        return note

    def events(self) -> str:
        """All recorded messages, one JSON object a line."""
        return "".join(f"{line}\n" for line in self._seen)

    def with_pages(self, app: web.Application) -> web.Application:
        """Add our routes to the application."""
        app.router.add_put("/orders/{name}", self._put)
        app.router.add_delete("/orders/{name}", self._delete)
        app.router.add_get("/orders", self._all_orders)
        app.router.add_get("/seen", self._all_seen)
        return app

    async def _put(self, request: web.Request) -> web.Response:
        try:
            order = parse_tap_rule(await request.json(), tuple(self.taps))
        except (json.JSONDecodeError, TapRuleError) as error:
            return web.json_response({"error": str(error)}, status=400)
        # A replaced rule moves to the end: the latest rule wins.
        self._orders.pop(request.match_info["name"], None)
        self._orders[request.match_info["name"]] = order
        self._obey()
        return await self._all_orders(request)

    async def _delete(self, request: web.Request) -> web.Response:
        self._orders.pop(request.match_info["name"], None)
        self._obey()
        return await self._all_orders(request)

    async def _all_orders(self, _: web.Request) -> web.Response:
        return web.json_response({name: _as_object(order) for name, order in self._orders.items()})

    async def _all_seen(self, _: web.Request) -> web.Response:
        return web.Response(text=self.events(), content_type="application/jsonl")

    def _obey(self) -> None:
        for proxy, tap in self.taps.items():
            tap.obey(stream_treatment(self._orders, proxy))


def _as_object(order: TapRule) -> dict[str, Any]:
    said = asdict(order)
    return {name: value for name, value in said.items() if value}
