"""Lua that reads the few top-level fields of a request body that routes match on, without building a tree.

Envoy's ``json_to_metadata`` parses a body into a document: 1 MB of token ids costs it 38 times what the rest of
the request costs. The scanner here jumps from one structural character to the next by ``string.find`` (a
``memchr``), over windows of the body, so that text in strings costs little and no large Lua string is made.

It reads what the engine reads: strings and numbers at the top level of one object, keys and values with their
escapes decoded, the last of duplicate keys, whatever stands inside nested values or prompts. Multipart forms
(audio) have the same fields as parts. ``tests/xds_server/translate/test_request_fields.py`` compares it with
Python's ``json`` on drawn bodies, in the LuaJIT that Envoy embeds.

Source: RFC 8259; RFC 7578; docs/adr/0024-reading-request-fields.md has the measurements.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.route import ModelRoute
from policies.tenants import ANSWER_TOKENS, BYTES_PER_TOKEN

FIELDS_FILTER: Final = "switchgear.request_fields"
"""Name of the filter that reads the body; a Lua filter of its own, for a route names one script of each."""

REQUEST_METADATA: Final = "switchgear.request"
"""Namespace of the fields in Envoy's dynamic metadata; absent when the body has none of them."""

TOKEN_LIMIT_FIELDS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens")
"""Fields that limit the tokens of an answer: Completions and Chat, Chat, Responses."""

LIMITED_TO_KEY: Final = "limited_to"
"""Key of the metadata with the tokens that an answer was limited to; absent if its request was not changed."""

COMPLETIONS_DEFAULT_TOKENS: Final = 16
"""Tokens of a Completions answer whose request has no ``max_tokens``. Source: OpenAI API reference; vLLM 0.32."""

MAX_FIELD_BYTES: Final = 4096
"""Longest key or value that is read; a longer one is not a model's name."""

MAX_STEPS: Final = 1_000_000
"""Structural characters, and quotes at a quarter each, after which a body is refused: 30 to 50 ms of a worker."""

REFUSED_BODY_REASON: Final = "body-too-complex"

BODY_ENCODING_REASON: Final = "body-encoding"
"""JSON in UTF-16 or UTF-32, with or without a byte order mark.

vLLM's Python front end would read it (``json.loads`` of bytes). RFC 8259, section 8.1, requires UTF-8.
"""

_WINDOW_BYTES: Final = 65536

