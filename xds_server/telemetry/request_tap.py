"""Live tries for watchers (`switchgear tap`): filtered, bounded, and free of cost without watchers.

Access logs hold no text of prompts and no paths. A watcher that reads too slowly loses the oldest tries, which are
counted.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import Final

from policies.objectives import ObjectiveKind
from xds_server.admin_api.tap_types import TappedTry
from xds_server.model.pool_traffic import CallResult, LatencyTail
from xds_server.telemetry.attempt_outcome import DEADLINE_EXPIRED, NO_HOST, OVERFLOW, TIMEOUT
from xds_server.telemetry.pool_directory import RouteFacts
from xds_server.translate.deadlines import DEADLINE_KIND

MAX_TRIES: Final = 1_000
"""Tries that wait for one watcher; more than a person reads in the time between two messages."""

MAX_WATCHERS: Final = 16
"""Each watcher costs CPU for every call of the fleet."""

MAX_ID_CHARACTERS: Final = 64
"""Characters of a request ID, which a caller may choose."""

REFUSED: Final = "refused"
"""Result of a request that was refused without a try, or whose try reached no engine."""

TIMED_OUT: Final = "timed-out"
"""Result of a request that its route's time limit ended."""

REFUSED_RESULTS: Final = frozenset({REFUSED, CallResult.SHED.value})
FAILED_RESULTS: Final = frozenset({CallResult.FAILURE.value, TIMED_OUT})

_SUCCESS: Final = CallResult.SUCCESS.value
_OVERLOAD: Final = "overload: the admission limit is reached"
_BY_FLAG: Final[Mapping[str, str]] = {
    OVERFLOW: _OVERLOAD,
    "overload_manager": "proxy-overload: the proxy is short of memory",
    NO_HOST: "no-engine: no engine of the pool is in rotation",
    TIMEOUT: "timeout: the time limit of the try expired",
    "stream_idle_timeout": "timeout: the engine sent nothing for the idle limit of the try",
    "upstream_connection_failure": "connect-failure: connection refused or not accepted in time",
    "upstream_connection_termination": "engine-reset: the engine closed the connection before its answer",
    "upstream_remote_reset": "engine-reset: the engine reset the stream",
    "upstream_protocol_error": "engine-reset: the answer broke off or was not HTTP",
    "downstream_connection_termination": "the caller left",
}
_BY_ROUTE: Final = {
    "maintenance": "maintenance: the route is in maintenance",
    "static": "static-answer: the route gives its static answer",
    "outside": "no-engine-in-region: no engine in the allowed regions",
    "no-adapter": "no-engine-with-adapter: no engine in rotation has the adapter",
    "too-long": "too-long-now: more tokens than an overloaded pool serves",
    DEADLINE_KIND: "deadline-too-short: no answer could be complete in time",
}
_BY_LIMIT: Final = {
    "response_timeout": "timeout: the time limit of the route expired",
    "stream_idle_timeout": "timeout: no byte for the idle limit of the route",
    DEADLINE_EXPIRED: "timeout: the deadline of the request expired",
}


def failure_reason(result: str, status: int, flags: Set[str]) -> str:
    """Why a try has this result; empty for a success."""
    if result == _SUCCESS:
        return ""
    if result == REFUSED:
        return _OVERLOAD
    found = next((text for flag, text in _BY_FLAG.items() if flag in flags), "")
    if found:
        return found
    if result == CallResult.ABANDONED.value:
        return "the caller left, another try won, or the route's time was up"
    return f"the engine answered {status}" if status else "no answer"


def refusal_reason(route: str, flags: Set[str]) -> str:
    """Why a request was refused without a try; ``route`` is the name of the Envoy route."""
    kind = route.partition("/")[2].partition("/")[0]
    return _BY_ROUTE.get(kind) or next((text for flag, text in _BY_FLAG.items() if flag in flags), _OVERLOAD)


def limit_reason(details: str) -> str:
    """Why a limit of the route ended the request; empty for other details of a response."""
    return _BY_LIMIT.get(details, "")


