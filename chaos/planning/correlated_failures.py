"""Engines that fail together: zones, racks in them, and builds of the model that run across both.

Engines are dealt to zones in turn, in each zone to racks in turn, and to builds so that every rack has engines of
every build. An engine is up when its zone, its rack and its build are, and it itself is; all of these fail
independently of each other, each with its own probability.

With zones and racks the number of engines up is a sum of independent parts, and its distribution is folded
together exactly, of nothing but sums of positive terms. Builds cut across: with few of them it is exact too, by
looking at every combination of bad ones; with many it is left to seeded samples, with an interval.
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import fewest_satisfying

MOST_ENGINES: Final = 20_000
"""Folding costs the square of the engines; this many take a second."""

EXACT_BUILDS: Final = 6
"""Builds of which every combination is looked at: 64 foldings."""

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomains:
    """How engines stand, and what can take many of them at once. ``*_down`` are shares of time.

    ``racks`` is per zone. One of a kind with a down share of 0 is none at all.
    """

    engines: int
    zones: int = 1
    racks: int = 1
    builds: int = 1
    engine_down: float = 0.0
    zone_down: float = 0.0
    rack_down: float = 0.0
    build_down: float = 0.0

    @property
    def floor(self) -> float:
        """Probability that everything is down at once, whatever the number of engines: no spares help there."""
        zone_lost = self.zone_down + (1 - self.zone_down) * self.rack_down**self.racks
        all_zones = zone_lost**self.zones
        all_builds = self.build_down**self.builds
        return all_zones + (1 - all_zones) * all_builds


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProbability:
    """A probability from samples, with the Clopper-Pearson interval of 95 %."""

    share: float
    low: float
    high: float
    samples: int
    seed: int


def checked_domains(layout: FailureDomains) -> FailureDomains:
    """The same layout, or ``PlanError`` for one that cannot be."""
    if min(layout.zones, layout.racks, layout.builds) < 1:
        raise PlanError("zones, racks and builds: there is at least one of each")
    if layout.engines < 1:
        raise PlanError("a layout needs at least one engine")
    for name in ("engine_down", "zone_down", "rack_down", "build_down"):
        if not 0 <= getattr(layout, name) <= 1:
            raise PlanError(f"{name.replace('_', ' ')}: a probability lies between 0 and 1")
    if layout.engines > MOST_ENGINES:
        raise PlanError(f"{layout.engines} engines: failures together are computed for up to {MOST_ENGINES}")
    return layout


def engines_per_cell(layout: FailureDomains) -> NDArray[np.int64]:
    """How many engines stand in each zone, rack and build: an array of these three axes."""
    place = np.arange(layout.engines)
    in_zone = place // layout.zones
    rack = in_zone % layout.racks
    # Shifted by one with each round of the racks, or a rack would have one build only where both are as many.
    build = (in_zone + in_zone // math.lcm(layout.racks, layout.builds)) % layout.builds
    counts = np.zeros((layout.zones, layout.racks, layout.builds), dtype=np.int64)
    np.add.at(counts, (place % layout.zones, rack, build), 1)
    return counts


def is_exact(layout: FailureDomains) -> bool:
    """Whether the layout is computed exactly."""
    return layout.builds <= EXACT_BUILDS or layout.build_down == 0


def shortage_probability(layout: FailureDomains, need: int) -> float:
    """Probability that fewer than ``need`` engines are up, exactly; ``PlanError`` where that is out of reach."""
    checked_domains(layout)
    if not is_exact(layout):
        raise PlanError(f"more than {EXACT_BUILDS} builds that fail are left to samples")
    counts = engines_per_cell(layout)
    if layout.build_down == 0:
        return _short_of(counts.sum(axis=2), layout, need)
    total = 0.0
    for bad in product((False, True), repeat=layout.builds):
        weight = math.prod(layout.build_down if one else 1 - layout.build_down for one in bad)
        if weight:
            total += weight * _short_of(counts[:, :, ~np.array(bad)].sum(axis=2), layout, need)
    return min(1.0, total)


def sampled_shortage(layout: FailureDomains, need: int, *, samples: int, seed: int) -> SampledProbability:
    """The same by Monte Carlo, with an interval that says how much the samples know."""
    checked_domains(layout)
    if samples < 1:
        raise PlanError("at least one sample is needed")
    rng = np.random.default_rng(seed)
    counts = engines_per_cell(layout)
    failed = 0
    step = max(1, min(samples, 4_000_000 // counts.size))
    for start in range(0, samples, step):
        size = min(step, samples - start)
        zones = rng.random((size, layout.zones, 1, 1)) >= layout.zone_down
        racks = rng.random((size, layout.zones, layout.racks, 1)) >= layout.rack_down
        builds = rng.random((size, 1, 1, layout.builds)) >= layout.build_down
        up = rng.binomial(counts, 1 - layout.engine_down, (size, *counts.shape)) * (zones & racks & builds)
        failed += int((up.sum(axis=(1, 2, 3)) < need).sum())
    side = (1 - CONFIDENCE) / 2
    low = 0.0 if failed == 0 else float(beta.ppf(side, failed, samples - failed + 1))
    high = 1.0 if failed == samples else float(beta.ppf(1 - side, failed + 1, samples - failed))
    return SampledProbability(share=failed / samples, low=low, high=high, samples=samples, seed=seed)


def fewest_spares(layout: FailureDomains, need: int, allowed: float) -> int | None:
    """The smallest number of spares for this layout; None where no number is enough.

    The number of engines of ``layout`` itself is not looked at. More engines never make it worse, because the
    places of those that stand already do not change.
    """
    if layout.floor > allowed:
        return None
    # Nested searches look at few sizes; the last one may be far above the answer, and costs its square.
    most = MOST_ENGINES - need
    try:
        return fewest_satisfying(
            lambda spares: shortage_probability(resized(layout, need + spares), need) <= allowed, most=most
        )
    except PlanError:
        return None


def fewest_sampled_spares(
    layout: FailureDomains, need: int, allowed: float, *, samples: int, seed: int
) -> int | None:
    """By samples: the smallest number of spares whose interval is within the target; None without one.

    Careful: what the samples cannot tell counts as not reached.
    """
    if layout.floor > allowed:
        return None

    def enough(spares: int) -> bool:
        return sampled_shortage(resized(layout, need + spares), need, samples=samples, seed=seed).high <= allowed

    # Each look is a whole set of samples: one that has not found it by four times the need will not.
    try:
        return fewest_satisfying(enough, most=min(MOST_ENGINES - need, 3 * need + 100))
    except PlanError:
        return None


def resized(layout: FailureDomains, engines: int) -> FailureDomains:
    """The same layout with so many engines."""
    return replace(layout, engines=engines)


def survive_one_zone(need: int, zones: int, down: float, allowed: float) -> int:
    """The smallest number of engines, dealt evenly, that keeps the target with any one zone gone.

    With the fullest zone lost, the rest still has ``need`` engines up with a probability of being short of at most
    ``allowed``. ``down`` is an engine's own.
    """
    if zones < 2:
        raise PlanError(f"{zones} zone: to survive the loss of one there must be two at least")
    if allowed <= 0 < down or down >= 1:
        raise PlanError("no number of engines reaches this target")

    def enough(spares: int) -> bool:
        left = need + spares - math.ceil((need + spares) / zones)
        return left >= need and float(binom.sf(left - need, left, down)) <= allowed

    # Not quite monotone: one more engine may only fill the zone that is then lost. Whole rounds of zones are.
    rounds = fewest_satisfying(lambda number: enough(number * zones), most=MOST_ENGINES)
    first = max(0, (rounds - 1) * zones)
    return need + next(spares for spares in range(first, rounds * zones + 1) if enough(spares))


def _short_of(counts: NDArray[np.int64], layout: FailureDomains, need: int) -> float:
    """Of engines by zone and rack."""
    up = np.ones(1)
    for racks in counts:
        zone = np.ones(1)
        for engines in racks:
            alone = binom.pmf(np.arange(engines + 1), engines, 1 - layout.engine_down)
            zone = np.convolve(zone, _or_none(alone, layout.rack_down))
        up = np.convolve(up, _or_none(zone, layout.zone_down))
    return float(min(1.0, up[:need].sum()))


def _or_none(up: NDArray[np.float64], down: float) -> NDArray[np.float64]:
    """The distribution, or with probability ``down`` none at all."""
    mixed = (1 - down) * up
    mixed[0] += down
    return mixed
