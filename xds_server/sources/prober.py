"""Judges engines by asking them, for as long as no agent sits beside them.

One task per engine looks at its counters, sends a canary when that disturbs nobody, and hands every reading to
``judgement``; what comes back is reported by callback. At most one look and one canary of an engine are ever out,
so a slow engine is asked less, not more. This file is the shell: sockets, timers and tasks. It judges nothing.

An engine at the default interval costs about 3 ms of CPU per second (three small HTTP requests each half second):
a few hundred engines per core. Beyond that, raise ``probe.interval`` or let agents report.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from engine.report import EngineReport
from policies.model import PolicySet
from xds_server.fleet import EngineId
from xds_server.sources.engine_http import EngineHttp, Target, session
from xds_server.sources.judgement import Judgement
from xds_server.sources.reading import Answer, Failure, Look

# How late our own timer may be before time-outs of that moment are put down to us.
LATE_S: Final = 0.2
_HEARTBEAT_S: Final = 0.05
# Engines of one policy were probably started together; looks at them should not be.
_JITTER: Final = 0.1


class ProbeKind(StrEnum):
    """What was asked of an engine."""

    LOOK = "look"
    CANARY = "canary"


OnReport = Callable[[EngineReport], None]
OnProbe = Callable[[ProbeKind, str, float], None]
"""Called with the kind, the outcome (``answered`` or a ``Trouble``) and the seconds it took."""


def _uncounted(kind: ProbeKind, outcome: str, seconds: float) -> None:
    """Nobody counts."""


class Heartbeat:
    """Notes when the event loop stood still: time-outs that end in such a moment say nothing about anyone else.

    A timer and not a task, because a timer that was due first runs before the time-outs that were due later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._late_at_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def late_since(self, at_s: float) -> bool:
        """Whether the loop has been late since ``at_s``."""
        return self._late_at_s >= at_s

    def start(self) -> None:
        """Beat until stopped."""
        self._next()

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        due_at_s = self._clock() + _HEARTBEAT_S
        self._timer = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._beat, due_at_s)

    def _beat(self, due_at_s: float) -> None:
        now_s = self._clock()
        if now_s - due_at_s > LATE_S:
            self._late_at_s = now_s
        self._next()


def targets(policies: PolicySet) -> Mapping[EngineId, Target]:
    """The engines to ask: all of the pools whose probe is enabled."""
    return MappingProxyType(
        {
            EngineId(name, endpoint.name): Target(
                pool=name,
                engine=endpoint.name,
                address=endpoint.address,
                port=endpoint.port,
                model=pool.spec.model,
                slots=endpoint.slots or pool.spec.slots_per_engine,
                probe=pool.spec.probe,
            )
            for name, pool in policies.pools.items()
            if pool.spec.probe.enabled
            for endpoint in pool.spec.endpoints
        }
    )


class Prober:
    """Probes the engines of the policies it was last given.

    ``watch(policies)`` says which, at any time, before ``run`` too; ``run()`` probes until it is cancelled.
    Reports arrive through ``on_report`` in the event loop, each with a sequence that grows over all engines.
    """

    def __init__(
        self,
        on_report: OnReport,
        *,
        on_probe: OnProbe = _uncounted,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._on_report = on_report
        self._on_probe = on_probe
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- spreads load, guards no secret
        self._targets: Mapping[EngineId, Target] = MappingProxyType({})
        self._changed = asyncio.Event()
        self._sequence = itertools.count(1)
        self._heartbeat = Heartbeat(clock)

    def watch(self, policies: PolicySet) -> None:
        """Probe the engines of these policies from now on; engines that did not change are left undisturbed."""
        self._targets = targets(policies)
        self._changed.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        followers: dict[EngineId, tuple[Target, asyncio.Task[None]]] = {}
        self._heartbeat.start()
        try:
            async with session() as http, asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    for key, (target, task) in list(followers.items()):
                        if self._targets.get(key) != target:
                            task.cancel()
                            del followers[key]
                    for key, target in self._targets.items():
                        if key not in followers:
                            asking = EngineHttp(http, target, self._clock, self._heartbeat.late_since)
                            followers[key] = (target, group.create_task(self._follow(target, asking)))
                    await self._changed.wait()
        finally:
            self._heartbeat.stop()

    async def _follow(self, target: Target, engine: EngineHttp) -> None:
        """Look, ask, report, wait: for ever."""
        probe = target.probe
        judgement = Judgement(slots=target.slots)
        canary: asyncio.Task[Answer] | None = None
        # A connection that asks nothing and ends when the process does.
        tripwire: asyncio.Task[None] | None = None
        await asyncio.sleep(self._rng.uniform(0, probe.interval))
        try:
            while True:
                judgement = self._judged(target, judgement, await self._look(engine))
                if judgement.wants_canary:
                    judgement = judgement.asked(self._clock())
                    canary = asyncio.create_task(engine.ask(self._prompt()))
                if tripwire is None and judgement.verdict is not None and judgement.verdict.good:
                    tripwire = asyncio.create_task(engine.gone())
                due_at_s = self._clock() + self._pause_s(judgement, target)
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
                    if canary is not None and canary.done():
                        answer, canary = canary.result(), None
                        self._count(ProbeKind.CANARY, answer.failure, answer.at_s - answer.sent_at_s)
                        judgement = self._judged(target, judgement, answer)
                        if answer.failure is not None:
                            # What the counters say right now decides what this silence means.
                            pause_s = self._pause_s(judgement, target) if answer.failure.answered else 0.0
                            due_at_s = min(due_at_s, self._clock() + pause_s)
        finally:
            out = [task for task in (canary, tripwire) if task is not None]
            for task in out:
                task.cancel()
            if out:
                await asyncio.wait(out)

    async def _look(self, engine: EngineHttp) -> Look:
        began_at_s = self._clock()
        look = await engine.look()
        failure = look.counters if isinstance(look.counters, Failure) else None
        self._count(ProbeKind.LOOK, failure, look.at_s - began_at_s)
        return look

    def _judged(self, target: Target, before: Judgement, reading: Look | Answer) -> Judgement:
        judgement = before.after(reading, target.probe)
        if judgement.fresh:
            report = judgement.report(target.pool, target.engine, reading.at_s, next(self._sequence))
            if report is not None:
                self._on_report(report)
        return judgement

    def _count(self, kind: ProbeKind, failure: Failure | None, seconds: float) -> None:
        self._on_probe(kind, "answered" if failure is None else failure.trouble.value, seconds)

    def _pause_s(self, judgement: Judgement, target: Target) -> float:
        return judgement.pause_s(self._clock(), target.probe) * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def _prompt(self) -> str:
        """A prompt that no cache has seen: its first word is already different."""
        return f"{self._rng.getrandbits(64):016x} is a number. Say one word."
