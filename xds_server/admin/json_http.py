"""How routes of the admin port take what they are sent, and answer: JSON both ways, refusals too."""

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
"""For all of what somebody sends: a change of policies is a few megabytes, and an order one line."""

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})

_T = TypeVar("_T")


def as_json_dict(said: Any) -> dict[str, Any]:
    """``dataclasses.asdict`` at a part of its cost, for rows in their thousands: most fields are plain already."""
    values = {field.name: getattr(said, field.name) for field in fields(said)}
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
    """Route the endpoint to this handler; GET answers HEAD as well."""
    add = app.router.add_get if endpoint.method == "GET" else partial(app.router.add_route, endpoint.method)
    add(endpoint.path, handler)


def query_of(request: web.Request, endpoint: AdminEndpoint[Any]) -> dict[str, str]:
    """The query; ``AdminRequestError`` for a parameter that the endpoint does not have, or that comes twice."""
    known = [one.name for one in endpoint.parameters if f"{{{one.name}}}" not in endpoint.path]
    for name in request.query:
        if name not in known:
            allowed = f"allowed: {', '.join(known)}" if known else "none is allowed"
            raise AdminRequestError(400, f"unknown parameter {name!r}; {allowed}")
        if len(request.query.getall(name)) > 1:
            raise AdminRequestError(400, f"parameter {name!r} is given twice")
    return dict(request.query)


class AdminRequestError(Exception):
    """Asked wrongly: the HTTP status to answer with, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def json_response(value: Any, status: int = 200) -> web.Response:
    """The response with this dataclass as its JSON."""
    return web.json_response(as_json_dict(value), status=status, dumps=_dumps)


def refusal_response(message: str, status: int) -> web.Response:
    """The response to a request that is refused."""
    return json_response(Refusal(error=message), status)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def reject_browser_requests(request: web.Request) -> None:
    """Refuse what a page in a browser sends: browsers always say where such a request comes from."""
    if "Origin" in request.headers:
        # Such a page reaches loopback too, for anybody.
        raise AdminRequestError(403, "requests of web pages change nothing here")


def require_json(request: web.Request, what: str) -> None:
    """Refuse what is no JSON, or comes from a page; ``what`` it should be, as ``an order``."""
    reject_browser_requests(request)
    if request.content_type != "application/json":
        raise AdminRequestError(415, f"{what} is JSON: send Content-Type: application/json")


async def read_body(request: web.Request, most_bytes: int) -> bytes:
    """All that was sent; ``AdminRequestError`` where it is too much, packed, broken off, or not there in time."""
    if "Content-Encoding" in request.headers:
        # What is a kilobyte on the way may be a gigabyte here.
        raise AdminRequestError(415, "send it as it is, without Content-Encoding")
    found = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                found += part
                if len(found) > most_bytes:
                    raise AdminRequestError(413, f"this takes at most {most_bytes // 1024} KiB")
    except TimeoutError:
        raise AdminRequestError(408, f"the body of the request was not there within {BODY_S:g} s") from None
    except web.RequestPayloadError as error:
        raise AdminRequestError(400, "the body of the request is not as its headers say") from error
    return bytes(found)


def parse_body(body: bytes, shape: TypeAdapter[_T]) -> _T:
    """What a body says; ``AdminRequestError`` names the first field that cannot be."""
    try:
        return shape.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise AdminRequestError(400, f"{where}: {first['msg']}") from error
