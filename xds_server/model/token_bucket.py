"""A token bucket as a value: a burst, then a steady rate."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A limit: ``burst`` at once, ``per_s`` in the long run."""

    burst: float
    per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBucket:
    """The number of tokens at a moment (monotonic)."""

    tokens: float
    at_s: float


def available_tokens(bucket: TokenBucket | None, rate: RateLimit, now_s: float) -> float:
    """The tokens available now; an unused bucket is full. If the clock goes back, none are added."""
    if bucket is None:
        return rate.burst
    return min(rate.burst, bucket.tokens + max(0.0, now_s - bucket.at_s) * rate.per_s)


def is_full(bucket: TokenBucket, rate: RateLimit, now_s: float) -> bool:
    """Whether a bucket is as good as an unused one."""
    return available_tokens(bucket, rate, now_s) >= rate.burst


def take_token(bucket: TokenBucket | None, rate: RateLimit, now_s: float) -> TokenBucket | None:
    """The bucket with one token less; None if it is empty."""
    tokens = available_tokens(bucket, rate, now_s)
    return None if tokens < 1 else TokenBucket(tokens=tokens - 1, at_s=now_s)
