"""Reading request fields: the Lua scanner against Python's json, in the LuaJIT that Envoy embeds."""

import json
import random
from collections.abc import Mapping
from email.message import EmailMessage
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lupa.luajit21 import LuaRuntime

from xds_server.translate.request_fields import (
    LIMITED_TO_KEY,
    MAX_FIELD_BYTES,
    MAX_STEPS,
    READ_FIELDS_LUA,
    READER_LUA,
    REWRITE_LUA,
    TOKEN_LIMIT_FIELDS,
)

_HANDLE = """
return function(content_type, text, path, context)
  local found, answer, cleared = {}, nil, false
  local body = {
    length = function() return #text end,
    getBytes = function(_, offset, size)
      assert(offset >= 0 and size > 0 and offset + size <= #text, "outside of the body")
      return text:sub(offset + 1, offset + size)
    end,
    setBytes = function(_, new) answer = new end,
  }
  local handle = {
    headers = function() return {get = function(_, name)
      if name == ":path" then return path end
      return content_type
    end} end,
    body = function() return #text > 0 and body or nil end,
    filterContext = function() return {get = function(_, name) return context[name] end} end,
    respond = function(_, headers) answer = headers[":status"] end,
    clearRouteCache = function() cleared = true end,
    streamInfo = function()
      return {dynamicMetadata = function()
        return {
          set = function(_, space, key, value)
            assert(space == "switchgear.request")
            found[key] = value
          end,
          get = function() return {model = "x"} end,
        }
      end}
    end,
  }
  envoy_on_request(handle)
  return found, answer, cleared
end
"""
FIELDS = ("model", "stream", *TOKEN_LIMIT_FIELDS)
WINDOW = 256


RENAME = {"quoted": '"other"', "plain": "other"}


def _run(
    script: str,
    body: bytes,
    content_type: str = "application/json",
    *,
    path: str = "/v1/chat/completions",
    context: Mapping[str, str] = MappingProxyType(RENAME),
) -> tuple[dict[str, Any], Any, bool]:
    lua = LuaRuntime(encoding=None)
    lua.execute(script.encode())
    values = lua.table_from({key.encode(): value.encode() for key, value in context.items()})
    found, answer, cleared = lua.execute(_HANDLE.encode())(content_type.encode(), body, path.encode(), values)
    values = {key.decode(): value.decode() if isinstance(value, bytes) else value for key, value in found.items()}
    return values, answer, cleared


def fields(body: bytes, content_type: str = "application/json", *, window: int = 65536) -> dict[str, Any]:
    """What the filter leaves in the metadata for this body."""
    values, answer, cleared = _run(_windowed(READ_FIELDS_LUA, window), body, content_type)
    assert answer is None
    assert cleared == bool(values)
    return values


def _windowed(script: str, window: int) -> str:
    now = f"= 65536, {MAX_FIELD_BYTES}, {MAX_STEPS}"
    assert now in script
    return script.replace(now, f"= {window}, {min(MAX_FIELD_BYTES, window // 2)}, {MAX_STEPS}")


def engine_reads(body: bytes) -> dict[str, Any]:
    """The same by Python's json, and by pydantic's rules for flags and numbers."""
    document = json.loads(body)
    if not isinstance(document, dict):
        return {}
    read: dict[str, Any] = {}
    for name in FIELDS:
        value = document.get(name)
        if name == "model":
            if isinstance(value, str):
                read[name] = value
        elif name == "stream":
            text = str(value).lower() if isinstance(value, (str, bool, int, float)) else ""
            if text in {"1", "1.0", "true", "t", "yes", "y", "on"}:
                read[name] = True
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            read[name] = float(value)
    return read


_TEXT = st.text(alphabet=st.sampled_from('ab"\\{}[]:, \n\t/é€😀\x7fmodelstream'), max_size=40)
_KEYS = st.one_of(st.sampled_from(FIELDS), _TEXT)
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6), _TEXT)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(_KEYS, inner, max_size=5)),
    max_leaves=12,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """One JSON object as engines may get it: duplicate keys, odd blanks, escapes, nesting, a BOM."""
    pairs = draw(st.lists(st.tuples(_KEYS, _VALUES), max_size=8))
    blank = st.sampled_from(["", " ", "\n\t ", " " * 300])
    escaped = st.booleans()

    def quoted(text: str) -> str:
        if draw(escaped):
            units = text.encode("utf-16-be")
            return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'
        return json.dumps(text, ensure_ascii=draw(escaped))

    parts = [
        f"{draw(blank)}{quoted(key)}{draw(blank)}:{draw(blank)}"
        + (quoted(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=draw(escaped)))
        + draw(blank)
        for key, value in pairs
    ]
    return (b"\xef\xbb\xbf" if draw(escaped) else b"") + ("{" + ",".join(parts) + draw(blank) + "}").encode()