_READER: Final = r"""local find, byte, sub, match = string.find, string.byte, string.sub, string.match
local NONE = math.huge
local WINDOW, FIELD, STEPS = $window, $field, $steps

local FIELDS = {model = "string", stream = "flag", $token_limits}
local ESCAPES = {b = "\b", f = "\f", n = "\n", r = "\r", t = "\t"}
local TRUE = {["1"] = true, ["true"] = true, t = true, yes = true, y = true, on = true}

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 0x40), 0x80 + code % 0x40) end
  local low = string.char(0x80 + math.floor(code / 0x40) % 0x40, 0x80 + code % 0x40)
  if code < 0x10000 then return string.char(0xE0 + math.floor(code / 0x1000)) .. low end
  return string.char(0xF0 + math.floor(code / 0x40000), 0x80 + math.floor(code / 0x1000) % 0x40) .. low
end

-- The text of a JSON string without its quotes.
local function decoded(text)
  local slash, from, pieces = find(text, "\\", 1, true), 1, {}
  if not slash then return text end
  while slash do
    pieces[#pieces + 1] = sub(text, from, slash - 1)
    local char = sub(text, slash + 1, slash + 1)
    from = slash + 2
    if char == "u" then
      local code = tonumber(match(text, "^%x%x%x%x", from) or "FFFD", 16)
      from = from + 4
      if code >= 0xD800 and code < 0xDC00 then
        local low = tonumber(match(text, "^\\u([dD][c-fC-F]%x%x)", from) or "", 16)
        if low then code, from = 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00, from + 6 end
      end
      char = utf8(code)
    else
      char = ESCAPES[char] or char
    end
    pieces[#pieces + 1] = char
    slash = find(text, "\\", from, true)
  end
  pieces[#pieces + 1] = sub(text, from)
  return table.concat(pieces)
end

-- Value of a field as routes match it; nil when it has another type.
local function typed(kind, text, quoted)
  if kind == "string" then return quoted and text or nil end
  if kind == "flag" then
    -- Engines take 1, "yes" and the like for true.
    return TRUE[text:lower()] == true or tonumber(text) == 1
  end
  return match(text, "^%-?%d+%.?%d*[eE]?[+-]?%d*$") and tonumber(text) or nil
end

-- The part of the body from an offset on.
local function window(body, offset, length)
  return offset < length and body:getBytes(offset, math.min(WINDOW, length - offset)) or ""
end

-- Where the string ends whose text begins at "at", in this window; nil when it does not. Counts escaped quotes.
local function last_quote(text, at)
  local last, escaped = find(text, '"', at, true), 0
  while last and last > at and byte(text, last - 1) == 92 do
    local before = last - 2
    while before >= at and byte(text, before) == 92 do before = before - 1 end
    if (last - before) % 2 == 1 then break end
    escaped = escaped + 1
    last = find(text, '"', last + 1, true)
  end
  return last, escaped
end

-- Goes behind the string whose text begins at "at", over as many windows as it takes: the window, its offset, the
-- place in it, and the steps taken.
local function string_end(body, length, text, base, at)
  local steps = 0
  while true do
    local last, escaped = last_quote(text, at)
    steps = steps + escaped / 4
    if last then return text, base, last + 1, steps end
    if base + #text >= length or steps > STEPS then return text, base, #text + 1, steps end
    local slashes = #text
    while slashes >= at and byte(text, slashes) == 92 do slashes = slashes - 1 end
    -- An escaped character belongs to the escape, whichever window it is in.
    base = base + #text + (#text - slashes) % 2
    text, at = window(body, base, length), 1
  end
end

-- Goes to the next character that is not blank: the window, its offset, the place, and the character or nil.
local function skip_space(body, length, text, base, at)
  while true do
    local found = find(text, "[^ \t\r\n]", at)
    if found then return text, base, found, byte(text, found) end
    if base + #text >= length then return text, base, #text + 1, nil end
    base = base + #text
    text, at = window(body, base, length), 1
  end
end

-- The window and place with enough of the body after the place to hold a field, if there is as much.
local function with_field(body, length, text, base, at)
  if #text - at + 1 >= FIELD or base + #text >= length then return text, base, at end
  return window(body, base + at - 1, length), base + at - 1, 1
end

-- The string whose opening quote is at "at", decoded; nil when it is too long.
local function short_string(text, at)
  local last = last_quote(text, at + 1)
  return last and last - at < FIELD and decoded(sub(text, at + 1, last - 1)) or nil
end

-- Whether JSON that begins so is in UTF-16 or UTF-32: a byte order mark, or an ASCII character with a NUL.
local function is_wide(text)
  local first, second = byte(text, 1, 2)
  return first == 0 or second == 0 or (first == 254 and second == 255) or (first == 255 and second == 254)
end

-- Calls field(key, value, first, last, quoted) for each field at the top level; value is nil for another type.
-- first and last are offsets of the value in the body, from 0. Returns the reason of a refusal, or nil.
local function scan_json(body, field)
  local length, base, at, depth, steps, taken = body:length(), 0, 1, 0, 0, 0
  local text = window(body, 0, length)
  if is_wide(text) then return "$encoding_reason" end
  local quote, open, close, array, close_array = 0, 0, 0, 0, 0
  while steps <= STEPS do
    local before = base
    steps = steps + 1
    if quote < at then quote = find(text, '"', at, true) or NONE end
    if open < at then open = find(text, "{", at, true) or NONE end
    if close < at then close = find(text, "}", at, true) or NONE end
    if array < at then array = find(text, "[", at, true) or NONE end
    if close_array < at then close_array = find(text, "]", at, true) or NONE end
    local down, up = math.min(open, array), math.min(close, close_array)
    if quote < down and quote < up then
      local name
      at = quote
      if depth == 1 then
        text, base, at = with_field(body, length, text, base, at)
        name = short_string(text, at)
      end
      text, base, at, taken = string_end(body, length, text, base, at + 1)
      steps = steps + taken
      local kind = name and FIELDS[name]
      if kind then
        local char
        text, base, at, char = skip_space(body, length, text, base, at)
        if char == 58 then
          text, base, at, char = skip_space(body, length, text, base, at + 1)
          text, base, at = with_field(body, length, text, base, at)
          local first = base + at - 1
          if char == 34 then
            local value = short_string(text, at)
            text, base, at, taken = string_end(body, length, text, base, at + 1)
            steps = steps + taken
            field(name, value and typed(kind, value, true), first, base + at - 2, true)
          elseif char and char ~= 123 and char ~= 91 then
            local scalar = match(text, "^[%w%.+-]+", at) or ""
            at = at + #scalar
            field(name, typed(kind, scalar, false), first, base + at - 2, false)
          else
            field(name, nil, first, first, false)
          end
        end
      end
    elseif down < up then
      depth, at = depth + 1, down + 1
    elseif up < NONE then
      depth, at = depth - 1, up + 1
    else
      base, at = base + #text, 1
      if base >= length then return nil end
      text = window(body, base, length)
    end
    if base ~= before then quote, open, close, array, close_array = 0, 0, 0, 0, 0 end
  end
  return "$reason"
end

-- The same for a multipart form, whose parts are between lines with the boundary.
local function scan_form(text, boundary, field)
  local line = "--" .. boundary
  local _, at = find(text, line, 1, true)
  while at do
    local stop = find(text, "\r\n" .. line, at + 1, true)
    if not stop then return end
    local _, head = find(text, "\r\n\r\n", at + 1, true)
    if head and head < stop and head - at < FIELD then
      local name = match(sub(text, at + 1, head), "[;%s][nN][aA][mM][eE]=\"?([^\";\r\n]+)")
      local kind = name and FIELDS[name]
      if kind and stop - head <= FIELD then
        field(name, typed(kind, sub(text, head + 1, stop - 1), true), head, stop - 2, false)
      end
    end
    at = stop + 1 + #line
  end
end

local function form_boundary(content_type)
  if not match(content_type:lower(), "^%s*multipart/form%-data%s*;") then return nil end
  return match(content_type, '[;%s][bB][oO][uU][nN][dD][aA][rR][yY]="([^"]+)"')
    or match(content_type, "[;%s][bB][oO][uU][nN][dD][aA][rR][yY]=([^;%s]+)")
end

local function is_json(content_type)
  if content_type == "application/json" or content_type == "" then return true end
  return match(content_type:lower(), "^%s*application/json%s*%f[;%z]")
end

local REFUSALS = {
  ["$reason"] = "the body has too many JSON values to route it; send fewer in one request",
  ["$encoding_reason"] = "the JSON body is not UTF-8; send it in UTF-8",
}

-- Reads the fields of a body, if it is of a kind that has them. Replies and returns false when it is refused.
local function scan(handle, field)
  local content_type = handle:headers():get("content-type") or ""
  local boundary
  if not is_json(content_type) then
    boundary = form_boundary(content_type)
    if not boundary then return true end
  end
  local body = handle:body()
  if not body then return true end
  if boundary then
    scan_form(body:getBytes(0, body:length()), boundary, field)
    return true
  end
  local refused = scan_json(body, field)
  if refused then handle:respond({[":status"] = "400", ["$reason_header"] = refused}, REFUSALS[refused]) end
  return not refused
end
"""

