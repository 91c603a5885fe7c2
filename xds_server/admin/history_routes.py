"""Policy history and policy changes on the admin port.

Policy texts exceed the usual body limit, so these routes read bodies with their own limit.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from aiohttp import web
from pydantic import TypeAdapter

from policies.findings import PolicyError
from xds_server.admin.json_http import (
    AdminRequestError,
    add_endpoint,
    json_response,
    parse_body,
    query_of,
    read_body,
    refusal_response,
    reject_browser_requests,
    require_json,
    require_line,
)
from xds_server.admin_api import endpoints
from xds_server.admin_api.answers import ChangeRefusal, TextProblem, TextRefusal
from xds_server.admin_api.parse import adapter
from xds_server.admin_api.version_types import (
    ApplyRequest,
    CanaryStatus,
    ChangeStatus,
    HistoryStatus,
    RollbackRequest,
    VersionTexts,
)
from xds_server.rollout.history.change_errors import (
    RefusedChangeError,
    SupersededError,
    UnknownVersionError,
    UnusableTextsError,
)
from xds_server.rollout.history.policy_version import MAX_TEXT_BYTES

MAX_BODY_BYTES: Final = 2 * MAX_TEXT_BYTES
"""JSON escapes of quotes and line ends enlarge the texts."""

SERVING: Final = "serving"
_SHOWN: Final = 50
_APPLY: Final = adapter(ApplyRequest)
_ROLLBACK: Final = adapter(RollbackRequest)
_R = TypeVar("_R", ApplyRequest, RollbackRequest)


class VersionsBackend(Protocol):
    """Source of policy versions; applies changes."""

    def history(self) -> HistoryStatus: ...

    def texts(self, number: int | None) -> VersionTexts: ...

    async def apply(self, asked: ApplyRequest) -> ChangeStatus: ...

    async def rollback(self, asked: RollbackRequest) -> ChangeStatus: ...

    def canary(self) -> CanaryStatus: ...

    def end_canary(self, by: str) -> bool:
        """Roll back the running canary; False if none runs."""
        ...


def add_history(
    app: web.Application, changer: VersionsBackend, *, signed: Callable[[web.Request, str], str] = lambda _, by: by
) -> None:
    """Add ``/v1/history``, ``/v1/apply`` and ``/v1/rollback``; ``signed`` maps the claimed name to the recorded
    author.
    """

    async def history(request: web.Request) -> web.Response:
        query_of(request, endpoints.HISTORY)
        return json_response(changer.history())

    async def texts(request: web.Request) -> web.Response:
        version = request.match_info["number"]
        if version != SERVING and not (version.isdecimal() and len(version) < 10):
            raise AdminRequestError(400, f"invalid version {version!r}: pass a number, or {SERVING}")
        query_of(request, endpoints.VERSION)
        return json_response(changer.texts(None if version == SERVING else int(version)))

    async def apply(request: web.Request) -> web.Response:
        change = await _body(request, _APPLY)
        require_line("reason", change.reason)
        return json_response(await changer.apply(replace(change, by=signed(request, change.by))))

    async def rollback(request: web.Request) -> web.Response:
        change = await _body(request, _ROLLBACK)
        require_line("reason", change.reason)
        return json_response(await changer.rollback(replace(change, by=signed(request, change.by))))

    async def canary(request: web.Request) -> web.Response:
        query_of(request, endpoints.CANARY)
        return json_response(changer.canary())

    async def end_canary(request: web.Request) -> web.Response:
        reject_browser_requests(request)
        if not changer.end_canary(signed(request, request.query.get("by", ""))):
            raise RefusedChangeError("no canary is running")
        return json_response(changer.canary())

    add_endpoint(app, endpoints.CANARY, _answer_refusals(canary))
    add_endpoint(app, endpoints.END_CANARY, _answer_refusals(end_canary))
    add_endpoint(app, endpoints.HISTORY, _answer_refusals(history))
    add_endpoint(app, endpoints.VERSION, _answer_refusals(texts))
    add_endpoint(app, endpoints.APPLY, _answer_refusals(apply))
    add_endpoint(app, endpoints.ROLLBACK, _answer_refusals(rollback))


_Handler = Callable[[web.Request], Awaitable[web.Response]]


def _answer_refusals(handler: _Handler) -> _Handler:
    """Wrap ``handler`` to turn each refusal into a response."""

    async def answer(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except AdminRequestError as error:
            return refusal_response(str(error), error.status)
        except UnknownVersionError as error:
            return refusal_response(str(error), 404)
        except RefusedChangeError as error:
            state = "superseded" if isinstance(error, SupersededError) else "refused"
            return json_response(ChangeRefusal(error=str(error), state=state), 409)
        except UnusableTextsError as error:
            problems = tuple(map(_text_problem, error.errors[:_SHOWN]))
            shown = "; ".join(f"{one.place}: {one.code} {one.path}: {one.message}" for one in problems)
            return json_response(TextRefusal(error=f"{error}: {shown}", problems=problems), 422)

    return answer


def _text_problem(error: PolicyError) -> TextProblem:
    return TextProblem(
        code=error.code,
        place=str(error.origin),
        file=error.origin.file,
        line=error.origin.line,
        column=error.origin.column,
        path=error.path,
        message=error.message,
        found=error.found,
        allowed=error.allowed,
        hint=error.hint,
    )


async def _body(request: web.Request, shape: TypeAdapter[_R]) -> _R:
    require_json(request, "a change")
    return parse_body(await read_body(request, MAX_BODY_BYTES), shape)
