"""First-token gate: hold a stream's response headers until its first real token exists.

vLLM sends ``200`` and stream headers before any token, so to a proxy a deadlocked engine looks like a success that
goes silent: no header timeout applies, no retry is possible, and outlier detection counts a success. This ASGI
middleware sends no headers before the first event with generated output. An error event before it becomes the
plain HTTP error that the event names.

Not output: comments (keep-alive), a chat delta that only names the role, and the opening events of the Responses
API (``response.created``, ``response.queued``, ``response.in_progress``), of Messages (``message_start``,
``ping``) and of Cohere chat (``message-start``). Any other event is.

It runs inside vLLM's process, so it is one file without dependencies::

    vllm serve MODEL --middleware first_token_gate.FirstTokenGate      # this file's folder on PYTHONPATH

It also counts requests in flight, because vLLM's gauges freeze with the engine core, and serves the count on
``/switchgear/in_flight`` to callers on the same machine: ``{"in_flight": 3, "waiting_for_first_token": 1,
"waiting_long": 0}``. ``waiting_long`` counts those that wait with a body of ``LONG_BODY_BYTES`` or of unknown
length: only their prefill can take an engine seconds without a sign.

Environment settings: ``SWITCHGEAR_GATE_ROLE_COUNTS=1`` lets an empty role-only delta open the gate.
``SWITCHGEAR_GATE_HOLD_BYTES`` (1 MiB) bounds what one stream holds; beyond it the gate opens.

Passed through unchanged: other responses, compressed streams, GET, websockets (``/v1/realtime``), lifespan.
"""

from __future__ import annotations

import ipaddress
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]

COUNT_PATH = "/switchgear/in_flight"

LONG_BODY_BYTES = 2048
"""At most 2048 tokens: one chunk of vLLM's default."""

# response.created and response.in_progress each repeat the instructions and tools of the request.
_HOLD_LIMIT_BYTES = 1024 * 1024

# Sent before any token exists, or without one.
_OPENING_EVENTS = frozenset(
    (b"response.created", b"response.queued", b"response.in_progress", b"message_start", b"ping", b"message-start")
)
_ERROR_EVENTS = frozenset((b"error", b"response.failed"))


