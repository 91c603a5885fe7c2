"""How routes of the admin port take what they are sent, and answer: JSON both ways, refusals too."""

import json
from typing import Any, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

_T = TypeVar("_T")


class WrongError(Exception):
    """Asked wrongly: the HTTP status to answer with, and why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def answer(value: Any, status: int = 200) -> web.Response:
    """The answer that says this."""
    return web.json_response(value, status=status, dumps=lambda value: json.dumps(value, ensure_ascii=False))


def refuse_pages(request: web.Request) -> None:
    """Refuse what a page in a browser sends: browsers always say where such a request comes from."""
    if "Origin" in request.headers:
        # Such a page reaches loopback too, for anybody.
        raise WrongError(403, "requests of web pages change nothing here")


def refuse_others(request: web.Request, what: str) -> None:
    """Refuse what is no JSON, or comes from a page; ``what`` it should be, as ``an order``."""
    refuse_pages(request)
    if request.content_type != "application/json":
        raise WrongError(415, f"{what} is JSON: send Content-Type: application/json")


def shaped(body: bytes, shape: TypeAdapter[_T]) -> _T:
    """What a body says; ``WrongError`` names the first field that cannot be."""
    try:
        return shape.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise WrongError(400, f"{where}: {first['msg']}") from error
