"""First-token gate: hold a stream's response headers until its first real token exists.

vLLM sends ``200`` and stream headers before any token, so to a proxy a deadlocked engine looks like a success that
goes silent: no header timeout applies, no retry is possible, and outlier detection counts a success. This ASGI
middleware sends no headers before the first token. A stream that starts with an error event becomes the plain HTTP
error that the event names.

It runs inside vLLM's process, so it is one file without dependencies::

    vllm serve MODEL --middleware first_token_gate.FirstTokenGate      # this file's folder on PYTHONPATH

It also counts requests in flight, because vLLM's gauges freeze with the engine core, and serves the count on
``/switchgear/in_flight`` to callers on the same machine: ``{"in_flight": 3, "waiting_for_first_token": 1}``.

Environment setting: ``SWITCHGEAR_GATE_ROLE_COUNTS=1`` lets an empty role-only delta open the gate.

Passed through unchanged: other responses, compressed streams, websockets, lifespan.
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

# Pings and role deltas are small; more than this before a token is an unknown format.
_HOLD_LIMIT_BYTES = 64 * 1024


class FirstTokenGate:
    """ASGI middleware around ``app``.

    ``role_counts``: an empty delta that only names the role opens the gate; None reads the environment.
    """

    def __init__(self, app: App, role_counts: bool | None = None) -> None:
        self._app = app
        if role_counts is None:
            role_counts = os.environ.get("SWITCHGEAR_GATE_ROLE_COUNTS", "") == "1"
        self._role_counts = role_counts
        self.in_flight = 0
        self.waiting_for_first_token = 0

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
        held = _Held(send, self._role_counts)
        self.in_flight += 1
        self.waiting_for_first_token += 1
        waiting = True

        async def gated(message: Message) -> None:
            nonlocal waiting
            await held.send(message)
            if waiting and held.open:
                waiting = False
                self.waiting_for_first_token -= 1

        try:
            await self._app(scope, receive, gated)
            # The application may return without a final body.
            await held.release()
        finally:
            # Completed, failed or abandoned by the client.
            self.in_flight -= 1
            if waiting:
                self.waiting_for_first_token -= 1

    async def _answer_count(self, send: Send) -> None:
        counts = {"in_flight": self.in_flight, "waiting_for_first_token": self.waiting_for_first_token}
        await _send_json(send, 200, [], json.dumps(counts).encode())


class _Held:
    """Messages of one response, held until the gate opens."""

    def __init__(self, send: Send, role_counts: bool) -> None:
        self._send = send
        self._role_counts = role_counts
        self._start: Message | None = None
        self._bodies: list[Message] = []
        self._unread = b""
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
        self._unread += chunk
        *events, self._unread = self._unread.replace(b"\r\n", b"\n").split(b"\n\n")
        last = not message.get("more_body", False)
        if last and self._unread:
            events.append(self._unread)
        for event in events:
            error = _error(event)
            if error is not None:
                await self._fail(*error)
                return
            if _is_token(event, role_counts=self._role_counts):
                await self.release()
                return
        if last or self._held_bytes > _HOLD_LIMIT_BYTES:
            await self.release()

    async def _fail(self, status: int, body: bytes) -> None:
        """Replace the stream by the HTTP error of its first event."""
        start, self._start, self._bodies = self._start, None, []
        headers = start["headers"] if start is not None else []
        self._swallow = True
        self.open = True
        await _send_json(self._send, status, headers, body)


def _data(event: bytes) -> bytes:
    """Joined ``data:`` lines of a server-sent event; empty for a comment."""
    lines = (line for line in event.split(b"\n") if line.startswith(b"data:"))
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def _parsed(event: bytes) -> Any:
    try:
        return json.loads(_data(event))
    except (ValueError, RecursionError):
        return None


def _error(event: bytes) -> tuple[int, bytes] | None:
    """Status and body of an error event; None for any other."""
    if b'"error"' not in event:
        return None
    parsed = _parsed(event)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("error"), dict):
        return None
    code = parsed["error"].get("code")
    status = code if isinstance(code, int) and 400 <= code <= 599 else 500
    return status, json.dumps(parsed).encode()


def _is_token(event: bytes, *, role_counts: bool) -> bool:
    """Whether an event carries a token; unknown formats count as one."""
    data = _data(event)
    if not data.strip():
        return False  # a comment (ping), or the rest of a blank line
    if role_counts or b'"role"' not in data:
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