@settings(max_examples=300, deadline=None)
@given(body=bodies(), window=st.sampled_from([WINDOW, 300, 1000, 65536]))
@example(body=b'{"model":"a","model":null}', window=65536)
@example(body=b'{"prompt":"\\\\","model":"a"}', window=65536)
@example(body=b'{"p":"\\"model\\":\\"x\\"","model":"\\ud83d\\ude00"}', window=65536)
def test_scanner_reads_what_json_reads(body: bytes, window: int) -> None:
    assert fields(body, window=window) == engine_reads(body)


@pytest.mark.parametrize("length", range(WINDOW - 8, WINDOW + 8))
@pytest.mark.parametrize("fill", ["a", "\\\\", '\\"', "\\u0041"])
def test_strings_that_cross_a_window_end_where_they_end(fill: str, length: int) -> None:
    text = (fill * length)[:length]
    # An escape is not cut in two: what would be left is not JSON.
    text = text[: length - length % len(fill)]
    body = f'{{"prompt":"{text}","model":"m"}}'.encode()
    assert fields(body, window=WINDOW) == engine_reads(body) == {"model": "m"}


def test_random_large_bodies_read_the_same_in_every_window() -> None:
    drawn = random.Random(7)
    words = ["the", '"quick"', "brown\nfox", "{jumps}", "o\\ver", "[", "]", '\\"', "é"]
    for _ in range(30):
        messages = [
            {"role": "user", "content": " ".join(drawn.choices(words, k=drawn.randrange(400)))}
            for _ in range(drawn.randrange(20))
        ]
        document = {"messages": messages, "prompt": [*range(drawn.randrange(3000))], "model": "m", "stream": True}
        items = [*document.items()]
        drawn.shuffle(items)
        body = json.dumps(dict(items)).encode()
        assert fields(body, window=drawn.choice([WINDOW, 4096, 65536])) == {"model": "m", "stream": True}


@pytest.mark.parametrize(
    ("value", "streams"),
    [
        ("true", True),
        ("false", False),
        ("1", True),
        ("0", False),
        ('"true"', True),
        ('"no"', False),
        ("null", False),
    ],
)
def test_stream_is_true_for_what_engines_take_for_true(value: str, *, streams: bool) -> None:
    assert fields(f'{{"stream": {value}}}'.encode()) == ({"stream": True} if streams else {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model',
        b'{"model":',
        b'{"model":"m',
        b'{"model":"m\\',
        b"[]",
        b'["model", "m"]',
        b'[{"model":"m"}]',
        b'"model"',
        b'{"a":{"model":"m"}}',
        b"}}}}",
        b'{"model" "m"}',
    ],
)
def test_half_bodies_have_no_model(body: bytes) -> None:
    assert fields(body) == {}


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", "Application/JSON", "application/json ;x=y", ""],
)
def test_json_is_read_by_its_content_type(content_type: str) -> None:
    assert fields(b'{"model":"m"}', content_type) == {"model": "m"}


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/jsonl", "multipart/form-data", "x-application/json"]
)
def test_other_content_types_are_not_read(content_type: str) -> None:
    assert fields(b'{"model":"m"}', content_type) == {}


def _form(parts: list[tuple[str, bytes]], boundary: str) -> bytes:
    lines = b""
    for name, content in parts:
        message = EmailMessage()
        message["Content-Disposition"] = f'form-data; filename="model"; name="{name}"'
        lines += f"--{boundary}\r\n".encode() + str(message).strip().replace("\n", "\r\n").encode() + b"\r\n\r\n"
        lines += content + b"\r\n"
    return lines + f"--{boundary}--\r\n".encode()


def test_a_form_has_the_same_fields() -> None:
    audio = random.Random(1).randbytes(200_000) + b'\r\n--x\r\n{"model":"no"}'
    body = _form([("file", audio), ("model", b"whisper"), ("stream", b"true"), ("language", b"en")], "b0und")
    for quoted in ('"b0und"', "b0und"):
        assert fields(body, f"multipart/form-data; boundary={quoted}") == {"model": "whisper", "stream": True}


