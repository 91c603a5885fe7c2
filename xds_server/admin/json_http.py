"""Request parsing and responses of the admin routes: JSON both ways, refusals included."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from xds_server.admin_api.answers import Refusal
from xds_server.admin_api.endpoints import AdminEndpoint

BODY_S: Final = 30.0
"""Time limit for a whole request body: a policy change is a few megabytes, an order one line."""

MAX_LINE_CHARACTERS: Final = 500
"""Of reasons and names that callers claim."""

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})

_T = TypeVar("_T")


def as_json_dict(value: Any) -> dict[str, Any]:
    """Faster ``dataclasses.asdict`` for thousands of rows: most fields are plain values."""
    values = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: value if type(value) in _PLAIN or not value else _deep(value) for name, value in values.items()}


def _deep(value: Any) -> Any:
    if is_dataclass(value):
        return as_json_dict(value)
    if isinstance(value, Mapping):
        return {key: _deep(one) for key, one in value.items()}
    return [_deep(one) for one in value] if isinstance(value, tuple) else value


def add_endpoint(
    app: web.Application,
    endpoint: AdminEndpoint[Any],
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> None:
    """Route the endpoint to ``handler``; GET endpoints also answer HEAD."""
    add = app.router.add_get if endpoint.method == "GET" else partial(app.router.add_route, endpoint.method)
    add(endpoint.path, handler)


STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
"""Headers of a stream of events."""


def query_of(request: web.Request, endpoint: AdminEndpoint[Any]) -> dict[str, str]:
    """Parse the query; ``AdminRequestError`` for an unknown or repeated parameter."""
    known = [one.name for one in endpoint.parameters if f"{{{one.name}}}" not in endpoint.path]
    for name in request.query:
        if name not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "none is allowed"
            raise AdminRequestError(400, f"unknown parameter {name!r}; {allowed}")
        if len(request.query.getall(name)) > 1:
            raise AdminRequestError(400, f"parameter {name!r} is given twice")
    return dict(request.query)


class AdminRequestError(Exception):
    """Invalid request: HTTP status and message of the refusal."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def require_line(name: str, text: str) -> None:
    """Refuse text that people read later, in terminals and logs, unless it is one printable line."""
    if len(text) > MAX_LINE_CHARACTERS or not text.isprintable():
        raise AdminRequestError(
            400, f"{name} must be one line of at most {MAX_LINE_CHARACTERS} printable characters"
        )


def json_response(value: Any, status: int = 200) -> web.Response:
    """Response with this dataclass as JSON."""
    return web.json_response(as_json_dict(value), status=status, dumps=_dumps)


def refusal_response(message: str, status: int) -> web.Response:
    """Response to a refused request."""
    return json_response(Refusal(error=message), status)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def reject_browser_requests(request: web.Request) -> None:
    """Refuse requests sent by a web page; browsers mark them with their origin."""
    if "Origin" in request.headers:
        # Web pages can reach loopback, too.
        raise AdminRequestError(403, "web pages may not make changes here")


def require_json(request: web.Request, what: str) -> None:
    """Refuse a request that is not JSON or comes from a web page; ``what``: e.g. ``an order``."""
    reject_browser_requests(request)
    if request.content_type != "application/json":
        raise AdminRequestError(415, f"{what} must be JSON: send Content-Type: application/json")


async def read_body(request: web.Request, most_bytes: int) -> bytes:
    """Read the body; ``AdminRequestError`` if it is too large, compressed, truncated or late."""
    if "Content-Encoding" in request.headers:
        # A kilobyte of compressed data may expand to a gigabyte.
        raise AdminRequestError(415, "compressed bodies are not accepted: omit Content-Encoding")
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                found += part
                if len(found) > most_bytes:
                    raise AdminRequestError(413, f"request body exceeds {most_bytes // 1024} KiB")
    except TimeoutError:
        raise AdminRequestError(408, f"request body incomplete after {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise AdminRequestError(400, "request body does not match its headers") from error
    return bytes(found)


def parse_body(body: bytes, shape: TypeAdapter[_T]) -> _T:
    """Parse a body; ``AdminRequestError`` names the first invalid field."""
    try:
        return shape.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise AdminRequestError(400, f"{where}: {first['msg']}") from error
