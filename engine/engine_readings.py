"""What a look at an engine brings back: values with a time, and no opinion.

A ``MetricsReading`` reads counters and costs the engine nothing. An ``CanaryReading`` is the end of a canary: a
completion of one token, asked for to see whether a token comes.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.vllm_metrics import VllmCounters


class ProbeFailureReason(StrEnum):
    """Why there was no usable answer."""

    REFUSED = "refused"  # nobody listens there, or there is no way there
    CUT = "cut"  # the connection broke before the answer ended
    SILENT = "silent"  # no complete answer in time
    STATUS = "status"  # an HTTP status that is not 200
    UNTRUSTED = "untrusted"  # somebody is there, and does not prove to be the engine (TLS)
    OURS = "ours"  # the prober could not ask: name look-up, out of sockets, or it came late itself
    GARBAGE = "garbage"  # an answer that cannot be read, or is larger than any honest one


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFailure:
    """No usable answer; ``detail`` is a short phrase for people, ``status`` the HTTP status, 0 without one."""

    trouble: ProbeFailureReason
    detail: str
    status: int = 0

    @property
    def answered(self) -> bool:
        """Whether a process was there and said something, whatever it was."""
        return self.trouble in (ProbeFailureReason.STATUS, ProbeFailureReason.GARBAGE)

    @property
    def unproved(self) -> bool:
        """Whether somebody is there who does not prove to be the engine."""
        return self.trouble is ProbeFailureReason.UNTRUSTED

    @property
    def spoke(self) -> bool:
        """Whether anybody was there at all."""
        return self.answered or self.unproved

    @property
    def gone(self) -> bool:
        """Whether this says that no process is there."""
        return self.trouble in (ProbeFailureReason.REFUSED, ProbeFailureReason.CUT)

    @property
    def shed(self) -> bool:
        """Whether the engine said that it has no room now. Too much work is not an illness."""
        return self.status in (429, 503) and not self.draining

    @property
    def draining(self) -> bool:
        """Whether the engine said that it is going away.

        vLLM answers 500 and not 503 once it was told to stop: "cannot schedule new futures after shutdown".
        """
        words = self.detail.lower()
        return self.status >= 500 and any(word in words for word in ("drain", "shutdown", "shutting down"))

    @property
    def refusal(self) -> bool:
        """Whether the engine said that the question is wrong: model, path, permission."""
        return 300 <= self.status < 500 and not self.shed


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """Counters as read at ``at_s``; ``in_flight`` is the engine's own count of calls it holds, canaries included.

    Times are the prober's monotonic clock in seconds. ``in_flight`` is None where the engine does not count.
    ``late``: the prober itself stood still since its last look, so the time between was not watched.
    ``errored``: the engine was asked and says itself that it is broken.
    """

    at_s: float
    counters: VllmCounters | ProbeFailure
    in_flight: int | None = None
    late: bool = False
    errored: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReading:
    """How a canary ended; ``failure`` None means that a token came."""

    sent_at_s: float
    at_s: float
    failure: ProbeFailure | None = None
