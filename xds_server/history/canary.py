"""A canary: which proxies try new policies first, and whether what they saw speaks against them. Pure.

Proxies are chosen by a hash of their id, so that the same ones are chosen each time, and zone by zone in turn, so
that no zone has them all. What they saw is held against what all others saw in the same time: a bad minute of the
engines is no fault of the policies.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final

MIN_REQUESTS: Final = 50
"""Of each side. With fewer, one failure more or less is most of the difference."""

MIN_TIMES: Final = 200
"""Of each side, for a 99th percentile that is not just the longest."""

_TIMES_KEPT: Final = 4000
_SURE_Z: Final = 4.0
"""Standard deviations. Chance alone is so far off once in 30 000 looks, and there are many looks."""

_WORSE_ERRORS: Final = 2.0
_WORSE_SHED: Final = 5.0
"""Percentage points that matter; less is no reason to go back."""

_WORSE_TIMES: Final = 1.5
_WORSE_TIME_S: Final = 0.05


def chosen(zones: Mapping[str, str], percent: float) -> frozenset[str]:
    """The proxies that begin, out of these (node id -> zone): ``percent`` of them, and one at the least.

    From each zone as many as from any other, as far as it has them.
    """
    count = min(len(zones), max(1, round(len(zones) * percent / 100)))
    ranks: dict[str, int] = {}
    order = []
    for node in sorted(zones, key=_hashed):
        rank = ranks[zones[node]] = ranks.get(zones[node], -1) + 1
        order.append((rank, _hashed(node), node))
    return frozenset(node for _, _, node in sorted(order)[:count])


def _hashed(node: str) -> bytes:
    return blake2b(node.encode(errors="surrogatepass"), digest_size=8).digest()


@dataclass(slots=True)
class Seen:
    """What some proxies saw: requests that ended, that failed, that were shed, and the times of good ones."""

    done: float = 0.0
    failed: float = 0.0
    shed: float = 0.0
    first_bytes_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))
    answers_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))

    @property
    def arrived(self) -> float:
        """Requests that came."""
        return self.done + self.shed


class Word(StrEnum):
    """What can be said of a canary."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is said of the canary, and why, in sentences."""

    word: Word
    reasons: tuple[str, ...]


def judged(canary: Seen, others: Seen) -> Judgement:
    """Whether the canary does worse than the others, as far as there is enough to tell."""
    against = [
        *_more("fail", (canary.failed, canary.done), (others.failed, others.done), _WORSE_ERRORS),
        *_more("are shed", (canary.shed, canary.arrived), (others.shed, others.arrived), _WORSE_SHED),
        *_slower("first bytes", canary.first_bytes_s, others.first_bytes_s),
        *_slower("answers", canary.answers_s, others.answers_s),
    ]
    if against:
        return Judgement(word=Word.BAD, reasons=tuple(against))
    few = [
        f"{said} saw {seen.arrived:.0f} requests, and {MIN_REQUESTS} are needed to tell"
        for said, seen in (("the canary", canary), ("the others", others))
        if seen.arrived < MIN_REQUESTS
    ]
    if few:
        return Judgement(word=Word.UNKNOWN, reasons=tuple(few))
    here, there = (_percent(seen.failed, seen.done) for seen in (canary, others))
    told = f"{here:.2g} % fail, {there:.2g} % elsewhere"
    return Judgement(word=Word.GOOD, reasons=(told,))


def _more(what: str, here: tuple[float, float], there: tuple[float, float], points: float) -> Iterable[str]:
    """That a share (so many of so many) is larger than elsewhere, by more than chance and by so many points."""
    (bad, of), (bad_there, of_there) = here, there
    if min(of, of_there) < MIN_REQUESTS:
        return
    share, share_there = bad / of, bad_there / of_there
    mean = (bad + bad_there) / (of + of_there)
    spread = math.sqrt(mean * (1 - mean) * (1 / of + 1 / of_there)) if 0 < mean < 1 else 0.0
    if (share - share_there) * 100 >= points and share - share_there >= _SURE_Z * spread:
        yield (
            f"{100 * share:.3g} % of {of:.0f} requests {what}, "
            f"and {100 * share_there:.3g} % of {of_there:.0f} elsewhere"
        )


def _slower(what: str, here_s: Iterable[float], there_s: Iterable[float]) -> Iterable[str]:
    mine, theirs = sorted(here_s), sorted(there_s)
    if min(len(mine), len(theirs)) < MIN_TIMES:
        return
    here, there = (times[int(0.99 * (len(times) - 1))] for times in (mine, theirs))
    if here > _WORSE_TIMES * there and here - there > _WORSE_TIME_S:
        yield f"{what} take {here:.3g} s at the 99th percentile, and {there:.3g} s elsewhere"


def _percent(part: float, of: float) -> float:
    return 100 * part / of if of else 0.0
