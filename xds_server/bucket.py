"""A token bucket as a value: so many at once, then so many per second."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What may be done: ``burst`` at once, ``per_s`` in the long run."""

    burst: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """How many tokens there were at a moment (monotonic)."""

    tokens: float
    at_s: float


def level(bucket: Bucket | None, rate: Rate, now_s: float) -> float:
    """The tokens there are now; a bucket that was never used is full. Time that goes back adds none."""
    if bucket is None:
        return rate.burst
    return min(rate.burst, bucket.tokens + max(0.0, now_s - bucket.at_s) * rate.per_s)


def taken(bucket: Bucket | None, rate: Rate, now_s: float) -> Bucket | None:
    """The bucket with one token less; None where there is none to take."""
    tokens = level(bucket, rate, now_s)
    return None if tokens < 1 else Bucket(tokens=tokens - 1, at_s=now_s)
