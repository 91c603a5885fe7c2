"""Admin routes ``/v1/about`` and ``/v1/resources?node=``.

With ``absent=true``, ``/v1/resources`` also answers for a proxy that is not connected: the resources it would
get, given its node from the query: ``zone``, ``region``, ``role``, ``listen_address``, ``cuts``, and ``pool``
once per pool.
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
    """Source of process data and of each proxy's resources."""

    def server_info(self) -> ServerInfo: ...

    def served(self, node: str) -> Snapshot:
        """Resources served to a connected proxy, its own included; ``UnknownNameError`` if not connected."""
        ...

    def expected(self, node: NodeInfo) -> Snapshot:
        """Resources an absent proxy would be served; ``UnknownNameError`` if none."""
        ...


def add_config_dump(app: web.Application, inside: ConfigDumpBackend) -> None:
    """Add both read-only routes."""
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
        head = json.dumps({"node": node, "connected": connected}, ensure_ascii=False)
        # A thousand endpoints take seconds to decode: keep that off the event loop that serves proxies. One at a
        # time: the next request finds most of it cached, and a frequent client occupies one thread only.
        async with reading:
            found = await asyncio.to_thread(reader.read, served)
        return web.Response(text=f'{head[:-1]}, "resources": {found}}}', content_type="application/json")

    add_endpoint(app, endpoints.SERVER_INFO, about)
    add_endpoint(app, endpoints.RESOURCES, resources)


def _absent(request: web.Request) -> NodeInfo:
    query = request.query
    metadata = {
        "role": query.get("role"),
        "pools": query.getall("pool", []),
        "listen_address": query.get("listen_address"),
        "cuts": query.get("cuts") == "true",
    }
    return NodeInfo(
        id=query.get("node", ""),
        zone=query.get("zone", ""),
        region=query.get("region", ""),
        metadata=MappingProxyType(metadata),
    )
