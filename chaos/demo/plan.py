"""What the demonstration does and when. Values only; ``story`` carries it out.

Times are seconds since the load began. The same plan runs against both sides at once, so that neither can be
lucky.
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
"""Lengths of answers, equally likely: 0.26 s, 0.46 s and 0.86 s alone on an engine."""

SERVICE_TIME_S: Final = 0.55
LONGEST_SERVICE_S: Final = 1.0
DEADLINE_S: Final = 10.0

ENGINES: Final = tuple(f"{zone}{index}" for zone in ZONES for index in range(ENGINES_PER_ZONE))
"""Engine names: zone, then number in the zone."""


class Chapter(StrEnum):
    """Parts of the story; each is scored by itself."""

    CALM = "calm"
    HANG = "hung kernel, /health 200"
    CRASH = "a third crashes"
    DRAIN = "rolling drain of all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A chapter with its fault from ``start_s`` to ``heal_s``.

    Requests that arrive until ``end_s`` are counted to it. That is a request's length before the next fault, which
    would otherwise spoil the record of a chapter it has nothing to do with.
    """

    chapter: Chapter
    start_s: float
    heal_s: float
    end_s: float
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole story. ``rate_per_s`` is the load over all zones."""

    spans: tuple[Span, ...]
    rate_per_s: float
    streaming_share: float
    seed: int

    @property
    def length_s(self) -> float:
        """When the load ends."""
        return self.spans[-1].end_s + LONGEST_SERVICE_S

    def at(self, time_s: float) -> Span:
        """The chapter that a request arriving then is counted to."""
        return next((span for span in self.spans if time_s < span.end_s), self.spans[-1])


def plan(*, fast: bool = False, seed: int = 7) -> Plan:
    """The story at its usual length (about a minute), or in half the time for CI."""
    pace = 0.55 if fast else 1.0
    marks = {
        Chapter.CALM: (0.0, 5.0, 5.0),
        Chapter.HANG: (5.0, 17.0, 21.0),
        Chapter.CRASH: (21.0, 33.0, 37.0),
        Chapter.DRAIN: (37.0, 55.0, 58.0),
    }
    targets = {
        Chapter.HANG: ("b1",),
        Chapter.CRASH: tuple(f"{zone}2" for zone in ZONES),
        Chapter.DRAIN: ENGINES,
    }
    spans = tuple(
        Span(
            chapter=chapter,
            start_s=start_s * pace,
            heal_s=heal_s * pace,
            end_s=end_s * pace - LONGEST_SERVICE_S,
            targets=targets.get(chapter, ()),
        )
        for chapter, (start_s, heal_s, end_s) in marks.items()
    )
    return Plan(spans=spans, rate_per_s=50.0, streaming_share=0.5, seed=seed)