class FirstTokenGate:
    """ASGI middleware around ``app``.

    ``role_counts``: an empty delta that only names the role opens the gate. ``hold_bytes``: most bytes held of one
    stream. None reads the environment.
    """

    def __init__(self, app: App, role_counts: bool | None = None, hold_bytes: int | None = None) -> None:
        self._app = app
        if role_counts is None:
            role_counts = os.environ.get("SWITCHGEAR_GATE_ROLE_COUNTS", "") == "1"
        if hold_bytes is None:
            hold_bytes = int(os.environ.get("SWITCHGEAR_GATE_HOLD_BYTES") or _HOLD_LIMIT_BYTES)
        self._role_counts = role_counts
        self._hold_bytes = hold_bytes
        self.in_flight = 0
        self.waiting_for_first_token = 0
        self.waiting_long = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == COUNT_PATH and _from_this_machine(scope):
            await self._answer_count(send)
        elif scope["method"] != "POST":
            # Health, metrics and lists use no slot and do not stream.
            await self._app(scope, receive, send)
        else:
            await self._generation(scope, receive, send)

    async def _generation(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = _Held(send, self._role_counts, self._hold_bytes)
        self.in_flight += 1
        self.waiting_for_first_token += 1
        long = _is_long(scope)
        self.waiting_long += long
        waiting = True

        async def gated(message: Message) -> None:
            nonlocal waiting
            await held.send(message)
            if waiting and held.open:
                waiting = False
                self.waiting_for_first_token -= 1
                self.waiting_long -= long

        try:
            await self._app(scope, receive, gated)
            # The application may return without a final body.
            await held.release()
        finally:
            # Completed, failed or abandoned by the client.
            self.in_flight -= 1
            if waiting:
                self.waiting_for_first_token -= 1
                self.waiting_long -= long

    async def _answer_count(self, send: Send) -> None:
        counts = {
            "in_flight": self.in_flight,
            "waiting_for_first_token": self.waiting_for_first_token,
            "waiting_long": self.waiting_long,
        }
        await _send_json(send, 200, [], json.dumps(counts).encode())


def _is_long(scope: Scope) -> bool:
    """Whether the body may be a long prompt."""
    declared = [value for name, value in scope["headers"] if name == b"content-length"]
    return not (declared and declared[0].isdigit() and int(declared[0]) < LONG_BODY_BYTES)


class _Held:
    """Messages of one response, held until the gate opens."""

    def __init__(self, send: Send, role_counts: bool, hold_bytes: int) -> None:
        self._send = send
        self._role_counts = role_counts
        self._hold_bytes = hold_bytes
        self._start: Message | None = None
        self._bodies: list[Message] = []
        self._events = _Events()
        self._held_bytes = 0
        self._swallow = False
        self.open = False

    async def send(self, message: Message) -> None:
        """Forward, hold or replace a message."""
        if self._swallow:
            return
        kind = message["type"]
        if self.open:
            await self._send(message)
        elif kind == "http.response.start" and _is_event_stream(message):
            self._start = message
        elif self._start is None:
            # Not a stream: pass the rest through.
            self.open = kind == "http.response.start"
            await self._send(message)
        elif kind == "http.response.body":
            await self._body(message)
        else:
            self._bodies.append(message)

    async def release(self) -> None:
        """Open the gate and send all held messages."""
        self.open = True
        if self._start is not None:
            start, self._start = self._start, None
            await self._send(start)
        bodies, self._bodies = self._bodies, []
        for body in bodies:
            await self._send(body)

    async def _body(self, message: Message) -> None:
        chunk = message.get("body", b"")
        self._bodies.append(message)
        self._held_bytes += len(chunk)
        last = not message.get("more_body", False)
        for event in self._events.after(chunk, last=last):
            error = _error(event)
            if error is not None:
                await self._fail(*error)
                return
            if _is_output(event, role_counts=self._role_counts):
                await self.release()
                return
        if last or self._held_bytes > self._hold_bytes:
            await self.release()

    async def _fail(self, status: int, body: bytes) -> None:
        """Replace the stream by the HTTP error of its first event."""
        start, self._start, self._bodies = self._start, None, []
        headers = start["headers"] if start is not None else []
        self._swallow = True
        self.open = True
        await _send_json(self._send, status, headers, body)


class _Events:
    """Server-sent events of a stream that comes in chunks cut anywhere. Lines end in LF, CRLF or CR."""

    def __init__(self) -> None:
        self._unread = bytearray()
        self._after_cr = False

    def after(self, chunk: bytes, *, last: bool) -> list[bytes]:
        """Events completed by a chunk, with LF line ends; after the last one, the incomplete rest too."""
        half_read, self._after_cr = self._after_cr, chunk.endswith(b"\r") if chunk else self._after_cr
        if half_read:
            chunk = chunk.removeprefix(b"\n")  # the second half of a CRLF
        searched = max(0, len(self._unread) - 1)
        self._unread += chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        found, begin = [], 0
        while (end := self._unread.find(b"\n\n", max(begin, searched))) != -1:
            found.append(bytes(self._unread[begin:end]))
            begin = end + 2
        del self._unread[:begin]
        if last and self._unread:
            found.append(bytes(self._unread))
        return found


def _field(event: bytes, name: bytes) -> bytes:
    """Joined values of the lines of a field; empty without them."""
    lines = (line for line in event.split(b"\n") if line.startswith(name))
    return b"\n".join(line[len(name) :].removeprefix(b" ") for line in lines)


def _parsed(event: bytes) -> Any:
    try:
        return json.loads(_field(event, b"data:"))
    except (ValueError, RecursionError):
        return None


def _name(event: bytes) -> bytes:
    """Name of an event, by its ``event:`` line or the ``type`` of its data; empty without one."""
    named = _field(event, b"event:").strip()
    if named or not any(b'"' + name + b'"' in event for name in _OPENING_EVENTS | _ERROR_EVENTS):
        return named
    parsed = _parsed(event)
    kind = parsed.get("type") if isinstance(parsed, dict) else None
    return kind.encode() if isinstance(kind, str) else b""


def _error(event: bytes) -> tuple[int, bytes] | None:
    """Status and body of an error event; None for any other."""
    if b'"error"' not in event:
        return None
    name = _name(event)
    if name in _OPENING_EVENTS:
        return None  # a Responses object has "error": null
    parsed = _parsed(event)
    if not isinstance(parsed, dict):
        return None
    if name == b"response.failed" and isinstance(parsed.get("response"), dict):
        parsed = {"error": parsed["response"].get("error")}
    elif name == b"error" and "error" not in parsed:
        parsed = {"error": {key: value for key, value in parsed.items() if key != "sequence_number"}}
    if not isinstance(parsed.get("error"), dict):
        return None
    code = parsed["error"].get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return status, json.dumps(parsed).encode()


def _is_output(event: bytes, *, role_counts: bool) -> bool:
    """Whether an event carries generated output; unknown formats count as output."""
    if not _field(event, b"data:").strip():
        return False  # a comment (keep-alive), or the rest of a blank line
    if _name(event) in _OPENING_EVENTS:
        return False
    if role_counts or b'"role"' not in event:
        return True
    parsed = _parsed(event)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("choices"), list):
        return True
    return not all(_role_only(choice) for choice in parsed["choices"])


def _role_only(choice: Any) -> bool:
    """Whether a chat choice only names the role."""
    if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
        return False
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return {key for key, value in delta.items() if value not in (None, "", [])} <= {"role"}


def _is_event_stream(start: Message) -> bool:
    headers = {bytes(name).lower(): bytes(value) for name, value in start.get("headers", ())}
    # A compressed stream cannot be parsed, so it passes as without the gate.
    return (
        headers.get(b"content-type", b"").startswith(b"text/event-stream") and b"content-encoding" not in headers
    )


def _from_this_machine(scope: Scope) -> bool:
    client = scope.get("client")
    if not client:
        return True  # a Unix socket
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


async def _send_json(send: Send, status: int, headers: Any, body: bytes) -> None:
    replaced = {b"content-type", b"content-length", b"transfer-encoding"}
    kept = [(name, value) for name, value in headers if bytes(name).lower() not in replaced]
    own = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kept, *own]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
