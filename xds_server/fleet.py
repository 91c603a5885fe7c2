"""The fleet as it stands: engines the policies declare, folded with what was last reported of each.

A frozen value. ``declared`` makes it from the policies, ``with_report`` folds one report in, ``redeclared``
carries reports over a policy edit. Nothing here judges: that is ``decide``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from engine.report import EngineReport
from policies.model import PolicySet


@dataclass(frozen=True, slots=True, order=True)
class EngineId:
    """A pool's name and an engine's name in it."""

    pool: str
    engine: str

    def __str__(self) -> str:
        """``pool/engine``, as status and logs show it."""
        return f"{self.pool}/{self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: where it is, what it can hold, and the last report with the time it arrived.

    ``received_at_s`` is the control plane's monotonic clock; None with ``report`` None: nothing heard yet.
    """

    id: EngineId
    address: str
    port: int
    zone: str
    region: str
    slots: int
    weight: int
    tensor_parallel_group: str
    labels: Mapping[str, str]
    report: EngineReport | None = None
    received_at_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines by pool, each pool in the order the policy lists them."""

    pools: Mapping[str, tuple[Engine, ...]]

    def engine(self, key: EngineId) -> Engine | None:
        """The engine of this id, or None."""
        return next((one for one in self.pools.get(key.pool, ()) if one.id == key), None)


def declared(policies: PolicySet) -> Fleet:
    """The fleet as the policies declare it, nothing reported yet."""
    pools: dict[str, tuple[Engine, ...]] = {}
    for name, pool in policies.pools.items():
        pools[name] = tuple(
            Engine(
                id=EngineId(name, endpoint.name),
                address=endpoint.address,
                port=endpoint.port,
                zone=endpoint.zone,
                region=endpoint.region,
                slots=endpoint.slots or pool.spec.slots_per_engine,
                weight=endpoint.weight,
                tensor_parallel_group=endpoint.tensor_parallel_group,
                labels=MappingProxyType(dict(endpoint.labels)),
            )
            for endpoint in pool.spec.endpoints
        )
    return Fleet(pools=MappingProxyType(pools))


def redeclared(policies: PolicySet, fleet: Fleet) -> Fleet:
    """The fleet of edited policies, keeping the reports of engines that are still at the same address."""
    known = {engine.id: engine for engines in fleet.pools.values() for engine in engines}

    def carried(engine: Engine) -> Engine:
        before = known.get(engine.id)
        if before is None or (before.address, before.port) != (engine.address, engine.port):
            return engine
        return replace(engine, report=before.report, received_at_s=before.received_at_s)

    fresh = declared(policies)
    return Fleet(
        pools=MappingProxyType({pool: tuple(map(carried, engines)) for pool, engines in fresh.pools.items()})
    )


def with_report(fleet: Fleet, report: EngineReport, now_s: float) -> Fleet:
    """The fleet with this report folded in; unchanged when it names no engine we know."""
    engines = fleet.pools.get(report.pool)
    if engines is None or not any(engine.id.engine == report.engine for engine in engines):
        return fleet
    updated = tuple(
        replace(engine, report=report, received_at_s=now_s) if engine.id.engine == report.engine else engine
        for engine in engines
    )
    return Fleet(pools=MappingProxyType({**fleet.pools, report.pool: updated}))
