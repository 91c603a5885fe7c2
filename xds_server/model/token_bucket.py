"""A token bucket as a value: so many at once, then so many per second."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """What may be done: ``burst`` at once, ``per_s`` in the long run."""

    burst: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """How many tokens there were at a moment (monotonic)."""

    tokens: float
    at_s: float


def available_tokens(bucket: TokenBucket | None, rate: RateLimit, now_s: float) -> float:
    """The tokens there are now; a bucket that was never used is full. Time that goes back adds none."""
    if bucket is None:
        return rate.burst
    return min(rate.burst, bucket.tokens + max(0.0, now_s - bucket.at_s) * rate.per_s)


def take_token(bucket: TokenBucket | None, rate: RateLimit, now_s: float) -> TokenBucket | None:
    """The bucket with one token less; None where there is none to take."""
    tokens = available_tokens(bucket, rate, now_s)
    return None if tokens < 1 else TokenBucket(tokens=tokens - 1, at_s=now_s)
