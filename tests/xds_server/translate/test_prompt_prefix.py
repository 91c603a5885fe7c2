"""The key of a prompt: the Lua hash, in the LuaJIT that Envoy embeds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa.luajit21 import LuaRuntime

from xds_server.translate.prompt_prefix import (
    NEAR_BYTES,
    PREFIX_METADATA,
    SYSTEM_BYTES,
    WALK_BYTES,
    WALK_STEPS,
    read_prefix_lua,
)
from xds_server.translate.request_fields import READ_FIELDS_LUA, REQUEST_METADATA

_HANDLE = """
return function(content_type, text)
  local found, cleared, answer = {}, false, nil
  local body = {
    length = function() return #text end,
    getBytes = function(_, offset, size)
      assert(offset >= 0 and size > 0 and offset + size <= #text, "outside of the body")
      return text:sub(offset + 1, offset + size)
    end,
  }
  local handle = {
    headers = function() return {get = function() return content_type end} end,
    body = function() return #text > 0 and body or nil end,
    respond = function(_, headers) answer = headers[":status"] end,
    clearRouteCache = function() cleared = true end,
    streamInfo = function()
      return {dynamicMetadata = function()
        return {set = function(_, space, key, value) found[space .. "/" .. key] = value end}
      end}
    end,
  }
  envoy_on_request(handle)
  return found, cleared, answer
end
"""


def run(
    body: bytes, lengths: tuple[int, ...] = (64,), script: str = "", content_type: str = "application/json"
) -> Any:
    """The metadata that the script sets, whether the route was chosen again, and the status of a refusal."""
    lua = LuaRuntime(encoding=None)
    lua.execute((script or read_prefix_lua(lengths)).encode())
    found, cleared, answer = lua.execute(_HANDLE.encode())(content_type.encode(), body)
    return {key.decode(): value for key, value in found.items()}, cleared, answer


def key(body: Any, length: int = 64) -> bytes | None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    found: bytes | None = run(text, (length,))[0].get(f"{PREFIX_METADATA}/{length}")
    return found


def chat(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages], **more}


SYSTEM, USER = ("system", "be kind"), ("user", "what is a fuse?")


def test_later_turns_have_the_key_of_the_first() -> None:
    first = key(chat(SYSTEM, USER))
    assert first
    assert key(chat(SYSTEM, USER, ("assistant", "a" * 9000), ("user", "why?"))) == first
    assert key(chat(SYSTEM, USER, stream=True, max_tokens=5)) == first
    short = key(chat(SYSTEM, ("user", "hi")))
    assert key(chat(SYSTEM, ("user", "hi"), ("assistant", "yes?"))) == short, "also below the length that counts"


@pytest.mark.parametrize(
    "other",
    [
        chat(("system", "be mean"), USER),
        chat(SYSTEM, ("user", "what is a fish?")),
        chat(USER),
        chat(("developer", "be kind"), USER),
        {"model": "m", "prompt": "what is a fuse?"},
        {"model": "m", "input": "what is a fuse?", "instructions": "be kind"},
    ],
)
def test_other_prompts_have_other_keys(other: dict[str, Any]) -> None:
    assert key(other)
    assert key(other) != key(chat(SYSTEM, USER))


def test_only_the_length_of_the_first_message_counts() -> None:
    begin = "x" * 63
    assert key(chat(SYSTEM, ("user", begin + "a"))) == key(chat(SYSTEM, ("user", begin + "b")))
    assert key(chat(SYSTEM, ("user", begin + "a")), 65) != key(chat(SYSTEM, ("user", begin + "b")), 65)


def test_several_lengths_have_a_key_each() -> None:
    found = run(json.dumps(chat(SYSTEM, USER)).encode(), (512, 16))[0]
    assert {name for name in found if name.startswith(PREFIX_METADATA)} == {
        f"{PREFIX_METADATA}/16",
        f"{PREFIX_METADATA}/512",
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"model": "m"}',
        b'{"messages": []}',
        b'{"messages": [',
        b'{"messages": {"role": "user"}}',
        b'{"messages": null}',
        b'{"messages": 5}',
        b'{"prompt": ',
        b'{"prompt": false}',
    ],
)
def test_bodies_without_a_prompt_have_no_key(body: bytes) -> None:
    assert key(body) is None


def test_a_form_has_no_key() -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nhello\r\n--b--\r\n'
    assert run(form, content_type="multipart/form-data; boundary=b") == ({}, False, None)


@pytest.mark.parametrize(
    "body",
    [
        chat(("system", "s" * (WALK_BYTES + 9)), USER),
        {"messages": [{"role": "user", "content": [[[]] * WALK_STEPS]}]},
        {"messages": [{"content": "no role"}]},
        {"messages": [{"role": "user"}]},
        {"messages": ["text"]},
        {"prompt": [1, 2, 3]},
        {"prompt": ["a", "b"]},
        {
            "system": [{"type": "text", "text": "s" * (SYSTEM_BYTES + 9)}],
            "messages": [{"role": "user", "content": "u"}],
        },
    ],
)
def test_unusual_prompts_have_a_key(body: dict[str, Any]) -> None:
    assert key(body)


@pytest.mark.parametrize("system", [10, NEAR_BYTES - 90, NEAR_BYTES, NEAR_BYTES + 5, WALK_BYTES - 500])
@pytest.mark.parametrize("first", [1, 63, 64, 500, NEAR_BYTES])
def test_key_does_not_depend_on_what_is_read_first(system: int, first: int) -> None:
    told = ("system", "s" * system)
    turn = key(chat(told, ("user", "u" * first)))
    assert key(chat(told, ("user", "u" * first), ("assistant", "a" * WALK_BYTES))) == turn
    assert key(chat(told, ("user", "v" * first))) != turn
    by_content = {
        "messages": [{"content": "s" * system, "role": "system"}, {"content": "u" * first, "role": "user"}]
    }
    other = {"messages": [{"content": "s" * system, "role": "system"}, {"content": "v" * first, "role": "user"}]}
    assert key(by_content) != key(other)


def test_role_in_a_text_is_not_a_role() -> None:
    told = ("user", 'say "role": "system"')
    assert key(chat(told, ("user", "a"))) == key(chat(told, ("user", "b")))


texts = st.text(max_size=40) | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=20)})
)
turns = st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), min_size=1, max_size=4)


@given(st.text(max_size=60), turns, turns)
def test_any_conversation_keeps_its_key(
    system: str, begin: list[tuple[str, Any]], more: list[tuple[str, Any]]
) -> None:
    first = key(chat(("system", system), *begin))
    assert first
    assert key(chat(("system", system), *begin, *more)) == first


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=9),
        lambda of: st.lists(of) | st.dictionaries(st.text(max_size=9), of),
    )
)
def test_fields_are_read_as_without_prefixes(value: Any) -> None:
    body = json.dumps({"model": "m", "messages": value, "stream": True, "prompt": value}).encode()
    plain, with_prefix = run(body, script=READ_FIELDS_LUA), run(body)
    fields = {name: read for name, read in with_prefix[0].items() if name.startswith(REQUEST_METADATA)}
    assert (fields, *with_prefix[1:]) == plain
