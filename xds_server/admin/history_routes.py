"""History and changes of policies on the admin port.

Texts are larger than what the port takes otherwise, so they are read here, up to a limit of their own.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any, Final, Protocol, TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from xds_server.admin.json_http import (
    AdminRequestError,
    json_response,
    parse_body,
    read_body,
    reject_browser_requests,
    require_json,
)
from xds_server.rollout.history.api_types import (
    ApplyRequest,
    CanaryStatus,
    ChangeStatus,
    HistoryStatus,
    RefusedChangeError,
    RollbackRequest,
    SupersededError,
    UnknownVersionError,
    UnusableTextsError,
    VersionTexts,
)
from xds_server.rollout.history.policy_version import MAX_TEXT_BYTES

MAX_BODY_BYTES: Final = 2 * MAX_TEXT_BYTES
"""Quotes and line ends take more room in JSON."""

SERVING: Final = "serving"
_SHOWN: Final = 50
_APPLY: Final = TypeAdapter(ApplyRequest)
_ROLLBACK: Final = TypeAdapter(RollbackRequest)
_R = TypeVar("_R", ApplyRequest, RollbackRequest)


class VersionsBackend(Protocol):
    """Who knows the versions and changes what is served."""

    def history(self) -> HistoryStatus: ...

    def texts(self, number: int | None) -> VersionTexts: ...

    async def apply(self, asked: ApplyRequest) -> ChangeStatus: ...

    async def rollback(self, asked: RollbackRequest) -> ChangeStatus: ...

    def canary(self) -> CanaryStatus: ...

    def end_canary(self, by: str) -> bool:
        """Roll back the canary; False when none runs."""
        ...


def add_history(
    app: web.Application, changer: VersionsBackend, *, signed: Callable[[web.Request, str], str] = lambda _, by: by
) -> None:
    """``/v1/history``, ``/v1/apply`` and ``/v1/rollback``; ``signed`` says who asks, given what they say."""

    async def history(request: web.Request) -> web.Response:
        return await _answered(_only(request, _now(lambda: asdict(changer.history()))))

    async def texts(request: web.Request) -> web.Response:
        asked = request.match_info["number"]
        if asked != SERVING and not (asked.isdecimal() and len(asked) < 10):
            return json_response({"error": f"{asked!r} is no version: give a number, or {SERVING}"}, 400)
        number = None if asked == SERVING else int(asked)
        return await _answered(_only(request, _now(lambda: _whole(changer.texts(number)))))

    async def apply(request: web.Request) -> web.Response:
        async def found() -> Any:
            asked = await _asked(request, _APPLY)
            return asdict(await changer.apply(replace(asked, by=signed(request, asked.by))))

        return await _answered(found)

    async def rollback(request: web.Request) -> web.Response:
        async def found() -> Any:
            asked = await _asked(request, _ROLLBACK)
            return asdict(await changer.rollback(replace(asked, by=signed(request, asked.by))))

        return await _answered(found)

    async def canary(request: web.Request) -> web.Response:
        return await _answered(_only(request, _now(lambda: asdict(changer.canary()))))

    async def end_canary(request: web.Request) -> web.Response:
        async def found() -> Any:
            reject_browser_requests(request)
            if not changer.end_canary(signed(request, request.query.get("by", ""))):
                raise RefusedChangeError("no canary is running")
            return asdict(changer.canary())

        return await _answered(found)

    app.router.add_get("/v1/apply", canary)
    app.router.add_delete("/v1/apply", end_canary)
    app.router.add_get("/v1/history", history)
    app.router.add_get("/v1/history/{number}", texts)
    app.router.add_post("/v1/apply", apply)
    app.router.add_post("/v1/rollback", rollback)


async def _answered(found: Callable[[], Awaitable[Any]]) -> web.Response:
    try:
        return json_response(await found())
    except AdminRequestError as error:
        return json_response({"error": str(error)}, error.status)
    except UnknownVersionError as error:
        return json_response({"error": str(error)}, 404)
    except RefusedChangeError as error:
        state = "superseded" if isinstance(error, SupersededError) else "refused"
        return json_response({"error": str(error), "state": state}, 409)
    except UnusableTextsError as error:
        problems = [
            {
                "code": one.code,
                "place": str(one.origin),
                **asdict(one.origin),
                "path": one.path,
                "message": one.message,
                "found": one.found,
                "allowed": one.allowed,
                "hint": one.hint,
            }
            for one in error.errors[:_SHOWN]
        ]
        shown = "; ".join(f"{one['place']}: {one['code']} {one['path']}: {one['message']}" for one in problems)
        return json_response({"error": f"{error}: {shown}", "problems": problems}, 422)


def _now(value: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def found() -> Any:
        return value()

    return found


def _only(request: web.Request, found: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    async def checked() -> Any:
        if request.query:
            raise AdminRequestError(400, f"unknown parameter {next(iter(request.query))!r}; none is allowed")
        return await found()

    return checked


def _whole(found: VersionTexts) -> Any:
    return {"number": found.number, "digest": found.digest, "texts": dict(found.texts)}


async def _asked(request: web.Request, shape: TypeAdapter[_R]) -> _R:
    require_json(request, "a change")
    return parse_body(await read_body(request, MAX_BODY_BYTES), shape)
