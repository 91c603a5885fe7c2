"""Routes of the dashboard page and its stream. Works offline: the server serves every asset."""

from collections.abc import Callable

from aiohttp import hdrs, web

from xds_server.admin.dashboard.frame import DashboardSource
from xds_server.admin.dashboard.frame_stream import FrameStream, stream_response
from xds_server.admin.dashboard.page_files import PAGE, add_page_files, page_files
from xds_server.admin.json_http import STREAM_HEADERS, add_endpoint
from xds_server.admin_api.endpoints import LIVE


def add_dashboard(
    app: web.Application, shown: DashboardSource, still: Callable[[web.Request], bool] = lambda _: True
) -> None:
    """Add ``/dashboard/`` with its files, ``/v1/live`` for clients ``still`` authorized, and the redirect from
    ``/``.
    """
    live = FrameStream(shown)

    async def home(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": "/dashboard/"})

    async def watch(request: web.Request) -> web.StreamResponse:
        if request.method == hdrs.METH_HEAD:
            return web.Response(headers=STREAM_HEADERS)
        return await stream_response(request, live, still)

    app.router.add_get("/", home)
    app.router.add_get("/dashboard", home)
    add_page_files(app, "/dashboard/", page_files(PAGE))
    add_endpoint(app, LIVE, watch)
