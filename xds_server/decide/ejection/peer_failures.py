"""Whether an engine's failures are its own, judged by calls to its peers.

Either the engine fails, or its requests fail everywhere. Peers answer this twice. *All of them*, each without its
newest calls (several may have broken at the same moment), show the base failure rate: where hardly any call fails,
three failures in a row are not chance. The *best two fifths* show how often calls fail where nothing is broken: an
engine that fails no more than they do is not to blame, and its capacity is needed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from xds_server.model.pool_traffic import NEWEST_CALLS, EngineTraffic

FALSE_ALARM_PROBABILITY: Final = 2e-6
"""Probability that calls failing at the base rate look this bad at one evaluation."""

_BEST_SHARE: Final = 0.4
_NEWEST: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Failed calls out of ``calls``."""

    failed: int = 0
    calls: int = 0

    @property
    def rate(self) -> float:
        """Upper estimate of the base failure rate, 0..1; 1 where nothing is known.

        One more failed call and two standard deviations are added.
        """
        return min(1.0, (self.failed + 1 + 2 * math.sqrt(self.failed)) / (self.calls + 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerFailures:
    """The latest calls of a pool's engines in rotation, by name; ``settled`` excludes the newest of them."""

    settled: Mapping[str, FailureCount]
    best: tuple[tuple[str, FailureCount], ...]

    def others(self, engine: str) -> FailureCount:
        """All calls to the others, without the newest of each engine."""
        others = [one for name, one in self.settled.items() if name != engine]
        return FailureCount(failed=sum(one.failed for one in others), calls=sum(one.calls for one in others))

    def any_failed(self, engine: str) -> bool:
        """Whether any call to the others failed."""
        return any(one.failed for name, one in self.best if name != engine)

    def best_of(self, engine: str) -> FailureCount:
        """The calls of the best two fifths of the others, at least of one engine."""
        others = [one for name, one in self.best if name != engine]
        best = others[: max(1, round(_BEST_SHARE * len(others)))]
        return FailureCount(failed=sum(one.failed for one in best), calls=sum(one.calls for one in best))


def peer_failures(engines: Mapping[str, EngineTraffic]) -> PeerFailures:
    """Failure counts from the traffic of these engines, by name."""
    settled, whole = {}, {}
    for name, one in engines.items():
        if not one.window_calls:
            continue
        newest = min(_NEWEST, one.window_calls)
        failed = (one.newest_failed & ((1 << newest) - 1)).bit_count()
        settled[name] = FailureCount(failed=one.window_failures - failed, calls=one.window_calls - newest)
        whole[name] = FailureCount(failed=one.window_failures, calls=one.window_calls)
    best = sorted(whole.items(), key=lambda item: (item[1].failed / item[1].calls, item[0]))
    return PeerFailures(settled=settled, best=tuple(best))


def beyond_chance(failed: int, calls: int, rate: float) -> bool:
    """Whether this many failures are less likely than ``FALSE_ALARM_PROBABILITY`` (binomial law)."""
    if rate >= 1.0:
        return False
    total = 0.0
    for count in range(failed, calls + 1):
        total += math.comb(calls, count) * rate**count * (1 - rate) ** (calls - count)
        if total >= FALSE_ALARM_PROBABILITY:
            return False
    return True


def worst_run(newest_failed: int, most_calls: int, share: float, rate: float) -> FailureCount | None:
    """The shortest run of newest calls with at least ``share`` failed that chance does not explain; None without.

    ``newest_failed`` has a bit for each failed call, the newest lowest; ``rate`` is the base failure rate.
    """
    failed = 0
    for calls in range(1, min(most_calls, NEWEST_CALLS) + 1):
        if not newest_failed >> (calls - 1) & 1:
            continue  # a worst run begins with a failure
        failed += 1
        if failed >= share * calls and beyond_chance(failed, calls, rate):
            return FailureCount(failed=failed, calls=calls)
    return None
