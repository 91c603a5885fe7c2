"""Probes engines without a reporting agent.

One task per engine reads its metrics, sends a canary when that disturbs no request, and passes every reading to
``engine_judgement``; the resulting reports go to a callback. At most one reading and one canary of an engine are
in flight, so a slow engine is probed less, not more. This file is the shell: sockets, timers and tasks.

It also reads which LoRA adapters each engine has (``engine.adapter_list``).

An engine at the default interval costs about 3 ms of CPU per second (three small HTTP requests per 0.5 s): a few
hundred engines per core. Beyond that, raise ``probe.interval`` or let agents report.
"""

import asyncio
import itertools
import math
import random
import time
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.adapter_list import ADAPTERS_INTERVAL_S, MODELS_PATH, adapter_names
from engine.engine_http import EngineHttp, http_session
from engine.engine_judgement import EJECTED_INTERVAL_S, EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure
from engine.heartbeat import Heartbeat
from engine.probe_state import ProbeState
from engine.report import EngineReport, EngineTotals
from engine.vllm_metrics import VllmCounters
from policies.model import PolicySet
from xds_server.engine_health.engine_clients import EngineClients, ProbeTarget, probe_targets
from xds_server.model.fleet import EngineId
from xds_server.model.secret import Secrets

# Engines of one policy were probably started together; their probes should not be.
_JITTER: Final = 0.1
# A server that closes idle connections must not be reconnected continuously.
_TRIPWIRE_SPACE_S: Final = 1.0
TOTALS_EACH_S: Final = 5.0


class ProbeKind(StrEnum):
    """Kind of a probe request."""

    LOOK = "look"
    CANARY = "canary"


OnReport = Callable[[EngineReport], None]
OnProbe = Callable[[ProbeKind, str, float], None]
OnTotals = Callable[[EngineId, str, EngineTotals], None]
"""Called with the kind, the outcome (``answered`` or a ``ProbeFailureReason``) and the seconds it took."""


def _uncounted(kind: ProbeKind, outcome: str, seconds: float) -> None:
    """Count nothing."""


