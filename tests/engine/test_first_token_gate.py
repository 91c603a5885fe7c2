"""The gate around a small ASGI application: what goes out, when, and what is counted meanwhile."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.first_token_gate import COUNT_PATH, FirstTokenGate

Message = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"x-request-id", b"r1")]
TOKEN = b'data: {"choices":[{"text":" hello"}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
CHAT_TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
BUSY = b'data: {"error": {"message": "busy", "type": "Service Unavailable", "param": null, "code": 503}}\n\n'


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


async def test_first_token_gate_buffer_is_bounded() -> None:
    app = Steps()
    call = asyncio.create_task(FirstTokenGate(app, False)(scope(), never, app.send))
    ping = b": " + b"x" * 1000 + b"\n\n"
    for _ in range(100):
        await app.say(ping)
    assert app.sent[0]["type"] == "http.response.start"
    await app.chunks.put(None)
    await call


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
    assert json.loads(body(sent)) == {"in_flight": 0, "waiting_for_first_token": 0}


@pytest.mark.parametrize("client", ["10.0.0.7", "testclient"])
async def test_in_flight_count_is_denied_to_other_hosts(client: str) -> None:
    sent = await answer(streaming(b"the application's"), scope("GET", COUNT_PATH, client))
    assert body(sent) == b"the application's"


@given(
    events=st.lists(st.sampled_from([b": ping\n\n", ROLE, CHAT_TOKEN, TOKEN, DONE, b"\n\n"]), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=8),
)
def test_whatever_the_chunks_the_body_is_the_same(events: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(events)
    marks = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    chunks = [whole[start:end] for start, end in pairwise(marks)]
    sent = asyncio.run(answer(streaming(*chunks)))
    assert body(sent) == whole
    assert sent[0]["type"] == "http.response.start"
    assert sent[-1]["more_body"] is False
