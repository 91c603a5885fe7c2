"""Send arrivals on schedule, whether or not earlier ones finished, and report the outcomes.

Client retries happen here: each attempt is a request with its own outcome.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, TracebackType
from typing import Final, Self

import aiohttp

from chaos.fake_engine.call_log import LOAD_ID
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome
from chaos.load.conversation_prompts import SessionKey, prompt_text

_BUSY_STATUSES = (429, 503)
_DONE = b"data: [DONE]"
_ERROR_EVENT = b'data: {"error"'
_FALLBACK_HEADER = "x-switchgear-fallback"
_REFUSAL_HEADER = "x-switchgear-reason"

FAULTS_OF_THE_CALLER: Final = frozenset(range(400, 500)) - {408, 409, 429}
"""Statuses that clients do not retry. Source: the retries of OpenAI's client libraries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTarget:
    """Target of requests, such as a zone's Envoy. ``weight`` is its relative share."""

    url: str
    name: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of a schedule, ``at_s`` after its start.

    ``batch``: of the batch class. ``group``: of callers; empty without groups. ``session``: the conversation;
    empty without conversations.
    """

    at_s: float
    request_id: str
    target: LoadTarget
    streaming: bool
    max_tokens: int
    prompt_tokens: int = 16
    batch: bool = False
    group: str = ""
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerRetries:
    """Client retries after a failed request, each after ``backoff_s``."""

    attempts: int = 0
    backoff_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTemplate:
    """Template of every request.

    ``deadline_s`` is the deadline of each attempt for a complete answer. Streaming and other requests all go to
    ``path``. ``batch_headers`` are added to batch-class requests, ``group_headers`` to those of a group
    of callers. ``key`` is where requests of a conversation state it.
    """

    deadline_s: float = 10.0
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    batch_headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    group_headers: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    path: str = "/v1/completions"
    key: SessionKey | None = None

    def body(self, arrival: Arrival) -> bytes:
        """The JSON body of a request."""
        body: dict[str, object] = {"max_tokens": arrival.max_tokens, "stream": arrival.streaming}
        if arrival.streaming:
            body["stream_options"] = {"include_usage": True}
        tokens = arrival.prompt_tokens
        words = prompt_text(arrival.session, tokens) if arrival.session else "word " * tokens
        if self.path.endswith("/chat/completions"):
            body["messages"] = [{"role": "user", "content": words}]
        else:
            body["prompt"] = words
        if self.model is not None:
            body["model"] = self.model
        return json.dumps(body).encode()


def _always(_: Arrival) -> bool:
    return True


class RequestSender:
    """``async with RequestSender(...) as sender: await sender.follow(arrivals)``; leaving it waits for every
    answer.

    Calls ``on_outcome`` in the event loop as each attempt ends, and ``retries`` before each retry; no retry starts
    after ``until_s`` or ``stop``. Times count from ``began_s`` on the monotonic clock. Cancellation aborts
    requests in flight, without outcomes.
    """

    def __init__(
        self,
        asking: RequestTemplate,
        on_outcome: Callable[[RequestOutcome], None],
        *,
        began_s: float,
        until_s: float | None = None,
        stop: asyncio.Event | None = None,
        retries: Callable[[], CallerRetries] = CallerRetries,
    ) -> None:
        self._asking = asking
        self._on_outcome = on_outcome
        self._began_s = began_s
        self._until_s = until_s
        self._stopped = stop or asyncio.Event()
        self._retries = retries
        self._group = asyncio.TaskGroup()
        self._session: aiohttp.ClientSession
        self._tokens: dict[str, str] = {}  # of strict sessions, from answers

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
        # No client timeout: each attempt has its own deadline from its planned time.
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, traceback)
        finally:
            await self._session.close()

    async def follow(self, arrivals: Iterable[Arrival], *, keep: Callable[[Arrival], bool] = _always) -> None:
        """Send each arrival when due, until they end or the stop time; skip those that ``keep`` rejects."""
        for arrival in arrivals:
            if not await self._due(arrival.at_s):
                return
            if keep(arrival):
                self.send(arrival)

    def send(self, arrival: Arrival) -> None:
        """Send one request now."""
        self._group.create_task(self._asked(arrival))

    def start(
        self, arrivals: Iterable[Arrival], *, keep: Callable[[Arrival], bool] = _always
    ) -> asyncio.Task[None]:
        """Follow additional arrivals concurrently; cancelling the task does not abort sent requests."""
        return self._group.create_task(self.follow(arrivals, keep=keep))

    async def ended(self) -> None:
        """Wait for the stop time; return at once without one."""
        if self._until_s is not None:
            await self._due(self._until_s)

    async def _due(self, at_s: float) -> bool:
        """Wait until ``at_s``; return False if sending has stopped by then."""
        if self._until_s is not None and at_s > self._until_s:
            return False
        wait_s = self._began_s + at_s - time.monotonic()
        if wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    await self._stopped.wait()
            except TimeoutError:
                return True
        return not self._stopped.is_set()

    async def _asked(self, arrival: Arrival) -> None:
        """One caller request: its first attempt and its retries."""
        planned_s, number = self._began_s + arrival.at_s, 1
        while True:
            outcome = await self._tried(arrival, planned_s, number)
            self._on_outcome(outcome)
            retries = self._retries()
            if outcome.ok or outcome.status in FAULTS_OF_THE_CALLER or number > retries.attempts:
                return
            planned_s, number = outcome.ended_at_s + retries.backoff_s, number + 1
            if not await self._due(planned_s - self._began_s):
                return

    async def _tried(self, arrival: Arrival, planned_s: float, number: int) -> RequestOutcome:
        sent_s = time.monotonic()
        answer = _Answer()
        request_id = arrival.request_id if number == 1 else f"{arrival.request_id}.{number}"
        try:
            async with asyncio.timeout(max(0.0, planned_s + self._asking.deadline_s - sent_s)):
                await self._exchange(arrival, request_id, answer)
        except TimeoutError:
            answer.reason = OutcomeReason.TIMEOUT
        except aiohttp.ClientPayloadError:
            # The answer had begun; with content-length or chunks missing, it was cut.
            answer.reason = OutcomeReason.TRUNCATED if arrival.streaming else OutcomeReason.RESET
        except (aiohttp.ClientError, OSError):
            answer.reason = OutcomeReason.TRUNCATED if answer.tokens else OutcomeReason.RESET
        ended_s = time.monotonic()
        first_s = answer.first_token_at_s
        return RequestOutcome(
            request_id=request_id,
            question=arrival.request_id,
            try_number=number,
            target=arrival.target.name or arrival.target.url,
            streaming=arrival.streaming,
            batch=arrival.batch,
            group=arrival.group,
            session=arrival.session,
            arrived_at_s=planned_s,
            lag_s=sent_s - planned_s,
            status=answer.status,
            reason=answer.reason,
            first_token_s=None if first_s is None else first_s - planned_s,
            latency_s=ended_s - planned_s,
            tokens=answer.tokens,
            longest_gap_s=max(answer.gaps_s, default=None),
            gaps_s=tuple(answer.gaps_s),
            fallback=answer.fallback,
            refusal=answer.refusal,
        )

    async def _exchange(self, arrival: Arrival, request_id: str, answer: "_Answer") -> None:
        key, session = self._asking.key, arrival.session
        stated: dict[str, str] = {}
        if key is not None and session:
            stated = key.headers(self._tokens.get(session, "") if key.strict else session)
        await _exchange(self._session, self._asking, arrival, stated | {LOAD_ID: request_id}, answer)
        if key is not None and key.strict and session and (token := key.token(answer.headers)):
            self._tokens[session] = token


@dataclass(slots=True, kw_only=True)
class _Answer:
    """State of one answer."""

    status: int = 0
    first_token_at_s: float | None = None
    tokens: int = 0
    reason: OutcomeReason = OutcomeReason.RESET
    event_at_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    fallback: str = ""
    refusal: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def token_seen(self, now_s: float) -> None:
        """Record an event with text."""
        self.tokens += 1
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
        if self.event_at_s is not None:
            self.gaps_s.append(now_s - self.event_at_s)
        self.event_at_s = now_s


async def _exchange(
    session: aiohttp.ClientSession,
    asking: RequestTemplate,
    arrival: Arrival,
    own: Mapping[str, str],
    answer: _Answer,
) -> None:
    """Send one request and read its answer into ``answer``, which keeps its partial state on failure.

    ``own`` are its own headers.
    """
    headers = {"content-type": "application/json", "x-request-id": own[LOAD_ID], **own}
    headers |= asking.headers
    if arrival.batch:
        headers |= asking.batch_headers
    headers |= asking.group_headers.get(arrival.group, {})
    url = arrival.target.url + asking.path
    async with session.post(url, data=asking.body(arrival), headers=headers) as response:
        answer.status, answer.headers = response.status, response.headers
        answer.fallback = response.headers.get(_FALLBACK_HEADER, "")
        answer.refusal = response.headers.get(_REFUSAL_HEADER, "")
        if response.status != 200 or answer.refusal:
            # A proxy's own answer with status 200 is a static one: no engine had room.
            busy = response.status == 200 or response.status in _BUSY_STATUSES
            answer.reason = OutcomeReason.SHED if busy else OutcomeReason.HTTP_ERROR
            await response.read()
        elif response.content_type == "text/event-stream":
            await _read_stream(response, answer)
        else:
            text = await response.read()
            answer.tokens = _tokens_used(text)
            answer.reason = OutcomeReason.OK if answer.tokens else OutcomeReason.TRUNCATED


async def _read_stream(response: aiohttp.ClientResponse, answer: _Answer) -> None:
    answer.reason = OutcomeReason.TRUNCATED
    rest = b""
    async for data in response.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(_DONE):
                if answer.reason is OutcomeReason.TRUNCATED:
                    answer.reason = OutcomeReason.OK
            elif event.startswith(_ERROR_EVENT):
                # An error inside a 200, which proxies count as a success.
                answer.reason = OutcomeReason.STREAM_ERROR
            elif b'"choices":[]' in event:
                # Only usage, in the last event, is exact; a chunk may hold several tokens.
                answer.tokens = _tokens_used(event.removeprefix(b"data:"))
            elif event.startswith(b"data:") and b'"role"' not in event:
                answer.token_seen(time.monotonic())


def _tokens_used(text: bytes) -> int:
    try:
        tokens = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return 0  # incomplete answer, reported as truncated
    return tokens if isinstance(tokens, int) else 0
