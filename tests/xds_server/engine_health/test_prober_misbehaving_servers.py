"""The prober against servers that are not engines, and how often it probes."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from chaos.fake_engine import EngineCrash, FakeEngine
from engine.report import Verdict
from tests.xds_server.engine_health.running_prober import RunningProber, engine_up, policies, probed, watching
from xds_server.model.fleet import EngineId


@contextlib.asynccontextmanager
async def server(answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[int]:
    """A TCP server that hands each request's head to ``answer``; yields its port."""
    open_ones: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_ones.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            answering = asyncio.ensure_future(answer(head, writer))
            leaving = asyncio.ensure_future(reader.read())
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (answering, leaving):
                    one.cancel()
                await asyncio.wait((answering, leaving))
        writer.close()
        open_ones.discard(task)

    listener = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in list(open_ones):
            task.cancel()
        if open_ones:
            await asyncio.wait(list(open_ones))


def page(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status.encode(), len(body), body)


async def _huge(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
    while True:
        writer.write(chunk)
        await writer.drain()


async def _drip(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _silence(_: bytes, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def _cut(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


async def _garbage(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01 this is not HTTP \xff\xfe\r\n\r\n")


async def _lies(head: bytes, writer: asyncio.StreamWriter) -> None:
    """200 to everything, in JSON nested deeper than a stack."""
    writer.write(page(b"[" * 100_000 if head.startswith(b"POST") else b"vllm:num_requests_running NaN\n"))


async def _redirects(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(page(b"", "302 Found\r\nLocation: http://127.0.0.1:1/"))


@pytest.mark.parametrize(
    ("answer", "limit", "verdicts"),
    [
        # Only servers that never end a response time out; others must be read on a busy machine, too.
        (_huge, "20s", {Verdict.STARTING}),
        (_drip, "300ms", {Verdict.DEAD}),
        (_silence, "300ms", {Verdict.DEAD}),
        (_cut, "20s", {Verdict.DEAD}),
        (_garbage, "20s", {Verdict.STARTING}),
        (_lies, "20s", {Verdict.STARTING}),
        (_redirects, "20s", {Verdict.MISCONFIGURED}),
    ],
)
async def test_misbehaving_server_gets_a_verdict_in_bounded_time(
    answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]], limit: str, verdicts: set[Verdict]
) -> None:
    async with (
        server(answer) as port,
        watching(policies({"e0": port}, timeout=limit, stallAfter="300ms")) as one,
    ):
        await one.until(lambda: len(one.reports) >= 3, "three reports")
        assert one.verdicts() == verdicts


async def test_engine_without_metrics_is_judged_by_canaries() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"POST"):
            writer.write(page(b'{"choices": [{"text": "a"}]}'))
        else:
            writer.write(page(b"", "404 Not Found"))

    async with server(answer) as port, watching(policies({"e0": port})) as watched:
        await watched.looks(5)
        assert watched.verdicts() == {Verdict.READY}


async def test_at_most_one_probe_and_one_canary_in_flight() -> None:
    out, most = Counter[str](), Counter[str]()

    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        path = head.split(b" ", 2)[1].decode()
        out[path] += 1
        most[path] = max(most[path], out[path])
        try:
            await asyncio.sleep(0.15 if path == "/metrics" else 60)
            writer.write(page(b"vllm:generation_tokens_total 1\n"))
        finally:
            out[path] -= 1

    async with server(answer) as port, watching(policies({"e0": port}, interval="50ms", timeout="400ms")) as one:
        await one.looks(8)
    assert most["/metrics"] == 1
    assert most["/v1/completions"] == 1


async def test_event_loop_stall_ejects_no_engine() -> None:
    async with probed() as (_, watched):
        for _ in range(3):
            await watched.looks(1)
            time.sleep(1.3)  # noqa: ASYNC251 -- standing still is the point
        await watched.looks(3)
        assert watched.verdicts() <= {Verdict.READY, Verdict.BUSY}


@contextlib.asynccontextmanager
async def two_engines() -> AsyncIterator[tuple[FakeEngine, RunningProber]]:
    """With both in rotation; probes of healthy engines are far apart, on a busy machine, too."""
    async with (
        engine_up() as first,
        engine_up() as second,
        watching(policies({"e0": first.port, "e1": second.port}, interval="8s")) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        yield first, watched


async def more_often(watched: RunningProber) -> None:
    """Wait for 12 more reports of e0; e1 has at most half as many."""
    began = len(watched.reports)

    def told_of(engine: str) -> int:
        return sum(one.engine == engine for one in watched.reports[began:])

    await watched.until(lambda: told_of("e0") >= 12, "12 reports")
    assert told_of("e1") <= 6


async def test_probes_are_jittered_and_ejected_engines_are_probed_more_often() -> None:
    async with two_engines() as (first, watched):
        await first.set_fault(EngineCrash())
        await watched.until_out("e0")
        await more_often(watched)


async def test_ejected_engine_is_probed_as_often_as_an_unhealthy_one() -> None:
    async with two_engines() as (_, watched):
        watched.prober.hurry({EngineId("pool", "e0")})
        await more_often(watched)
