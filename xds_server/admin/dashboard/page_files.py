"""Serve the files of a page. It works offline: nothing is loaded from elsewhere."""

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

PAGE: Final = files("xds_server.admin.dashboard") / "page"
"""Files of the dashboard."""

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


def page_files(folder: Traversable) -> Mapping[str, bytes]:
    """Contents of a folder's files by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def add_page_files(app: web.Application, path: str, pages: Mapping[str, bytes]) -> None:
    """Serve these files below ``path``, which ends with a slash; ``path`` itself is ``index.html``."""

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name") or "index.html"
        if name not in pages:
            raise web.HTTPNotFound
        kind = _TYPES["." + name.rpartition(".")[2]]
        return web.Response(body=pages[name], content_type=kind, charset="utf-8", headers=_HEADERS)

    app.router.add_get(path, page)
    app.router.add_get(f"{path}{{name}}", page)
