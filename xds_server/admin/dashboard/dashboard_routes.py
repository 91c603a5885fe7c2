"""Routes of the dashboard page and its stream. Works offline: the server serves every asset."""

from collections.abc import Callable
from importlib.resources import files
from typing import Final

from aiohttp import hdrs, web

from xds_server.admin.dashboard.frame import DashboardSource
from xds_server.admin.dashboard.frame_stream import FrameStream, stream_response
from xds_server.admin.json_http import STREAM_HEADERS, add_endpoint
from xds_server.admin_api.endpoints import LIVE

_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    # No external content, no foreign scripts, no framing: engine names are untrusted text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_dashboard(
    app: web.Application, shown: DashboardSource, still: Callable[[web.Request], bool] = lambda _: True
) -> None:
    """Add ``/dashboard/`` with its files, ``/v1/live`` for clients ``still`` authorized, and the redirect from
    ``/``.
    """
    live = FrameStream(shown)
    pages = {
        path.name: (path.read_bytes(), _TYPES["." + path.name.rpartition(".")[2]])
        for path in (files("xds_server.admin.dashboard") / "page").iterdir()
        if path.is_file()
    }

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name") or "index.html"
        if name not in pages:
            raise web.HTTPNotFound
        body, kind = pages[name]
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    async def home(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/dashboard/"})

    async def watch(request: web.Request) -> web.StreamResponse:
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=STREAM_HEADERS)
        return await stream_response(request, live, still)

    app.router.add_get("/", home)
    app.router.add_get("/dashboard", home)
    app.router.add_get("/dashboard/", page)
    app.router.add_get("/dashboard/{name}", page)
    add_endpoint(app, LIVE, watch)