def test_rename_replaces_the_models_of_json_and_forms() -> None:
    body = b'{"model" : "a", "prompt": "\\"model\\": \\"a\\"", "x": {"model": "a"}, "m\\u006fdel":"b"}'
    _, renamed, _ = _run(REWRITE_LUA, body)
    assert (
        renamed
        == b'{"model" : "other", "prompt": "\\"model\\": \\"a\\"", "x": {"model": "a"}, "m\\u006fdel":"other"}'
    )
    form = _form([("file", b'{"model":"a"}'), ("model", b"a")], "b")
    _, renamed, _ = _run(REWRITE_LUA, form, "multipart/form-data; boundary=b")
    assert renamed == form.replace(b"\r\n\r\na\r\n", b"\r\n\r\nother\r\n")


@pytest.mark.parametrize("script", [READ_FIELDS_LUA, REWRITE_LUA])
@pytest.mark.parametrize("blank", ["", " ", "\n"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_json_that_engines_would_read_as_another_encoding_is_refused(
    encoding: str, blank: str, script: str
) -> None:
    document = {"model": "m", "stream": True}
    body = (blank + json.dumps(document)).encode(encoding)
    assert json.loads(body) == document
    found, answer, _ = _run(script, body)
    assert (found, answer) == ({}, b"400")


@pytest.mark.parametrize("start", [b"", b" ", b"\xef\xbb\xbf", "é".encode(), b"\xff", b"\xfe"])
def test_other_first_bytes_are_not_taken_for_an_encoding(start: bytes) -> None:
    assert json.detect_encoding(start + b'{"model":"m"}') in {"utf-8", "utf-8-sig"}
    assert fields(start + b'{"model":"m"}') == {"model": "m"}


LIMIT = {"limit": "512", "reason": "too-long-now", "message": "too long", "retry_after": "5"}
CHAT, TEXT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


def limited(body: bytes, path: str = CHAT, content_type: str = "application/json", **context: str) -> Any:
    """The body that the engine gets, and what the answer is limited to; the status if it is refused."""
    found, answer, _ = _run(REWRITE_LUA, body, content_type, path=path, context={**LIMIT, **context})
    if answer == b"503":
        return 503
    return (body if answer is None else answer), found.get(LIMITED_TO_KEY)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (CHAT, b'{"max_tokens":513}', b'{"max_tokens":512}'),
        (CHAT, b'{"max_tokens" : 9e3 , "n":1}', b'{"max_tokens" : 512 , "n":1}'),
        (CHAT, b'{"max_completion_tokens":99999}', b'{"max_completion_tokens":512}'),
        (
            CHAT,
            b'{"max_tokens":600,"max_completion_tokens":700}',
            b'{"max_tokens":512,"max_completion_tokens":512}',
        ),
        (CHAT, b'{"max_tokens":700,"max_tokens":600}', b'{"max_tokens":512,"max_tokens":512}'),
        (CHAT, b'{"max_tokens":"5000"}', b'{"max_tokens":512}'),
        (CHAT, b'{"max_tokens":" 5_000 "}', b'{"max_tokens":512}'),
        (CHAT, b'{"max_tokens":"\\u0035000"}', b'{"max_tokens":512}'),
        (CHAT, b'{"max_\\u0074okens":5000}', b'{"max_\\u0074okens":512}'),
        (CHAT, b'{"max_tokens":"' + b" " * 5000 + b'5000"}', b'{"max_tokens":512}'),
        (CHAT, b'{"messages":[]}', b'{"max_tokens":512,"messages":[]}'),
        (CHAT, b"\xef\xbb\xbf \n{ }", b'\xef\xbb\xbf \n{"max_tokens":512 }'),
        (CHAT, b'{"max_tokens":null}', b'{"max_tokens":512}'),
        (CHAT, b'{"max_tokens":7,"max_tokens":null}', b'{"max_tokens":7,"max_tokens":512}'),
        (CHAT, b'{"max_completion_tokens":null}', b'{"max_tokens":512,"max_completion_tokens":null}'),
        (
            CHAT,
            b'{"max_tokens":600,"messages":[{"max_tokens":900}],"p":"\\"max_tokens\\":900"}',
            b'{"max_tokens":512,"messages":[{"max_tokens":900}],"p":"\\"max_tokens\\":900"}',
        ),
        (CHAT, b'{"max_tokens":600,"min_tokens":600}', b'{"max_tokens":512,"min_tokens":512}'),
        (CHAT + "/?a=b", b"{}", b'{"max_tokens":512}'),
        (TEXT, b'{"max_tokens":513}', b'{"max_tokens":512}'),
        (TEXT, b'{"max_tokens":null}', b'{"max_tokens":16}'),
        (RESPONSES, b'{"max_output_tokens":513}', b'{"max_output_tokens":512}'),
        (RESPONSES, b'{"input":"x"}', b'{"max_output_tokens":512,"input":"x"}'),
        (MESSAGES, b'{"max_tokens":513}', b'{"max_tokens":512}'),
        (
            MESSAGES,
            b'{"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":511}}',
            b'{"max_tokens":512,"thinking":{"type":"enabled","budget_tokens":511}}',
        ),
    ],
)
def test_long_answers_are_limited(path: str, body: bytes, expected: bytes) -> None:
    most = 16 if b"16" in expected else 512
    assert limited(body, path) == (expected, str(most))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"max_tokens":512}'),
        (CHAT, b'{"max_completion_tokens":1,"max_tokens":null}'),
        (CHAT, b'{"max_tokens":1,"p":"\\"max_tokens\\":900","x":{"max_tokens":900}}'),
        (CHAT, b'[{"max_tokens":900}]'),
        (CHAT, b"not JSON"),
        (TEXT, b'{"prompt":"x"}'),
        (RESPONSES, b'{"max_output_tokens":1}'),
        (MESSAGES, b'{"messages":[]}'),
        (MESSAGES + "/count_tokens", b'{"messages":[]}'),
        ("/v1/embeddings", b'{"input":"x"}'),
        ("/v1/models", b""),
    ],
)
def test_short_answers_and_other_requests_stay(path: str, body: bytes) -> None:
    assert limited(body, path) == (body, None)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, b'{"max_tokens":1' + b"0" * 70_000 + b"}"),
        (MESSAGES, b'{"max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024}}'),
    ],
)
def test_requests_that_cannot_be_limited_are_refused(path: str, body: bytes) -> None:
    assert limited(body, path) == 503


