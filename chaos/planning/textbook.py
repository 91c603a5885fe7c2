"""A textbook's fleet that needs eight engines, under failures: the published table, and what is exact.

Source: A. Apartsin, Y. Aperstein, "Building Scalable AI", section 23.7 "Availability, Failover, and
Redundancy": one seeded run of 20 000 ticks for each number of spares. Per tick, a healthy engine goes bad with
``p_fail``; a bad one is found out ``detection_lag`` ticks later, and is then *drained*; a drained one comes
back with ``p_recover``. A tick meets the SLO when at least the needed number of engines is healthy. 40 requests
per tick go to engines that are not drained, so to bad ones too while nobody has seen it.

Each engine by itself is up 1/p_fail ticks on the mean, then bad for the lag and drained for 1/p_recover: its share
of time up is exact, and with it the binomial share of ticks that meet the SLO. One run of 20 000 ticks scatters
around that, because an engine that is down stays down for some 20 ticks: ``runs`` says by how much.
"""

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from chaos.planning import spare_engines
from chaos.planning.error import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """How engines fail and come back, per tick."""

    p_fail: float = 0.002
    p_recover: float = 0.05
    detection_lag: int = 3
    ticks: int = 20_000
    requests_per_tick: int = 40

    @property
    def down(self) -> float:
        """Share of ticks in which one engine is not healthy, in the long run."""
        if not (0 <= self.p_fail <= 1 and 0 < self.p_recover <= 1 and self.detection_lag >= 0):
            raise PlanError("p_fail and p_recover are probabilities per tick, and recovery must be possible")
        down_ticks = self.detection_lag + 1 / self.p_recover
        return self.p_fail * down_ticks / (1 + self.p_fail * down_ticks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: share of requests that met a healthy engine, and share of ticks with enough engines."""

    served: float
    attained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """What many runs gave for the share of ticks: mean, standard deviation of one run, least and most."""

    mean: float
    deviation: float
    least: float
    most: float
    runs: int


PUBLISHED_NEED: Final = 8
PUBLISHED: Final[tuple[Run, ...]] = (
    Run(served=0.99379, attained=0.66830),
    Run(served=0.99465, attained=0.95295),
    Run(served=0.99410, attained=0.99015),
    Run(served=0.99395, attained=0.99855),
    Run(served=0.99371, attained=0.99970),
)
"""As printed there, for 0 to 4 spares."""

_HEALTHY, _BAD, _DRAINED = range(3)


def exact(need: int, spares: int, failing: Failing) -> float:
    """Share of ticks with enough healthy engines, in the long run."""
    return 1 - spare_engines.shortage_probability(need, spares, failing.down)


def fewest_spares(need: int, failing: Failing, allowed: float) -> int:
    """The smallest number of spares that misses at most this share of ticks, in the long run."""
    return spare_engines.fewest_spares(need, failing.down, allowed)


def run(need: int, spares: int, failing: Failing, seed: int = 0) -> Run:
    """One seeded run of the model, drawing in the order the published one does, so that seed 0 is that run."""
    rng = random.Random(seed)  # noqa: S311 - a model, not a secret
    state = [_HEALTHY] * (need + spares)
    went_bad_at = [0] * len(state)
    served = attained = 0
    for tick in range(failing.ticks):
        for engine, now in enumerate(state):
            if now == _HEALTHY and rng.random() < failing.p_fail:
                state[engine], went_bad_at[engine] = _BAD, tick
            elif now == _DRAINED and rng.random() < failing.p_recover:
                state[engine] = _HEALTHY
        for engine, now in enumerate(state):
            if now == _BAD and tick - went_bad_at[engine] >= failing.detection_lag:
                state[engine] = _DRAINED
        healthy = [_HEALTHY for now in state if now == _HEALTHY]
        sent_to = healthy + [_BAD for now in state if now == _BAD]
        if sent_to:
            served += sum(rng.choice(sent_to) == _HEALTHY for _ in range(failing.requests_per_tick))
        attained += len(healthy) >= need
    return Run(served=served / (failing.ticks * failing.requests_per_tick), attained=attained / failing.ticks)


def runs(need: int, spares: int, failing: Failing, *, count: int = 400, seed: int = 1) -> Scatter:
    """How far single runs of so many ticks lie apart: as many of them side by side, the requests left out."""
    if count < 2:
        raise PlanError("two runs are the least that can scatter")
    rng = np.random.default_rng(seed)
    # Ticks until it is found out while an engine is bad; 0: it is healthy; -1: it is drained.
    left = np.zeros((count, need + spares), dtype=np.int64)
    attained = np.zeros(count)
    for _ in range(failing.ticks):
        draw = rng.random(left.shape)
        back = (left == -1) & (draw < failing.p_recover)
        fails = (left == 0) & (draw < failing.p_fail)
        bad = left > 0
        left -= bad
        left[bad & (left == 0)] = -1
        left[back] = 0
        left[fails] = failing.detection_lag or -1
        attained += (left == 0).sum(axis=1) >= need
    share = attained / failing.ticks
    return Scatter(
        mean=float(share.mean()),
        deviation=float(share.std(ddof=1)),
        least=float(share.min()),
        most=float(share.max()),
        runs=count,
    )
