"""Lua that hashes the begin of a prompt: the key of requests that share a prefix in an engine's cache.

What counts is stable over the turns of a conversation: the system prompt, and the first bytes of the first
message after it, as they stand in the body. Only a hash leaves the script, in metadata that no engine and no log
gets.

It extends the scanner of ``request_fields``, so a body is scanned once.
"""

from collections.abc import Iterable
from typing import Final

from envoy_data_plane.envoy.config.core.v3 import DataSource, SubstitutionFormatString
from envoy_data_plane.envoy.extensions.filters.common.set_filter_state.v3 import FilterStateValue
from envoy_data_plane.envoy.extensions.filters.http.set_filter_state.v3 import Config as SetFilterState
from envoy_data_plane.google.protobuf import Any

from xds_server.translate.envoy_values import pack_any
from xds_server.translate.request_fields import READER_LUA, REQUEST_METADATA

PREFIX_METADATA: Final = "switchgear.prefix"
"""Namespace of the hashes in Envoy's dynamic metadata, by the number of bytes."""

PREFIX_FILTER: Final = "envoy.filters.http.set_filter_state"

SYSTEM_BYTES: Final = 4096
"""Bytes of a system prompt that count: hashing more costs more than it distinguishes."""

NEAR_BYTES: Final = 2 * SYSTEM_BYTES
"""How much of the messages is read first: copying more costs. It is enough unless the system prompt is long."""

WALK_BYTES: Final = 65536
WALK_STEPS: Final = 4096
"""How much of the messages is searched for the first one after the system prompt: 0.2 ms of a worker at most."""

_PREFIX: Final = """
for _, name in ipairs({"messages", "prompt", "input", "system", "instructions"}) do FIELDS[name] = "prompt" end

local tobit = bit.tobit
local SYSTEM, NEAR, WALK, WALK_STEPS = $system, $near, $walk, $steps
local LENGTHS, LONGEST = {$lengths}, $longest

-- Two hashes of 32 bits, continued over this text. No product exceeds the 53 bits of a number.
local function hashed(one, other, text)
  local last = #text - #text % 4
  for at = 1, last, 4 do
    local a, b, c, d = byte(text, at, at + 3)
    local word = a + b * 0x100 + c * 0x10000 + d * 0x1000000
    one, other = tobit(one * 33 + word), tobit(other * 65599 + word)
  end
  for at = last + 1, #text do
    local char = byte(text, at)
    one, other = tobit(one * 33 + char), tobit(other * 65599 + char)
  end
  return one, other
end

-- The place behind the object or array that begins at "at"; nil if its end is not in this text.
local function value_end(text, at, steps)
  local depth = 0
  while steps < WALK_STEPS do
    steps = steps + 1
    local found = find(text, '["{}%[%]]', at)
    if not found then return nil, steps end
    local char = byte(text, found)
    at = found + 1
    if char == 34 then
      local last = last_quote(text, at)
      if not last then return nil, steps end
      at = last + 1
    elseif char == 123 or char == 91 then
      depth = depth + 1
    else
      depth = depth - 1
      if depth == 0 then return at, steps end
    end
  end
  return nil, steps
end

local function role_of(message)
  local at = find(message, '"role"', 1, true)
  return at and match(message, '^"role"%s*:%s*"(%a+)"', at)
end

-- The system messages of an array, the text from the content of the first other message on, and whether more of
-- the array would change neither.
local function conversation(text)
  local pieces, at, steps = {}, 2, 0
  while true do
    local open = find(text, "%S", at)
    if not open then return table.concat(pieces), "", false end
    if byte(text, open) == 44 then
      at = open + 1
    elseif byte(text, open) ~= 123 then
      -- The end, or texts or token ids.
      local rest = byte(text, open) ~= 93 and sub(text, open) or ""
      return table.concat(pieces), rest, rest == "" or #rest >= LONGEST
    else
      local stop
      stop, steps = value_end(text, open, steps)
      local message = sub(text, open, (stop or #text + 1) - 1)
      local role = role_of(message)
      if role ~= "system" and role ~= "developer" then
        local content = find(message, '"content"', 1, true)
        local rest = sub(message, content and match(message, '^"content"%s*:%s*()', content) or 1)
        return table.concat(pieces), rest, stop or (role and #rest >= LONGEST)
      end
      pieces[#pieces + 1] = message
      if not stop then return table.concat(pieces), "", false end
      at = stop
    end
  end
end

local function raw(body, place, most)
  local size = math.min(most, body:length() - place.first)
  local text = size > 0 and body:getBytes(place.first, size) or ""
  return place.last > place.first and sub(text, 1, place.last - place.first + 1) or text
end

-- Leaves the hash of the begin of the prompt in the metadata, for each length.
local function set_keys(handle, places)
  local first = places.messages or places.input or places.prompt
  -- A form has fields of the same names, and its prompt is not what takes long.
  if not first or form_boundary(handle:headers():get("content-type") or "") then return end
  -- Not earlier: Envoy's objects from before the body has arrived are dead.
  local body = handle:body()
  local above = places.system or places.instructions
  local text, system = raw(body, first, NEAR), above and raw(body, above, SYSTEM) or ""
  if byte(text, 1) == 91 then
    local messages, rest, whole = conversation(text)
    if not whole and #text == NEAR then messages, rest = conversation(raw(body, first, WALK)) end
    system, text = system .. messages, rest
  elseif byte(text, 1) ~= 34 then
    text = ""
  end
  if text == "" and system == "" then return end
  local metadata = handle:streamInfo():dynamicMetadata()
  local one, other = hashed(5381, 0, sub(system, 1, SYSTEM))
  for _, length in ipairs(LENGTHS) do
    local a, b = hashed(one, other, sub(text, 1, length))
    metadata:set("$prefixes", tostring(length), bit.tohex(a) .. bit.tohex(b))
  end
end
"""

