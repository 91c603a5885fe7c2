"""A running prober next to simulated engines under load."""

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from chaos.fake_engine import (
    EngineConfig,
    FakeEngine,
)
from engine.report import EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from policies.resilience import ResilienceSpec
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory
from xds_server.decide.decisions import Decisions, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.engine_health.engine_prober import ProbeKind, Prober
from xds_server.model.fleet import EngineId, declared, with_report

LIMIT_S = 60.0
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
class RunningProber:
    """A running prober, with its reports applied and decided on as in the control plane."""

    policies: PolicySet
    reports: list[EngineReport] = field(default_factory=list)
    probes: Counter[tuple[ProbeKind, str]] = field(default_factory=Counter)
    moves: list[tuple[float, str, Health]] = field(default_factory=list)
    decisions: Decisions | None = None
    memory: DecisionMemory = NO_MEMORY
    api_keys: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fleet = declared(self.policies)
        self.changed = asyncio.Event()
        self.prober = Prober(
            self._reported, on_probe=self._probed, rng=random.Random(7), api_keys=lambda: self.api_keys
        )
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
        proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset({""}))
        self.decisions, self.memory = decide(self.policies, self.fleet, self.memory, proxies=proxies, now_s=now_s)
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
            pytest.fail(f"waited for: {what}; last reports: {self.reports[-3:]}")
        return time.monotonic() - began_s

    async def until_out(self, engine: str = "e0") -> float:
        return await self.until(lambda: self.health(engine) is OUT, f"{engine} out")

    async def until_in(self, engine: str = "e0") -> float:
        return await self.until(
            lambda: self.health(engine) is IN and (one := self.said(engine)) is not None and one.verdict.good,
            f"{engine} in",
        )

    async def looks(self, count: int) -> None:
        """Wait for this many more probes, whatever their results."""
        goal = self._looks() + count
        await self.until(lambda: self._looks() >= goal, f"{count} looks")

    def _looks(self) -> int:
        return sum(count for (kind, _), count in self.probes.items() if kind is ProbeKind.LOOK)


@contextlib.asynccontextmanager
async def watching(setup: PolicySet, api_keys: dict[str, str] | None = None) -> AsyncIterator[RunningProber]:
    watched = RunningProber(setup, api_keys={} if api_keys is None else api_keys)
    task = asyncio.create_task(watched.prober.run())
    try:
        yield watched
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def engine_up(max_unfinished: int | None = None, api_key: str = "") -> AsyncIterator[FakeEngine]:
    engine = FakeEngine(EngineConfig(max_unfinished=max_unfinished, api_key=api_key))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@contextlib.asynccontextmanager
async def probed(max_unfinished: int | None = None) -> AsyncIterator[tuple[FakeEngine, RunningProber]]:
    async with engine_up(max_unfinished) as engine, watching(policies({"e0": engine.port})) as watched:
        await watched.until_in()
        yield engine, watched


@contextlib.asynccontextmanager
async def load(engine: FakeEngine, callers: int, *, tokens: int = 32, stream: bool = False) -> AsyncIterator[None]:
    """Keep ``callers`` requests in flight, each replaced when it ends."""

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
