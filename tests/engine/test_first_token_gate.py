"""The gate around a small ASGI application: what goes out, when, and what is counted meanwhile."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.first_token_gate import COUNT_PATH, LONG_BODY_BYTES, FirstTokenGate

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-request-id", b"r1")]
TOKEN = b'data: {"choices":[{"text":" hello"}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
CHAT_TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
BUSY = b'data: {"error": {"message": "busy", "type": "Service Unavailable", "param": null, "code": 503}}\n\n'


def event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\ndata: " + data + b"\n\n"


def scope(method: str = "POST", path: str = "/v1/completions", client: str | None = "127.0.0.1") -> Message:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "client": (client, 5000) if client else None,
        "headers": [],
    }


def streaming(*chunks: bytes, status: int = 200, headers: list[tuple[bytes, bytes]] = STREAM) -> App:
    """An application that answers these chunks; the last one ends the body."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for index, chunk in enumerate(chunks):
            more = index < len(chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})

    return app


async def never() -> Message:
    await asyncio.Event().wait()
    return {}


async def answer(app: App, asked: Message | None = None, *, role_counts: bool | None = False) -> list[Message]:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await FirstTokenGate(app, role_counts)(asked or scope(), never, send)
    return sent


def body(sent: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in sent)


class Steps:
    """An application that sends one chunk per step."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.said = asyncio.Event()
        self.sent: list[Message] = []

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        while (chunk := await self.chunks.get()) is not None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self.said.set()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def say(self, chunk: bytes) -> None:
        self.said.clear()
        await self.chunks.put(chunk)
        await self.said.wait()

    async def send(self, message: Message) -> None:
        self.sent.append(message)


@pytest.mark.parametrize(
    "opening",
    [
        b": ping\n\n",
        b": ping\r\n\r\n",
        ROLE,
        b"\n\n",
        b"",
        b'data: {"choices":[{"text"',
        b"event: message\n\n",
    ],
    ids=["ping", "crlf ping", "role", "blank", "empty", "half an event", "no data"],
)
async def test_headers_wait_for_the_first_real_token(opening: bytes) -> None:
    app = Steps()
    gate = FirstTokenGate(app, False)
    call = asyncio.create_task(gate(scope(), never, app.send))
    await app.say(opening)
    assert app.sent == []
    assert (gate.in_flight, gate.waiting_for_first_token) == (1, 1)
    rest = b':" x"}]}\n\n' if opening.startswith(b'data: {"choices":[{"text"') and opening[-1:] != b"\n" else TOKEN
    await app.say(rest)
    assert app.sent[0]["type"] == "http.response.start"
    assert body(app.sent) == opening + rest
    assert (gate.in_flight, gate.waiting_for_first_token) == (1, 0)
    await app.chunks.put(None)
    await call
    assert (gate.in_flight, gate.waiting_for_first_token) == (0, 0)
    assert app.sent[-1]["more_body"] is False


async def test_a_role_delta_opens_the_gate_where_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_GATE_ROLE_COUNTS", "1")
    app = Steps()
    call = asyncio.create_task(FirstTokenGate(app)(scope(), never, app.send))
    await app.say(ROLE)
    assert body(app.sent) == ROLE
    await app.chunks.put(None)
    await call


async def test_a_delta_with_a_tool_call_is_a_token() -> None:
    event = b'data: {"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[{"index":0}]}}]}\n\n'
    app = Steps()
    call = asyncio.create_task(FirstTokenGate(app, False)(scope(), never, app.send))
    await app.say(event)
    assert body(app.sent) == event
    await app.chunks.put(None)
    await call


async def test_an_error_that_comes_first_becomes_the_http_error_it_names() -> None:
    sent = await answer(streaming(BUSY, DONE))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"] == b"r1"
    assert int(headers[b"content-length"]) == len(sent[1]["body"])
    assert json.loads(sent[1]["body"])["error"]["message"] == "busy"


async def test_an_error_after_pings_and_role_is_still_first() -> None:
    sent = await answer(streaming(b": ping\n\n" + ROLE, BUSY + DONE))
    assert sent[0]["status"] == 503


@pytest.mark.parametrize("code", ["null", '"oops"', "200", "7"])
async def test_an_error_without_a_usable_code_is_a_500(code: str) -> None:
    sent = await answer(streaming(b'data: {"error": {"message": "x", "code": %s}}\n\n' % code.encode(), DONE))
    assert sent[0]["status"] == 500


async def test_an_error_after_the_first_token_stays_in_the_stream() -> None:
    sent = await answer(streaming(TOKEN, BUSY, DONE))
    assert sent[0]["status"] == 200
    assert body(sent) == TOKEN + BUSY + DONE


async def test_a_token_that_speaks_of_errors_is_a_token() -> None:
    event = b'data: {"choices":[{"text":" \\"error\\""}]}\n\n'
    assert body(await answer(streaming(event, DONE))) == event + DONE


async def test_other_answers_pass_untouched() -> None:
    plain = [(b"content-type", b"application/json")]
    sent = await answer(streaming(b'{"a":', b"1}", status=400, headers=plain))
    assert sent[0] == {"type": "http.response.start", "status": 400, "headers": plain}
    assert body(sent) == b'{"a":1}'


async def test_a_compressed_stream_passes_untouched() -> None:
    app = Steps()
    headers = [*STREAM, (b"content-encoding", b"gzip")]

    async def compressed(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    await FirstTokenGate(compressed, False)(scope(), never, app.send)
    assert app.sent[0]["headers"] == headers


async def test_a_stream_that_ends_without_a_token_is_passed_on_whole() -> None:
    assert body(await answer(streaming(b": ping\n\n", DONE))) == b": ping\n\n" + DONE
    assert body(await answer(streaming(b""))) == b""


async def test_first_token_gate_buffer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWITCHGEAR_GATE_HOLD_BYTES", "5000")
    app = Steps()
    call = asyncio.create_task(FirstTokenGate(app, False)(scope(), never, app.send))
    ping = b": " + b"x" * 996 + b"\n\n"
    for _ in range(5):
        await app.say(ping)
    assert app.sent == []
    await app.say(b":")
    assert body(app.sent) == 5 * ping + b":"
    await app.chunks.put(None)
    await call


async def test_gate_holds_a_large_responses_opening() -> None:
    tools = b'{"tools":"' + b"x" * 300_000 + b'"}'
    opening = event(b"response.created", tools) + event(b"response.in_progress", tools)
    app = Steps()
    call = asyncio.create_task(FirstTokenGate(app, False)(scope(path="/v1/responses"), never, app.send))
    await app.say(opening)
    assert app.sent == []
    await app.say(event(b"response.output_item.added", b"{}"))
    assert app.sent[0]["type"] == "http.response.start"
    await app.chunks.put(None)
    await call


@pytest.mark.parametrize(
    "opening",
    [
        event(b"response.created", b'{"type":"response.created","response":{"error":null,"output":[]}}'),
        event(b"response.queued", b'{"type":"response.queued"}'),
        event(b"response.in_progress", b'{"type":"response.in_progress","response":{"error":null}}'),
        b'data: {"type": "response.created", "response": {"error": null}}\n\n',
        event(b"message_start", b'{"type":"message_start","message":{"role":"assistant","content":[]}}'),
        event(b"ping", b'{"type":"ping"}'),
        b'data: {"id":"1","type":"message-start","delta":{"message":{"role":"assistant"}}}\n\n',
    ],
    ids=["created", "queued", "in progress", "no event line", "message_start", "ping", "cohere"],
)
async def test_gate_holds_opening_events_of_other_apis(opening: bytes) -> None:
    app = Steps()
    gate = FirstTokenGate(app, False)
    call = asyncio.create_task(gate(scope(path="/v1/responses"), never, app.send))
    await app.say(opening)
    assert app.sent == []
    assert gate.waiting_for_first_token == 1
    delta = event(b"response.output_text.delta", b'{"type":"response.output_text.delta","delta":"hi"}')
    await app.say(delta)
    assert body(app.sent) == opening + delta
    await app.chunks.put(None)
    await call


@pytest.mark.parametrize(
    ("failed", "status", "error"),
    [
        (
            event(b"error", b'{"type":"error","error":{"type":"internal_error","message":"m"}}'),
            500,
            {"type": "error", "error": {"type": "internal_error", "message": "m"}},
        ),
        (
            event(b"error", b'{"type":"error","code":503,"message":"m","sequence_number":2}'),
            503,
            {"error": {"type": "error", "code": 503, "message": "m"}},
        ),
        (
            event(b"response.failed", b'{"type":"response.failed","response":{"error":{"code":"server_error"}}}'),
            500,
            {"error": {"code": "server_error"}},
        ),
    ],
    ids=["messages", "responses error", "response.failed"],
)
async def test_error_after_opening_events_becomes_http_error(failed: bytes, status: int, error: Any) -> None:
    opening = event(b"response.created", b'{"response":{"error":null}}') + event(b"message_start", b"{}")
    sent = await answer(streaming(opening, failed))
    assert sent[0]["status"] == status
    assert json.loads(body(sent)) == error


async def test_a_client_that_leaves_is_no_longer_counted() -> None:
    app = Steps()
    gate = FirstTokenGate(app, False)
    call = asyncio.create_task(gate(scope(), never, app.send))
    await app.say(ROLE)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (gate.in_flight, gate.waiting_for_first_token) == (0, 0)
    assert app.sent == []


async def test_a_failure_before_the_first_token_leaves_the_answer_to_the_server() -> None:
    async def failing(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        raise RuntimeError("engine core died")

    app = Steps()
    gate = FirstTokenGate(failing, False)
    with pytest.raises(RuntimeError):
        await gate(scope(), never, app.send)
    # No headers went out, so the server can still say 500.
    assert app.sent == []
    assert gate.in_flight == 0


async def test_slow_client_applies_backpressure() -> None:
    written = asyncio.Semaphore(0)
    app = Steps()

    async def send(message: Message) -> None:
        await written.acquire()
        app.sent.append(message)

    call = asyncio.create_task(FirstTokenGate(app, False)(scope(), never, send))
    saying = asyncio.create_task(app.say(TOKEN))
    await asyncio.sleep(0)
    assert not saying.done()
    written.release()
    written.release()
    await saying
    await app.chunks.put(None)
    written.release()
    await call


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_scopes_pass_untouched(kind: str) -> None:
    seen = []

    async def app(asked: Any, _receive: Any, _send: Any) -> None:
        seen.append(asked["type"])

    await FirstTokenGate(app, False)({"type": kind}, never, never)  # type: ignore[arg-type]  # never sent to
    assert seen == [kind]


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", None])
async def test_in_flight_count_is_served_on_loopback(client: str | None) -> None:
    sent = await answer(streaming(b"no"), scope("GET", COUNT_PATH, client))
    assert json.loads(body(sent)) == {"in_flight": 0, "waiting_for_first_token": 0, "waiting_long": 0}


@pytest.mark.parametrize("client", ["10.0.0.7", "testclient"])
async def test_in_flight_count_is_denied_to_other_hosts(client: str) -> None:
    sent = await answer(streaming(b"the application's"), scope("GET", COUNT_PATH, client))
    assert body(sent) == b"the application's"


NOT_OUTPUT = [
    b": keep-alive\n\n",
    b"\n\n",
    b"id: 7\n\n",
    ROLE,
    event(b"response.created", b'{"type":"response.created","response":{"error":null}}'),
    event(b"response.in_progress", b'{"type":"response.in_progress"}'),
    event(b"message_start", b'{"type":"message_start","message":{"role":"assistant"}}'),
    event(b"ping", b'{"type":"ping"}'),
]
OUTPUT = [
    TOKEN,
    CHAT_TOKEN,
    DONE,
    event(b"response.output_item.added", b'{"type":"response.output_item.added"}'),
    event(b"response.output_text.delta", b'{"delta":"\\u2028"}'),
    event(b"content_block_start", b'{"type":"content_block_start"}'),
    b"data: a\ndata: b\n\n",
]


@given(
    opening=st.lists(st.sampled_from(NOT_OUTPUT), max_size=6),
    output=st.lists(st.sampled_from(OUTPUT + NOT_OUTPUT), max_size=4),
    line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
    cuts=st.lists(st.integers(0, 1000), max_size=12),
    every_byte=st.booleans(),
)
def test_headers_come_with_the_first_output_event_for_any_cut(
    opening: list[bytes], output: list[bytes], line_end: bytes, cuts: list[int], every_byte: bool
) -> None:
    events = [one.replace(b"\n", line_end) for one in opening + output]
    whole = b"".join(events)
    first = next((at for at, one in enumerate(opening + output) if one in OUTPUT), None)
    # A lone CR ends the line; the LF after it may come later.
    opens_at = len(whole) if first is None else len(b"".join(events[: first + 1])) - (line_end == b"\r\n")
    marks = range(len(whole) + 1) if every_byte else [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    chunks = [whole[start:end] for start, end in pairwise(marks)] or [b""]
    sent: list[Message] = []
    read = 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal read
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        for index, chunk in enumerate(chunks):
            read += len(chunk)
            more = index < len(chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
            if first is not None and more:
                assert bool(sent) == (read >= opens_at)

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(FirstTokenGate(app, False)(scope(), never, send))
    assert body(sent) == whole
    assert sent[0] == {"type": "http.response.start", "status": 200, "headers": STREAM}
    assert sent[-1]["more_body"] is False


@pytest.mark.parametrize(
    ("headers", "long"),
    [
        ([(b"content-length", b"300")], 0),
        ([(b"content-length", str(LONG_BODY_BYTES - 1).encode())], 0),
        ([(b"content-length", str(LONG_BODY_BYTES).encode())], 1),
        ([(b"transfer-encoding", b"chunked")], 1),
        ([(b"content-length", b"many")], 1),
    ],
)
async def test_long_bodies_count_until_their_first_token(headers: list[tuple[bytes, bytes]], long: int) -> None:
    app = Steps()
    gate = FirstTokenGate(app, False)
    call = asyncio.create_task(gate({**scope(), "headers": headers}, never, app.send))
    await app.say(b": ping\n\n")
    assert (gate.waiting_for_first_token, gate.waiting_long) == (1, long)
    await app.say(TOKEN)
    assert (gate.waiting_for_first_token, gate.waiting_long) == (0, 0)
    await app.chunks.put(None)
    await call
    assert gate.waiting_long == 0