class _AdapterReader:
    """Reads which adapters an engine has, in a task of its own: a slow list delays no probe."""

    def __init__(self, engine: EngineHttp, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._process = ""
        self._due_at_s = 0.0
        self.adapters: tuple[str, ...] | None = None
        self.task: asyncio.Task[None] | None = None

    def read(self, process: str) -> None:
        """Start a reading if one is due; a new process has unknown adapters until it listed them."""
        if process != self._process:
            self._process, self.adapters, self._due_at_s = process, None, 0.0
        if (self.task is None or self.task.done()) and self._clock() >= self._due_at_s:
            self.task = asyncio.create_task(self._read(process))

    async def _read(self, process: str) -> None:
        found = adapter_names(await self._engine.value(MODELS_PATH))
        if process == self._process:
            self._due_at_s = self._clock() + ADAPTERS_INTERVAL_S
            self.adapters = self.adapters if found is None else found


async def _end(*tasks: "asyncio.Task[CanaryReading] | asyncio.Task[None] | None") -> None:
    """Cancel these tasks and wait for their ends."""
    out = [task for task in tasks if task is not None]
    for task in out:
        task.cancel()
    if out:
        await asyncio.wait(out)


class Prober:
    """Probes the engines of the latest policies.

    ``watch(policies)`` sets them, at any time, also before ``run``; ``run()`` probes until cancelled. Reports go
    to ``on_report`` in the event loop, each with a sequence that grows over all engines. ``on_totals`` gets an
    engine's growing counters and its process, each ``TOTALS_EACH_S``. ``secrets`` returns the present certificates
    for TLS, ``api_keys`` the present API keys, both by name.
    """

    def __init__(
        self,
        on_report: OnReport,
        *,
        on_probe: OnProbe = _uncounted,
        on_totals: OnTotals = lambda _engine, _boot_id, _totals: None,
        secrets: Callable[[], Secrets] = lambda: MappingProxyType({}),
        api_keys: Callable[[], Mapping[str, str]] = lambda: MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._on_report = on_report
        self._on_probe = on_probe
        self._on_totals = on_totals
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- spreads load, guards no secret
        self._probed: Mapping[EngineId, ProbeTarget] = MappingProxyType({})
        self._out: Collection[EngineId] = frozenset()
        self._changed = asyncio.Event()
        self._sequence = itertools.count(1)
        self._heartbeat = Heartbeat(clock)
        self._clients = EngineClients(
            secrets=secrets, api_keys=api_keys, clock=clock, late_since=self._heartbeat.late_since
        )

    def watch(self, policies: PolicySet, besides: Collection[EngineId] = ()) -> None:
        """Probe the engines of these policies from now on, except ``besides``; unchanged ones continue."""
        self._probed = probe_targets(policies, besides)
        self._clients.keep(self._probed.values())
        self._changed.set()

    def hurry(self, out: Collection[EngineId]) -> None:
        """Probe these engines as often as ejected ones, however healthy they look: other evidence ejects them."""
        self._out = out

    async def run(self) -> None:
        """Probe until cancelled."""
        followers: dict[EngineId, tuple[ProbeTarget, asyncio.Task[None]]] = {}
        self._heartbeat.start()
        try:
            async with http_session() as http, asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    for key, (known, task) in list(followers.items()):
                        if self._probed.get(key) != known:
                            task.cancel()
                            del followers[key]
                    for key, one in self._probed.items():
                        if key not in followers:
                            asking = self._clients.client(http, one)
                            followers[key] = (one, group.create_task(self._follow(one, asking)))
                    await self._changed.wait()
        finally:
            self._heartbeat.stop()

    async def _follow(self, one: ProbeTarget, engine: EngineHttp) -> None:
        """Read, send canaries, report and wait until cancelled."""
        probe = one.target.probe
        judgement = EngineJudgement(books=ProbeState(slots=one.slots))
        canary: asyncio.Task[CanaryReading] | None = None
        # An idle connection that ends when the process does.
        tripwire: asyncio.Task[None] | None = None
        armed_from_s = 0.0
        reader = _AdapterReader(engine, self._clock)
        totals_at_s = -math.inf
        await asyncio.sleep(self._rng.uniform(0, probe.interval_s))
        try:
            while True:
                look = await self._look(engine, judgement)
                if canary is not None and canary.done() and look.answered:
                    judgement = self._judged_canary(one, judgement, canary.result(), reader.adapters)
                    canary = None
                    look = await self._look(engine, judgement)
                judgement = self._judged(one, judgement, look, reader.adapters)
                if judgement.books.counters is not None:
                    reader.read(judgement.process)
                if isinstance(look.counters, VllmCounters) and look.at_s - totals_at_s >= TOTALS_EACH_S:
                    totals_at_s = look.at_s
                    totals = EngineTotals(work=judgement.books.work)
                    self._on_totals(EngineId(one.pool, one.engine), judgement.process, totals)
                if judgement.wants_canary:
                    judgement = judgement.canary_sent(self._clock())
                    limit_s, rank = judgement.books.canary_limit_s(probe), judgement.books.asked_rank
                    canary = asyncio.create_task(engine.send_canary(self._prompt(), limit_s, rank=rank))
                # Any answering process can crash, healthy or not.
                if tripwire is None and judgement.books.counters is not None and self._clock() >= armed_from_s:
                    tripwire = asyncio.create_task(engine.wait_disconnected())
                due_at_s = self._clock() + self._pause_s(one, judgement)
                while (wait_s := due_at_s - self._clock()) > 0:
                    out = [task for task in (canary, tripwire) if task is not None]
                    if not out:
                        await asyncio.sleep(wait_s)
                        break
                    await asyncio.wait(out, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                    if tripwire is not None and tripwire.done():
                        tripwire.result()
                        tripwire = None
                        due_at_s = self._clock()
                        armed_from_s = due_at_s + _TRIPWIRE_SPACE_S
                    if canary is not None and canary.done():
                        answer, canary = canary.result(), None
                        judgement = self._judged_canary(one, judgement, answer, reader.adapters)
                        if answer.failure is not None:
                            # The counters of this moment decide what this silence means.
                            pause_s = self._pause_s(one, judgement) if answer.failure.answered else 0.0
                            due_at_s = min(due_at_s, self._clock() + pause_s)
        finally:
            await _end(canary, tripwire, reader.task)

    async def _look(self, engine: EngineHttp, judgement: EngineJudgement) -> MetricsReading:
        began_at_s = self._clock()
        look = await engine.read_metrics(stalled=judgement.books.suspects_pause(began_at_s))
        failure = look.counters if isinstance(look.counters, ProbeFailure) else None
        self._count(ProbeKind.LOOK, failure, look.at_s - began_at_s)
        return look

    def _judged_canary(
        self,
        one: ProbeTarget,
        before: EngineJudgement,
        answer: CanaryReading,
        adapters: tuple[str, ...] | None,
    ) -> EngineJudgement:
        self._count(ProbeKind.CANARY, answer.failure, answer.at_s - answer.sent_at_s)
        return self._judged(one, before, answer, adapters)

    def _judged(
        self,
        one: ProbeTarget,
        before: EngineJudgement,
        reading: MetricsReading | CanaryReading,
        adapters: tuple[str, ...] | None,
    ) -> EngineJudgement:
        judgement = before.after(reading, one.target.probe)
        if judgement.fresh:
            report = judgement.report(one.pool, one.engine, reading.at_s, next(self._sequence), adapters=adapters)
            if report is not None:
                self._on_report(report)
        return judgement

    def _count(self, kind: ProbeKind, failure: ProbeFailure | None, seconds: float) -> None:
        self._on_probe(kind, "answered" if failure is None else failure.trouble.value, seconds)

    def _pause_s(self, one: ProbeTarget, judgement: EngineJudgement) -> float:
        pause_s = judgement.pause_s(self._clock(), one.target.probe)
        if EngineId(one.pool, one.engine) in self._out:
            pause_s = min(pause_s, EJECTED_INTERVAL_S)
        return pause_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def _prompt(self) -> str:
        """A prompt that is in no cache: its first word already differs."""
        return f"{self._rng.getrandbits(64):016x} is a number. Say one word."
