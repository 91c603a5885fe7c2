"""Whole histories of a small simulated world: engines with slots and queues, callers with patience, one fault.

``played(Play(...))`` is seeded and takes milliseconds. What the imagined control plane does is settings: how soon
it sees and leaves a bad engine, how soon it takes it back, how much it lets in, and how often it tries again.
"""

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.fake_engine.call_log import CallOutcome as Fate
from chaos.history.history_events import (
    AttemptRecord,
    ConfigPush,
    ConfigReply,
    ControlPlaneDecision,
    EngineDetection,
    ProxySample,
    RequestRecord,
)
from chaos.history.recorded_history import History, Outage
from chaos.history.request_outcomes import OutcomeReason
from tests.chaos import history_builders


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What is played; times in seconds. ``None`` for a lag means never, for the ceiling no ceiling."""

    subject: str = "policies/good"
    engines: int = 4
    slots: int = 4
    rate_per_s: float = 25.6
    seconds: float = 30.0
    streaming_percent: float = 0.0
    bad: tuple[str, ...] = ("e0",)
    fault: Mapping[str, Any] = field(default_factory=lambda: dict(history_builders.HANG))
    start_s: float = 10.0
    end_s: float = 20.0
    detected_after_s: float | None = 0.6
    left_after_s: float | None = 0.8
    back_after_s: float | None = 0.5
    wait_s: float | None = 2.0
    retries: int = 1
    try_timeout_s: float | None = 3.0
    patience_s: float = 10.0
    hypothesis: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class _Call:
    """A request at an engine."""

    asked: "_Request"
    engine: "_Engine"
    at_s: float
    needs_s: float
    started_s: float | None = None
    over: bool = False


@dataclass(slots=True, kw_only=True)
class _Request:
    number: int
    at_s: float
    streaming: bool
    tries: int = 0


@dataclass(slots=True, kw_only=True)
class _Engine:
    name: str
    slots: int
    hung: bool = False
    out: bool = False
    sent: int = 0
    waiting: list[_Call] = field(default_factory=list)
    running: list[_Call] = field(default_factory=list)


class _World:
    """A clock, a heap of due events, and all parts."""

    def __init__(self, play: Play) -> None:
        self.play = play
        self.now_s = 0.0
        self.rng = random.Random(play.seed)
        self.engines = {f"e{place}": _Engine(name=f"e{place}", slots=play.slots) for place in range(play.engines)}
        self.requests: list[RequestRecord] = []
        self.attempts: list[AttemptRecord] = []
        self.samples: list[ProxySample] = []
        self.detected: list[EngineDetection] = []
        self.decided: list[ControlPlaneDecision] = []
        self.pushed: list[ConfigPush] = []
        self.answered: list[ConfigReply] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._turn = 0

    def at(self, at_s: float, what: Callable[[], None]) -> None:
        self._turn += 1
        heapq.heappush(self._due, (at_s, self._turn, what))

    def run(self) -> None:
        while self._due:
            self.now_s, _, what = heapq.heappop(self._due)
            what()

    def arrive(self, asked: _Request) -> None:
        """Send it to the engine with the most room, or refuse it."""
        inside = [one for one in self.engines.values() if not one.out]
        held = sum(len(one.running) + len(one.waiting) for one in inside)
        slots = sum(one.slots for one in inside)
        full = self.play.wait_s is not None and held >= slots * (1 + self.play.wait_s / 0.5)
        if not inside or full:
            self._answered(asked, OutcomeReason.SHED, self.now_s + 0.01)
            return
        engine = min(inside, key=lambda one: (len(one.running) + len(one.waiting), self.rng.random()))
        asked.tries += 1
        engine.sent += 1
        call = _Call(asked=asked, engine=engine, at_s=self.now_s, needs_s=self.rng.uniform(0.28, 0.72))
        engine.waiting.append(call)
        patience_s = asked.at_s + self.play.patience_s
        limit_s = patience_s
        if self.play.try_timeout_s is not None:
            limit_s = min(limit_s, self.now_s + self.play.try_timeout_s)
        self.at(limit_s, lambda: self._give_up(call, last=limit_s >= patience_s))
        self._begin(engine)

    def hang(self, engine: _Engine, *, hung: bool) -> None:
        engine.hung = hung
        if not hung:
            for call in list(engine.running):
                self.at(self.now_s + 0.1, lambda call=call: self._finish(call))
            self._begin(engine)

    def leave(self, name: str, *, out: bool) -> None:
        """The control plane takes an engine out or in again, and tells its proxy."""
        self.engines[name].out = out
        nonce = str(len(self.pushed) + 1)
        self.decided.append(history_builders.decided(self.now_s, name, out=out))
        self.pushed.append(history_builders.pushed(self.now_s + 0.005, nonce=nonce))
        self.answered.append(history_builders.answered(self.now_s + 0.012, nonce=nonce))

    def look(self) -> None:
        self.samples.append(
            history_builders.sample(
                self.now_s,
                {one.name: one.sent for one in self.engines.values()},
                in_flight={one.name: len(one.running) + len(one.waiting) for one in self.engines.values()},
                unhealthy=tuple(one.name for one in self.engines.values() if one.out),
                ceiling=None if self.play.wait_s is None else 16.0,
            )
        )

    def _begin(self, engine: _Engine) -> None:
        while not engine.hung and engine.waiting and len(engine.running) < engine.slots:
            call = engine.waiting.pop(0)
            call.started_s = self.now_s
            engine.running.append(call)
            self.at(self.now_s + call.needs_s, lambda call=call: self._finish(call))

    def _finish(self, call: _Call) -> None:
        if not call.over and not call.engine.hung:
            self._close(call, Fate.FINISHED)
            self._answered(call.asked, OutcomeReason.OK, self.now_s)

    def _give_up(self, call: _Call, *, last: bool) -> None:
        if call.over:
            return
        self._close(call, Fate.ABORTED)
        if last or call.asked.tries > self.play.retries:
            self._answered(call.asked, OutcomeReason.TIMEOUT, self.now_s)
        else:
            self.arrive(call.asked)

    def _close(self, call: _Call, fate: Fate) -> None:
        call.over = True
        engine = call.engine
        (engine.waiting if call.started_s is None else engine.running).remove(call)
        self.attempts.append(
            history_builders.attempt(
                call.asked.number,
                engine.name,
                call.at_s,
                fate=fate,
                slot_s=0.0 if call.started_s is None else self.now_s - call.started_s,
                wait_s=None if call.started_s is None else call.started_s - call.at_s,
                closed_s=self.now_s,
                number=call.asked.tries,
                streaming=call.asked.streaming,
            )
        )
        self._begin(engine)

    def _answered(self, asked: _Request, reason: OutcomeReason, at_s: float) -> None:
        began = asked.streaming and reason is OutcomeReason.OK
        self.requests.append(
            history_builders.request(
                asked.number,
                asked.at_s,
                reason=reason,
                latency_s=at_s - asked.at_s,
                streaming=asked.streaming,
                first_token_s=0.1 if began else None,
                longest_gap_s=0.05 if began else None,
            )
        )


def played(play: Play) -> History:
    """The history of it."""
    world = _World(play)
    at_s, number = world.rng.expovariate(play.rate_per_s), 0
    while at_s < play.seconds:
        asked = _Request(number=number, at_s=at_s, streaming=world.rng.random() * 100 < play.streaming_percent)
        world.at(at_s, lambda asked=asked: world.arrive(asked))
        at_s, number = at_s + world.rng.expovariate(play.rate_per_s), number + 1
    for name in play.bad:
        _break(world, name)
    for tenth in range(round(play.seconds * 10)):
        world.at(tenth / 10, world.look)
    world.run()
    began = history_builders.began(
        hypothesis=play.hypothesis,
        spec={
            "faults": [
                {"fault": dict(play.fault), "at": f"{play.start_s:g}s", "lasts": f"{play.end_s - play.start_s:g}s"}
            ]
        },
        subject=play.subject,
        engines=history_builders.engines(play.engines, slots=play.slots),
        rate_per_s=play.rate_per_s,
        seconds=play.seconds,
        max_wait_s=play.wait_s or 0.0,
        seed=play.seed,
    )
    outage = Outage(id="fault-0", fault=play.fault, targets=play.bad, start_s=play.start_s, end_s=play.end_s)
    found = history_builders.history(
        outage,
        began=began,
        requests=world.requests,
        attempts=world.attempts,
        samples=world.samples,
        detected=world.detected,
        decided=world.decided,
        pushed=world.pushed,
        answered=world.answered,
    )
    return replace(found, ended_s=max(world.now_s, play.seconds))


def _break(world: _World, name: str) -> None:
    play, engine = world.play, world.engines[name]
    world.at(play.start_s, lambda: world.hang(engine, hung=True))
    world.at(play.end_s, lambda: world.hang(engine, hung=False))
    if play.detected_after_s is not None:
        seen_s = play.start_s + play.detected_after_s
        world.detected.append(
            EngineDetection(at_s=seen_s, engine=name, verdict="hung", evidence="no token for 0.5 s")
        )
    if play.left_after_s is not None:
        world.at(play.start_s + play.left_after_s, lambda: world.leave(name, out=True))
        if play.back_after_s is not None:
            world.at(play.end_s + play.back_after_s, lambda: world.leave(name, out=False))
