"""Probe intervals, timeouts and thresholds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Probe settings of one engine; durations in seconds.

    ``interval_s``: between two probes. ``timeout_s``: limit for one token from an idle engine. ``stall_after_s``:
    limit without progress while requests are in flight; above the longest engine step. ``unhealthy_after`` and
    ``healthy_after``: consecutive bad and good probes. ``count_paths``: paths of the engine's request count; the
    first that answers is used. ``latency``: read histograms too.
    """

    interval_s: float = 0.5
    timeout_s: float = 1.0
    stall_after_s: float = 1.0
    unhealthy_after: int = 2
    healthy_after: int = 1
    path: str = "/v1/completions"
    metrics_path: str = "/metrics"
    count_paths: tuple[str, ...] = ("/load",)
    latency: bool = False
