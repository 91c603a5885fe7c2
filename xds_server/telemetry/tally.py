"""Counts of one engine, and of one proxy's part in a pool; they yield frozen values."""

import re
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from policies.route import PriorityClass
from xds_server.model.pool_traffic import (
    NEWEST_ANSWERS,
    NEWEST_CALLS,
    RATE_S,
    WINDOW_S,
    EngineTraffic,
    ProxyTraffic,
)
from xds_server.telemetry.pool_directory import PoolFacts
from xds_server.telemetry.sliding_windows import RateWindow

MAX_FAILED_REQUESTS: Final = 5
"""IDs per engine: examples, not a record."""

MAX_REQUEST_ID_CHARACTERS: Final = 64
"""Maximum ID length; Envoy's own have 36 characters."""

_REQUEST_ID: Final = re.compile(rf"[0-9A-Za-z][-_.:0-9A-Za-z]{{0,{MAX_REQUEST_ID_CHARACTERS - 1}}}", re.ASCII)


class FailedRequests:
    """The newest failed requests of one engine, with the time of each report."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: deque[tuple[float, str]] = deque(maxlen=MAX_FAILED_REQUESTS)

    def add(self, name: str, now_s: float) -> None:
        """Add a request ID, if valid. Two tries of one request are one request."""
        if _REQUEST_ID.fullmatch(name) and all(known != name for _, known in self._names):
            self._names.append((now_s, name))

    def since(self, oldest_s: float) -> tuple[str, ...]:
        """Those reported since then, newest first."""
        return tuple(name for at_s, name in reversed(self._names) if at_s >= oldest_s)


SILENT_S: Final = 4.0
"""How long a proxy must have skipped an engine before it counts."""

SILENT_CALLS: Final = 5
"""Requests that comparable engines must have got meanwhile, on average: five in a row are not chance."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_TO_THE_S: Final = 1.0
_NEWEST: Final = (1 << NEWEST_CALLS) - 1


class EngineTally:
    """Calls to one engine, from all proxies."""

    __slots__ = (
        "answers",
        "began_at_s",
        "done",
        "failed",
        "failed_entries",
        "failed_requests",
        "failures",
        "heard_at_s",
        "in_a_row",
        "in_flight",
        "neutral",
        "newest_failed",
        "shed",
        "succeeded",
        "succeeded_entries",
        "value",
        "window",
    )  # fmt: skip

    def __init__(self, window_calls: int) -> None:
        self.window: deque[tuple[float, bool]] = deque(maxlen=window_calls)
        self.answers: deque[tuple[float, bool]] = deque(maxlen=NEWEST_ANSWERS)
        self.failures = 0
        self.in_a_row = 0
        self.newest_failed = 0
        self.succeeded = self.failed = self.neutral = 0.0
        self.succeeded_entries = self.failed_entries = self.shed = 0
        self.done = RateWindow(2)  # calls, their durations
        self.in_flight = 0
        self.heard_at_s = 0.0
        self.began_at_s = float("-inf")
        self.failed_requests = FailedRequests()
        self.value = EngineTraffic()

    def count(self, failed: bool, now_s: float) -> None:
        """Count one more relevant call."""
        window = self.window
        if len(window) == window.maxlen and window[0][1]:
            self.failures -= 1
        entry = (now_s, failed)
        window.append(entry)
        self.answers.append(entry)
        self.newest_failed = (self.newest_failed << 1 | failed) & _NEWEST
        if failed:
            self.failures += 1
            self.in_a_row += 1
        else:
            self.in_a_row = 0

    def count_neutral(self, weight: float, now_s: float, *, shed: bool) -> None:
        """Count a call that proves no fault of the engine; ``shed``: it had no room."""
        self.neutral += weight
        if shed:
            self.shed += 1
            self.answers.append((now_s, True))

    def resize(self, window_calls: int) -> None:
        """Change the number of calls kept."""
        if window_calls != self.window.maxlen:
            self.window = deque(self.window, maxlen=window_calls)
            self.failures = sum(failed for _, failed in self.window)

    def traffic(self, now_s: float, load_known: bool) -> EngineTraffic:
        """The engine's traffic now; ``load_known``: whether any proxy reports load for the pool."""
        window, answers = self.window, self.answers
        oldest = now_s - WINDOW_S
        while window and window[0][0] < oldest:
            self.failures -= window.popleft()[1]
        while answers and answers[0][0] < oldest:
            answers.popleft()
        calls = len(window)
        rates = self.done.rates(now_s)
        done_per_s, busy = rates if rates is not None else (0.0, 0.0)
        fresh = EngineTraffic(
            window_calls=calls,
            window_failures=self.failures,
            failures_in_a_row=min(self.in_a_row, calls),
            newest_failed=self.newest_failed & ((1 << calls) - 1),
            newest_answers=len(answers),
            newest_spoiled=sum(spoiled for _, spoiled in answers),
            succeeded=int(self.succeeded),
            failed=int(self.failed),
            neutral=int(self.neutral),
            extrapolated_successes=int(self.succeeded) - self.succeeded_entries,
            extrapolated_failures=int(self.failed) - self.failed_entries,
            shed=self.shed,
            done_per_s=done_per_s,
            busy=busy,
            service_s=busy / done_per_s if done_per_s else None,
            in_flight=self.in_flight if load_known else None,
            heard_at_s=coarse_time(self.value.heard_at_s, self.heard_at_s),
        )
        if fresh != self.value:
            self.value = fresh
        return self.value


