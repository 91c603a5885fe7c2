"""Plan of the demo. Values only; ``fault_schedule`` carries it out.

Times are seconds since the load started. Both sides get the same plan at the same time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ZONES: Final = ("a", "b", "c")
ENGINES_PER_ZONE: Final = 3
SLOTS: Final = 8
PREFILL_S: Final = 0.08
TOKEN_S: Final = 0.02
MAX_TOKENS: Final = (10, 20, 40)
"""Answer lengths, equally likely: 0.26 s, 0.46 s and 0.86 s on an engine."""

SERVICE_TIME_S: Final = 0.55
LONGEST_SERVICE_S: Final = 1.0
DEADLINE_S: Final = 10.0

ENGINES: Final = tuple(f"{zone}{index}" for zone in ZONES for index in range(ENGINES_PER_ZONE))
"""Engine names: zone, then number in the zone."""

FALLBACK_ENGINES: Final = tuple(f"{zone}-small" for zone in ZONES)
"""Engines of the smaller model, one in each zone; twice as fast."""

FALLBACK_SPEED: Final = 2.0


class Chapter(StrEnum):
    """Chapters of the demo; each is scored separately."""

    CALM = "calm"
    HANG = "hung kernel, /health 200"
    CRASH = "a third crashes"
    DRAIN = "rolling drain of all"
    OVERLOAD = "two thirds crash, load +50 %"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChapterSpan:
    """A chapter from ``start_s`` on, with its fault from ``strike_s`` to ``heal_s``.

    It counts requests that arrive until ``end_s``, one request length before the next fault, so that fault cannot
    affect them. From ``start_s`` to the end of the load there are ``more_per_s`` extra requests per second.
    """

    chapter: Chapter
    start_s: float
    strike_s: float
    heal_s: float
    end_s: float
    targets: tuple[str, ...] = ()
    more_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The whole demo. ``rate_per_s`` is the load over all zones.

    The last chapter heals and ends later than planned if its effects take longer to appear.
    """

    spans: tuple[ChapterSpan, ...]
    rate_per_s: float
    streaming_share: float
    seed: int

    @property
    def length_s(self) -> float:
        """Earliest end of the load."""
        return self.spans[-1].end_s + LONGEST_SERVICE_S

    def at(self, time_s: float) -> ChapterSpan:
        """The chapter at that time."""
        return next((span for span in self.spans if time_s < span.end_s), self.spans[-1])

    def of_failed(self, arrived_s: float, ended_s: float) -> ChapterSpan:
        """Chapter of a failed request: that of its arrival, or of a fault that began before it ended.

        On a slow machine a request may last longer than the gap between two chapters.
        """
        first = self.spans.index(self.at(arrived_s))
        later = [span for span in self.spans[first + 1 :] if span.strike_s < ended_s]
        return later[-1] if later else self.spans[first]


def demo_plan(*, fast: bool = False, seed: int = 7) -> DemoPlan:
    """The plan: a little over a minute, or about half of it with ``fast`` for CI.

    In the last chapter three of nine engines are left; they can serve 45 requests/s, and 75 are sent.
    """
    pace = 0.55 if fast else 1.0
    marks = {
        Chapter.CALM: (0.0, 0.0, 4.0, 4.0),
        Chapter.HANG: (4.0, 4.0, 16.0, 19.0),
        Chapter.CRASH: (19.0, 19.0, 31.0, 34.0),
        Chapter.DRAIN: (34.0, 34.0, 52.0, 55.0),
        Chapter.OVERLOAD: (55.0, 57.0, 62.0, 71.0),
    }
    targets = {
        Chapter.HANG: ("b1",),
        Chapter.CRASH: tuple(f"{zone}2" for zone in ZONES),
        Chapter.DRAIN: ENGINES,
        Chapter.OVERLOAD: tuple(f"{zone}{index}" for zone in ZONES for index in (1, 2)),
    }
    spans = tuple(
        ChapterSpan(
            chapter=chapter,
            start_s=start_s * pace,
            strike_s=strike_s * pace,
            heal_s=heal_s * pace,
            end_s=end_s * pace - LONGEST_SERVICE_S,
            targets=targets.get(chapter, ()),
            more_per_s=25.0 if chapter is Chapter.OVERLOAD else 0.0,
        )
        for chapter, (start_s, strike_s, heal_s, end_s) in marks.items()
    )
    return DemoPlan(spans=spans, rate_per_s=50.0, streaming_share=0.5, seed=seed)
