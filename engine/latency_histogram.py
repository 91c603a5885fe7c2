"""Latency histograms of an engine's metrics page, and quantiles between two readings.

Histograms count since the engine started, so two readings are subtracted. Quantiles interpolate linearly within a
bucket, as Prometheus does.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from engine.report import Quantiles, TokenGaps

FIRST_TOKEN: Final = b"vllm:time_to_first_token_seconds_bucket"
# The second name is that of older engines.
PER_TOKEN: Final = (b"vllm:inter_token_latency_seconds_bucket", b"vllm:time_per_output_token_seconds_bucket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Cumulative counts by upper bound in seconds; the last bound is infinite. ``sum_s``: 0 if not reported."""

    bounds_s: tuple[float, ...]
    counts: tuple[float, ...]
    sum_s: float = 0.0

    @property
    def total(self) -> float:
        """Total count."""
        return self.counts[-1] if self.counts else 0.0


def histogram(text: bytes, name: bytes) -> Histogram | None:
    """Buckets of this name, summed over ranks; None if missing or unreadable."""
    sums: dict[float, float] = {}
    for line in _lines(text, name):
        bound, value = _bucket(line)
        if not (value >= 0 and bound > 0):
            return None
        sums[bound] = sums.get(bound, 0.0) + value
    if not sums or math.inf not in sums:
        return None
    bounds_s = tuple(sorted(sums))
    sum_s = math.fsum(map(_value, _lines(text, name.removesuffix(b"_bucket") + b"_sum")))
    return Histogram(bounds_s=bounds_s, counts=tuple(sums[bound] for bound in bounds_s), sum_s=sum_s)


def histogram_delta(before: Histogram | None, now: Histogram | None) -> Histogram | None:
    """Counts between two readings; all of ``now`` after an engine restart."""
    if now is None or before is None or before.bounds_s != now.bounds_s or now.total < before.total:
        return now
    counts = tuple(max(0.0, new - old) for new, old in zip(now.counts, before.counts, strict=True))
    return Histogram(bounds_s=now.bounds_s, counts=counts, sum_s=max(0.0, now.sum_s - before.sum_s))


def token_gaps(counted: Histogram | None) -> TokenGaps | None:
    """The histogram as reported; None if it counts nothing."""
    if counted is None or len(counted.bounds_s) < 2 or not math.isfinite(counted.total):
        return None
    counts = tuple(round(count) for count in accumulate(counted.counts, max))
    return TokenGaps(bounds_s=counted.bounds_s[:-1], counts=counts, sum_s=counted.sum_s)


def quantiles(counted: Histogram | None) -> Quantiles | None:
    """Median and 99th percentile; None without counts."""
    if counted is None or counted.total <= 0:
        return None
    return Quantiles(p50_s=_quantile(counted, 0.5), p99_s=_quantile(counted, 0.99))


def _quantile(counted: Histogram, share: float) -> float:
    rank = share * counted.total
    low_s, below = 0.0, 0.0
    for bound_s, count in zip(counted.bounds_s, counted.counts, strict=True):
        if count >= rank:
            if math.isinf(bound_s):
                return low_s  # beyond the last bound: only known to be longer
            inside = count - below
            return low_s + (bound_s - low_s) * ((rank - below) / inside if inside > 0 else 1.0)
        low_s, below = bound_s, max(below, count)
    return low_s


def _lines(text: bytes, name: bytes) -> Iterator[bytes]:
    """Lines of the samples of exactly this name, which have labels."""
    start = text.find(b"\n" + name + b"{")
    while start != -1:
        end = text.find(b"\n", start + 1)
        yield text[start + 1 : end if end != -1 else len(text)]
        start = text.find(b"\n" + name + b"{", end) if end != -1 else -1


def _value(line: bytes) -> float:
    """Value of a sample line; 0 if unreadable or not finite."""
    try:
        value = float(line[line.rindex(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return 0.0
    return value if math.isfinite(value) else 0.0


def _bucket(line: bytes) -> tuple[float, float]:
    """Upper bound and count of a sample line; zeros if unreadable."""
    at = line.find(b'le="')
    try:
        bound = float(line[at + 4 : line.index(b'"', at + 4)])
        value = float(line[line.rindex(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return 0.0, 0.0
    return bound, value
