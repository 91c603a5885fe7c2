"""``/v1/about`` and ``/v1/resources?node=`` as routes of the admin port.

With ``absent=true`` the second one also answers for a proxy that is not connected: what it would be served if it
connected, given the node that the rest of the query describes: ``zone``, ``region``, ``role``, ``listen_address``,
``cuts``, and ``pool`` once for each pool.
"""

import asyncio
import json
from types import MappingProxyType
from typing import Protocol

from aiohttp import web

from xds_server.admin.json_http import add_endpoint, json_response
from xds_server.admin.resource_decoder import ResourceDecoder
from xds_server.admin.views.context import UnknownNameError
from xds_server.admin_api import endpoints
from xds_server.admin_api.server_types import ServerInfo
from xds_server.model.snapshot import Snapshot
from xds_server.xds import NodeInfo


class ConfigDumpBackend(Protocol):
    """Who knows the process and what each proxy is served."""

    def server_info(self) -> ServerInfo: ...

    def served(self, node: str) -> Snapshot:
        """What a connected proxy is served, its own resources included; ``UnknownNameError`` for another."""
        ...

    def expected(self, node: NodeInfo) -> Snapshot:
        """What a proxy that is not here would be served; ``UnknownNameError`` where that is nothing."""
        ...


def add_config_dump(app: web.Application, inside: ConfigDumpBackend) -> None:
    """Both routes; each only reads."""
    reader, reading = ResourceDecoder(), asyncio.Lock()

    async def about(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp's signature
        return json_response(inside.server_info())

    async def resources(request: web.Request) -> web.Response:
        node, connected = request.query.get("node", ""), True
        try:
            served = inside.served(node)
        except UnknownNameError:
            if request.query.get("absent") != "true":
                raise
            served, connected = inside.expected(_absent(request)), False
        said = json.dumps({"node": node, "connected": connected}, ensure_ascii=False)
        # A thousand endpoints take some seconds: not in the loop that serves proxies. One at a time, for the next
        # one finds most of it read, and whoever asks often has one thread and not all.
        async with reading:
            found = await asyncio.to_thread(reader.read, served)
        return web.Response(text=f'{said[:-1]}, "resources": {found}}}', content_type="application/json")

    add_endpoint(app, endpoints.SERVER_INFO, about)
    add_endpoint(app, endpoints.RESOURCES, resources)


def _absent(request: web.Request) -> NodeInfo:
    said = request.query
    metadata = {
        "role": said.get("role"),
        "pools": said.getall("pool", []),
        "listen_address": said.get("listen_address"),
        "cuts": said.get("cuts") == "true",
    }
    return NodeInfo(
        id=said.get("node", ""),
        zone=said.get("zone", ""),
        region=said.get("region", ""),
        metadata=MappingProxyType(metadata),
    )
