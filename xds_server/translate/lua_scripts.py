"""Lua scripts for cases without a plain setting: early refusals, requests for another model, shorter answers.

Every listener has Envoy's Lua filter without a default script, so it costs other requests nothing. A route, or
one cluster of a route, names a script and passes values. Scripts are in the listener because scripts in routes
would be compiled again at every edit.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua, LuaPerRoute
from envoy_data_plane.google.protobuf import Any, Struct, Value

from policies.static_answer import StaticAnswer
from xds_server.translate.envoy_values import pack_any
from xds_server.translate.prompt_prefix import read_prefix_lua
from xds_server.translate.request_fields import READ_FIELDS_LUA, REWRITE_LUA, TokenEstimate, count_tokens_lua

LUA_FILTER: Final = "envoy.filters.http.lua"

_RENAME_MODEL: Final = "rename-model"
_LIMIT_ANSWERS: Final = "limit-answers"
"""A name of its own: a draining listener of an earlier version has only the other one, which knows no limit."""

_REFUSE: Final = "refuse"

_REFUSE_LUA: Final = """\
-- Answers at once, in the name of the route.
function envoy_on_request(handle)
  local answer = handle:filterContext()
  handle:respond({
    [":status"] = "503",
    ["x-switchgear-reason"] = answer:get("reason"),
    ["retry-after"] = answer:get("retry_after"),
  }, answer:get("message"))
end
"""


STATIC_ANSWER: Final = "static-answer"
"""Reason of static answers, and the name of their script."""

STATIC_ANSWER_METADATA: Final = "switchgear.static_answer"
STATIC_ANSWER_KEY: Final = "given"
"""Dynamic metadata of a request that got a static answer; callers cannot set it."""

_STATIC_ANSWER_LUA: Final = f"""\
-- Answers with the operator's text. The listener keeps marked answers as they are, and reports each of them.
function envoy_on_request(handle)
  local answer = handle:filterContext()
  handle:streamInfo():dynamicMetadata():set("{STATIC_ANSWER_METADATA}", "{STATIC_ANSWER_KEY}", true)
  handle:respond({{
    [":status"] = answer:get("status"),
    ["content-type"] = answer:get("content_type"),
    ["x-switchgear-reason"] = "{STATIC_ANSWER}",
    ["retry-after"] = answer:get("retry_after"),
  }}, answer:get("body"))
end
"""


def fields_filter(prefix_lengths: tuple[int, ...] = (), estimate: TokenEstimate | None = None) -> Any:
    """The configuration of the filter that reads the fields of ``request_fields`` from each body, and the hash of
    a prompt's begin for each of these lengths; with ``estimate`` it counts tokens.
    """
    script = read_prefix_lua(prefix_lengths) if prefix_lengths else READ_FIELDS_LUA
    if estimate is not None:
        script = count_tokens_lua(script, estimate)
    return pack_any(Lua(default_source_code=DataSource(inline_string=script), clear_route_cache=False))


def lua_filter(*, static_answers: bool = False) -> Any:
    """Filter configuration, equal in every listener, except for ``static_answers`` of one of its routes."""
    sources = {_RENAME_MODEL: REWRITE_LUA, _LIMIT_ANSWERS: REWRITE_LUA, _REFUSE: _REFUSE_LUA}
    if static_answers:
        sources[STATIC_ANSWER] = _STATIC_ANSWER_LUA
    return pack_any(
        Lua(
            source_codes={name: DataSource(inline_string=text) for name, text in sources.items()},
            # Header changes by a script must not make Envoy select the cluster again.
            clear_route_cache=False,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LuaReply:
    """Reply 503 to the caller: ``reason`` as header, ``message`` in the body."""

    reason: str
    message: str
    retry_after_s: int

    @property
    def values(self) -> Mapping[str, str]:
        """Values for a script that replies."""
        return {"reason": self.reason, "message": self.message, "retry_after": str(self.retry_after_s)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimit:
    """Most tokens of an answer; ``refusal`` of requests that cannot be changed."""

    tokens: int
    refusal: LuaReply


def rewrite_model(model: str, limit: AnswerLimit | None = None) -> Mapping[str, Any]:
    """Per-filter configuration that changes the requested model to ``model``, and limits answers.

    That of a cluster replaces that of its route, so it does both.
    """
    values = {"quoted": json.dumps(model), "plain": model}
    return _script(_RENAME_MODEL, **values) if limit is None else _limit_answers(limit, **values)


def limit_answers(limit: AnswerLimit | None) -> Mapping[str, Any]:
    """Per-filter configuration that limits answers; empty without a limit."""
    return {} if limit is None else _limit_answers(limit)


def lua_local_reply(reply: LuaReply) -> Mapping[str, Any]:
    """Per-filter configuration that gives this reply."""
    return _script(_REFUSE, **reply.values)


def lua_static_answer(answer: StaticAnswer) -> Mapping[str, Any]:
    """Per-filter configuration that gives this answer."""
    wait = {} if answer.retry_after is None else {"retry_after": str(math.ceil(answer.retry_after))}
    return _script(
        STATIC_ANSWER, status=str(answer.status), content_type=answer.content_type, body=answer.body, **wait
    )


def _limit_answers(limit: AnswerLimit, **values: str) -> Mapping[str, Any]:
    return _script(_LIMIT_ANSWERS, limit=str(limit.tokens), **limit.refusal.values, **values)


def _script(name: str, **values: str) -> Mapping[str, Any]:
    context = Struct(fields={key: Value(string_value=value) for key, value in values.items()})
    return {LUA_FILTER: pack_any(LuaPerRoute(name=name, filter_context=context))}