_READ: Final = """
function envoy_on_request(handle)
  local found = {}
  local accepted = scan(handle, function(key, value)
    -- The last of duplicate keys counts. A stream that is false is one that is not there.
    found[key] = value or nil
  end)
  if not accepted or not next(found) then return end
  local metadata = handle:streamInfo():dynamicMetadata()
  for key, value in pairs(found) do metadata:set("$namespace", key, value) end
  handle:clearRouteCache()
end
"""

ESTIMATED_TOKENS_KEY: Final = "tokens"
"""Key of the metadata with the estimated tokens of prompt and answer; absent if nothing counts them."""

ESTIMATED_TOKENS_HEADER: Final = "x-switchgear-estimated-tokens"
"""The same number for access logs; engines get it, too. Callers cannot send it."""

_COUNT: Final = """
FIELDS.n = "number"

-- Engines read "9_000" and " 9000 " as numbers.
local plain = typed
typed = function(kind, text, quoted)
  if kind == "number" and quoted then text = text:gsub("[_%s]", "") end
  return plain(kind, text, quoted)
end

-- Tokens of the prompt by its bytes, and of the answers by the limits that the request states. A limit below
-- 1 counts as none stated: a caller cannot ask for less than nothing.
local function count(handle, found)
  local body = handle:body()
  if not body then return end
  local asked = 0
  for _, key in ipairs({$limit_names}) do
    local limit = found[key]
    if limit and limit > asked then asked = limit end
  end
  if asked == 0 then asked = $answer_tokens end
  local answers = found.n and found.n > 1 and found.n or 1
  local tokens = math.min(body:length() / $bytes_per_token + asked * answers, $most_tokens)
  tokens = math.ceil(tokens)
  handle:streamInfo():dynamicMetadata():set("$namespace", "$tokens_key", tokens)
  handle:headers():replace("$tokens_header", string.format("%.0f", tokens))
end
"""

