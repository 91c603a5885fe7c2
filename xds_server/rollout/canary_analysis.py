"""Canary analysis: which proxies try new policies first, and whether they did worse. Pure.

Proxies are chosen by a hash of their id, so that the choice is stable, and zone by zone in turn, so that no zone
has them all. Their metrics are compared with those of all others at the same time: a bad minute of the engines is
not the fault of the policies.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from xds_server.telemetry.objective_counts import ObjectivesCount

MIN_REQUESTS: Final = 50
"""On each side. With fewer, a single failure makes most of the difference."""

MIN_TIMES: Final = 200
"""On each side, for a 99th percentile that is not just the maximum."""

_TIMES_KEPT: Final = 4000
_SURE_Z: Final = 4.0
"""Standard deviations. Chance alone gets there once in 30 000 evaluations, and there are many."""

_WORSE_ERRORS: Final = 2.0
_WORSE_SHED: Final = 5.0
"""Percentage points; smaller differences do not cause a rollback."""

_WORSE_TIMES: Final = 1.5
_WORSE_TIME_S: Final = 0.05
_ROUNDING: Final = 1e-9


def canary_proxies(zones: Mapping[str, str], percent: float) -> frozenset[str]:
    """The canary proxies out of these (node id -> zone): ``percent`` of them, at least one.

    Each zone provides the same number, as far as it has them.
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
    """Metrics of a group of proxies: requests that ended, failed or were shed, and times of successful ones.

    ``objectives``: by route, those that have any.
    """

    done: float = 0.0
    failed: float = 0.0
    shed: float = 0.0
    first_bytes_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))
    answers_s: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES_KEPT))
    objectives: Mapping[str, ObjectivesCount] = field(default_factory=dict)

    @property
    def arrived(self) -> float:
        """Requests received."""
        return self.done + self.shed

    @property
    def good_percent(self) -> float:
        """Percent of requests that succeeded."""
        return 100 - _percent(self.failed + self.shed, self.arrived)


class CanaryVerdict(StrEnum):
    """The verdict on a canary."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryAnalysis:
    """The verdict on the canary, with the reasons in sentences."""

    verdict: CanaryVerdict
    reasons: tuple[str, ...]


def analyze_canary(
    canary: CohortMetrics, others: CohortMetrics, slo_percent: float | None = None
) -> CanaryAnalysis:
    """Compare the canary with the other proxies.

    ``slo_percent`` of its requests must also succeed, independently of the others; then it can be judged
    without them.
    """
    against = [
        *_short(canary, slo_percent),
        *_more("fail", (canary.failed, canary.done), (others.failed, others.done), _WORSE_ERRORS),
        *_more("are shed", (canary.shed, canary.arrived), (others.shed, others.arrived), _WORSE_SHED),
        *_slower("first bytes", canary.first_bytes_s, others.first_bytes_s),
        *_slower("answers", canary.answers_s, others.answers_s),
        *_missed_objectives(canary, others),
    ]
    if against:
        return CanaryAnalysis(verdict=CanaryVerdict.BAD, reasons=tuple(against))
    few = [
        f"{name} had {seen.arrived:.0f} requests, at least {MIN_REQUESTS} are needed"
        for name, seen in (("the canary", canary), ("the others", others))
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
        f"{canary.good_percent:.4g} % of {canary.arrived:.0f} requests succeeded (required: {slo_percent:.4g} %)"
    )


def _short(canary: CohortMetrics, slo_percent: float | None) -> Iterable[str]:
    """A reason if fewer requests succeed than required, beyond chance."""
    if slo_percent is None or canary.arrived < MIN_REQUESTS:
        return
    allowed = 1 - slo_percent / 100
    spread = math.sqrt(allowed * (1 - allowed) / canary.arrived)
    missed = 1 - canary.good_percent / 100 - allowed
    if missed > _ROUNDING and missed >= _SURE_Z * spread:
        yield _held_to(canary, slo_percent)


def _more(what: str, here: tuple[float, float], there: tuple[float, float], points: float) -> Iterable[str]:
    """A reason if a share (part, total) is larger than elsewhere, beyond chance and by ``points``."""
    (bad, of), (bad_there, of_there) = here, there
    if min(of, of_there) < MIN_REQUESTS:
        return
    share, share_there = bad / of, bad_there / of_there
    if (share - share_there) * 100 >= points and _surely_more(here, there):
        yield (
            f"{100 * share:.3g} % of {of:.0f} requests {what}, "
            f"{100 * share_there:.3g} % of {of_there:.0f} elsewhere"
        )


def _surely_more(here: tuple[float, float], there: tuple[float, float]) -> bool:
    """Whether a share (part, total) is larger than elsewhere beyond chance."""
    (bad, of), (bad_there, of_there) = here, there
    mean = (bad + bad_there) / (of + of_there)
    spread = math.sqrt(mean * (1 - mean) * (1 / of + 1 / of_there)) if 0 < mean < 1 else 0.0
    return bad / of - bad_there / of_there >= _SURE_Z * spread


def _missed_objectives(canary: CohortMetrics, others: CohortMetrics) -> Iterable[str]:
    """A reason for each objective that the canary misses and the others keep or miss by less, beyond chance.

    Without enough calls of the others the canary is judged alone.
    """
    for route, objectives in canary.objectives.items():
        elsewhere = others.objectives.get(route)
        for name, one in objectives.counts.items():
            bad, budget = max(0.0, one.calls - one.good), 1 - one.objective.target
            if one.calls < MIN_REQUESTS:
                continue
            missed = bad / one.calls - budget
            if missed <= _ROUNDING or missed < _SURE_Z * math.sqrt(budget * (1 - budget) / one.calls):
                continue
            told = ""
            there = None if elsewhere is None else elsewhere.counts.get(name)
            if there is not None and there.calls >= MIN_REQUESTS:
                bad_there = max(0.0, there.calls - there.good)
                if not _surely_more((bad, one.calls), (bad_there, there.calls)):
                    continue
                told = f", {100 * bad_there / there.calls:.3g} % of {there.calls:.0f} elsewhere"
            yield (
                f"route {route} misses objective {name}: {100 * bad / one.calls:.3g} % of {one.calls:.0f} calls "
                f"are beyond it (limit {100 * budget:.3g} %){told}"
            )


def _slower(what: str, here_s: Iterable[float], there_s: Iterable[float]) -> Iterable[str]:
    mine, theirs = sorted(here_s), sorted(there_s)
    if min(len(mine), len(theirs)) < MIN_TIMES:
        return
    here, there = (times[int(0.99 * (len(times) - 1))] for times in (mine, theirs))
    if here > _WORSE_TIMES * there and here - there > _WORSE_TIME_S:
        yield f"p99 of {what}: {here:.3g} s, {there:.3g} s elsewhere"


def _percent(part: float, of: float) -> float:
    return 100 * part / of if of else 0.0
