"""What is measured of a fleet too large for a line per request: sums by second."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One second, beginning at ``at_s``. ``good``, ``late`` and ``failed`` are requests that ended in it: answered
    in time, given up or answered too late, without any answer. ``calls`` reached an engine, of which ``lost``
    came to nothing. ``ceiling`` is None where nothing is refused.
    """

    at_s: float
    arrived: int
    good: int
    refused: int
    late: int
    failed: int
    calls: int
    lost: int
    in_flight: int
    engines_in: int
    ceiling: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleetwide:
    """A simulated run of a large fleet. ``rounds`` is how often the control plane decided."""

    slices: tuple[Slice, ...]
    engines: int
    rounds: int
    engine_step_s: float

    def between(self, start_s: float, end_s: float) -> Sequence[Slice]:
        """The seconds of a window."""
        return [one for one in self.slices if start_s <= one.at_s < end_s]


def goodput_percent(slices: Iterable[Slice]) -> float:
    """Good answers per 100 requests that ended; 100 where none did."""
    some = list(slices)
    good = sum(one.good for one in some)
    ended = good + sum(one.refused + one.late + one.failed for one in some)
    return 100.0 * good / ended if ended else 100.0


def amplification(slices: Iterable[Slice]) -> float:
    """Calls that reached engines per request that arrived."""
    some = list(slices)
    arrived = sum(one.arrived for one in some)
    return sum(one.calls for one in some) / arrived if arrived else 0.0