TIME_LIMIT_KEY: Final = "time_limit"
"""Key of a route's metadata, under ``FIELDS_FILTER``, with the rule for time limits by tokens."""

_LIMIT_TIME: Final = """
-- Sets the time limits of the chosen route's rule, in milliseconds, if the request states a limit of tokens.
local function limit_time(handle)
  local found = handle:streamInfo():dynamicMetadata():get("$namespace")
  if not found or not found.$tokens_key then return end
  local states = false
  for _, key in ipairs({$limit_names}) do states = states or (found[key] or 0) > 0 end
  if not states then return end
  local rule = handle:metadata():get("$time_limit")
  if not rule then return end
  local try = math.max(rule.least, rule.base + found.$tokens_key * rule.per_token)
  local all = rule.tries * try + rule.pauses
  if rule.most > 0 then all = math.min(all, rule.most) end
  local headers = handle:headers()
  headers:replace("$total_header", string.format("%.0f", all))
  -- Envoy takes a limit that is not shorter than the total for none; it replaces the route's anyway.
  if rule.each > 0 then headers:replace("$try_header", string.format("%.0f", try)) end
end

function envoy_on_request(handle)
  read_fields(handle)
  limit_time(handle)
end
"""

TOTAL_HEADER: Final = "x-envoy-upstream-rq-timeout-ms"
TRY_HEADER: Final = "x-envoy-upstream-rq-per-try-timeout-ms"
"""Headers by which Envoy's router limits one request. Listeners remove them from what callers send."""

MOST_TOKENS: Final = 1_000_000_000
"""The largest estimate, and the largest quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEstimate:
    """How a port estimates the tokens of a request, from ``Tenants``.

    ``for_routes``: routes match on them. ``for_times``: they limit the time of requests.
    """

    bytes_per_token: int
    answer_tokens: int
    for_routes: bool
    for_times: bool = False


def token_estimate(
    routes: Sequence[ModelRoute], *, sized: bool = False, timed: bool = False
) -> TokenEstimate | None:
    """The estimate of a port with these routes; None if nothing needs it.

    ``sized``: retries or hedges of a route depend on it. ``timed``: time limits do.
    """
    tenants = routes[0].spec.listener.tenants
    reads = not routes[0].spec.listener.reads_headers
    timed = timed and reads
    for_routes = (sized and reads) or timed or any(route.spec.match.tokens_above is not None for route in routes)
    if not for_routes and (tenants is None or not tenants.counts_tokens):
        return None
    return TokenEstimate(
        bytes_per_token=BYTES_PER_TOKEN if tenants is None else tenants.bytes_per_token,
        answer_tokens=ANSWER_TOKENS if tenants is None else tenants.answer_tokens,
        for_routes=for_routes,
        for_times=timed,
    )


_REWRITE: Final = """
-- Replaces the model by the one that the chosen pool serves, and lowers limits of tokens. Every other byte stays.
FIELDS.min_tokens, FIELDS.thinking = "number", "string"

