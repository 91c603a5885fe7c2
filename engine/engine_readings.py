"""Results of probes: timestamped values, without a verdict.

A ``MetricsReading`` holds counters and costs the engine nothing. A ``CanaryReading`` is the end of a canary: a
completion of one token.
"""

from dataclasses import dataclass
from enum import StrEnum

from engine.vllm_metrics import VllmCounters


class ProbeFailureReason(StrEnum):
    """Cause of a failed probe."""

    REFUSED = "refused"  # connection refused, or no route
    CUT = "cut"  # connection closed before the end of the answer
    SILENT = "silent"  # no complete answer in time
    STATUS = "status"  # an HTTP status that is not 200
    UNTRUSTED = "untrusted"  # TLS: invalid certificate
    OURS = "ours"  # prober failed: name lookup, out of sockets, or itself late
    GARBAGE = "garbage"  # unreadable or oversized answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFailure:
    """A failed probe; ``detail`` is a short phrase, ``status`` the HTTP status or 0."""

    trouble: ProbeFailureReason
    detail: str
    status: int = 0

    @property
    def answered(self) -> bool:
        """Whether a process answered at all."""
        return self.trouble in (ProbeFailureReason.STATUS, ProbeFailureReason.GARBAGE)

    @property
    def unproved(self) -> bool:
        """Whether the peer has no valid certificate."""
        return self.trouble is ProbeFailureReason.UNTRUSTED

    @property
    def spoke(self) -> bool:
        """Whether a peer exists."""
        return self.answered or self.unproved

    @property
    def gone(self) -> bool:
        """Whether no process listens."""
        return self.trouble in (ProbeFailureReason.REFUSED, ProbeFailureReason.CUT)

    @property
    def shed(self) -> bool:
        """Whether the engine sheds load (429 or 503), which is not a fault."""
        return self.status in (429, 503) and not self.draining

    @property
    def draining(self) -> bool:
        """Whether the engine reports that it shuts down.

        After SIGTERM vLLM answers 500 instead of 503: "cannot schedule new futures after shutdown".
        """
        words = self.detail.lower()
        return self.status >= 500 and any(word in words for word in ("drain", "shutdown", "shutting down"))

    @property
    def refusal(self) -> bool:
        """Whether the engine refuses the probe: model, path, permission."""
        return 300 <= self.status < 500 and not self.shed


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """Counters at ``at_s``; ``in_flight`` is the engine's count, canaries included, None if unknown.

    ``in_flight`` is read after the counters, so it includes every request of the step that they precede.
    ``unstarted``: those of ``in_flight`` without a first token, by the first-token gate; None without it. It
    includes unfinished requests that do not stream. ``long_prompts``: those of them with a long body; None from a
    gate that does not count them. ``partial``: these counts are those of one API process among several.
    Times are the prober's monotonic clock in seconds. ``late``: the prober stalled since the last reading, so the
    time between was not observed. ``errored``: /health reports an error. ``pause``: why the engine stands still by
    order, empty if it does not, None if unknown.
    """

    at_s: float
    counters: VllmCounters | ProbeFailure
    in_flight: int | None = None
    unstarted: int | None = None
    long_prompts: int | None = None
    partial: bool = False
    late: bool = False
    errored: bool = False
    pause: str | None = None

    @property
    def answered(self) -> bool:
        """Whether the engine sent its counters.

        If a canary ended meanwhile, ``in_flight`` may or may not include it: such a reading is taken again.
        """
        return not isinstance(self.counters, ProbeFailure)


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReading:
    """End of a canary; ``failure`` is None if a token came."""

    sent_at_s: float
    at_s: float
    failure: ProbeFailure | None = None
