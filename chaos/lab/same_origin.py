"""Refuse requests of other sites' pages: any page in a browser can reach loopback, and break the lab."""

from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@web.middleware
async def refuse_foreign(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer 403 to requests of other sites."""
    refused = foreign_reason(request.headers.get("Host", ""), request.headers.get("Origin"))
    if refused:
        return web.json_response({"error": refused}, status=403)
    return await handler(request)


def foreign_reason(host: str, origin: str | None) -> str:
    """Why to refuse a request with these headers; empty to accept it. Programs send no ``Origin``."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    if name not in _LOOPBACK:
        # A foreign name that resolves to loopback would pass the origin check (DNS rebinding).
        return f"Host {host!r} is refused: open the page at 127.0.0.1 or localhost"
    if origin is not None and origin != f"http://{host}":
        return f"requests of pages from {origin!r} are refused"
    return ""
