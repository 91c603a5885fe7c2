"""Half a fleet sick, and what clients and a breaker make of it: a published model, tick by tick, and further ones.

Source: A. Apartsin, Y. Aperstein, "Building Scalable AI", section 23.7 "Availability, Failover, and Redundancy",
seed 1. Per tick 72 requests come to 8 engines of 10 slots; a call takes a slot for the tick, whether it ends well
or not. Healthy engines end 98 % of calls well; half of the engines fails every call in the middle third. A request
whose call failed, and one that found no slot, comes again in the next tick; at most four ticks' worth of requests
is kept, the newest beyond are lost. An engine is picked at random among those with a free slot. The breaker keeps
a moving average of failures per engine (15 % the newest call) and shuns one for 60 ticks when it passes 40 %.

Beyond what is published: a limit on retries, and hedging, where a request that has waited a tick is sent to two
engines at once and is done when either ends well; always, or only while there are more free slots than requests
that wait. Phases are counted apart, because hedging is told by them.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from chaos.planning.error import PlanError

Hedging: TypeAlias = Literal["never", "always", "in spare"]

PHASES: Final = ("before", "during", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStormModel:
    """The fleet, what is asked of it, and what goes wrong in the middle third of the ticks."""

    engines: int = 8
    slots: int = 10
    arrivals: int = 72
    ticks: int = 4000
    sick_engines: int = 4
    ends_well: float = 0.98
    kept_ticks: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBreaker:
    """Shuns an engine for ``cooldown_ticks`` when the moving average of its failures passes ``threshold``."""

    threshold: float = 0.4
    newest_weight: float = 0.15
    cooldown_ticks: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPolicy:
    """What is done about a failed call. ``retries`` None: again and again until it ends well."""

    name: str
    breaker: ModelBreaker | None = None
    retries: int | None = None
    hedging: Hedging = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPhase:
    """What happened in one part of the run; requests are counted where they ended.

    ``wasted`` calls failed, or answered what had been answered already. ``waited_mean`` is in ticks, of requests
    that ended well: 0 is the tick they came in. ``late`` is the share of those that waited more than one tick.
    """

    offered: int
    good: int
    calls: int
    wasted: int
    waited_mean: float
    late: float

    @property
    def goodput(self) -> float:
        """Requests that ended well, of those that came."""
        return self.good / self.offered if self.offered else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """One run: all of it, and its three thirds by name."""

    policy: ModelPolicy
    whole: ModelPhase
    phases: dict[str, ModelPhase]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOutcome:
    """What the source prints for a policy."""

    goodput: float
    wasted: int


NAIVE: Final = ModelPolicy(name="naive retry")
BREAKER: Final = ModelPolicy(name="circuit breaker", breaker=ModelBreaker())
ONE_RETRY: Final = ModelPolicy(name="breaker, one retry", breaker=ModelBreaker(), retries=1)
HEDGED: Final = ModelPolicy(name="hedged", hedging="always")
HEDGED_IN_SPARE: Final = ModelPolicy(
    name="breaker, hedged in spare only", hedging="in spare", breaker=ModelBreaker()
)

PUBLISHED: Final = {
    NAIVE.name: PublishedOutcome(goodput=0.849, wasted=58_319),
    BREAKER.name: PublishedOutcome(goodput=0.844, wasted=5_094),
}


@dataclass(slots=True)
class _Request:
    came: int
    tries: int = 0


class _Tally:
    """Counts of one phase, while it runs."""

    def __init__(self) -> None:
        self.offered = self.calls = self.wasted = 0
        self.waited: list[int] = []

    def phase(self) -> ModelPhase:
        waited = self.waited
        return ModelPhase(
            offered=self.offered,
            good=len(waited),
            calls=self.calls,
            wasted=self.wasted,
            waited_mean=sum(waited) / len(waited) if waited else 0.0,
            late=sum(one > 1 for one in waited) / len(waited) if waited else 0.0,
        )


class _Engines:
    """Which engines may be picked in this tick, and what the breaker knows of each."""

    def __init__(self, storm: RetryStormModel, breaker: ModelBreaker | None) -> None:
        self._storm, self._breaker = storm, breaker
        self._failures = [0.0] * storm.engines
        self._shunned_until = [0] * storm.engines
        self._free: list[int] = []
        self.open: list[int] = []

    def begin(self, tick: int) -> None:
        self._free = [self._storm.slots] * self._storm.engines
        self.open = [one for one in range(self._storm.engines) if self._shunned_until[one] <= tick]

    @property
    def free(self) -> int:
        """Slots that are free on engines that may be picked."""
        return sum(self._free[one] for one in self.open)

    def take(self, engine: int) -> None:
        self._free[engine] -= 1
        if not self._free[engine]:
            self.open.remove(engine)

    def note(self, engine: int, tick: int, *, ended_well: bool) -> None:
        if self._breaker is None:
            return
        newest = self._breaker.newest_weight
        self._failures[engine] = (1 - newest) * self._failures[engine] + newest * (not ended_well)
        if not ended_well and self._failures[engine] > self._breaker.threshold:
            self._shunned_until[engine] = tick + self._breaker.cooldown_ticks
            if engine in self.open:
                self.open.remove(engine)


def run_model(policy: ModelPolicy, storm: RetryStormModel | None = None, *, seed: int = 1) -> ModelOutcome:
    """One seeded run, drawing in the published order, so that the published policies at seed 1 are those runs."""
    storm = storm or RetryStormModel()
    if not (0 <= storm.sick_engines <= storm.engines and min(storm.engines, storm.slots, storm.ticks) > 0):
        raise PlanError("a storm needs engines, slots and ticks, and no more sick engines than there are")
    rng = random.Random(seed)  # noqa: S311 - a model, not a secret
    engines = _Engines(storm, policy.breaker)
    tallies = {name: _Tally() for name in PHASES}
    waiting: deque[_Request] = deque()
    for tick in range(storm.ticks):
        sick = storm.ticks // 3 <= tick < 2 * storm.ticks // 3
        tally = tallies[PHASES[(tick >= storm.ticks // 3) + (tick >= 2 * storm.ticks // 3)]]
        tally.offered += storm.arrivals
        waiting.extend(_Request(tick) for _ in range(storm.arrivals))
        again: list[_Request] = []
        engines.begin(tick)
        while waiting and engines.open:
            request = waiting.popleft()
            copies = 2 if request.came < tick and _hedges(policy.hedging, engines.free, len(waiting)) else 1
            done, used = False, []
            for engine in _picked(engines, copies, rng):
                ended_well = not (sick and engine < storm.sick_engines) and rng.random() < storm.ends_well
                engines.note(engine, tick, ended_well=ended_well)
                used.append(ended_well)
                done = done or ended_well
            tally.calls += len(used)
            tally.wasted += len(used) - done
            request.tries += 1
            if done:
                tally.waited.append(tick - request.came)
            elif policy.retries is None or request.tries <= policy.retries:
                again.append(request)
        waiting = _kept([*again, *waiting], storm.kept_ticks * storm.arrivals)
    return ModelOutcome(
        policy=policy, whole=_whole(tallies), phases={name: one.phase() for name, one in tallies.items()}
    )


def _hedges(hedging: Hedging, free: int, waiting: int) -> bool:
    return hedging == "always" or (hedging == "in spare" and free > waiting + 1)


def _picked(engines: _Engines, copies: int, rng: random.Random) -> list[int]:
    """So many engines, each another, and their slots taken; fewer where no more are open."""
    picked: list[int] = []
    for _ in range(copies):
        choice = [one for one in engines.open if one not in picked] if picked else engines.open
        if not choice:
            break
        engine = rng.choice(choice)
        engines.take(engine)
        picked.append(engine)
    return picked


def _kept(requests: list[_Request], most: int) -> deque[_Request]:
    """The oldest requests, as many as are kept; those that came last are lost."""
    return deque(sorted(requests, key=lambda one: one.came)[:most])


def _whole(tallies: dict[str, _Tally]) -> ModelPhase:
    whole = _Tally()
    for one in tallies.values():
        whole.offered += one.offered
        whole.calls += one.calls
        whole.wasted += one.wasted
        whole.waited.extend(one.waited)
    return whole.phase()