def slowness(
    seen: TappedTry, limits: RouteFacts | None, tails: tuple[LatencyTail | None, LatencyTail | None]
) -> str:
    """Why a complete answer is slow; empty if it is not.

    Slow is beyond the smallest latency objective of its route; without objectives, beyond the pool's p95 of the
    last minute. ``tails``: of whole answers, and of first bytes of streams.
    """
    if seen.result != _SUCCESS:
        return ""
    times = {ObjectiveKind.TOTAL: seen.total_s, ObjectiveKind.FIRST_TOKEN: seen.first_byte_s}
    shortest: dict[ObjectiveKind, float] = {}
    for one in () if limits is None else limits.objectives:
        if one.kind in times:
            shortest[one.kind] = min(one.limit_s, shortest.get(one.kind, one.limit_s))
    if shortest:
        for kind, limit_s in shortest.items():
            took_s = times[kind]
            if took_s is not None and took_s > limit_s:
                return f"slow: {kind.value} {took_s:.2f} s, objective {limit_s:g} s"
        return ""
    answer, first_byte = tails
    if seen.first_byte_s is None:
        return _beyond("total", seen.total_s, answer)
    return _beyond("first byte", seen.first_byte_s, first_byte)


def _beyond(what: str, took_s: float, tail: LatencyTail | None) -> str:
    if tail is None or took_s <= tail.p95_s:
        return ""
    return f"slow: {what} {took_s:.2f} s, p95 of the pool {tail.p95_s:.2f} s"


class TapFullError(Exception):
    """The limit of watchers is reached."""


class TapWatcher:
    """Tries for one watcher: of one pool, if ``pool`` is set; with ``only``, those that are one of these.

    ``only`` has ``refused``, ``slow`` and ``failed``. ``slower_s`` replaces what counts as slow.
    """

    def __init__(
        self, pool: str = "", only: Set[str] = frozenset(), slower_s: float | None = None, most: int = MAX_TRIES
    ) -> None:
        self._pool = pool
        self._only = only
        self._slower_s = slower_s
        self._waiting: deque[TappedTry] = deque(maxlen=most)
        self._dropped = 0

    def offer(self, seen: TappedTry) -> None:
        """Keep the try if it is wanted; the oldest one makes room."""
        if self._pool and seen.pool != self._pool:
            return
        if self._slower_s is not None and seen.result == _SUCCESS:
            slow = seen.total_s > self._slower_s
            seen = replace(seen, slow=slow, reason=f"slow: total {seen.total_s:.2f} s" if slow else "")
        if self._only and not (
            ("refused" in self._only and seen.result in REFUSED_RESULTS)
            or ("failed" in self._only and seen.result in FAILED_RESULTS)
            or ("slow" in self._only and seen.slow)
        ):
            return
        self._dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(seen)

    def take(self) -> tuple[tuple[TappedTry, ...], int]:
        """What waits, oldest first, and how many were dropped since the last time."""
        found, dropped = tuple(self._waiting), self._dropped
        self._waiting.clear()
        self._dropped = 0
        return found, dropped


class RequestTap:
    """All watchers. False while there are none, so that callers can skip the work for it."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._watchers: set[TapWatcher] = set()
        self._wall = wall

    def __bool__(self) -> bool:
        return bool(self._watchers)

    def open(self, watcher: TapWatcher) -> None:
        """Add a watcher; ``TapFullError`` above the limit."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise TapFullError
        self._watchers.add(watcher)

    def close(self, watcher: TapWatcher) -> None:
        """Remove a watcher."""
        self._watchers.discard(watcher)

    def record(self, seen: TappedTry) -> None:
        """Offer a try to each watcher."""
        for watcher in self._watchers:
            watcher.offer(seen)

    def ended_unix_s(self, late_s: float = 0.0) -> float:
        """Unix time of ``late_s`` ago."""
        return round(self._wall() - max(0.0, late_s), 3)
