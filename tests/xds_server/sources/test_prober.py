"""The prober against real HTTP: simulated engines with real faults, and servers that behave like none."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from chaos.fake_engine import (
    BadHealth,
    Crash,
    Drain,
    EngineConfig,
    ErrorAfterWork,
    FakeEngine,
    Fault,
    Hang,
    HangMidStream,
    ResetMidStream,
    Shed,
    Sigterm,
    Slow,
)
from engine.report import Doubt, EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decide import decide
from xds_server.decide.decisions import Decisions, Health
from xds_server.fleet import EngineId, declared, with_report
from xds_server.sources.prober import ProbeKind, Prober

LIMIT_S = 30.0
IN, OUT, LEAVING = Health.HEALTHY, Health.UNHEALTHY, Health.DRAINING


def policies(ports: dict[str, int], *, model: str = "fake-model", **probe: object) -> PolicySet:
    pool = EnginePool.model_validate(
        {
            "metadata": {"name": "pool"},
            "spec": {
                "model": model,
                "slotsPerEngine": 8,
                "endpoints": [
                    {"address": "127.0.0.1", "port": port, "name": name} for name, port in ports.items()
                ],
                "probe": probe,
            },
        }
    )
    return PolicySet(pools={"pool": pool}, routes={}, policies={}, effective={"pool": ResilienceSpec()})


@dataclass
class Watched:
    """A prober at work, with its reports folded and decided on as the control plane does."""

    policies: PolicySet
    reports: list[EngineReport] = field(default_factory=list)
    probes: Counter[tuple[ProbeKind, str]] = field(default_factory=Counter)
    moves: list[tuple[float, str, Health]] = field(default_factory=list)
    decisions: Decisions | None = None

    def __post_init__(self) -> None:
        self.fleet = declared(self.policies)
        self.changed = asyncio.Event()
        self.prober = Prober(self._reported, on_probe=self._probed, rng=random.Random(7))
        self.prober.watch(self.policies)

    def _probed(self, kind: ProbeKind, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.probes[kind, outcome] += 1
        self.changed.set()

    def _reported(self, report: EngineReport) -> None:
        now_s = time.monotonic()
        self.reports.append(report)
        self.fleet = with_report(self.fleet, report, now_s)
        before = self.decisions
        self.decisions = decide(
            self.policies,
            self.fleet,
            before,
            proxies_by_role={"gateway": 1},
            calling_zones=frozenset({""}),
            now_s=now_s,
        )
        for key, decision in self.decisions.engines.items():
            known = before.engines[key].health if before else IN
            if decision.health is not known:
                self.moves.append((now_s, key.engine, decision.health))
        self.changed.set()

    def health(self, engine: str = "e0") -> Health:
        return IN if self.decisions is None else self.decisions.engines[EngineId("pool", engine)].health

    def said(self, engine: str = "e0") -> EngineReport | None:
        return next((one for one in reversed(self.reports) if one.engine == engine), None)

    def verdicts(self, since: int = 0) -> set[Verdict]:
        return {one.verdict for one in self.reports[since:]}

    def verdicts_of(self, engine: str, since: int = 0) -> set[Verdict]:
        return {one.verdict for one in self.reports[since:] if one.engine == engine}

    async def until(self, condition: Callable[[], bool], what: str) -> float:
        """Seconds until the condition held."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(LIMIT_S):
                while not condition():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            pytest.fail(f"waited for: {what}; last said: {self.reports[-3:]}")
        return time.monotonic() - began_s

    async def until_out(self, engine: str = "e0") -> float:
        return await self.until(lambda: self.health(engine) is OUT, f"{engine} out")

    async def until_in(self, engine: str = "e0") -> float:
        return await self.until(
            lambda: self.health(engine) is IN and (one := self.said(engine)) is not None and one.verdict.good,
            f"{engine} in",
        )

    async def looks(self, count: int) -> None:
        """Wait for this many more looks, whatever they bring."""
        goal = self._looks() + count
        await self.until(lambda: self._looks() >= goal, f"{count} looks")

    def _looks(self) -> int:
        return sum(count for (kind, _), count in self.probes.items() if kind is ProbeKind.LOOK)


