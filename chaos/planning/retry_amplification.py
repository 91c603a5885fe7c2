"""What retries make of a small slowdown: how many calls each request becomes.

The sum: where each call fails with probability q, whatever else happens, ``r`` retries make
``1 + q + ... + q^r`` calls of one request. Five retries make four calls of one when 83 % of the calls fail.

The run: q does not fall from the sky. Some engines become slow; their calls pass the time limit, are tried
again, and what is tried again fills the slots of the others, until calls there pass the limit too. That is a
small event simulation: Poisson arrivals, lognormal answer times, engines with slots and a queue, calls that end
when the client gives up, and clients that ask again at once.

Source of the incident: A. Apartsin, Y. Aperstein, "Building Scalable AI", section 23.7: 64 GPUs, about 15 % of
the replicas slow for 90 seconds, up to five attempts almost without backoff, a time limit shorter than the tail
of healthy answers; the offered load rose "roughly fourfold". It says neither load nor times: those here are
ours, and they matter. With 70 % of the slots in use these retries add an eighth to the load; with 80 % it is a
matter of luck; with 85 % they take the fleet down each time, and it stays down when the slow engines are fast
again.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Final

from scipy.optimize import brentq

from chaos.planning.error import PlanError


def calls_per_request(fails: float, retries: int) -> float:
    """Calls a request becomes on the mean, where each call fails with ``fails`` and is tried so often again."""
    if not 0 <= fails <= 1 or retries < 0:
        raise PlanError("a share of failing calls lies between 0 and 1, and retries are not negative")
    return sum(fails**one for one in range(retries + 1))


def failing_share(calls: float, retries: int) -> float:
    """The share of failing calls at which ``retries`` retries make so many calls of each request."""
    if not 1 <= calls <= retries + 1:
        raise PlanError(f"{retries} retries make between 1 and {retries + 1} calls of a request")
    return float(brentq(lambda fails: calls_per_request(fails, retries) - calls, 0.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownIncident:
    """A fleet at ``load`` of its slots, of which ``slow_share`` takes ``slowness`` times as long for a while.

    Answers take ``median_s``, lognormal with ``spread`` (the deviation of the logarithm).
    """

    engines: int = 64
    slots: int = 4
    load: float = 0.85
    median_s: float = 1.0
    spread: float = 0.5
    slow_share: float = 0.15
    slowness: float = 4.0
    calm_s: float = 30.0
    slow_s: float = 90.0
    after_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryingClients:
    """How clients ask: ``time_limit_s`` of one call, so many retries, and at least so long between two."""

    name: str
    time_limit_s: float
    retries: int
    backoff_s: float = 0.0


FIVE_RETRIES: Final = RetryingClients(name="five retries, short limit", time_limit_s=2.5, retries=5)
ONE_RETRY: Final = RetryingClients(
    name="one retry, limit above the tail", time_limit_s=10.0, retries=1, backoff_s=1.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentCourse:
    """What clients made of it. ``offered_times`` are calls that began, as a multiple of requests that came, in
    each window of ``window_s``; goodput is the share of requests that got an answer, by the phase they came
    in."""

    window_s: float
    offered_times: tuple[float, ...]
    calm_goodput: float
    slow_goodput: float
    after_goodput: float
    slow_times: float
    worst_times: float


@dataclass(slots=True)
class _Call:
    came_s: float
    tries: int
    engine: int
    begun: bool = False
    over: bool = False


@dataclass(slots=True)
class _Engine:
    running: int = 0
    waiting: deque[_Call] = field(default_factory=deque)


@dataclass(slots=True)
class _Run:
    incident: SlowdownIncident
    clients: RetryingClients
    rng: random.Random
    engines: list[_Engine]
    events: list[tuple[float, int, str, _Call]] = field(default_factory=list)
    order: "count[int]" = field(default_factory=count)
    calls_at_s: list[float] = field(default_factory=list)
    came_at_s: list[float] = field(default_factory=list)
    good_came_s: list[float] = field(default_factory=list)

    def ask(self, now_s: float, came_s: float, tries: int) -> None:
        """Send one call to the shorter queue of two engines picked at random."""
        one, other = self.rng.randrange(len(self.engines)), self.rng.randrange(len(self.engines))
        engine = min((one, other), key=lambda at: self.engines[at].running + len(self.engines[at].waiting))
        call = _Call(came_s, tries, engine)
        self.calls_at_s.append(now_s)
        self.at(now_s + self.clients.time_limit_s, "limit", call)
        self.engines[engine].waiting.append(call)
        self.fill(now_s, engine)

    def fill(self, now_s: float, at: int) -> None:
        """Begin what waits at an engine while it has free slots; what was given up meanwhile is passed over."""
        engine, what = self.engines[at], self.incident
        while engine.running < what.slots and engine.waiting:
            call = engine.waiting.popleft()
            if call.over:
                continue
            call.begun = True
            engine.running += 1
            takes_s = self.rng.lognormvariate(0.0, what.spread) * what.median_s
            slow = what.calm_s <= now_s < what.calm_s + what.slow_s and at < what.slow_share * what.engines
            self.at(now_s + takes_s * (what.slowness if slow else 1.0), "done", call)

    def end(self, now_s: float, call: _Call, *, good: bool) -> None:
        """End a call: its slot is free again, and a client that got no answer may ask again."""
        call.over = True
        if call.begun:
            self.engines[call.engine].running -= 1
            self.fill(now_s, call.engine)
        if good:
            self.good_came_s.append(call.came_s)
        elif call.tries < self.clients.retries:
            wait_s = self.clients.backoff_s * (1 + self.rng.random())
            self.at(now_s + wait_s, "again", _Call(call.came_s, call.tries + 1, 0))

    def at(self, time_s: float, what: str, call: _Call) -> None:
        """Put an event in its place in time."""
        heapq.heappush(self.events, (time_s, next(self.order), what, call))


def incident_course(
    clients: RetryingClients, incident: SlowdownIncident | None = None, *, seed: int = 1, window_s: float = 10.0
) -> IncidentCourse:
    """How the incident goes with these clients."""
    what = incident or SlowdownIncident()
    run = _Run(what, clients, random.Random(seed), [_Engine() for _ in range(what.engines)])  # noqa: S311
    # The mean of a lognormal time is above its median.
    mean_s = what.median_s * math.exp(what.spread**2 / 2)
    rate_per_s = what.load * what.engines * what.slots / mean_s
    end_s = what.calm_s + what.slow_s + what.after_s
    run.at(run.rng.expovariate(rate_per_s), "comes", _Call(0.0, 0, 0))
    while run.events:
        now_s, _, event, call = heapq.heappop(run.events)
        if event == "comes" and now_s < end_s:
            run.came_at_s.append(now_s)
            run.ask(now_s, now_s, 0)
            run.at(now_s + run.rng.expovariate(rate_per_s), "comes", call)
        elif event == "again":
            run.ask(now_s, call.came_s, call.tries)
        elif event in ("done", "limit") and not call.over:
            run.end(now_s, call, good=event == "done")
    edges = (0.0, what.calm_s, what.calm_s + what.slow_s, end_s)
    goodput = [_ratio(run.good_came_s, run.came_at_s, *edge) for edge in pairwise(edges)]
    windows = [window_s * number for number in range(int(end_s / window_s))]
    times = tuple(_ratio(run.calls_at_s, run.came_at_s, start, start + window_s) for start in windows)
    return IncidentCourse(
        window_s=window_s,
        offered_times=times,
        calm_goodput=goodput[0],
        slow_goodput=goodput[1],
        after_goodput=goodput[2],
        slow_times=_ratio(run.calls_at_s, run.came_at_s, edges[1], edges[2]),
        worst_times=max(times),
    )


def _ratio(of: Sequence[float], to: Sequence[float], from_s: float, until_s: float) -> float:
    """How many of one there are for each of the other, in a span of time."""
    return sum(from_s <= one < until_s for one in of) / max(1, sum(from_s <= one < until_s for one in to))
