"""Types of ``/v1/pool-history``: figures of pools over the last 15 minutes, as this replica measured them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPoint:
    """One interval of one pool, which ended at ``at_unix_s``.

    Rates are of calls that ended in the interval: ``good_per_s`` are complete answers, ``failed_per_s`` failed
    tries, ``refused_per_s`` refused requests. They are None while no proxy reports on the pool. Times are of
    complete answers, by percentile, None without one: ``first_byte_*`` of streams, ``total_*`` of all, both from
    the start of the first try. ``ceiling`` (the admission limit) and ``in_flight`` are of the end of the interval.
    """

    at_unix_s: float
    good_per_s: float | None
    refused_per_s: float | None
    failed_per_s: float | None
    first_byte_p50_s: float | None
    first_byte_p95_s: float | None
    first_byte_p99_s: float | None
    total_p50_s: float | None
    total_p95_s: float | None
    total_p99_s: float | None
    ceiling: int | None
    in_flight: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHistory:
    """One pool; ``points`` are its intervals, oldest first."""

    pool: str
    points: tuple[PoolPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolHistoryList:
    """History of pools. ``interval_s``: length of an interval; ``kept_s``: how far back history reaches at most.

    ``since_unix_s`` is when this replica began to record. A restart forgets the history before it.
    """

    interval_s: float
    kept_s: float
    since_unix_s: float
    pools: tuple[PoolHistory, ...]
