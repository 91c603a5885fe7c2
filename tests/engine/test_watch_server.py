"""Watchers of an agent get changes at once, always the newest report and never an older one: real gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import grpc
import grpc.aio
import pytest

from engine.proto import engine_report_pb2 as pb
from engine.report import DrainRequest, EngineReport, Evidence, Verdict
from engine.report_wire import decode
from engine.watch_server import ACKNOWLEDGE, MAX_WATCHERS, WATCH, WatchServer, has_new_speed

LIMIT_S = 60.0


def report(verdict: Verdict = Verdict.READY, in_flight: int = 0, *, drain: bool = False) -> EngineReport:
    return EngineReport(
        pool="",
        engine="",
        verdict=verdict,
        evidence="a test",
        reasons=(Evidence(reading="tokens", sentence="a test"),),
        observed_at_s=0.0,
        requests_in_flight=in_flight,
        drain=DrainRequest() if drain else None,
    )


class Watcher:
    """One watcher."""

    def __init__(self, channel: grpc.aio.Channel, name: str) -> None:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WATCH)
        self.call = watch(pb.WatchRequest(watcher=name).SerializeToString())

    async def next(self) -> EngineReport:
        data = await asyncio.wait_for(self.call.read(), LIMIT_S)
        assert isinstance(data, bytes), "the stream ended"
        return decode(data, pool="p", engine="e", received_at_s=0.0)


@contextlib.asynccontextmanager
async def served(server: WatchServer) -> AsyncIterator[grpc.aio.Channel]:
    listening = grpc.aio.server()
    server.add_to(listening)
    port = listening.add_insecure_port("127.0.0.1:0")
    await listening.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await listening.stop(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


async def acknowledge(channel: grpc.aio.Channel, **said: object) -> bool:
    tell: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(ACKNOWLEDGE)
    return pb.DrainAnswer.FromString(await tell(pb.DrainProgress(**said).SerializeToString())).waiting


async def test_watch_sends_a_change_at_once() -> None:
    server = WatchServer(boot_id="b", heartbeat_s=3600.0)
    server.publish(report())
    async with served(server) as channel:
        watching = Watcher(channel, "w")
        first = await watching.next()
        assert (first.sequence, first.boot_id) == (1, "b")
        server.publish(report(in_flight=5))  # no change of what it is
        server.publish(report(Verdict.HUNG))
        heard = await watching.next()
        assert (heard.sequence, heard.verdict) == (3, Verdict.HUNG), "long before the heartbeat"


async def test_watch_sends_a_new_speed_at_once() -> None:
    server = WatchServer(boot_id="b", heartbeat_s=3600.0)
    server.publish(replace(report(in_flight=8), tokens_per_s=800.0))
    async with served(server) as channel:
        watching = Watcher(channel, "w")
        assert (await watching.next()).sequence == 1
        for rate in (750.0, 650.0, 550.0):  # slower by half in steps that are none
            server.publish(replace(report(in_flight=8), tokens_per_s=rate))
        server.publish(replace(report(in_flight=8), tokens_per_s=400.0))
        assert (await watching.next()).tokens_per_s == 400.0, "long before the heartbeat"


def test_new_speed_is_that_of_several_running_requests() -> None:
    busy = replace(report(in_flight=8), tokens_per_s=800.0)
    assert has_new_speed(busy, replace(busy, tokens_per_s=500.0))
    assert has_new_speed(busy, replace(busy, tokens_per_s=1300.0))
    assert not has_new_speed(busy, replace(busy, tokens_per_s=600.0))
    assert not has_new_speed(busy, replace(busy, tokens_per_s=400.0, requests_in_flight=4)), "half of them ended"
    assert not has_new_speed(busy, replace(busy, tokens_per_s=1.0, requests_in_flight=1))
    assert not has_new_speed(None, busy)


async def test_watch_repeats_unchanged_reports_with_the_heartbeat() -> None:
    server = WatchServer(boot_id="b", heartbeat_s=0.5)
    server.publish(report())
    async with served(server) as channel:
        watching = Watcher(channel, "w")
        heard = await watching.next()
        server.publish(report(in_flight=5))
        while heard.sequence == 1:
            heard = await watching.next()
        assert (heard.sequence, heard.requests_in_flight) == (2, 5)
        assert (await watching.next()).sequence == 2, "the same again"


async def test_slow_watcher_gets_the_latest_report_only() -> None:
    server = WatchServer(heartbeat_s=30)
    server.publish(report())
    async with served(server) as channel:
        slow, quick = Watcher(channel, "slow"), Watcher(channel, "quick")
        await slow.next()
        await quick.next()
        for _ in range(2000):
            server.publish(report(Verdict.BUSY, 1))
            server.publish(report(Verdict.READY, 0))
            await asyncio.sleep(0)
        last = server.publish(report(Verdict.DEAD))
        for watching in (slow, quick):
            heard = [await watching.next()]
            while heard[-1].sequence != last.sequence:
                heard.append(await watching.next())
            sequences = [one.sequence for one in heard]
            assert sequences == sorted(sequences)
            assert len(sequences) < 4001
            assert heard[-1].verdict is Verdict.DEAD


async def test_watchers_are_those_connected_and_their_progress_adds_up() -> None:
    changes: list[int] = []
    server = WatchServer(boot_id="b", on_change=lambda: changes.append(1))
    server.publish(report())
    async with served(server) as channel:
        one, two = Watcher(channel, "one"), Watcher(channel, "two")
        await one.next()
        await two.next()
        drained = server.publish(report(Verdict.DRAINING, drain=True)).sequence
        assert not server.removal(drained).complete, "no watcher has answered"
        said = {"boot_id": "b", "sequence": drained, "proxies_total": 3}
        assert await acknowledge(channel, watcher="one", proxies_acknowledged=2, **said)
        assert not await acknowledge(channel, watcher="two", proxies_acknowledged=3, **said)
        removal = server.removal(drained)
        assert (removal.watchers, removal.heard, removal.complete) == (2, 2, False)
        assert (removal.proxies_total, removal.proxies_acknowledged) == (6, 5)
        assert not await acknowledge(channel, watcher="one", proxies_acknowledged=3, **said)
        assert server.removal(drained).complete
        assert not server.removal(drained + 1).complete, "an answer to an earlier drain counts for no later one"
        told = len(changes)
        two.call.cancel()
        await until(lambda: server.watchers == ("one",))
        assert len(changes) > told
        server.new_boot("c")
        assert not server.removal(1).complete, "of another engine process"


async def test_drain_ack_needs_a_named_watcher() -> None:
    server = WatchServer()
    server.publish(report())
    async with served(server) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await acknowledge(channel, watcher="nobody", sequence=1)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Watcher(channel, "").next()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_watchers_are_bounded() -> None:
    server = WatchServer()
    server.publish(report())
    async with served(server) as channel:
        watching = [Watcher(channel, f"w{n}") for n in range(MAX_WATCHERS)]
        for one in watching:
            await one.next()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await Watcher(channel, "one more").next()
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        again = Watcher(channel, "w0")
        await again.next()
        assert len(server.watchers) == MAX_WATCHERS
