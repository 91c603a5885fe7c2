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

LUA_FILTER: Final = "envoy.filters.http.lua"

REQUEST_METADATA: Final = "switchgear.request"
"""Metadata namespace for fields of a JSON body; absent if Envoy did not read the body as JSON."""

_NAME_THE_MODEL: Final = "name-the-model"
_REFUSE: Final = "refuse"

_NAME_THE_MODEL_LUA: Final = """\
-- Asks for the model that the chosen pool serves: its name takes the place of the value of the top-level "model".
-- Every other byte of the body stays as it is, and a body that is not JSON stays altogether.

-- Where the string that begins at the quote at "first" ends.
local function last_quote(body, first)
  local quote = first
  repeat
    quote = body:find('"', quote + 1, true)
    local before = quote - 1
    while body:byte(before) == 92 do before = before - 1 end
  until (quote - before) % 2 == 1
  return quote
end

-- The text of a key, with escapes undone as far as a key named "model" could have them.
local function key(text)
  return (text:gsub("\\\\u00(%x%x)", function(code) return string.char(tonumber(code, 16)) end))
end

local function renamed(body, quoted)
  local pieces, copied, depth = {}, 1, 0
  local at = body:find('["{}%[%]]')
  while at do
    local char = body:byte(at)
    if char == 34 then
      local first, last = at, last_quote(body, at)
      at = last
      if depth == 1 then
        local value = body:match('^%s*:%s*()"', last + 1)
        if value and last - first < 32 and key(body:sub(first + 1, last - 1)) == "model" then
          at = last_quote(body, value)
          pieces[#pieces + 1] = body:sub(copied, value - 1)
          pieces[#pieces + 1] = quoted
          copied = at + 1
        end
      end
    elseif char == 123 or char == 91 then
      depth = depth + 1
    else
      depth = depth - 1
    end
    at = body:find('["{}%[%]]', at + 1)
  end
  pieces[#pieces + 1] = body:sub(copied)
  return table.concat(pieces)
end

function envoy_on_request(handle)
  local read = handle:streamInfo():dynamicMetadata():get("$fields")
  if not read or type(read["model"]) ~= "string" then return end
  local body = handle:body()
  if not body then return end
  body:setBytes(renamed(body:getBytes(0, body:length()), handle:filterContext():get("quoted")))
end
""".replace("$fields", REQUEST_METADATA)

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


def lua_filter() -> Any:
    """Filter configuration, equal in every listener."""
    sources = {_NAME_THE_MODEL: _NAME_THE_MODEL_LUA, _REFUSE: _REFUSE_LUA}
    return pack_any(
        Lua(
            source_codes={name: DataSource(inline_string=text) for name, text in sources.items()},
            # Header changes by a script must not make Envoy select the cluster again.
            clear_route_cache=False,
        )
    )


def rewrite_model(model: str) -> Mapping[str, Any]:
    """Per-filter configuration that changes the requested model to ``model``."""
    return _script(_NAME_THE_MODEL, quoted=json.dumps(model))


def lua_local_reply(reason: str, message: str, retry_after_s: int) -> Mapping[str, Any]:
    """Per-filter configuration that replies 503 with this reason and message."""
    return _script(_REFUSE, reason=reason, message=message, retry_after=str(retry_after_s))


def _script(name: str, **values: str) -> Mapping[str, Any]:
    context = Struct(fields={key: Value(string_value=value) for key, value in values.items()})
    return {LUA_FILTER: pack_any(LuaPerRoute(name=name, filter_context=context))}
