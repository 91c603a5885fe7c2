"""Strict affinity: a session stays on its engine, by a token that Envoy's stateful session turns into a host.

A token names an engine and one of 256 parts of its sessions: a hash of the names of pool and engine, equal in
every replica and after a restart. The routes hold the token of each engine that may keep sessions, with its
address, so callers see no address, and a token of any other engine is none.

request: token -> this script -> address in a header -> stateful session -> that host, if it is healthy or draining
answer: the endpoint's token and the attempt, as headers of the route -> this script -> token for the caller

Envoy looks at the host's health, and a retry never asks for it. So an engine that is out loses its sessions at
once: any other serves them, and its token replaces theirs. A retry of a single request replaces nothing.

Measurements and alternatives: docs/adr/0041-strict-affinity.md.
"""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HealthStatus,
    HealthStatusSet,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua, LuaPerRoute
from envoy_data_plane.envoy.extensions.filters.http.stateful_session.v3 import (
    StatefulSession,
    StatefulSessionPerRoute,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.extensions.http.stateful_session.header.v3 import HeaderBasedSessionState
from envoy_data_plane.google.protobuf import Any, Struct, Value

from policies.affinity import Affinity
from policies.route import ModelRoute
from xds_server.decide.decisions import Decisions, Health
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.translate.engine_selection import EngineSelection
from xds_server.translate.envoy_values import pack_any
from xds_server.translate.internal_listeners import engine_listener_name
from xds_server.wire.assignment import HostPort, InternalListener

SESSION_FILTER: Final = "switchgear.session"
"""Name of the filter with the script; a Lua filter of its own, for a route names one script of each."""

STATEFUL_FILTER: Final = "envoy.filters.http.stateful_session"

HOST_HEADER: Final = "x-envoy-switchgear-host"
"""Between the script and the stateful session. Listeners remove headers of this prefix from requests first."""

SERVED_HEADER: Final = "x-switchgear-served-by"
"""Between the route and the script, on answers: the endpoint's token and the number of the attempt."""

SESSION_LABEL: Final = "switchgear/session"
"""Label of an endpoint with its token."""

SERVED_FORMAT: Final = f"%UPSTREAM_METADATA(envoy.lb:{SESSION_LABEL})% %UPSTREAM_REQUEST_ATTEMPT_COUNT%"

PARTS: Final = 256
"""Parts of an engine's sessions, which leave a draining engine one after another."""

_TOKEN_DIGITS: Final = 16

_KEEP: Final = "keep"

_LUA: Final = """\
local match, format = string.match, string.format

local function token_of(handle, context)
  local headers = handle:headers()
  local name = context:get("header")
  if name then return headers:get(name) end
  local cookies = headers:get("cookie")
  return cookies and match("; " .. cookies, context:get("pattern"))
end

function envoy_on_request(handle)
  local context = handle:filterContext()
  local engine, part = match(token_of(handle, context) or "", "^(%x+)%.(%x%x)$")
  -- Names of other things in the context have other letters than a token.
  local place = engine and context:get(engine)
  if not place then return end
  local host, kept = match(place, "^(%S+) (%d+)$")
  if kept and tonumber(part, 16) >= tonumber(kept) then return end
  handle:headers():replace("$host", host or place)
  handle:streamInfo():dynamicMetadata():set("$filter", "engine", engine)
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local served, attempt = match(headers:get("$served") or "", "^(%x+) (%d+)$")
  headers:remove("$served")
  headers:remove("$host")
  if not served then return end
  local asked = handle:streamInfo():dynamicMetadata():get("$filter")
  -- A retry moves no session: only an engine that is not even tried has lost its sessions.
  if asked and (asked.engine == served or attempt ~= "1") then return end
  local context = handle:filterContext()
  local token = served .. format(".%02x", math.random(0, $parts - 1))
  local name = context:get("header")
  if name then
    headers:replace(name, token)
  else
    headers:add("set-cookie", context:get("name") .. "=" .. token .. context:get("attributes"))
  end
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHost:
    """An engine that may keep sessions: its token, its address in Envoy's words, and the kept percent."""

    token: str
    host: str
    kept_percent: float


def is_strict(route: ModelRoute) -> bool:
    """Whether sessions of this route stay on one engine."""
    affinity = route.spec.affinity
    return affinity is not None and affinity.is_strict


def strict_pools(routes: Mapping[str, ModelRoute]) -> frozenset[str]:
    """Pools whose engines keep sessions: the targets of routes with strict affinity."""
    return frozenset(share.pool for route in routes.values() if is_strict(route) for share in route.spec.pools)


@lru_cache(maxsize=65536)
def session_token(engine: EngineId) -> str:
    """The token of an engine, without the part."""
    return hashlib.sha256(str(engine).encode()).hexdigest()[:_TOKEN_DIGITS]


def session_hosts(
    route: ModelRoute, selected: EngineSelection, fleet: Fleet, decisions: Decisions, *, model: str, hop: bool
) -> tuple[SessionHost, ...]:
    """The engines that may keep sessions of this route; none without strict affinity.

    Ejected engines are among them: Envoy knows their health, so routes stay as they are. ``hop``: engines are
    listeners inside the proxy.
    """
    if not is_strict(route):
        return ()
    pool = route.spec.pools[0].pool
    decided = decisions.pools.get(pool)
    kept = decided.sessions if decided is not None else {}
    return tuple(
        SessionHost(token=session_token(engine.id), host=_host(engine, hop=hop), kept_percent=percent)
        for engine in fleet.pools.get(pool, ())
        if selected.admits(engine, model)
        for percent in (_kept_percent(engine, decisions, kept),)
        if percent > 0
    )


def _kept_percent(engine: Engine, decisions: Decisions, kept: Mapping[EngineId, float]) -> float:
    decision = decisions.engines.get(engine.id)
    draining = decision is not None and decision.health is Health.DRAINING
    return kept.get(engine.id, 0.0) if draining else 100.0


def _host(engine: Engine, *, hop: bool) -> str:
    """The address of an endpoint in Envoy's words, by which it finds hosts."""
    name = engine_listener_name(engine.id.pool, engine.id.engine)
    inside = InternalListener(name=name, destination=HostPort(host=engine.address, port=engine.port))
    return f"envoy://{name}/{inside.endpoint_id}" if hop else inside.endpoint_id


def session_filters() -> tuple[HttpFilter, ...]:
    """The filters of a listener where routes have strict affinity; its other routes do not use them."""
    script = _LUA
    for name, value in {
        "$host": HOST_HEADER,
        "$served": SERVED_HEADER,
        "$filter": SESSION_FILTER,
        "$parts": str(PARTS),
    }.items():
        script = script.replace(name, value)
    sources = {_KEEP: DataSource(inline_string=script)}
    return (
        HttpFilter(name=SESSION_FILTER, typed_config=pack_any(Lua(source_codes=sources, clear_route_cache=False))),
        HttpFilter(name=STATEFUL_FILTER, typed_config=pack_any(StatefulSession())),
    )


def session_config(affinity: Affinity | None, hosts: Iterable[SessionHost]) -> Mapping[str, Any]:
    """Per-filter configuration of a route whose sessions stay; empty without strict affinity."""
    if affinity is None or not affinity.is_strict:
        return {}
    values = {**_key(affinity), **{one.token: _place(one) for one in hosts}}
    context = Struct(fields={key: Value(string_value=value) for key, value in values.items()})
    state = TypedExtensionConfig(
        name="envoy.http.stateful_session.header", typed_config=pack_any(HeaderBasedSessionState(name=HOST_HEADER))
    )
    return {
        SESSION_FILTER: pack_any(LuaPerRoute(name=_KEEP, filter_context=context)),
        STATEFUL_FILTER: pack_any(StatefulSessionPerRoute(stateful_session=StatefulSession(session_state=state))),
    }


def _key(affinity: Affinity) -> Mapping[str, str]:
    cookie = affinity.cookie
    if cookie is None:
        return {"header": affinity.header or ""}
    age = f"; Max-Age={round(cookie.ttl)}" if cookie.ttl else ""
    escaped = "".join(one if one.isalnum() or one == "_" else f"%{one}" for one in cookie.name)
    return {
        "name": cookie.name,
        "pattern": f"; ?{escaped}=([^;]*)",
        "attributes": f"{age}; Path={cookie.path}; HttpOnly; SameSite=Lax",
    }


def _place(one: SessionHost) -> str:
    """The host as the stateful session reads it, and how many parts of its sessions stay if not all."""
    host = b64encode(one.host.encode()).decode()
    return host if one.kept_percent >= 100 else f"{host} {round(one.kept_percent / 100 * PARTS)}"


def session_statuses() -> HealthStatusSet:
    """Health of engines that sessions may ask for: also that of draining ones, which get nothing else."""
    return HealthStatusSet(
        statuses=[HealthStatus.UNKNOWN, HealthStatus.HEALTHY, HealthStatus.DEGRADED, HealthStatus.DRAINING]
    )
