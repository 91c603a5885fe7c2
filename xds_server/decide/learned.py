"""What is being measured of one engine's capacity: averages that forget, and nothing that decides."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Averages over the last seconds of one engine's good calls, and the slots it shows to have.

    ``done`` calls ended well and ``busy`` call-seconds were spent on them, over a remembered ``span_s``; ``slots``
    is None while nothing says that the engine cannot fill those it has. ``at_s``: monotonic time of the telemetry
    last folded in; ``looked_at_s`` that of the report.
    """

    done: float = 0.0
    busy: float = 0.0
    span_s: float = 0.0
    at_s: float = 0.0
    slots: float | None = None
    looked_at_s: float = 0.0
