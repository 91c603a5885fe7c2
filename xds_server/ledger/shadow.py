"""The shadow report: what decisions that are not enforced would have done.

An engine that would have been ejected is watched for as long: the duration, its failed calls meanwhile (another
engine might have served those), and its successful ones, which the pool would have lost. A ceiling that is not
enforced is watched for what it would have refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from xds_server.decide.decisions import Decisions, EngineDecision, Health, PoolDecisions
from xds_server.model.fleet import EngineId, Fleet
from xds_server.model.pool_traffic import EngineTraffic


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowTally:
    """The effect on one engine; seconds, calls, and its share of the pool's slots in percent."""

    engine: EngineId
    reason: str
    times: int = 0
    out_s: float = 0.0
    failed: int = 0
    succeeded: int = 0
    capacity_percent: float = 0.0
    out_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowCeiling:
    """What a ceiling that is not enforced would have refused; estimated from arrivals over capacity."""

    pool: str
    reason: str
    over_s: float = 0.0
    refused: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interval:
    """An engine that would be ejected now: as of ``at_s``, with its calls so far."""

    at_s: float
    failed: int
    succeeded: int


class ShadowTotals:
    """Totals, updated round by round. Bounded by the fleet: one tally per engine and one per pool."""

    def __init__(self) -> None:
        self._tallies: dict[EngineId, ShadowTally] = {}
        self._open: dict[EngineId, _Interval] = {}
        self._ceilings: dict[str, ShadowCeiling] = {}
        self._enforced: dict[str, PoolDecisions] = {}
        """Pools without any shadow decision as of the last round."""
        self._at_s: float | None = None

    @property
    def engines(self) -> Mapping[EngineId, ShadowTally]:
        """By engine, those that would have been ejected at any time."""
        return self._tallies

    @property
    def ceilings(self) -> Mapping[str, ShadowCeiling]:
        """By pool, those whose ceiling would have refused anything."""
        return self._ceilings

    def observe(self, fleet: Fleet, decisions: Decisions, now_s: float) -> None:
        """Add the time since the last round."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        for name in self._enforced.keys() - decisions.pools.keys():
            del self._enforced[name]
        for name, pool in decisions.pools.items():
            # Most engines of most fleets have no shadow decision, and this runs ten times a second.
            enforced = self._enforced.get(name) is pool
            for key, decision in () if enforced else pool.engines.items():
                if decision.shadow is not None and _would_leave(decision):
                    self._out(key, decision.shadow.reason, fleet, now_s)
                elif key in self._open:
                    self._count(key, fleet, now_s)
                    del self._open[key]
                    self._tallies[key] = replace(self._tallies[key], out_now=False)
            if not enforced and not any(decision.shadow for decision in pool.engines.values()):
                self._enforced[name] = pool
            admission = pool.admission
            if admission is not None and not admission.in_force and (admission.pressure or 0.0) > 1.0:
                self._over(name, admission.reason, excess_per_s(fleet, name, admission.pressure or 0.0), passed_s)
        for key in [key for key in self._tallies if key not in decisions.engines]:
            del self._tallies[key]
            self._open.pop(key, None)

    def _out(self, key: EngineId, reason: str, fleet: Fleet, now_s: float) -> None:
        tally = self._tallies.get(key) or ShadowTally(engine=key, reason=reason)
        if key in self._open:
            self._count(key, fleet, now_s)
            tally = self._tallies[key]
        else:
            tally = replace(tally, times=tally.times + 1, out_now=True, capacity_percent=_share(fleet, key))
            traffic = _traffic(fleet, key)
            self._open[key] = _Interval(at_s=now_s, failed=traffic.failed, succeeded=traffic.succeeded)
        self._tallies[key] = replace(tally, reason=reason)

    def _count(self, key: EngineId, fleet: Fleet, now_s: float) -> None:
        """Add what happened since the engine was last observed."""
        before, traffic, tally = self._open[key], _traffic(fleet, key), self._tallies[key]
        self._tallies[key] = replace(
            tally,
            out_s=tally.out_s + max(0.0, now_s - before.at_s),
            # Telemetry that restarts counts from zero: never add a negative number.
            failed=tally.failed + max(0, traffic.failed - before.failed),
            succeeded=tally.succeeded + max(0, traffic.succeeded - before.succeeded),
        )
        self._open[key] = _Interval(at_s=now_s, failed=traffic.failed, succeeded=traffic.succeeded)

    def _over(self, pool: str, reason: str, excess_per_s: float, passed_s: float) -> None:
        known = self._ceilings.get(pool) or ShadowCeiling(pool=pool, reason=reason)
        self._ceilings[pool] = replace(
            known, reason=reason, over_s=known.over_s + passed_s, refused=known.refused + excess_per_s * passed_s
        )


def _would_leave(decision: EngineDecision) -> bool:
    shadow = decision.shadow
    return shadow is not None and shadow.health is not Health.HEALTHY and decision.health is Health.HEALTHY


def _traffic(fleet: Fleet, key: EngineId) -> EngineTraffic:
    pool = fleet.traffic.get(key.pool)
    return (None if pool is None else pool.engines.get(key.engine)) or EngineTraffic()


def _share(fleet: Fleet, key: EngineId) -> float:
    engines = fleet.pools.get(key.pool, ())
    whole = sum(engine.slots for engine in engines)
    own = fleet.engine(key)
    return 100.0 * own.slots / whole if own is not None and whole else 0.0


def excess_per_s(fleet: Fleet, pool: str, pressure: float) -> float:
    """Requests per second above the pool's capacity at this ``pressure``; negative below it."""
    traffic = fleet.traffic.get(pool)
    if traffic is None:
        return 0.0
    arrivals = sum(sum(proxy.arrivals_per_s.values()) for proxy in traffic.proxies.values())
    return arrivals * (1.0 - 1.0 / pressure)
