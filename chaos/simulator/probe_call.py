"""A probe (canary): a one-token call to a simulated engine."""

from collections.abc import Callable
from typing import Final

from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_engine import CallRefusedError, EngineRequest, SimulatedCall, SimulatedEngine
from engine.engine_readings import CanaryReading, ProbeFailure, ProbeFailureReason

_CANARY_WORDS: Final = 2


class ProbeCall:
    """A one-token call; ``on_answer`` gets its result, unless it is dropped."""

    def __init__(
        self,
        timeline: SimulatedClock,
        engine: SimulatedEngine,
        timeout_s: float,
        on_answer: Callable[[CanaryReading], None],
    ) -> None:
        self._timeline = timeline
        self._engine = engine
        self._on_answer = on_answer
        self._sent_s = timeline.now_s
        self._status = 0
        self._call: SimulatedCall | None = None
        self._done = False
        self._timer = timeline.after(timeout_s, self._late)
        asked = EngineRequest(request_id="", number=0, streaming=False, prompt_tokens=_CANARY_WORDS, max_tokens=1)
        try:
            self._call = engine.call(asked, self)
        except CallRefusedError:
            self._timeline.after(
                0.0, lambda: self._end(probe_failure(ProbeFailureReason.REFUSED, "connection refused"))
            )

    def drop(self) -> None:
        """Cancel the call."""
        self._done = True
        self._timer.cancel()
        if self._call is not None:
            self._engine.leave(self._call)

    def headers(self, status: int, retry_after_s: float | None = None) -> None:  # noqa: ARG002 -- probes do not retry
        self._status = status

    def tokens(self, total: int) -> None:
        """Not streaming: ignored."""

    def ended(self) -> None:
        failure = (
            None
            if self._status == 200
            else probe_failure(ProbeFailureReason.STATUS, f"status {self._status}", self._status)
        )
        # Not within the engine's own step.
        self._timeline.after(0.0, lambda: self._end(failure))

    def failed_inside(self) -> None:
        """Not streaming: ignored."""

    def reset(self) -> None:
        self._timeline.after(0.0, lambda: self._end(probe_failure(ProbeFailureReason.CUT, "connection reset")))

    def _late(self) -> None:
        if self._call is not None:
            self._engine.leave(self._call)
        self._end(probe_failure(ProbeFailureReason.SILENT, "no token in time"))

    def _end(self, failure: ProbeFailure | None) -> None:
        if not self._done:
            self._done = True
            self._timer.cancel()
            self._on_answer(CanaryReading(sent_at_s=self._sent_s, at_s=self._timeline.now_s, failure=failure))


def probe_failure(trouble: ProbeFailureReason, detail: str, status: int = 0) -> ProbeFailure:
    return ProbeFailure(trouble=trouble, detail=detail, status=status)
