"""The control plane's prober for simulated engines, with the real prober's logic."""

import random
from collections.abc import Callable
from typing import Final

from chaos.simulator.probe_call import ProbeCall, probe_failure
from chaos.simulator.simulated_adapter_list import SimulatedAdapterList
from chaos.simulator.simulated_clock import SimulatedClock, TimerHandle
from chaos.simulator.simulated_engine import SimulatedEngine
from engine.engine_judgement import EJECTED_INTERVAL_S, EngineJudgement
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.probe_settings import ProbeSettings
from engine.probe_state import ProbeState
from engine.report import EngineReport

_JITTER: Final = 0.1


class SimulatedProber:
    """Prober of one engine; ``on`` while no agent reports."""

    def __init__(
        self,
        timeline: SimulatedClock,
        engine: SimulatedEngine,
        pool: str,
        probe: ProbeSettings,
        *,
        rng: random.Random,
        on_report: Callable[[EngineReport], None],
    ) -> None:
        self._timeline = timeline
        self._engine = engine
        self._pool = pool
        self._probe = probe
        self._rng = rng
        self._on_report = on_report
        self._judgement = EngineJudgement(books=ProbeState(slots=engine.slots))
        self._timer: TimerHandle | None = None
        self._canary: ProbeCall | None = None
        self._sequence = 0
        self._list = SimulatedAdapterList(engine)
        self.hurried = False
        engine.on_gone.append(self._gone)

    @property
    def on(self) -> bool:
        """Whether it probes."""
        return self._timer is not None

    def start(self) -> None:
        """Start probing without state."""
        self._judgement = EngineJudgement(books=ProbeState(slots=self._engine.slots))
        self._step_after(self._rng.uniform(0.0, self._probe.interval_s))

    def stop(self) -> None:
        """Stop probing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._canary is not None:
            self._canary.drop()
            self._canary = None

    def _gone(self) -> None:
        if self.on and self._judgement.books.counters is not None:
            self._step_after(0.0)

    def _step_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timeline.after(seconds, self._step)

    def _step(self) -> None:
        seen = self._engine.probe()
        if isinstance(seen.counters, ProbeFailure) and seen.counters.trouble is ProbeFailureReason.SILENT:
            self._timer = self._timeline.after(self._probe.timeout_s, self._silent)
            return
        self._read(seen)

    def _silent(self) -> None:
        self._read(
            MetricsReading(
                at_s=self._timeline.now_s, counters=probe_failure(ProbeFailureReason.SILENT, "no answer in time")
            )
        )

    def _read(self, reading: MetricsReading) -> None:
        self._judge(reading)
        if self._canary is None and self._judgement.wants_canary:
            self._judgement = self._judgement.canary_sent(self._timeline.now_s)
            limit_s = self._judgement.books.canary_limit_s(self._probe)
            self._canary = ProbeCall(self._timeline, self._engine, limit_s, self._answered)
        self._step_after(self._pause_s())

    def _answered(self, answer: CanaryReading) -> None:
        self._canary = None
        if not self.on:
            return
        self._judge(answer)
        if answer.failure is not None:
            self._step_after(self._pause_s() if answer.failure.answered else 0.0)

    def _judge(self, reading: MetricsReading | CanaryReading) -> None:
        self._judgement = self._judgement.after(reading, self._probe)
        self._sequence += 1
        told = self._judgement.report(
            self._pool, self._engine.name, reading.at_s, self._sequence, adapters=self._list.read(reading.at_s)
        )
        if told is not None:
            self._on_report(told)

    def _pause_s(self) -> float:
        pause = self._judgement.pause_s(self._timeline.now_s, self._probe)
        if self.hurried:
            pause = min(pause, EJECTED_INTERVAL_S)
        return pause * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
