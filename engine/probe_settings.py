"""Probe intervals, timeouts and thresholds."""

from dataclasses import dataclass
from typing import Final

DECODE_STALL_S: Final = 1.0
"""Limit without progress while no prefill can be running: a decode step takes milliseconds."""

PREFILL_STALL_S: Final = 3.0
"""Limit without progress while a prefill may be running: a step may take seconds, and nothing moves in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Probe settings of one engine; durations in seconds.

    ``interval_s``: between two probes. ``timeout_s``: limit for one token from an idle engine. ``stall_after_s``:
    limit without progress while requests are in flight, None to derive it. ``unhealthy_after`` and
    ``healthy_after``: consecutive bad and good probes. ``count_paths``: paths of the engine's request count; the
    first that answers is used. ``latency``: read histograms too.
    """

    interval_s: float = 0.5
    timeout_s: float = 1.0
    stall_after_s: float | None = None
    unhealthy_after: int = 2
    healthy_after: int = 1
    path: str = "/v1/completions"
    metrics_path: str = "/metrics"
    count_paths: tuple[str, ...] = ("/load",)
    latency: bool = False

    @property
    def decode_stall_s(self) -> float:
        """Limit without progress while no prefill can be running."""
        return DECODE_STALL_S if self.stall_after_s is None else self.stall_after_s
