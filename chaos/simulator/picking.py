"""Which host of a cluster a proxy picks: zones by weight, then round robin or the fewest requests of a few."""

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from chaos.simulator.told import Cluster, Host, Locality

_ATTEMPTS = 100
"""Picks after which a retry settles for an engine that was already tried."""


@dataclass(slots=True, eq=False)
class Picker:
    """``choose`` after ``see``; ``see`` again when hosts, or who of them is well, have changed."""

    cluster: Cluster
    rng: random.Random
    _zones: list[tuple[float, list[Host], bool]] = field(default_factory=list)
    _turn: int = 0

    def see(self, localities: tuple[Locality, ...], out: Collection[str]) -> None:
        """Who there is, and who of them is out by the proxy's own judgement."""
        self._zones = []
        for one in localities:
            if one.weight is None or not one.hosts:
                continue
            well = [host for host in one.hosts if host.healthy and host.engine not in out]
            if 100 * len(well) < self.cluster.panic_percent * len(one.hosts):
                # Panic: too few are well to believe it.
                well = list(one.hosts)
            if well:
                # A zone's weight shrinks with the share of its hosts that are well; decisions reckon with it.
                share = one.weight * len(well) / len(one.hosts)
                alike = len({host.weight for host in well}) == 1
                self._zones.append((share, well, alike))

    def choose(self, active: Mapping[str, int], avoid: Collection[str]) -> str | None:
        """The host for one try; None where none is well."""
        if not self._zones:
            return None
        for _ in range(_ATTEMPTS if avoid else 1):
            found = self._once(active)
            if found not in avoid:
                break
        return found

    def _once(self, active: Mapping[str, int]) -> str:
        _, hosts, alike = (
            self._zones[0]
            if len(self._zones) == 1
            else self.rng.choices(self._zones, [share for share, _, _ in self._zones])[0]
        )
        if self.cluster.round_robin:
            self._turn += 1
            return hosts[self._turn % len(hosts)].engine
        if not alike:
            weights = [host.weight / (active.get(host.engine, 0) + 1) for host in hosts]
            return self.rng.choices(hosts, weights)[0].engine
        some = (hosts[int(self.rng.random() * len(hosts))].engine for _ in range(self.cluster.choices))
        return min(some, key=lambda engine: active.get(engine, 0))