def test_a_limit_below_the_default_of_completions_is_set() -> None:
    assert limited(b'{"prompt":"x"}', TEXT, limit="8") == (b'{"max_tokens":8,"prompt":"x"}', "8")


def test_model_and_limit_change_together() -> None:
    body = b'{"model":"a","max_tokens":900}'
    assert limited(body, **RENAME) == (b'{"model":"other","max_tokens":512}', "512")


def test_a_form_is_limited_too() -> None:
    form = _form([("model", b"whisper"), ("max_completion_tokens", b"900")], "b")
    expected = form.replace(b"900", b"512")
    path = "/v1/audio/transcriptions"
    assert limited(form, path, "multipart/form-data; boundary=b") == (expected, "512")


@settings(max_examples=200, deadline=None)
@given(body=bodies(), window=st.sampled_from([WINDOW, 300, 65536]), path=st.sampled_from([CHAT, TEXT, RESPONSES]))
def test_limited_bodies_never_ask_for_more(body: bytes, window: int, path: str) -> None:
    _, answer, _ = _run(_windowed(REWRITE_LUA, window), body, path=path, context=LIMIT)
    before, after = json.loads(body), json.loads(answer or body)
    if not isinstance(before, dict) or answer == b"503":
        return
    for name in TOKEN_LIMIT_FIELDS:
        was, now = before.get(name), after.get(name)
        if isinstance(was, (int, float)) and not isinstance(was, bool):
            assert now == min(was, 512)
    own = {CHAT: ("max_tokens", "max_completion_tokens"), TEXT: (), RESPONSES: ("max_output_tokens",)}[path]
    known = [after.get(name) for name in own]
    assert not own or any(value is not None for value in known)
    changed = {*TOKEN_LIMIT_FIELDS, "min_tokens"}
    assert {key: value for key, value in after.items() if key not in changed} == {
        key: value for key, value in before.items() if key not in changed
    }


@pytest.mark.parametrize("part", [b"[", b"[1],", b'"",', b'\\"'])
def test_a_body_of_too_many_values_is_refused(part: bytes) -> None:
    repeated = part * (5 * MAX_STEPS)
    body = b'{"model":"m","p":"' + repeated + b'"}' if part == b'\\"' else b'{"model":"m","p":[' + repeated
    _, answer, _ = _run(READ_FIELDS_LUA, body)
    assert answer == b"400"


def test_a_batch_of_token_lists_is_not_too_many() -> None:
    body = json.dumps({"input": [[1, 2, 3]] * 200_000, "model": "m"}).encode()
    assert fields(body) == {"model": "m"}


def test_reader_defines_what_both_scripts_use() -> None:
    assert READ_FIELDS_LUA.startswith(READER_LUA)
    assert REWRITE_LUA.startswith(READER_LUA)
