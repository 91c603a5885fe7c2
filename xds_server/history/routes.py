"""History and changes of policies on the admin port.

Texts are larger than what the port takes otherwise, so they are read here, up to a limit of their own.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, TypeVar

from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from xds_server.history.told import (
    ApplyRequest,
    CanaryStatus,
    ChangeStatus,
    HistoryStatus,
    RefusedChangeError,
    RollbackRequest,
    Texts,
    UnknownVersionError,
    UnusableTextsError,
)
from xds_server.history.version import MAX_TEXT_BYTES

MAX_BODY_BYTES: Final = 2 * MAX_TEXT_BYTES
"""Quotes and line ends take more room in JSON."""

SERVING: Final = "serving"
_SHOWN: Final = 50
_APPLY: Final = TypeAdapter(ApplyRequest)
_ROLLBACK: Final = TypeAdapter(RollbackRequest)
_R = TypeVar("_R", ApplyRequest, RollbackRequest)


class Changer(Protocol):
    """Who knows the versions and changes what is served."""

    def history(self) -> HistoryStatus: ...

    def texts(self, number: int | None) -> Texts: ...

    async def apply(self, asked: ApplyRequest) -> ChangeStatus: ...

    async def rollback(self, asked: RollbackRequest) -> ChangeStatus: ...

    def canary(self) -> CanaryStatus: ...

    def end_canary(self, by: str) -> bool:
        """Roll back the canary; False when none runs."""
        ...


def add_history(
    app: web.Application, changer: Changer, *, signed: Callable[[web.Request, str], str] = lambda _, by: by
) -> None:
    """``/v1/history``, ``/v1/apply`` and ``/v1/rollback``; ``signed`` says who asks, given what they say."""

    async def history(request: web.Request) -> web.Response:
        return await _answered(_only(request, _now(lambda: asdict(changer.history()))))

    async def texts(request: web.Request) -> web.Response:
        asked = request.match_info["number"]
        if asked != SERVING and not (asked.isdecimal() and len(asked) < 10):
            return _json({"error": f"{asked!r} is no version: give a number, or {SERVING}"}, 400)
        number = None if asked == SERVING else int(asked)
        return await _answered(_only(request, _now(lambda: _whole(changer.texts(number)))))

    async def apply(request: web.Request) -> web.Response:
        async def answer() -> Any:
            asked = await _asked(request, _APPLY)
            return asdict(await changer.apply(replace(asked, by=signed(request, asked.by))))

        return await _answered(answer)

    async def rollback(request: web.Request) -> web.Response:
        async def answer() -> Any:
            asked = await _asked(request, _ROLLBACK)
            return asdict(await changer.rollback(replace(asked, by=signed(request, asked.by))))

        return await _answered(answer)

    async def canary(request: web.Request) -> web.Response:
        return await _answered(_only(request, _now(lambda: asdict(changer.canary()))))

    async def end_canary(request: web.Request) -> web.Response:
        async def answer() -> Any:
            _not_from_a_page(request)
            if not changer.end_canary(signed(request, request.query.get("by", ""))):
                raise RefusedChangeError("no canary is running")
            return asdict(changer.canary())

        return await _answered(answer)

    app.router.add_get("/v1/apply", canary)
    app.router.add_delete("/v1/apply", end_canary)
    app.router.add_get("/v1/history", history)
    app.router.add_get("/v1/history/{number}", texts)
    app.router.add_post("/v1/apply", apply)
    app.router.add_post("/v1/rollback", rollback)


class _WrongError(Exception):
    """Asked wrongly."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def _answered(answer: Callable[[], Awaitable[Any]]) -> web.Response:
    try:
        return _json(await answer())
    except _WrongError as error:
        return _json({"error": str(error)}, error.status)
    except UnknownVersionError as error:
        return _json({"error": str(error)}, 404)
    except RefusedChangeError as error:
        return _json({"error": str(error)}, 409)
    except UnusableTextsError as error:
        problems = [
            {
                "code": one.code,
                "place": str(one.origin),
                "path": one.path,
                "message": one.message,
                "hint": one.hint,
            }
            for one in error.errors[:_SHOWN]
        ]
        shown = "; ".join(f"{one['place']}: {one['code']} {one['path']}: {one['message']}" for one in problems)
        return _json({"error": f"{error}: {shown}", "problems": problems}, 422)


def _now(value: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def answer() -> Any:
        return value()

    return answer


def _only(request: web.Request, answer: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def checked() -> Any:
        if request.query:
            raise _WrongError(400, f"unknown parameter {next(iter(request.query))!r}; none is allowed")
        return await answer()

    return checked


def _whole(found: Texts) -> Any:
    return {"number": found.number, "digest": found.digest, "texts": dict(found.texts)}


def _not_from_a_page(request: web.Request) -> None:
    if "Origin" in request.headers:
        # Browsers always say where such a request comes from, and pages reach loopback too, for anybody.
        raise _WrongError(403, "requests of web pages change nothing here")


async def _asked(request: web.Request, shape: TypeAdapter[_R]) -> _R:
    _not_from_a_page(request)
    if request.content_type != "application/json":
        raise _WrongError(415, "a change is JSON: send Content-Type: application/json")
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise _WrongError(413, f"a change is at most {MAX_BODY_BYTES // 1024**2} MiB")
    try:
        return shape.validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "body"
        raise _WrongError(400, f"{where}: {first['msg']}") from error


def _json(answer: Any, status: int = 200) -> web.Response:
    return web.json_response(answer, status=status, dumps=lambda value: json.dumps(value, ensure_ascii=False))
