"""Agents of simulated engines, with the real agent's logic.

``engine.agent`` decides when to probe and what follows; this module only supplies the times.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from chaos.history.history_events import EngineDetection
from chaos.simulator.probe_call import ProbeCall, probe_failure
from chaos.simulator.simulated_adapter_list import SimulatedAdapterList
from chaos.simulator.simulated_clock import SimulatedClock, TimerHandle
from chaos.simulator.simulated_engine import SimulatedEngine
from engine.agent.agent_config import AgentConfig
from engine.agent.agent_engine_state import EngineHealthState
from engine.agent.agent_report import report as agent_report
from engine.agent.probe_schedule import COUNT_INTERVAL_S, canary_due, is_idle, metrics_due, pause_s
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.report import EngineReport, Verdict
from engine.watch_server import HEARTBEAT_S, has_new_speed, is_urgent


class SimulatedAgent:
    """The agent of one engine. ``on_report`` receives its reports."""

    def __init__(
        self,
        timeline: SimulatedClock,
        engine: SimulatedEngine,
        pool: str,
        *,
        rng: random.Random,
        on_report: Callable[[EngineReport], None],
        on_detected: Callable[[EngineDetection], None],
    ) -> None:
        self._timeline = timeline
        self._engine = engine
        self._pool = pool
        self._on_report = on_report
        self._on_detected = on_detected
        self._config = AgentConfig(slots=engine.slots, gpu="off")
        self._standing = EngineHealthState.new(self._config, timeline.now_s)
        self._list = SimulatedAdapterList(engine)
        self._lives = 0
        self._rng = rng
        self._timer: TimerHandle | None = None
        self._heartbeat: TimerHandle | None = None
        self._canary: ProbeCall | None = None
        self._asked_at_s: float | None = None
        self._counts = False
        self._told: EngineReport | None = None
        self._paced: EngineReport | None = None
        self._sequence = 0
        self._boot = 0
        self._verdict: Verdict | None = None
        self.speaks = True
        engine.on_gone.append(self._gone)
        self.start()

    def start(self) -> None:
        """Start a new process without state."""
        self._lives += 1
        self._standing = EngineHealthState.new(self._config, self._timeline.now_s)
        self._told, self._boot, self._verdict, self._counts, self._asked_at_s = None, 0, None, False, None
        self.speaks = True
        self._step_after(self._rng.uniform(0.0, self._config.interval_s))

    def kill(self) -> None:
        """Kill the process."""
        self.stop()
        if self._canary is not None:
            self._canary.drop()
            self._canary = None

    def stop(self) -> None:
        """Freeze the process."""
        self.speaks = False
        for timer in (self._timer, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._timer = self._heartbeat = None

    def go_on(self) -> None:
        """Resume after ``stop``; unobserved time is not evidence."""
        self.speaks = True
        self._hear(replace(self._engine.probe(), late=True))
        self._step_after(0.0)

    # -- looking -------------------------------------------------------------------------------------------

    def _gone(self) -> None:
        """The idle watch connection has ended."""
        if self.speaks and self._standing.boot.heard and self._standing.judgement.books.trouble is None:
            self._step_after(0.0, look=True)

    def _step_after(self, seconds: float, *, look: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timeline.after(seconds, lambda: self._step(look=look))

    def _step(self, *, look: bool) -> None:
        now_s = self._timeline.now_s
        if look or metrics_due(self._standing, now_s, counts=self._counts):
            seen = self._engine.probe()
            if isinstance(seen.counters, ProbeFailure) and seen.counters.trouble is ProbeFailureReason.SILENT:
                # No answer: known once the probe times out.
                self._timer = self._timeline.after(self._config.timeout_s, lambda: self._look_ended(silent=True))
                return
            self._hear(seen)
        self._ask_and_rest()

    def _look_ended(self, *, silent: bool) -> None:
        seen = self._engine.probe()
        if silent and not isinstance(seen.counters, ProbeFailure):
            seen = MetricsReading(
                at_s=self._timeline.now_s, counters=probe_failure(ProbeFailureReason.SILENT, "no answer in time")
            )
        self._hear(seen)
        self._ask_and_rest()

    def _ask_and_rest(self) -> None:
        now_s = self._timeline.now_s
        if self._canary is None and canary_due(self._standing, self._config, now_s, self._asked_at_s):
            self._asked_at_s = now_s
            self._standing = self._standing.canary_sent(now_s)
            limit_s = self._standing.judgement.books.canary_limit_s(self._config.probe)
            self._canary = ProbeCall(self._timeline, self._engine, limit_s, self._answered)
        self._rest(now_s + self._pause_s())

    def _rest(self, due_s: float) -> None:
        """Wait for the next probe; meanwhile watch the request count of a quiet engine."""
        now_s = self._timeline.now_s
        if self._timer is not None:
            self._timer.cancel()
        if (
            is_idle(self._standing)
            and (self._counts or self._canary is not None)
            and due_s - now_s > COUNT_INTERVAL_S
        ):
            self._timer = self._timeline.after(COUNT_INTERVAL_S, lambda: self._count(due_s))
        else:
            self._timer = self._timeline.at(due_s, lambda: self._step(look=False))

    def _count(self, due_s: float) -> None:
        if self._canary is not None or self._engine.probe().in_flight != 0:
            self._step(look=True)
        else:
            self._rest(due_s)

    def _answered(self, answer: CanaryReading) -> None:
        self._canary = None
        if not self.speaks:
            return
        self._hear(answer)
        if answer.failure is not None and not answer.failure.answered:
            self._step_after(0.0, look=True)
        else:
            self._rest(self._timeline.now_s + self._pause_s())

    def _pause_s(self) -> float:
        return pause_s(self._standing, self._config, self._timeline.now_s, look_s=0.0, counts=self._counts)

    # -- reporting -------------------------------------------------------------------------------------------

    def _hear(self, reading: MetricsReading | CanaryReading) -> None:
        if isinstance(reading, MetricsReading) and reading.in_flight:
            self._counts = True
        self._standing = self._standing.after(reading, self._config)
        now_s = self._timeline.now_s
        found = agent_report(self._standing, self._config, now_s, model="", revision="", gpu=None)
        if found is None:
            return
        if self._standing.boot.number != self._boot:
            self._boot, self._sequence = self._standing.boot.number, 0
        self._sequence += 1
        told = replace(
            found,
            pool=self._pool,
            engine=self._engine.name,
            boot_id=f"{self._lives}-{self._boot}",
            adapters=self._list.read(now_s),
            sequence=self._sequence,
        )
        before, self._told = self._told, told
        if told.verdict is not self._verdict:
            self._verdict = told.verdict
            self._on_detected(
                EngineDetection(
                    at_s=now_s - self._timeline.began_s,
                    engine=self._engine.name,
                    verdict=told.verdict.value,
                    evidence=told.evidence,
                )
            )
        known, faster = self._paced, has_new_speed(self._paced, told)
        if known is None or faster or now_s - known.observed_at_s >= HEARTBEAT_S:
            self._paced = told
        if faster or before is None or before.boot_id != told.boot_id or is_urgent(before, told):
            self._say()

    def _say(self) -> None:
        if self._told is None or not self.speaks:
            return
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._heartbeat = self._timeline.after(HEARTBEAT_S, self._say)
        self._on_report(self._told)
