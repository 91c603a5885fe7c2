"""Thousands of engines as arrays: what runs on each, what waits, and what becomes of both in one step of time.

Every call is drawn by itself (which engine, how long), but nothing is remembered of it except where it is and how
long it has waited: so an hour of ten thousand engines fits in seconds.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

CHOICES: Final = 3
_PARTS: Final = 4
"""Calls of one step are dealt out in so many parts, each of which sees where the ones before went."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Calls that got a slot in one step: how many, how many of them end too late, and how long each takes."""

    calls: int
    doomed: int
    taken_steps: Ints


class EngineArrays:
    """All engines, by number. ``rate`` is work per step (0: hung), ``open`` whether it takes calls at all.

    ``shortest`` and ``longest`` are service times in steps of an engine of rate 1, each between as likely as the
    next; who waits for ``patience`` steps gives up.
    """

    def __init__(
        self, slots: Ints, rate: Floats, *, shortest: float, longest: float, patience: int, seed: int
    ) -> None:
        self.slots = slots
        self.usual = rate
        self.rate = rate.copy()
        self.running = np.zeros(len(slots), dtype=np.int64)
        self.waiting = np.zeros(len(slots), dtype=np.int64)
        self.rng = np.random.default_rng(seed)
        self._shortest, self._longest = shortest, longest
        self._patience = patience
        self._width = int(np.ceil(longest)) + 2
        # By moment and then by engine: engines that are well stand at the same moment, and so side by side.
        self._ends = np.zeros((self._width, len(slots)), dtype=np.int64)
        self._at = np.zeros(len(slots), dtype=np.int64)
        self._worked = np.zeros(len(slots))
        self._queue = np.zeros((patience + 1, len(slots)), dtype=np.int64)
        self._queued = [0] * (patience + 1)
        self._step = 0
        self._everyone = np.arange(len(slots))

    @property
    def in_flight(self) -> Ints:
        """Of each engine, waiting or not."""
        return self.running + self.waiting

    def work(self) -> Ints:
        """One step of work; the calls that each engine has finished in it."""
        self._worked += self.rate
        moved = self._worked >= 1.0 - 1e-9
        self._worked -= moved
        done = np.zeros_like(self.running)
        rows = self._everyone if moved.all() else np.flatnonzero(moved)
        at = self._at[rows] = (self._at[rows] + 1) % self._width
        done[rows] = self._ends[at, rows]
        self._ends[at, rows] = 0
        self.running -= done
        return done

    def give_up(self) -> int:
        """Time goes on for those that wait; how many have waited too long and leave."""
        self._step += 1
        age = self._step % (self._patience + 1)
        gone, self._queued[age] = self._queued[age], 0
        if gone:
            row = self._queue[age]
            self.waiting -= row
            row[:] = 0
        return gone

    def send(self, table: Ints, count: int) -> Ints:
        """Send calls to engines of the table, each to the one of a few that holds the least; how many each got."""
        got, held = np.zeros_like(self.running), self.in_flight
        for part in range(_PARTS):
            some = count * (part + 1) // _PARTS - count * part // _PARTS
            if some:
                best, *others = table[self.rng.integers(0, len(table), (CHOICES, some))]
                for other in others:
                    best = np.where(held[other] < held[best], other, best)
                more = np.bincount(best, minlength=len(held))
                held += more
                got += more
        return got

    def enqueue(self, calls: Ints) -> None:
        """They wait for a slot from now on."""
        age = self._step % (self._patience + 1)
        self._queue[age] += calls
        self._queued[age] += int(calls.sum())
        self.waiting += calls

    def start(self) -> Started:
        """Give free slots to whoever waited longest."""
        left = np.minimum(self.slots - self.running, self.waiting)
        left[self.rate <= 0] = 0
        free, calls = int(left.sum()), 0
        engines, ages = [], []
        for age in range(self._patience - 1, -1, -1):
            place = (self._step - age) % (self._patience + 1)
            if calls == free:
                break
            if not self._queued[place]:
                continue
            take = np.minimum(self._queue[place], left)
            count = int(take.sum())
            if not count:
                continue
            self._queue[place] -= take
            self._queued[place] -= count
            left -= take
            self.running += take
            self.waiting -= take
            calls += count
            engines.append(np.repeat(self._everyone, take))
            ages.append(np.full(count, age))
        if not calls:
            return Started(calls=0, doomed=0, taken_steps=np.zeros(0, dtype=np.int64))
        who, waited = np.concatenate(engines), np.concatenate(ages)
        steps = self.rng.uniform(self._shortest, self._longest, calls)
        whole = (steps + self.rng.random(calls)).astype(np.int64).clip(1, self._width - 1)
        ends = (self._at[who] + whole) % self._width
        np.add.at(self._ends.reshape(-1), ends * len(self.slots) + who, 1)
        latency = waited + steps / self.usual[who]
        return Started(
            calls=calls,
            doomed=int((latency > self._patience).sum()),
            taken_steps=np.ceil(latency).astype(np.int64),
        )

    def drop(self, engines: Ints) -> int:
        """End everything that these engines hold; how many calls that were."""
        lost = int(self.running[engines].sum() + self.waiting[engines].sum())
        self._ends[:, engines] = 0
        for age in np.flatnonzero(self._queued):
            self._queued[age] -= int(self._queue[age, engines].sum())
            self._queue[age, engines] = 0
        self.running[engines] = self.waiting[engines] = 0
        return lost
