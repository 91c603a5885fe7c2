"""Correlated failures: zones, racks within zones, and model builds that run across both.

Engines are distributed round-robin over zones and over the racks of a zone; every rack runs every build. An engine
is up when its zone, rack and build are up and it has not failed itself. All fail independently.

With zones and racks, the number of engines up is a sum of independent parts, convolved exactly from positive
terms. Builds cut across zones: up to ``EXACT_BUILDS`` are exact, by enumerating the bad ones. More builds need
seeded samples, with an interval.
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
"""Convolution costs the square of the engines; this many take a second."""

EXACT_BUILDS: Final = 6
"""Builds whose combinations are enumerated: 64 convolutions."""

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureDomains:
    """Placement of engines and what can take many at once. ``*_down`` are shares of time, 0 to 1.

    ``racks`` is per zone. A count of 1 with a down share of 0 models no such domain.
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
        """Probability that everything is down at once. Spares cannot lower it."""
        zone_lost = self.zone_down + (1 - self.zone_down) * self.rack_down**self.racks
        all_zones = zone_lost**self.zones
        all_builds = self.build_down**self.builds
        return all_zones + (1 - all_zones) * all_builds


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProbability:
    """Sampled probability with its 95 % Clopper-Pearson interval."""

    share: float
    low: float
    high: float
    samples: int
    seed: int


def checked_domains(layout: FailureDomains) -> FailureDomains:
    """Return the layout; raise ``PlanError`` if it is invalid."""
    if min(layout.zones, layout.racks, layout.builds) < 1:
        raise PlanError("zones, racks and builds: at least one of each")
    if layout.engines < 1:
        raise PlanError("engines: at least one")
    for name in ("engine_down", "zone_down", "rack_down", "build_down"):
        if not 0 <= getattr(layout, name) <= 1:
            raise PlanError(f"{name.replace('_', ' ')}: must be 0 to 1")
    if layout.engines > MOST_ENGINES:
        raise PlanError(f"{layout.engines} engines: correlated failures are computed for up to {MOST_ENGINES}")
    return layout


def engines_per_cell(layout: FailureDomains) -> NDArray[np.int64]:
    """Engines per zone, rack and build, as an array with these three axes."""
    place = np.arange(layout.engines)
    in_zone = place // layout.zones
    rack = in_zone % layout.racks
    # Shift by one per round of the racks; else a rack runs one build only where both counts are equal.
    build = (in_zone + in_zone // math.lcm(layout.racks, layout.builds)) % layout.builds
    counts = np.zeros((layout.zones, layout.racks, layout.builds), dtype=np.int64)
    np.add.at(counts, (place % layout.zones, rack, build), 1)
    return counts


def is_exact(layout: FailureDomains) -> bool:
    """Whether the layout can be computed exactly."""
    return layout.builds <= EXACT_BUILDS or layout.build_down == 0


def shortage_probability(layout: FailureDomains, need: int) -> float:
    """Exact probability that fewer than ``need`` engines are up; ``PlanError`` if it needs samples."""
    checked_domains(layout)
    if not is_exact(layout):
        raise PlanError(f"more than {EXACT_BUILDS} failing builds: use samples")
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
    """``shortage_probability`` by Monte Carlo, with its confidence interval."""
    checked_domains(layout)
    if samples < 1:
        raise PlanError("samples: at least one")
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
    """Smallest number of spares for this layout; None if no number is enough.

    Ignores ``layout.engines``. More engines never hurt, because existing engines keep their place.
    """
    if layout.floor > allowed:
        return None
    # The search tries few sizes, but the last may be far above the answer and costs its square.
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
    """Smallest number of spares whose sampled interval is within the target; None if there is none.

    Conservative: the upper bound must reach the target.
    """
    if layout.floor > allowed:
        return None

    def enough(spares: int) -> bool:
        return sampled_shortage(resized(layout, need + spares), need, samples=samples, seed=seed).high <= allowed

    # Each step draws a full set of samples. A target missed at four times the need is out of reach.
    try:
        return fewest_satisfying(enough, most=min(MOST_ENGINES - need, 3 * need + 100))
    except PlanError:
        return None


def resized(layout: FailureDomains, engines: int) -> FailureDomains:
    """Return the layout with this number of engines."""
    return replace(layout, engines=engines)


def survive_one_zone(need: int, zones: int, down: float, allowed: float) -> int:
    """Smallest number of evenly distributed engines that meets the target with any one zone lost.

    With the fullest zone lost, the probability that fewer than ``need`` are up is at most ``allowed``.
    ``down`` is the down share of one engine.
    """
    if zones < 2:
        raise PlanError(f"{zones} zone: surviving the loss of one needs at least two")
    if allowed <= 0 < down or down >= 1:
        raise PlanError("no number of engines reaches this target")

    def enough(spares: int) -> bool:
        left = need + spares - math.ceil((need + spares) / zones)
        return left >= need and float(binom.sf(left - need, left, down)) <= allowed

    # Not monotone: an extra engine may only fill the zone that is lost. Whole rounds of zones are monotone.
    rounds = fewest_satisfying(lambda number: enough(number * zones), most=MOST_ENGINES)
    first = max(0, (rounds - 1) * zones)
    return need + next(spares for spares in range(first, rounds * zones + 1) if enough(spares))


def _short_of(counts: NDArray[np.int64], layout: FailureDomains, need: int) -> float:
    """Shortage for engines given per zone and rack."""
    up = np.ones(1)
    for racks in counts:
        zone = np.ones(1)
        for engines in racks:
            alone = binom.pmf(np.arange(engines + 1), engines, 1 - layout.engine_down)
            zone = np.convolve(zone, _or_none(alone, layout.rack_down))
        up = np.convolve(up, _or_none(zone, layout.zone_down))
    return float(min(1.0, up[:need].sum()))


def _or_none(up: NDArray[np.float64], down: float) -> NDArray[np.float64]:
    """The distribution, with probability ``down`` of no engine at all."""
    mixed = (1 - down) * up
    mixed[0] += down
    return mixed
