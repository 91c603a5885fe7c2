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
        self._ends = np.zeros((len(slots), self._width), dtype=np.int64)
        self._at = np.zeros(len(slots), dtype=np.int64)
        self._worked = np.zeros(len(slots))
        self._queue = np.zeros((patience + 1, len(slots)), dtype=np.int64)
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
        done[rows] = self._ends[rows, at]
        self._ends[rows, at] = 0
        self.running -= done
        return done

    def give_up(self) -> int:
        """Time goes on for those that wait; how many have waited too long and leave."""
        self._step += 1
        row = self._queue[self._step % (self._patience + 1)]
        gone = int(row.sum())
        if gone:
            self.waiting -= row
            row[:] = 0
        return gone

    def send(self, table: Ints, count: int) -> Ints:
        """Send calls to engines of the table, each to the one of a few that holds the least; how many each got."""
        got = np.zeros_like(self.running)
        held = self.in_flight
        for part in range(_PARTS):
            some = count * (part + 1) // _PARTS - count * part // _PARTS
            if some:
                picked = table[self.rng.integers(0, len(table), (CHOICES, some))]
                best = picked[held[picked].argmin(axis=0), np.arange(some)]
                np.add.at(held, best, 1)
                np.add.at(got, best, 1)
        return got

    def enqueue(self, calls: Ints) -> None:
        """They wait for a slot from now on."""
        self._queue[self._step % (self._patience + 1)] += calls
        self.waiting += calls

    def start(self) -> Started:
        """Give free slots to whoever waited longest."""
        left = np.minimum(self.slots - self.running, self.waiting)
        left[self.rate <= 0] = 0
        calls = doomed = 0
        taken = []
        for age in range(self._patience - 1, -1, -1):
            row = self._queue[(self._step - age) % (self._patience + 1)]
            take = np.minimum(row, left)
            count = int(take.sum())
            if not count:
                continue
            row -= take
            left -= take
            engines = np.repeat(self._everyone, take)
            steps = self.rng.uniform(self._shortest, self._longest, count)
            whole = np.floor(steps + self.rng.random(count)).astype(np.int64).clip(1, self._width - 1)
            np.add.at(self._ends, (engines, (self._at[engines] + whole) % self._width), 1)
            self.running += take
            self.waiting -= take
            calls += count
            latency = age + (steps / self.usual[engines])
            doomed += int((latency > self._patience).sum())
            taken.append(np.ceil(latency).astype(np.int64))
        return Started(
            calls=calls, doomed=doomed, taken_steps=np.concatenate(taken) if taken else np.zeros(0, dtype=np.int64)
        )

    def drop(self, engines: Ints) -> int:
        """End everything that these engines hold; how many calls that were."""
        lost = int(self.running[engines].sum() + self.waiting[engines].sum())
        self._ends[engines] = 0
        self._queue[:, engines] = 0
        self.running[engines] = self.waiting[engines] = 0
        return lost
