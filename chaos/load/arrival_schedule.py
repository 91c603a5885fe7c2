"""The arrivals of a scenario's load. Pure: the seed decides everything.

The base arrivals never change: more load adds arrivals between them, less load drops some. So all subjects get the
same requests.
"""

import heapq
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chaos.load.conversations import in_conversations
from chaos.load.request_sender import Arrival, CallerRetries, LoadTarget
from chaos.scenario.arrival_trace import TraceRow
from chaos.scenario.experiment_plan import Experiment
from chaos.scenario.scenario_model import LoadSpec, TokenRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSchedule:
    """Settings of the arrivals.

    ``targets`` are the proxies in order, with their initial shares; ``rate_per_s`` is the rate outside surges.
    ``trace`` replaces the Poisson process.
    """

    load: LoadSpec
    targets: tuple[LoadTarget, ...]
    rate_per_s: float
    seed: int
    trace: tuple[TraceRow, ...] = ()

    @property
    def retries(self) -> CallerRetries:
        """Client retries after a failed request."""
        said = self.load.client_retries
        return CallerRetries(attempts=said.attempts, backoff_s=said.backoff)

    def usual(self) -> Iterator[Arrival]:
        """Arrivals sorted by time, with the scenario's surges; endless unless from a trace."""
        parts = [self._few(self._recorded() if self.trace else self._drawn("usual", self.rate_per_s))]
        parts += [
            self._drawn(f"surge {place}", self.rate_per_s * (factor - 1), start_s, end_s)
            for place, (start_s, end_s, factor) in enumerate(self._surges())
            if factor > 1
        ]
        return self._named("", filter(self._has_begun, heapq.merge(*parts, key=lambda one: one.at_s)))

    def _has_begun(self, arrival: Arrival) -> bool:
        begins_s = next((one.begins for one in self.load.callers if one.name == arrival.group), 0.0)
        return arrival.at_s >= begins_s

    def more(self, name: str, factor: float, from_s: float) -> Iterator[Arrival]:
        """Endless extra arrivals from ``from_s`` on for ``factor`` times the usual load."""
        extra_per_s = self.rate_per_s * (factor - 1)
        return self._named(f"{name}-", self._drawn(name, extra_per_s, from_s)) if extra_per_s > 0 else iter(())

    def herd(self, name: str, count: int, at_s: float) -> Iterator[Arrival]:
        """``count`` arrivals at one time."""
        rng = self._rng(name)
        return self._named(f"{name}-", (self._one(rng, TraceRow(at_s=max(0.0, at_s))) for _ in range(count)))

    def _surges(self) -> list[tuple[float, float, float]]:
        """Periods with their load factors; overlapping surges multiply."""
        surges = self.load.surges
        moments = sorted({moment for one in surges for moment in (one.at, one.at + one.lasts)})
        return [(start_s, end_s, self._factor(start_s)) for start_s, end_s in pairwise(moments)]

    def _factor(self, at_s: float) -> float:
        return math.prod(one.factor for one in self.load.surges if one.at <= at_s < one.at + one.lasts)

    def _drawn(
        self, name: str, rate_per_s: float, from_s: float = 0.0, to_s: float = math.inf
    ) -> Iterator[Arrival]:
        rng, at_s = self._rng(name), from_s
        while (at_s := at_s + rng.expovariate(rate_per_s)) < to_s:
            yield self._one(rng, TraceRow.model_construct(at_s=at_s))

    def _recorded(self) -> Iterator[Arrival]:
        rng = self._rng("trace")
        for row in self.trace:
            yield self._one(rng, row)

    def _few(self, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        """The arrivals kept at reduced load."""
        rng = self._rng("few")
        return (one for one in arrivals if rng.random() < self._factor(one.at_s))

    def _one(self, rng: random.Random, row: TraceRow) -> Arrival:
        """One request. Each draws the same number of random values, so one row never changes another."""
        load = self.load
        target = rng.choices(self.targets, self._shares(row.at_s))[0]
        streaming, batch = 100 * rng.random() < load.streaming_percent, 100 * rng.random() < load.batch_percent
        prompt, output = _length(rng, load.prompt_tokens), _length(rng, load.output_tokens)
        group = rng.choices(load.callers, [one.demand for one in load.callers])[0] if load.callers else None
        times = 1.0 if group is None or group.times_tokens is None else group.times_tokens
        return Arrival(
            at_s=row.at_s,
            request_id="",
            target=target,
            streaming=streaming if row.streaming is None else row.streaming,
            batch=batch if row.batch is None else row.batch,
            prompt_tokens=row.prompt_tokens or round(times * prompt),
            max_tokens=row.output_tokens or round(times * output),
            group="" if group is None else group.name,
        )

    def _shares(self, at_s: float) -> Sequence[float]:
        turned = [turn for turn in self.load.turns if turn.at <= at_s]
        return max(turned, key=lambda turn: turn.at).demand if turned else [one.weight for one in self.targets]

    def _named(self, name: str, arrivals: Iterator[Arrival]) -> Iterator[Arrival]:
        turns = in_conversations(arrivals, self.load.conversations, self._rng(f"{name}conversations"))
        for number, one in enumerate(turns, start=1):
            yield replace(one, request_id=f"load-{self.seed}-{name}{number}")

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")  # noqa: S311 -- repeatable traffic, no secret


def arrival_schedule(
    experiment: Experiment, targets: Sequence[LoadTarget], trace: Sequence[TraceRow] = ()
) -> ArrivalSchedule:
    """Schedule of an experiment; ``targets`` are its proxies in order."""
    rate_per_s = experiment.rate_per_s
    if trace:
        rate_per_s = len(trace) / max(trace[-1].at_s, 1.0)
    return ArrivalSchedule(
        load=experiment.spec.load,
        targets=tuple(targets),
        rate_per_s=rate_per_s,
        seed=experiment.seed,
        trace=tuple(trace),
    )


def _length(rng: random.Random, tokens: TokenRange) -> int:
    return rng.randint(tokens.shortest, tokens.longest)
