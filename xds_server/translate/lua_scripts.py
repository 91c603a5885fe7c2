"""Lua scripts for cases without a plain setting: early refusals, and requests for another model.

Every listener has Envoy's Lua filter without a default script, so it costs other requests nothing. A route, or
one cluster of a route, names a script and passes values. Scripts are in the listener because scripts in routes
would be compiled again at every edit.
"""

import json
from collections.abc import Mapping
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource
from envoy_data_plane.envoy.extensions.filters.http.lua.v3 import Lua, LuaPerRoute
from envoy_data_plane.google.protobuf import Any, Struct, Value

from xds_server.translate.envoy_values import pack_any
from xds_server.translate.request_fields import READ_FIELDS_LUA, RENAME_MODEL_LUA

LUA_FILTER: Final = "envoy.filters.http.lua"

FIELDS_FILTER: Final = "switchgear.request_fields"
"""Name of the filter that reads the body; a Lua filter of its own, for a route names one script of each."""

_RENAME_MODEL: Final = "rename-model"
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


def fields_filter() -> Any:
    """The configuration of the filter that reads the fields of ``request_fields`` from each body."""
    return pack_any(Lua(default_source_code=DataSource(inline_string=READ_FIELDS_LUA), clear_route_cache=False))


def lua_filter() -> Any:
    """Filter configuration, equal in every listener."""
    sources = {_RENAME_MODEL: RENAME_MODEL_LUA, _REFUSE: _REFUSE_LUA}
    return pack_any(
        Lua(
            source_codes={name: DataSource(inline_string=text) for name, text in sources.items()},
            # Header changes by a script must not make Envoy select the cluster again.
            clear_route_cache=False,
        )
    )


def rewrite_model(model: str) -> Mapping[str, Any]:
    """Per-filter configuration that changes the requested model to ``model``."""
    return _script(_RENAME_MODEL, quoted=json.dumps(model), plain=model)


def lua_local_reply(reason: str, message: str, retry_after_s: int) -> Mapping[str, Any]:
    """Per-filter configuration that replies 503 with this reason and message."""
    return _script(_REFUSE, reason=reason, message=message, retry_after=str(retry_after_s))


def _script(name: str, **values: str) -> Mapping[str, Any]:
    context = Struct(fields={key: Value(string_value=value) for key, value in values.items()})
    return {LUA_FILTER: pack_any(LuaPerRoute(name=name, filter_context=context))}