_READ: Final = """
function envoy_on_request(handle)
  local found, places = {}, {}
  local accepted = scan(handle, function(key, value, first, last)
    -- The last of duplicate keys counts. A stream that is false is one that is not there.
    if FIELDS[key] == "prompt" then places[key] = {first = first, last = last} else found[key] = value or nil end
  end)
  if not accepted then return end
  set_keys(handle, places)
  if not next(found) then return end
  local metadata = handle:streamInfo():dynamicMetadata()
  for key, value in pairs(found) do metadata:set("$namespace", key, value) end
  handle:clearRouteCache()
end
"""


def prefix_state(length: int) -> str:
    """Name of the filter state with the hash of a prompt's begin of this length, which Envoy balances by."""
    return f"{PREFIX_METADATA}.{length}"


def prefix_state_filter(lengths: Iterable[int]) -> Any:
    """The configuration of the filter that makes the hashes filter states: the load balancer reads no metadata."""
    return pack_any(
        SetFilterState(
            on_request_headers=[
                FilterStateValue(
                    object_key=prefix_state(length),
                    factory_key="envoy.hashable_string",
                    format_string=SubstitutionFormatString(
                        text_format_source=DataSource(
                            inline_string=f"%DYNAMIC_METADATA({PREFIX_METADATA}:{length})%"
                        ),
                        omit_empty_values=True,
                    ),
                    # No key: a request without a prompt is not one with the empty prompt.
                    skip_if_empty=True,
                )
                for length in lengths
            ]
        )
    )


def read_prefix_lua(lengths: Iterable[int]) -> str:
    """The script of ``request_fields`` that also leaves a hash for each of these lengths, in bytes."""
    ascending = sorted(set(lengths))
    values = {
        "$system": str(SYSTEM_BYTES),
        "$near": str(max(NEAR_BYTES, 2 * ascending[-1])),
        "$longest": str(ascending[-1]),
        "$walk": str(WALK_BYTES),
        "$steps": str(WALK_STEPS),
        "$lengths": ", ".join(map(str, ascending)),
        "$prefixes": PREFIX_METADATA,
        "$namespace": REQUEST_METADATA,
    }
    script = _PREFIX + _READ
    for name, value in values.items():
        script = script.replace(name, value)
    return READER_LUA + script