-- The field that limits answers at this path, another that does, and the limit that holds without any.
local function limiting_fields(path)
  path = match(path, "^[^?]*")
  if find(path, "/chat/completions", 1, true) then return "max_tokens", "max_completion_tokens", NONE end
  if match(path, "/completions/*$") then return "max_tokens", nil, $default_tokens end
  if match(path, "/responses/*$") then return "max_output_tokens", nil, NONE end
  return nil, nil, 0
end

-- The number that engines read, also in quotes with blanks or underscores; nil if it is none.
local function number_in(text, quoted)
  if quoted then text = decoded(sub(text, 2, -2)) end
  return tonumber((text:gsub("[_%s]", "")))
end

local function digits(number) return string.format("%.0f", number) end

-- Whether the budget for thinking does not fit below the limit; Messages refuse such a request.
local function thinks_longer(body, first, limit)
  local text = body:getBytes(first, math.min(FIELD, body:length() - first))
  local budget = tonumber(match(text, '^{[^{}]-"budget_tokens"%s*:%s*(%d+)') or "")
  return budget ~= nil and budget >= limit
end

-- Where the first field of the body's object belongs, and what follows it; nil for another body.
local function object_start(body)
  local length = body:length()
  local text = window(body, 0, length)
  local start = match(text, "^\\239?\\187?\\191?()")
  local base, at, char
  text, base, at, char = skip_space(body, length, text, 0, start)
  if char ~= 123 then return nil end
  local offset = base + at
  text, base, at, char = skip_space(body, length, text, base, at + 1)
  return offset, char == 125 and "" or ","
end

