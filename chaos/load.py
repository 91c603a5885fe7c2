"""Open-loop load: requests leave on a schedule drawn beforehand, whatever becomes of the earlier ones.

A closed loop waits for answers before it sends more, and so hides exactly the overload one wants to see. Here
arrivals are a Poisson process from a seed; a slow fleet meets the same arrivals as a fast one. When the generator
itself cannot keep up it says so: each outcome carries its ``lag_s``.

Measured on one core of a shared 2-core machine, 200 requests/s of 16 tokens: 0.12 of the core without streaming,
0.19 with half of them streams, 0.27 with streams only (about 0.1 ms per event read).

Sending is in ``run_load``; what the outcomes add up to is pure, in ``chaos.outcomes``.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType

import aiohttp

from chaos.outcomes import Outcome, Reason, summary

_BUSY_STATUSES = (429, 503)
_DONE = b"data: [DONE]"
_ERROR_EVENT = b'data: {"error"'
_FALLBACK_HEADER = "x-switchgear-fallback"
_REFUSAL_HEADER = "x-switchgear-reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, such as the Envoy of a zone. ``weight`` is its share of them, relative."""

    url: str
    name: str = ""
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """From ``at_s`` of the schedule on the targets have these weights, in their order."""

    at_s: float
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """What is asked, how often, of whom.

    ``max_tokens`` maps lengths to relative weights. ``deadline_s`` is the client's patience for a whole answer;
    later is a timeout. Streams and whole answers both go to ``path``. ``turns``, by time, change who gets how much
    of the load; the arrivals themselves are the same with and without them.
    """

    targets: tuple[Target, ...]
    rate_per_s: float
    turns: tuple[Turn, ...] = ()
    streaming_share: float = 0.5
    max_tokens: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({16: 1.0}))
    prompt_tokens: int = 16
    deadline_s: float = 10.0
    model: str | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    path: str = "/v1/completions"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of the schedule; ``at_s`` counts from its beginning."""

    at_s: float
    request_id: str
    target: Target
    streaming: bool
    max_tokens: int


def schedule(profile: LoadProfile) -> Iterator[Arrival]:
    """Arrivals without end, a Poisson process of ``rate_per_s``; the seed decides all of it."""
    rng = random.Random(profile.seed)  # noqa: S311 -- repeatable traffic, no secret
    lengths, length_weights = list(profile.max_tokens), list(profile.max_tokens.values())
    target_weights = [target.weight for target in profile.targets]
    turns = list(profile.turns)
    at_s, number = 0.0, 0
    while True:
        at_s += rng.expovariate(profile.rate_per_s)
        number += 1
        while turns and turns[0].at_s <= at_s:
            target_weights = list(turns.pop(0).weights)
        yield Arrival(
            at_s=at_s,
            request_id=f"load-{profile.seed}-{number}",
            target=rng.choices(profile.targets, target_weights)[0],
            streaming=rng.random() < profile.streaming_share,
            max_tokens=rng.choices(lengths, length_weights)[0],
        )


async def run_load(
    profile: LoadProfile,
    on_outcome: Callable[[Outcome], None],
    *,
    seconds: float | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Send the schedule for ``seconds`` or until ``stop``; return when every request sent has its outcome.

    ``on_outcome`` is called in the event loop as each request ends, in the order they end. Cancelling cuts the
    requests in flight, without outcomes.
    """
    stopped = stop or asyncio.Event()
    began_s = time.monotonic()
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=5.0)
    # Deadlines are ours: one per request, counted from its planned arrival.
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session,
        asyncio.TaskGroup() as group,
    ):
        for arrival in schedule(profile):
            if seconds is not None and arrival.at_s > seconds:
                break
            wait_s = began_s + arrival.at_s - time.monotonic()
            if wait_s > 0 and await _stopped_within(stopped, wait_s):
                break
            if stopped.is_set():
                break
            group.create_task(_send(session, profile, arrival, began_s + arrival.at_s, on_outcome))


async def _stopped_within(stopped: asyncio.Event, wait_s: float) -> bool:
    try:
        async with asyncio.timeout(wait_s):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


@dataclass(slots=True, kw_only=True)
class _Answer:
    """What has been seen of one answer so far."""

    status: int = 0
    first_token_at_s: float | None = None
    tokens: int = 0
    reason: Reason = Reason.RESET
    event_at_s: float | None = None
    longest_gap_s: float | None = None
    fallback: str = ""
    refusal: str = ""

    def token_seen(self, now_s: float) -> None:
        """An event with text came."""
        self.tokens += 1
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
        if self.event_at_s is not None:
            self.longest_gap_s = max(self.longest_gap_s or 0.0, now_s - self.event_at_s)
        self.event_at_s = now_s


