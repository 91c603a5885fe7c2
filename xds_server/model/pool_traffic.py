"""What the proxies saw lately: calls per engine, arrivals per proxy, as one frozen value per pool.

Made by ``sources.telemetry`` from access logs and load reports, read by ``decide``. A value says what was counted
and when it was last heard; whether that is enough to act on, and how old is too old, is the reader's to judge.
What nobody has told is None or absent, never zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from policies.route import PriorityClass


class TelemetrySignal(StrEnum):
    """What a proxy reports by itself."""

    ACCESS_LOG = "access_log"
    LOAD_REPORT = "load_report"


class CallResult(StrEnum):
    """How a call to an engine ended.

    ``shed``: the engine refused it (503, 429); ``rejected``: the caller's mistake (other 4xx); ``abandoned``: the
    caller left, a hedge lost, or the route's time was up.
    """

    SUCCESS = "success"
    FAILURE = "failure"
    SHED = "shed"
    REJECTED = "rejected"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """One connected proxy. ``cuts``: it can end, on order, the requests that a hung engine holds.

    ``region`` is what it says of itself; empty where it says none.
    """

    node: str
    zone: str
    role: str
    cuts: bool = False
    pools: frozenset[str] = frozenset()
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyTail:
    """A time as healthy calls showed it lately, in seconds, and how many calls that rests on.

    ``longest_s`` is the longest of those calls: a limit on tries must not go by a quantile alone, or it ends the
    longest healthy answers for ever. 0 where it is not known.
    """

    p50_s: float
    p95_s: float
    p99_s: float
    calls: int
    longest_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraffic:
    """Calls (attempts, not requests) to one engine, from all proxies that report.

    ``window_calls`` and ``window_failures`` are the newest calls that count, at most the breaker's window and
    none older than ``WINDOW_S``; ``failures_in_a_row`` is how many of the newest of them failed,
    ``newest_failed`` has a bit for each of the newest ``NEWEST_CALLS`` that failed, the newest lowest.
    ``succeeded``, ``failed`` and ``neutral`` only grow. Rates are over the last ``RATE_S``: ``done_per_s`` are
    calls that ended well, ``busy`` is the mean number of calls that those which ended well held open (their
    durations added up, per second); ``service_s`` the mean duration of those. ``in_flight`` is what the newest
    load reports of all proxies add up to, and None where no proxy reports load. Times are monotonic seconds.
    """

    window_calls: int = 0
    window_failures: int = 0
    failures_in_a_row: int = 0
    newest_failed: int = 0
    succeeded: int = 0
    failed: int = 0
    neutral: int = 0
    done_per_s: float = 0.0
    busy: float = 0.0
    service_s: float | None = None
    in_flight: int | None = None
    heard_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyTraffic:
    """One proxy's part in a pool's traffic.

    ``arrivals_per_s``, ``shed_per_s``: requests that came for the pool, those refused at the ceiling included, and
    those refused, by class, over the last ``RATE_S``; retries are not arrivals. ``retries_per_s`` are calls after
    the first of a request. ``in_flight_on``: requests it has open on each engine, by its newest load report, which
    came at ``load_at_s`` (None: none came). ``silent``: engines that got nothing although their like did, and how
    many requests their like got meanwhile: what this proxy keeps out by itself.
    """

    arrivals_per_s: Mapping[PriorityClass, float] = field(default_factory=dict)
    shed_per_s: Mapping[PriorityClass, float] = field(default_factory=dict)
    retries_per_s: float = 0.0
    in_flight_on: Mapping[str, int] = field(default_factory=dict)
    load_at_s: float | None = None
    silent: Mapping[str, int] = field(default_factory=dict)
    heard_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTraffic:
    """All that is known of a pool's traffic; ``engines`` by engine name, ``proxies`` by node id.

    ``answer`` is the time of whole answers that are not streamed, ``first_byte`` of the first byte of streams (the
    first token only behind the gate); both of calls that ended well. ``sampled`` is the share of calls that
    proxies were asked to report: counts and rates here are already divided by it, windows are not.
    """

    engines: Mapping[str, EngineTraffic] = field(default_factory=dict)
    proxies: Mapping[str, ProxyTraffic] = field(default_factory=dict)
    answer: LatencyTail | None = None
    first_byte: LatencyTail | None = None
    sampled: float = 1.0
    heard_at_s: float = 0.0


WINDOW_S = 30.0
"""Calls older than this say nothing of an engine now."""

NEWEST_CALLS = 32
"""Of so many calls it is known which of them failed."""

RATE_S = 2.0
"""Rates are taken over so many seconds."""

STALE_S = 5.0
"""Age from which telemetry of a proxy counts as lost: decisions then do as if it had never been."""