local function apply(body, edits)
  local text, copied, pieces = body:getBytes(0, body:length()), 1, {}
  for _, edit in ipairs(edits) do
    pieces[#pieces + 1] = sub(text, copied, edit.first)
    pieces[#pieces + 1] = edit.text
    copied = edit.last + 2
  end
  pieces[#pieces + 1] = sub(text, copied)
  body:setBytes(table.concat(pieces))
end

-- Edits of the limits: the list, what the answer is limited to if that changed, and whether to refuse instead.
local function limits_of(handle, limit, edits, found)
  local own, other, default = limiting_fields(handle:headers():get(":path") or "")
  local body, form, numbers, nulls, least = handle:body(), found.form, {}, {}, nil
  local messages = match(handle:headers():get(":path") or "", "/messages/*%f[?%z]")
  for _, place in ipairs(found) do
    -- A body that ends after the colon has no value.
    local size = math.min(place.last - place.first + 1, body:length() - place.first)
    local raw = size < FIELD and (size > 0 and body:getBytes(place.first, size) or "") or nil
    if place.key == "thinking" then
      if messages and thinks_longer(body, place.first, limit) then return nil, true end
    elseif not raw and not place.quoted then
      return nil, true
    elseif raw == "null" and not form then
      numbers[place.key] = nil
      if place.key == own then nulls[#nulls + 1] = place end
    else
      local number = raw and number_in(raw, place.quoted) or (not raw and NONE or nil)
      numbers[place.key] = number
      if number and number > limit then
        place.text, least = digits(limit), limit
        edits[#edits + 1] = place
      end
    end
  end
  if own and not form and not numbers[own] and not (other and numbers[other]) then
    local most = math.min(default, limit)
    for _, place in ipairs(nulls) do
      place.text, least = digits(most), most
      edits[#edits + 1] = place
    end
    if #nulls == 0 and default > limit then
      local offset, comma = object_start(body)
      if offset then
        least = limit
        local text = '"' .. own .. '":' .. digits(limit) .. comma
        edits[#edits + 1] = {first = offset, last = offset - 1, text = text}
      end
    end
  end
  return least, false
end

function envoy_on_request(handle)
  local form = form_boundary(handle:headers():get("content-type") or "")
  local model = handle:filterContext():get(form and "plain" or "quoted")
  local limit = tonumber(handle:filterContext():get("limit") or "")
  local edits, found = {}, {form = form}
  local accepted = scan(handle, function(key, _, first, last, quoted)
    local place = {key = key, first = first, last = last, quoted = quoted}
    if key == "model" then
      place.text = model
      if model and (form or quoted) then edits[#edits + 1] = place end
    elseif key ~= "stream" then
      found[#found + 1] = place
    end
  end)
  -- Not earlier: Envoy's objects from before the body has arrived are dead.
  local body = handle:body()
  if not accepted or not body then return end
  if limit and (form or is_json(handle:headers():get("content-type") or "")) then
    local least, refused = limits_of(handle, limit, edits, found)
    if refused then
      local context = handle:filterContext()
      handle:respond({
        [":status"] = "503",
        ["$reason_header"] = context:get("reason"),
        ["retry-after"] = context:get("retry_after"),
      }, context:get("message"))
      return
    end
    if least then handle:streamInfo():dynamicMetadata():set("$namespace", "$limited_key", digits(least)) end
  end
  if #edits == 0 then return end
  table.sort(edits, function(one, other) return one.first < other.first end)
  apply(body, edits)
end
"""


def _filled(script: str) -> str:
    values = {
        "$window": str(_WINDOW_BYTES),
        "$field": str(MAX_FIELD_BYTES),
        "$steps": str(MAX_STEPS),
        "$token_limits": ", ".join(f'{name} = "number"' for name in TOKEN_LIMIT_FIELDS),
        "$namespace": REQUEST_METADATA,
        "$default_tokens": str(COMPLETIONS_DEFAULT_TOKENS),
        "$limited_key": LIMITED_TO_KEY,
        "$reason_header": "x-switchgear-reason",
        "$reason": REFUSED_BODY_REASON,
        "$encoding_reason": BODY_ENCODING_REASON,
    }
    # Longest first: one name begins another.
    for name in sorted(values, key=len, reverse=True):
        script = script.replace(name, values[name])
    return script


READER_LUA: Final = _filled(_READER)
"""The scanner alone: local functions ``scan_json``, ``scan_form`` and ``scan``."""


def count_tokens_lua(script: str, estimate: TokenEstimate) -> str:
    """A script that reads fields, which also leaves an estimate of the request's tokens in the metadata."""
    values = {
        "$limit_names": ", ".join(f'"{name}"' for name in TOKEN_LIMIT_FIELDS),
        "$answer_tokens": str(estimate.answer_tokens),
        "$bytes_per_token": str(estimate.bytes_per_token),
        "$most_tokens": str(MOST_TOKENS),
        "$tokens_key": ESTIMATED_TOKENS_KEY,
        "$tokens_header": ESTIMATED_TOKENS_HEADER,
        "$namespace": REQUEST_METADATA,
        "$time_limit": TIME_LIMIT_KEY,
        "$total_header": TOTAL_HEADER,
        "$try_header": TRY_HEADER,
    }
    counting, limiting = _COUNT, _LIMIT_TIME
    for name, value in values.items():
        counting, limiting = counting.replace(name, value), limiting.replace(name, value)
    start, accepted = "\nfunction envoy_on_request(handle)\n", "  if not accepted "
    begin, end = script.split(start)
    # A body without any field that routes match on has an estimate, too.
    chosen = " handle:clearRouteCache()" if estimate.for_routes else ""
    end = end.replace(accepted, f"  if accepted then count(handle, found){chosen} end\n{accepted}", 1)
    if not estimate.for_times:
        return f"{begin}{counting}{start}{end}"
    # The fields choose the route, so its rule is read after all of them.
    return f"{begin}{counting}\nlocal function read_fields(handle)\n{end}{limiting}"


READ_FIELDS_LUA: Final = READER_LUA + _filled(_READ)
"""Leaves the fields in the dynamic metadata ``REQUEST_METADATA``, after which Envoy chooses the route again."""

REWRITE_LUA: Final = READER_LUA + _filled(_REWRITE)
"""Replaces the model by ``quoted`` (JSON) or ``plain`` (a form) of the filter context; limits answers.

``limit`` is the most tokens. Requests that cannot be changed are refused with ``reason``, ``message`` and
``retry_after``: a number of more than 4 KiB, a budget for thinking above the limit.
"""