class ProxyTally:
    """One proxy's part in one pool."""

    __slots__ = (
        "heard_at_s",
        "in_flight_on",
        "issued",
        "issued_sum",
        "load_at_s",
        "open",
        "recent",
        "silent",
        "value",
        "zone_calls",
    )

    def __init__(self) -> None:
        self.recent = RateWindow(5)  # arrivals and refusals, interactive and batch; retries
        self.in_flight_on: Mapping[str, int] = NOTHING
        self.issued: deque[tuple[float, Mapping[str, int]]] = deque()
        self.issued_sum = 0
        self.open: deque[tuple[float, int]] = deque()
        self.silent: Mapping[str, int] = NOTHING
        self.load_at_s: float | None = None
        self.heard_at_s = 0.0
        self.value = ProxyTraffic()
        self.zone_calls: dict[str, int] = {}

    def issue(self, counts: Mapping[str, int], now_s: float) -> None:
        """Requests issued since the last load report, by engine."""
        self.issued.append((now_s, counts))
        self.issued_sum += sum(counts.values())
        while self.issued[0][0] <= now_s - SILENT_S:
            self.issued_sum -= sum(self.issued.popleft()[1].values())

    def forget_load(self) -> None:
        """Drop load reports: they are stale."""
        self.load_at_s, self.silent, self.issued_sum = None, NOTHING, 0
        self.issued.clear()
        self.open.clear()

    def loaded(self, in_flight: int, now_s: float) -> None:
        """Open requests in a load report."""
        self.open.append((now_s, in_flight))
        # One report from before the window stays: the window measures growth since then.
        while len(self.open) > 1 and self.open[1][0] <= now_s - RATE_S:
            self.open.popleft()

    def _growth_per_s(self, now_s: float) -> float:
        if len(self.open) < 2 or now_s - self.open[-1][0] > RATE_S:
            return 0.0
        (from_s, before), (to_s, after) = self.open[0], self.open[-1]
        return (after - before) / max(to_s - from_s, RATE_S / 2)

    def traffic(self, now_s: float, usual: PriorityClass) -> ProxyTraffic:
        """The proxy's part now; ``usual`` is the class of requests of unknown class."""
        rates = self.recent.rates(now_s)
        arrivals: dict[PriorityClass, float] = {}
        shed: dict[PriorityClass, float] = {}
        retries_per_s = 0.0
        if rates is not None:
            interactive, batch, shed_interactive, shed_batch, retries_per_s = rates
            shed = _by_class(shed_interactive, shed_batch)
            ended = max(0.0, interactive - shed_interactive), max(0.0, batch - shed_batch)
            begun = _begun(ended, self._growth_per_s(now_s), usual)
            refused = min(interactive, shed_interactive), min(batch, shed_batch)
            arrivals = _by_class(begun[0] + refused[0], begun[1] + refused[1])
        elif (growth := self._growth_per_s(now_s)) > 0:
            arrivals = {usual: growth}
        fresh = ProxyTraffic(
            arrivals_per_s=arrivals,
            shed_per_s=shed,
            retries_per_s=retries_per_s,
            in_flight_on=self.in_flight_on,
            load_at_s=None if self.load_at_s is None else coarse_time(self.value.load_at_s, self.load_at_s),
            silent=self.silent,
            heard_at_s=coarse_time(self.value.heard_at_s, self.heard_at_s),
        )
        if fresh != self.value:
            self.value = fresh
        return self.value


def coarse_time(told_s: float | None, exact_s: float) -> float:
    """Time of the last signal, to the second: an idle pool's value need not change with each report."""
    return told_s if told_s is not None and 0 <= exact_s - told_s < _TO_THE_S else exact_s


def _begun(ended: tuple[float, float], growth: float, usual: PriorityClass) -> tuple[float, float]:
    """Arrivals per second by class: ended requests plus the growth of open ones.

    Access logs report a request when it ends. Long ones would arrive a minute late, and those held by a hung
    engine all at once when they are cut; the growth of open requests corrects both.
    """
    total = sum(ended)
    begun = max(0.0, total + growth)
    if total:
        return ended[0] * begun / total, ended[1] * begun / total
    return (begun, 0.0) if usual is PriorityClass.INTERACTIVE else (0.0, begun)


def _by_class(interactive: float, batch: float) -> dict[PriorityClass, float]:
    found = {}
    if interactive:
        found[PriorityClass.INTERACTIVE] = interactive
    if batch:
        found[PriorityClass.BATCH] = batch
    return found


def silent_engines(facts: PoolFacts, proxy: ProxyTally) -> Mapping[str, int]:
    """Engines without requests over ``SILENT_S``, although the others of their zone got enough.

    An engine with open requests is busy or hung, not silent: least-request balancing avoids it either way.
    """
    issued = proxy.issued
    # Shortcut for nearly every report of a small caller.
    if proxy.issued_sum < SILENT_CALLS * facts.fewest:
        return NOTHING
    # Two reports close together prove nothing yet.
    if len(issued) < 2 or issued[-1][0] - issued[0][0] < SILENT_S / 2:
        return NOTHING
    totals: dict[str, int] = {}
    for _, counts in issued:
        for engine, count in counts.items():
            totals[engine] = totals.get(engine, 0) + count
    zones: dict[str, int] = {}
    for engine, count in totals.items():
        zone = facts.zone_of.get(engine)
        if zone is not None:
            zones[zone] = zones.get(zone, 0) + count
    found = {}
    for zone, count in zones.items():
        names = facts.by_zone[zone]
        # Checking a thousand engines for each report of a thousand proxies is done only where it can matter.
        if count < SILENT_CALLS * len(names):
            continue
        quiet = [name for name in names if name not in totals and name not in proxy.in_flight_on]
        if quiet and len(quiet) < len(names):
            mean = count // (len(names) - len(quiet))
            found.update(dict.fromkeys(quiet, mean))
    return found or NOTHING