@contextlib.asynccontextmanager
async def watching(setup: PolicySet) -> AsyncIterator[Watched]:
    watched = Watched(setup)
    task = asyncio.create_task(watched.prober.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def engine_up(max_unfinished: int | None = None) -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(EngineConfig(max_unfinished=max_unfinished))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@contextlib.asynccontextmanager
async def probed(max_unfinished: int | None = None) -> AsyncIterator[tuple[FakeEngine, Watched]]:
    async with engine_up(max_unfinished) as engine, watching(policies({"e0": engine.port})) as watched:
        await watched.until_in()
        yield engine, watched


@contextlib.asynccontextmanager
async def load(engine: FakeEngine, callers: int, *, tokens: int = 32, stream: bool = False) -> AsyncIterator[None]:
    """``callers`` requests at any time, each replaced when it ends, whatever its end."""

    async def call(http: aiohttp.ClientSession) -> None:
        body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "stream": stream}
        while True:
            try:
                async with http.post(f"{engine.url}/v1/completions", json=body) as response:
                    await response.read()
                    shed = response.status != 200
            except aiohttp.ClientError:
                shed = True
            await asyncio.sleep(0.05 if shed else 0)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [asyncio.create_task(call(http)) for _ in range(callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


Noted = Callable[[str, object], None]


async def test_an_idle_engine_is_ready_by_its_tokens() -> None:
    async with probed() as (_, watched):
        await watched.looks(4)
        assert watched.verdicts() == {Verdict.READY}
        assert watched.probes[ProbeKind.CANARY, "answered"] >= 2
        assert [one.sequence for one in watched.reports] == sorted({one.sequence for one in watched.reports})


async def test_a_saturated_engine_is_busy_and_stays_in() -> None:
    async with probed() as (engine, watched), load(engine, 64):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        busy_from = len(watched.reports)
        canaries = sum(count for (kind, _), count in watched.probes.items() if kind is ProbeKind.CANARY)
        await watched.looks(8)
        assert watched.verdicts(busy_from) == {Verdict.BUSY}
        assert not watched.moves
        assert watched.reports[-1].requests_in_flight is not None
        assert watched.reports[-1].requests_in_flight >= 32
        after = sum(count for (kind, _), count in watched.probes.items() if kind is ProbeKind.CANARY)
        assert after - canaries <= 1, "canaries queue behind real work"


async def test_an_idle_hang_is_found_though_health_says_200(record_property: Noted) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(Hang(health="ok"))
        record_property("hang_idle_out_s", await watched.until_out())
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG
        await watched.looks(5)
        assert watched.health() is OUT
        await engine.heal()
        record_property("hang_idle_in_s", await watched.until_in())


async def test_a_hang_under_load_is_found_though_gauges_are_frozen(record_property: Noted) -> None:
    async with probed() as (engine, watched), load(engine, 16):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await engine.set_fault(Hang())
        record_property("hang_loaded_out_s", await watched.until_out())
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG
        await engine.heal()
        record_property("hang_loaded_in_s", await watched.until_in())


async def test_frozen_gauges_of_a_healed_engine_do_not_keep_it_out() -> None:
    async with probed() as (engine, watched):
        async with load(engine, 16):
            await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
            await engine.set_fault(Hang())
            await watched.until_out()
        await engine.heal()
        await watched.until_in()


async def test_a_hung_engine_with_a_queue_limit_is_hung_though_it_sheds() -> None:
    async with probed(max_unfinished=16) as (engine, watched), load(engine, 24):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await engine.set_fault(Hang())
        await watched.until_out()
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG


async def test_an_engine_at_its_admission_limit_is_busy() -> None:
    async with probed(max_unfinished=10) as (engine, watched), load(engine, 24):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await watched.looks(8)
        assert not watched.moves
        assert not {Verdict.HUNG, Verdict.DEGRADED} & watched.verdicts()


async def test_a_crash_is_seen_at_once_and_recovery_soon(record_property: Noted) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(Crash())
        out_s = await watched.until_out()
        record_property("crash_out_s", out_s)
        assert out_s < 20
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.DEAD
        await engine.heal()
        in_s = await watched.until_in()
        record_property("crash_in_s", in_s)
        assert in_s < 20


@pytest.mark.parametrize(
    ("fault", "health", "verdict"),
    [
        (Drain(), LEAVING, Verdict.DRAINING),
        # One engine is the whole pool: soft evidence leaves it in.
        (ErrorAfterWork(), IN, Verdict.DEGRADED),
        (Shed(), IN, Verdict.DEGRADED),
        (ResetMidStream(), IN, Verdict.DEGRADED),
        (BadHealth(health="fail"), IN, Verdict.READY),
        (BadHealth(health="slow"), IN, Verdict.READY),
        (HangMidStream(), IN, Verdict.READY),
        (Slow(factor=8), IN, Verdict.READY),
    ],
    ids=lambda one: getattr(one, "kind", str(one)),
)
async def test_what_each_fault_leads_to(fault: Fault, health: Health, verdict: Verdict) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(fault)
        since = len(watched.reports)
        await watched.until(lambda: any(one.verdict is verdict for one in watched.reports[since:]), verdict)
        await watched.looks(3)
        assert watched.health() is health
        assert watched.verdicts(since) <= {verdict, Verdict.BUSY, Verdict.READY}
        await engine.heal()
        await watched.until_in()


async def test_a_degraded_engine_leaves_when_the_pool_can_spare_it() -> None:
    async with (
        engine_up() as first,
        engine_up() as second,
        watching(policies({"e0": first.port, "e1": second.port})) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        await first.set_fault(ErrorAfterWork())
        await watched.until_out("e0")
        await second.set_fault(ErrorAfterWork())
        since = len(watched.reports)
        await watched.until(lambda: Verdict.DEGRADED in watched.verdicts_of("e1", since), "both degraded")
        await watched.looks(6)
        assert watched.health("e1") is IN
        await first.heal()
        await watched.until_in("e0")


@pytest.mark.parametrize("shutdown_timeout_s", [0.0, 20.0])
async def test_sigterm_with_work_in_flight(shutdown_timeout_s: float, record_property: Noted) -> None:
    async with probed() as (engine, watched), load(engine, 2, tokens=300):
        await watched.until(lambda: engine.calls_in_flight >= 2, "work in flight")
        await engine.set_fault(Sigterm(shutdown_timeout_s=shutdown_timeout_s))
        seconds = await watched.until(lambda: watched.health() is not IN, "not in")
        record_property(f"sigterm_{shutdown_timeout_s:g}_out_s", seconds)
        await watched.until_out()  # the port closes in the end
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.DEAD
        await engine.heal()
        await watched.until_in()


async def test_a_wrong_model_name_is_said_clearly_and_ejects_nobody() -> None:
    async with engine_up() as first, engine_up() as second:
        setup = policies({"e0": first.port, "e1": second.port}, model="no-such-model")
        async with watching(setup) as watched:
            await watched.until(lambda: len({one.engine for one in watched.reports}) == 2, "both heard")
            await watched.looks(12)
            assert watched.verdicts() == {Verdict.DEGRADED}
            said = watched.said()
            assert said is not None
            assert said.doubt is Doubt.REFUSED
            assert "404" in said.evidence
            assert not watched.moves
            assert watched.decisions is not None
            assert "policy" in watched.decisions.engines[EngineId("pool", "e0")].reason


async def test_chat_only_engines_can_be_probed() -> None:
    async with (
        engine_up() as engine,
        watching(policies({"e0": engine.port}, path="/v1/chat/completions")) as watched,
    ):
        await watched.until_in()


async def test_an_edit_disturbs_no_unchanged_engine() -> None:
    async with (
        engine_up() as first,
        engine_up() as second,
        engine_up() as third,
        watching(policies({"e0": first.port, "e1": second.port})) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        watched.prober.watch(policies({"e0": first.port, "e2": third.port}))
        await watched.until(lambda: watched.said("e2") is not None, "e2 heard")
        last = watched.said("e1")
        await watched.looks(8)
        assert watched.said("e1") is last
        assert watched.health("e0") is IN
        assert not watched.moves


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
    ("answer", "verdicts"),
    [
        (_huge, {Verdict.STARTING}),
        (_drip, {Verdict.DEAD}),
        (_silence, {Verdict.DEAD}),
        (_cut, {Verdict.DEAD}),
        (_garbage, {Verdict.STARTING}),
        (_lies, {Verdict.STARTING}),
        (_redirects, {Verdict.DEGRADED}),
    ],
)
async def test_servers_that_are_no_engines_cost_bounded_time_and_end_in_a_verdict(
    answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]], verdicts: set[Verdict]
) -> None:
    async with (
        server(answer) as port,
        watching(policies({"e0": port}, timeout="300ms", stallAfter="300ms")) as one,
    ):
        await one.until(lambda: len(one.reports) >= 3, "three reports")
        assert one.verdicts() == verdicts


async def test_an_engine_without_counters_is_judged_by_its_tokens() -> None:
    async def answer(head: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"POST"):
            writer.write(page(b'{"choices": [{"text": "a"}]}'))
        else:
            writer.write(page(b"", "404 Not Found"))

    async with server(answer) as port, watching(policies({"e0": port})) as watched:
        await watched.looks(5)
        assert watched.verdicts() == {Verdict.READY}


async def test_at_most_one_look_and_one_canary_are_ever_out() -> None:
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


async def test_an_event_loop_that_stood_still_blames_no_engine() -> None:
    async with probed() as (_, watched):
        for _ in range(3):
            await watched.looks(1)
            time.sleep(1.3)  # noqa: ASYNC251 -- standing still is the point
        await watched.looks(3)
        assert watched.verdicts() <= {Verdict.READY, Verdict.BUSY}


async def test_looks_are_spread_and_ejected_engines_are_looked_at_more_often() -> None:
    async with engine_up() as engine:
        ports = {"e0": engine.port}
        async with watching(policies(ports, interval="2s")) as watched:
            await watched.until_in()
            await engine.set_fault(Crash())
            await watched.until_out()
            began_s = time.monotonic()
            await watched.looks(4)
            assert time.monotonic() - began_s < 7.0, "looked at no more often than a healthy engine"


async def test_an_engine_that_others_keep_out_is_looked_at_as_often_as_one_that_is_ill() -> None:
    async with (
        engine_up() as first,
        engine_up() as second,
        watching(policies({"e0": first.port, "e1": second.port}, interval="2s")) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        watched.prober.hurry({EngineId("pool", "e0")})
        began = len(watched.reports)

        def told_of(engine: str) -> int:
            return sum(one.engine == engine for one in watched.reports[began:])

        await watched.until(lambda: told_of("e0") >= 12, "a dozen reports")
        assert told_of("e1") <= 6
