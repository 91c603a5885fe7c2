"""The dialer against real agent servers over real gRPC: changes, losses, restarts and invalid reports."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
import yaml

from engine.proto import engine_report_pb2 as pb
from engine.report import (
    DrainRequest,
    EngineReport,
    EngineTotals,
    GpuSummary,
    ReportSource,
    TokenGaps,
    TokenWork,
    Verdict,
)
from engine.report_wire import MAX_REPORT_BYTES, ReportDropReason
from engine.watch_server import WATCH, WatchServer
from policies.load import load_contents
from policies.model import PolicySet
from tests.reference_cycles import left
from xds_server.engine_health import agent_dialer
from xds_server.engine_health.agent_dialer import AgentDialer
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId

LIMIT_S = 60.0
KEY = EngineId("chat", "e1")


def policies(port: int | None, address: str = "127.0.0.1", *more: dict[str, Any]) -> PolicySet:
    endpoint: dict[str, Any] = {"name": "e1", "address": address, "port": 1, "agentPort": port}
    pool = {
        "apiVersion": "switchgear.dev/v1alpha1",
        "kind": "EnginePool",
        "metadata": {"name": "chat"},
        "spec": {"model": "m", "endpoints": [endpoint, {"name": "agentless", "address": address, "port": 2}]},
    }
    return load_contents({Path("pool.yaml"): yaml.safe_dump_all([pool, *more]).encode()})


def report(verdict: Verdict = Verdict.READY, *, drain: bool = False, drain_s: float = 3600.0) -> EngineReport:
    return EngineReport(
        pool="",
        engine="",
        verdict=verdict,
        evidence=f"a test reported {verdict}",
        observed_at_s=0.0,
        drain=DrainRequest(deadline_in_s=drain_s) if drain else None,
        gpu=GpuSummary(action="none", statement="a test"),
    )


@contextlib.asynccontextmanager
async def listening(add: Callable[[grpc.aio.Server], None], port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add(server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class Dialed:
    """A running dialer, and its results."""

    def __init__(self) -> None:
        self.reports: list[EngineReport] = []
        self.flaws: list[ReportDropReason] = []
        self.coverage: list[frozenset[EngineId]] = []
        self.totals: list[tuple[EngineId, str, EngineTotals]] = []
        self.dialer = AgentDialer(
            self.reports.append,
            watcher="me",
            on_error=self.flaws.append,
            on_coverage=self._covered,
            on_totals=lambda *one: self.totals.append(one),
        )

    def _covered(self) -> None:
        self.coverage.append(self.dialer.covered)

    @property
    def last(self) -> EngineReport | None:
        return self.reports[-1] if self.reports else None

    async def says(self, verdict: Verdict) -> EngineReport:
        await until(lambda: self.last is not None and self.last.verdict is verdict)
        assert self.last is not None
        return self.last


@contextlib.asynccontextmanager
async def dialing(policies: PolicySet) -> AsyncIterator[Dialed]:
    dialed = Dialed()
    dialed.dialer.watch(policies)
    task = asyncio.create_task(dialed.dialer.run())
    try:
        yield dialed
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled(), task.exception()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.002)


def two_pools(port: int) -> PolicySet:
    """One engine in two pools: as when a pool is renamed."""
    pools = [
        {
            "apiVersion": "switchgear.dev/v1alpha1",
            "kind": "EnginePool",
            "metadata": {"name": name},
            "spec": {
                "model": "m",
                "endpoints": [{"name": "e1", "address": "127.0.0.1", "port": 1, "agentPort": port}],
            },
        }
        for name in ("chat", "talk")
    ]
    return load_contents({Path("pools.yaml"): yaml.safe_dump_all(pools).encode()})


async def test_two_pools_share_one_agent() -> None:
    server = WatchServer(boot_id="b1")
    server.publish(report())
    both = {KEY, EngineId("talk", "e1")}
    async with listening(server.add_to) as port, dialing(two_pools(port)) as dialed:
        await until(lambda: len(server.watchers) == 2)
        draining = server.publish(report(Verdict.DRAINING, drain=True))
        await until(
            lambda: {one.pool for one in dialed.reports if one.verdict is Verdict.DRAINING} == {"chat", "talk"}
        )
        dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=2))
        await until(lambda: server.removal(draining.sequence).heard == 1)
        assert not server.removal(draining.sequence).complete
        dialed.dialer.send_drain_progress(
            EngineId("talk", "e1"), DrainProgress(proxies_total=1, proxies_acknowledged=1)
        )
        await until(lambda: server.removal(draining.sequence).complete)
        assert dialed.dialer.covered == both
        assert len(server.watchers) == 2


async def test_agent_report_is_passed_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # No heartbeat and no redial in this test's time: each report was sent because of a change.
    monkeypatch.setattr(agent_dialer, "FRESH_S", 3600.0)
    server = WatchServer(boot_id="b1", heartbeat_s=3600.0)
    server.publish(report())
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        first = await dialed.says(Verdict.READY)
        assert (first.pool, first.engine, first.source, first.boot_id) == ("chat", "e1", ReportSource.AGENT, "b1")
        assert dialed.dialer.covered == {KEY}
        for _ in range(10):
            for verdict in (Verdict.HUNG, Verdict.READY):
                server.publish(report(verdict))
                await dialed.says(verdict)
        assert first.gpu is None
        assert dialed.dialer.gpu(KEY) == GpuSummary(action="none", statement="a test")
        assert dialed.dialer.agents()[KEY].connected


async def test_time_between_tokens_is_passed_on_apart_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_dialer, "TOTALS_EACH_S", 0.2)
    server = WatchServer(boot_id="b1", heartbeat_s=0.02)
    gaps = TokenGaps(bounds_s=(0.1,), counts=(3, 4), sum_s=0.5)
    work = TokenWork(prompt_tokens=30, generation_tokens=20, finished=2)
    server.publish(replace(report(), token_gaps=gaps, token_work=work))
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await until(lambda: len(dialed.totals) >= 2)
        assert dialed.totals[0] == (KEY, "b1", EngineTotals(gaps=gaps, work=work))
        assert all(one.token_gaps is None and one.token_work is None for one in dialed.reports)
        times = [one.observed_at_s for one in dialed.reports]
        assert (len(dialed.totals) - 2) * 0.2 <= times[-1] - times[0]


async def test_repeated_report_confirms_the_last() -> None:
    server = WatchServer(heartbeat_s=0.05)
    server.publish(report(Verdict.BUSY))
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await until(lambda: len(dialed.reports) >= 4)
        assert {one.sequence for one in dialed.reports} == {1}
        times = [one.observed_at_s for one in dialed.reports]
        assert times == sorted(set(times))


async def test_engine_is_uncovered_until_its_agent_reconnects() -> None:
    server = WatchServer(boot_id="b1")
    server.publish(report())
    async with contextlib.AsyncExitStack() as stack:
        async with listening(server.add_to) as port:
            dialed = await stack.enter_async_context(dialing(policies(port)))
            await dialed.says(Verdict.READY)
        await until(lambda: not dialed.dialer.covered)
        assert not dialed.dialer.agents()[KEY].connected
        assert dialed.dialer.agents()[KEY].trouble
        heard = len(dialed.reports)
        restarted = WatchServer(boot_id="b2")
        restarted.publish(report(Verdict.STARTING))
        await stack.enter_async_context(listening(restarted.add_to, port))
        assert (await dialed.says(Verdict.STARTING)).boot_id == "b2"
        await until(lambda: dialed.dialer.covered == {KEY})
        assert len(dialed.reports) > heard
        await until(lambda: dialed.coverage[-2:] == [frozenset(), frozenset({KEY})])


async def test_absent_agent_stops_covering_its_engine() -> None:
    with socket.socket() as reserved:  # bound and not listening: refuses
        reserved.bind(("127.0.0.1", 0))
        async with dialing(policies(reserved.getsockname()[1])) as dialed:
            await until(lambda: KEY in dialed.dialer.agents())
            assert dialed.dialer.covered == {KEY}, "the prober need not start yet"
            await until(lambda: not dialed.dialer.covered)
            assert not dialed.reports


async def test_own_stall_at_start_does_not_uncover_the_engine() -> None:
    server = WatchServer(boot_id="b1")
    server.publish(report())
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await until(lambda: KEY in dialed.dialer.agents())
        time.sleep(1.5 * agent_dialer.FIRST_S)  # noqa: ASYNC251 - the stall
        await dialed.says(Verdict.READY)
        assert frozenset() not in dialed.coverage


async def test_agent_silent_since_an_own_stall_stops_covering_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_dialer, "FRESH_S", 0.4)
    watches = 0

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        nonlocal watches
        watches += 1
        if watches == 1:
            yield pb.EngineReport(schema_version=1, boot_id="b", sequence=1, verdict=pb.READY).SerializeToString()
        await asyncio.Event().wait()

    async with listening(serving(watch)) as port, dialing(policies(port)) as dialed:
        await dialed.says(Verdict.READY)
        time.sleep(1.0)  # noqa: ASYNC251 - the stall
        await until(lambda: watches == 2)
        await until(lambda: not dialed.dialer.covered)
        assert not dialed.dialer.agents()[KEY].connected


async def test_silent_agent_watch_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_dialer, "FRESH_S", 0.3)
    connections = 0

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        nonlocal connections
        connections += 1
        yield pb.EngineReport(
            schema_version=1, boot_id="b", sequence=connections, verdict=pb.READY
        ).SerializeToString()
        await asyncio.Event().wait()

    async with listening(serving(watch)) as port, dialing(policies(port)) as dialed:
        await until(lambda: connections >= 3)
        assert frozenset() in dialed.coverage, "meanwhile the engine is probed"


@pytest.mark.parametrize("drain_s", [3600.0, 0.3])
async def test_draining_verdict_survives_agent_disconnect(drain_s: float) -> None:
    server = WatchServer()
    server.publish(report(Verdict.DRAINING, drain=True, drain_s=drain_s))
    async with contextlib.AsyncExitStack() as stack:
        async with listening(server.add_to) as port:
            dialed = await stack.enter_async_context(dialing(policies(port)))
            await dialed.says(Verdict.DRAINING)
        await until(lambda: not dialed.dialer.agents()[KEY].connected)
        if drain_s > 60.0:
            assert dialed.dialer.covered == {KEY}, "until the deadline"
        else:
            await until(lambda: not dialed.dialer.covered)


def serving(
    watch: Callable[[bytes, grpc.aio.ServicerContext[bytes, bytes]], AsyncIterator[bytes]],
) -> Callable[[grpc.aio.Server], None]:
    service, method = WATCH.strip("/").split("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_stream_rpc_method_handler(watch)})
    return lambda server: server.add_generic_rpc_handlers((handler,))


async def test_ended_streams_create_no_garbage_cycles() -> None:
    connections = 0

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        nonlocal connections
        connections += 1
        yield pb.EngineReport(
            schema_version=1, boot_id="b", sequence=connections, verdict=pb.READY
        ).SerializeToString()

    async with listening(serving(watch)) as port, dialing(policies(port)):
        await until(lambda: connections >= 2)
        with left() as found:
            await until(lambda: connections >= 7)
    ours = {kind: count for kind, count in found.items() if kind.startswith(("xds_server.", "asyncio.timeouts"))}
    assert {kind: count for kind, count in ours.items() if count >= 3} == {}, "nearly one of it for each stream"


async def test_malformed_agent_reports_are_counted() -> None:
    def made(**said: Any) -> bytes:
        return pb.EngineReport(
            **{"schema_version": 1, "boot_id": "b", "verdict": pb.READY, **said}
        ).SerializeToString()

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        yield b"\xff\xff\xff"
        yield made(sequence=0)
        yield made(sequence=5, verdict=66)
        yield made(sequence=5)
        yield made(sequence=4, verdict=pb.DEAD)
        yield made(sequence=6, boot_id="c", verdict=pb.BUSY, kv_cache_usage_ratio=float("nan"))
        yield made(sequence=7, verdict=pb.DEAD)  # of the engine before
        yield made(sequence=8, boot_id="c", model="x" * MAX_REPORT_BYTES)
        await asyncio.Event().wait()

    async with listening(serving(watch)) as port, dialing(policies(port)) as dialed:
        last = await dialed.says(Verdict.BUSY)
        assert last.kv_cache_usage_ratio is None
        await until(lambda: ReportDropReason.SIZE in dialed.flaws)
        wanted = [
            ReportDropReason.GARBAGE,
            ReportDropReason.INCOMPLETE,
            ReportDropReason.VERDICT,
            ReportDropReason.STALE,
            ReportDropReason.STALE,
            ReportDropReason.SIZE,
        ]
        assert dialed.flaws[: len(wanted)] == wanted
        assert Verdict.DEAD not in {one.verdict for one in dialed.reports}


@pytest.mark.parametrize("event", ["agent.engine_restarted", "agent.report_dropped"])
async def test_agent_with_a_new_event_in_every_message_cannot_fill_the_log(event: str) -> None:
    def message(number: int) -> bytes:
        if event == "agent.report_dropped":
            return (b"", b"\xff")[number % 2]
        return pb.EngineReport(
            schema_version=1, boot_id=f"b{number}", sequence=number + 1, verdict=pb.READY
        ).SerializeToString()

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        for number in range(40):
            yield message(number)
        yield pb.EngineReport(schema_version=1, boot_id="last", sequence=99, verdict=pb.BUSY).SerializeToString()
        await asyncio.Event().wait()

    with structlog.testing.capture_logs() as logged:
        async with listening(serving(watch)) as port, dialing(policies(port)) as dialed:
            await dialed.says(Verdict.BUSY)
    assert len([one for one in logged if one["event"] == event]) == agent_dialer.LINES_OF_AGENT.burst


async def test_agent_report_flood_is_rate_limited() -> None:
    sent = 0

    async def watch(_: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield pb.EngineReport(
                schema_version=1,
                boot_id="b",
                sequence=sent,
                verdict=pb.READY,
                evidence=[pb.Evidence(sentence="x" * 400)],
            ).SerializeToString()

    async with listening(serving(watch)) as port, dialing(policies(port)) as dialed:
        await until(lambda: ReportDropReason.FLOOD in dialed.flaws)
        began_s, heard = time.monotonic(), len(dialed.reports)
        await until(lambda: len(dialed.reports) >= heard + 60)
        assert time.monotonic() - began_s > 0.5, "about fifty per second"


async def test_drain_progress_is_sent_and_resent_to_agents() -> None:
    server = WatchServer()
    server.publish(report())
    async with contextlib.AsyncExitStack() as stack:
        async with listening(server.add_to) as port:
            dialed = await stack.enter_async_context(dialing(policies(port)))
            await dialed.says(Verdict.READY)
            since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
            await dialed.says(Verdict.DRAINING)
            dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=1))
            await until(lambda: server.removal(since).heard == 1)
            assert not server.removal(since).complete
            dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=2))
            await until(lambda: server.removal(since).complete)
            # Back, and draining again: progress of the first drain does not count for the second.
            server.publish(report())
            await dialed.says(Verdict.READY)
            since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
            await dialed.says(Verdict.DRAINING)
            assert not server.removal(since).complete
            dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=2))
            await until(lambda: server.removal(since).complete)
            first = dialed.dialer.agents()[KEY].boot_id
        restarted = WatchServer()
        since = restarted.publish(report(Verdict.DRAINING, drain=True)).sequence
        await stack.enter_async_context(listening(restarted.add_to, port))
        await until(lambda: dialed.dialer.agents()[KEY].boot_id not in ("", first))
        dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=2, proxies_acknowledged=2))
        await until(lambda: restarted.removal(since).complete and restarted.removal(since).heard == 1)


class LateAnswers(WatchServer):
    """Takes drain progress at once, and answers it when ``answers`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def acknowledge(
        self,
        request: pb.DrainProgress,
        context: grpc.aio.ServicerContext[pb.DrainProgress, pb.DrainAnswer],
    ) -> pb.DrainAnswer:
        answer = await super().acknowledge(request, context)
        await self.answers.wait()
        return answer


async def test_progress_answered_after_its_drain_ended_does_not_stand_for_the_next_drain() -> None:
    server, all_gone = LateAnswers(), DrainProgress(proxies_total=2, proxies_acknowledged=2)
    server.publish(report())
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await dialed.says(Verdict.READY)
        since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
        await dialed.says(Verdict.DRAINING)
        dialed.dialer.send_drain_progress(KEY, all_gone)
        await until(lambda: server.removal(since).complete)
        server.publish(report())
        await dialed.says(Verdict.READY)
        server.answers.set()
        since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
        await dialed.says(Verdict.DRAINING)
        dialed.dialer.send_drain_progress(KEY, all_gone)
        await until(lambda: server.removal(since).complete)


async def test_drain_deadline_of_the_pool_is_sent_and_follows_policy_edits() -> None:
    server = WatchServer()
    server.publish(report())
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await dialed.says(Verdict.READY)
        since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
        await dialed.says(Verdict.DRAINING)
        assert server.drain_deadline_s(since) is None
        dialed.dialer.send_drain_progress(KEY, DrainProgress(proxies_total=0, proxies_acknowledged=0))
        await until(lambda: server.drain_deadline_s(since) == 900.0)
        edit = {
            "apiVersion": "switchgear.dev/v1alpha1",
            "kind": "ResiliencePolicy",
            "metadata": {"name": "default"},
            "spec": {"drain": {"deadline": "2m"}},
        }
        dialed.dialer.watch(policies(port, "127.0.0.1", edit))
        await until(lambda: server.drain_deadline_s(since) == 120.0)


async def test_policy_edit_redials_only_changed_agents() -> None:
    server = WatchServer()
    server.publish(report())
    async with listening(server.add_to) as port, dialing(policies(port)) as dialed:
        await dialed.says(Verdict.READY)
        before = dialed.dialer.agents()[KEY]
        dialed.dialer.watch(policies(port))
        server.publish(report(Verdict.BUSY))
        await dialed.says(Verdict.BUSY)
        server.publish(report(Verdict.HUNG))
        await dialed.says(Verdict.HUNG)
        assert dialed.dialer.agents()[KEY] == before
        dialed.dialer.watch(policies(None))
        await until(lambda: not server.watchers)
        assert dialed.dialer.agents() == {}
        assert dialed.dialer.covered == frozenset()
