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
_ROUNDING: Final = 1e-9


def canary_proxies(zones: Mapping[str, str], percent: float) -> frozenset[str]:
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
class CohortMetrics:
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

    @property
    def good_percent(self) -> float:
        """How many of them were answered, and well."""
        return 100 - _percent(self.failed + self.shed, self.arrived)


class CanaryVerdict(StrEnum):
    """What can be said of a canary."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnalysis:
    """What is said of the canary, and why, in sentences."""

    verdict: CanaryVerdict
    reasons: tuple[str, ...]


def analyze_canary(
    canary: CohortMetrics, others: CohortMetrics, slo_percent: float | None = None
) -> CanaryAnalysis:
    """Whether the canary does worse than the others, as far as there is enough to tell.

    With ``slo_percent`` so many of its requests have to be answered well besides, however the others do; then it
    can be judged where there are no others.
    """
    against = [
        *_short(canary, slo_percent),
        *_more("fail", (canary.failed, canary.done), (others.failed, others.done), _WORSE_ERRORS),
        *_more("are shed", (canary.shed, canary.arrived), (others.shed, others.arrived), _WORSE_SHED),
        *_slower("first bytes", canary.first_bytes_s, others.first_bytes_s),
        *_slower("answers", canary.answers_s, others.answers_s),
    ]
    if against:
        return CanaryAnalysis(verdict=CanaryVerdict.BAD, reasons=tuple(against))
    few = [
        f"{said} saw {seen.arrived:.0f} requests, and {MIN_REQUESTS} are needed to tell"
        for said, seen in (("the canary", canary), ("the others", others))
        if seen.arrived < MIN_REQUESTS and (slo_percent is None or seen is canary)
    ]
    if few:
        return CanaryAnalysis(verdict=CanaryVerdict.UNKNOWN, reasons=tuple(few))
    told = f"{_percent(canary.failed, canary.done):.2g} % fail"
    if others.arrived >= MIN_REQUESTS:
        told += f", {_percent(others.failed, others.done):.2g} % elsewhere"
    if slo_percent is None:
        return CanaryAnalysis(verdict=CanaryVerdict.GOOD, reasons=(told,))
    word = CanaryVerdict.GOOD if canary.good_percent >= slo_percent else CanaryVerdict.UNKNOWN
    return CanaryAnalysis(verdict=word, reasons=(_held_to(canary, slo_percent), told))


def _held_to(canary: CohortMetrics, slo_percent: float) -> str:
    return (
        f"{canary.good_percent:.4g} % of {canary.arrived:.0f} requests are answered well, "
        f"and {slo_percent:.4g} % are asked for"
    )


def _short(canary: CohortMetrics, slo_percent: float | None) -> Iterable[str]:
    """That fewer are answered well than are asked for, by more than chance."""
    if slo_percent is None or canary.arrived < MIN_REQUESTS:
        return
    allowed = 1 - slo_percent / 100
    spread = math.sqrt(allowed * (1 - allowed) / canary.arrived)
    missed = 1 - canary.good_percent / 100 - allowed
    if missed > _ROUNDING and missed >= _SURE_Z * spread:
        yield _held_to(canary, slo_percent)


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