async def _send(
    session: aiohttp.ClientSession,
    profile: LoadProfile,
    arrival: Arrival,
    planned_s: float,
    on_outcome: Callable[[Outcome], None],
) -> None:
    sent_s = time.monotonic()
    answer = _Answer()
    try:
        async with asyncio.timeout(max(0.0, planned_s + profile.deadline_s - sent_s)):
            await _exchange(session, profile, arrival, answer)
    except TimeoutError:
        answer.reason = Reason.TIMEOUT
    except aiohttp.ClientPayloadError:
        # The answer had begun. With content-length or chunks missing, it was cut.
        answer.reason = Reason.TRUNCATED if arrival.streaming else Reason.RESET
    except (aiohttp.ClientError, OSError):
        answer.reason = Reason.TRUNCATED if answer.tokens else Reason.RESET
    ended_s = time.monotonic()
    first_s = answer.first_token_at_s
    on_outcome(
        Outcome(
            request_id=arrival.request_id,
            target=arrival.target.name or arrival.target.url,
            streaming=arrival.streaming,
            arrived_at_s=planned_s,
            lag_s=sent_s - planned_s,
            status=answer.status,
            reason=answer.reason,
            first_token_s=None if first_s is None else first_s - planned_s,
            latency_s=ended_s - planned_s,
            tokens=answer.tokens,
            longest_gap_s=answer.longest_gap_s,
            fallback=answer.fallback,
            refusal=answer.refusal,
        )
    )


async def _exchange(
    session: aiohttp.ClientSession, profile: LoadProfile, arrival: Arrival, answer: _Answer
) -> None:
    """One request and its answer; fills in ``answer`` as it goes, so that a failure leaves what was seen."""
    body: dict[str, object] = {"max_tokens": arrival.max_tokens, "stream": arrival.streaming}
    if arrival.streaming:
        body["stream_options"] = {"include_usage": True}
    words = "word " * profile.prompt_tokens
    if profile.path.endswith("/chat/completions"):
        body["messages"] = [{"role": "user", "content": words}]
    else:
        body["prompt"] = words
    if profile.model is not None:
        body["model"] = profile.model
    headers = {"content-type": "application/json", "x-request-id": arrival.request_id, **profile.headers}
    url = arrival.target.url + profile.path
    async with session.post(url, data=json.dumps(body).encode(), headers=headers) as response:
        answer.status = response.status
        answer.fallback = response.headers.get(_FALLBACK_HEADER, "")
        answer.refusal = response.headers.get(_REFUSAL_HEADER, "")
        if response.status != 200:
            answer.reason = Reason.SHED if response.status in _BUSY_STATUSES else Reason.HTTP_ERROR
            await response.read()
        elif response.content_type == "text/event-stream":
            await _read_stream(response, answer)
        else:
            text = await response.read()
            answer.tokens = _tokens_used(text)
            answer.reason = Reason.OK if answer.tokens else Reason.TRUNCATED


async def _read_stream(response: aiohttp.ClientResponse, answer: _Answer) -> None:
    answer.reason = Reason.TRUNCATED
    rest = b""
    async for data in response.content.iter_any():
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event.startswith(_DONE):
                if answer.reason is Reason.TRUNCATED:
                    answer.reason = Reason.OK
            elif event.startswith(_ERROR_EVENT):
                # A failure inside a 200: a proxy counts it as a success.
                answer.reason = Reason.STREAM_ERROR
            elif b'"choices":[]' in event:
                # The usage comes last and is exact; a chunk may hold several tokens.
                answer.tokens = _tokens_used(event.removeprefix(b"data:"))
            elif event.startswith(b"data:") and b'"role"' not in event:
                answer.token_seen(time.monotonic())


def _tokens_used(text: bytes) -> int:
    try:
        tokens = json.loads(text)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        return 0  # not a whole answer, which the caller reports as truncated
    return tokens if isinstance(tokens, int) else 0


def main(argv: Sequence[str]) -> int:
    """Send load and say what came of it: 0 when every answer was good, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m chaos.load", description=__doc__.splitlines()[0])
    parser.add_argument("--target", action="append", required=True, metavar="URL", help="may be repeated")
    parser.add_argument("--rate", type=float, default=10.0, help="requests per second (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="(%(default)s)")
    parser.add_argument("--streaming-share", type=float, default=0.5, help="0 to 1 (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="(%(default)s)")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds for an answer (%(default)s)")
    parser.add_argument("--model", help="left out of the request by default")
    parser.add_argument("--path", default="/v1/completions", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--json", action="store_true", help="the summary as one JSON object")
    arguments = parser.parse_args(argv)
    profile = LoadProfile(
        targets=tuple(Target(url=url.rstrip("/")) for url in arguments.target),
        rate_per_s=arguments.rate,
        streaming_share=arguments.streaming_share,
        max_tokens={arguments.max_tokens: 1.0},
        prompt_tokens=arguments.prompt_tokens,
        deadline_s=arguments.deadline,
        model=arguments.model,
        path=arguments.path,
        seed=arguments.seed,
    )
    outcomes: list[Outcome] = []
    cpu_before_s = time.process_time()
    asyncio.run(run_load(profile, outcomes.append, seconds=arguments.seconds))
    cpu_s = time.process_time() - cpu_before_s
    result = {**asdict(summary(outcomes)), "generator_cpu_s": cpu_s}
    if arguments.json:
        print(json.dumps(result))  # noqa: T201 -- the answer
    else:
        print("\n".join(f"{name:24} {_readable(value)}" for name, value in result.items()))  # noqa: T201
    return 0 if outcomes and all(outcome.ok for outcome in outcomes) else 1


def _readable(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {count}" for name, count in value.items()) or "none"
    return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
