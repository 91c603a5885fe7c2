"""How an engine is asked, and how patient its judge is: the few numbers that every judgement hangs on."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Settings of one judge of one engine; durations in seconds.

    ``interval_s`` lies between two looks. ``timeout_s`` is what an idle engine may take for one token, and
    ``stall_after_s`` how long counters may stand still while requests are in flight: above the longest single
    engine step. ``unhealthy_after`` and ``healthy_after`` count looks in a row, bad and good. ``count_paths`` are
    asked for the engine's own count of requests in flight, and the first that answers is kept. ``latency`` says
    whether its histograms are read too.
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
