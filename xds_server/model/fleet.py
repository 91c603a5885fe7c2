"""The fleet: engines that the policies declare, with their last reports.

A frozen value. ``declared`` creates it from the policies, ``with_report`` adds one report, ``with_pod_states`` the
orchestrator's states, ``redeclared`` keeps both across a policy edit. Decisions are in ``decide``. Adding counts
probes in a row, because ``decide`` needs them and pure functions cannot remember them otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from engine.report import EngineReport, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool
from xds_server.model.memo import reuse_mapping, reuse_tuple
from xds_server.model.pod_state import PodPhase, PodState
from xds_server.model.pool_traffic import PoolTraffic

__all__ = (
    "Engine",
    "EngineId",
    "Fleet",
    "declared",
    "fleet_of",
    "redeclared",
    "with_pod_states",
    "with_report",
    "with_traffic",
)


class EngineId(NamedTuple):
    """A pool's name and an engine's name in it; a tuple, because it is hashed thousands of times per round."""

    pool: str
    engine: str

    def __str__(self) -> str:
        """``pool/engine``, as in status and logs."""
        return f"{self.pool}/{self.engine}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: its address, its capacity, and its last report with the time of arrival.

    ``received_at_s`` is the control plane's monotonic clock; None if ``report`` is None: no report yet.
    ``good_looks`` and ``bad_looks`` count good or bad reports in a row; a draining report resets both.
    ``pod_state`` is the orchestrator's state; None counts as present.
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
    has_agent: bool = False
    revision: str = ""
    report: EngineReport | None = None
    received_at_s: float | None = None
    good_looks: int = 0
    bad_looks: int = 0
    pod_state: PodState | None = None

    def may_have(self, adapter: str) -> bool:
        """Whether it has this LoRA adapter, or none of its adapters is known."""
        known = None if self.report is None else self.report.adapters
        return known is None or adapter in known

    @property
    def pod_phase(self) -> PodPhase:
        """Its phase in the orchestrator."""
        return PodPhase.PRESENT if self.pod_state is None else self.pod_state.standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines by pool, each pool in the policy's order; ``places`` has the index of each engine.

    ``traffic`` is recent proxy telemetry by pool; a pool without reports is absent.
    """

    pools: Mapping[str, tuple[Engine, ...]]
    places: Mapping[str, Mapping[str, int]]
    traffic: Mapping[str, PoolTraffic] = field(default_factory=dict)

    def engine(self, key: EngineId) -> Engine | None:
        """The engine of this id, or None."""
        place = self.places.get(key.pool, _NOWHERE).get(key.engine)
        return None if place is None else self.pools[key.pool][place]

    def is_known(self, engine: Engine) -> bool:
        """Whether an agent, a probe or a proxy ever reported on it. An unknown engine is served anyway."""
        if engine.report is not None:
            return True
        traffic = self.traffic.get(engine.id.pool)
        calls = None if traffic is None else traffic.engines.get(engine.id.engine)
        return calls is not None and calls.succeeded + calls.failed + calls.neutral > 0


_NOWHERE: Mapping[str, int] = MappingProxyType({})


def fleet_of(pools: Mapping[str, tuple[Engine, ...]]) -> Fleet:
    """The fleet of these engines."""
    return Fleet(
        pools=MappingProxyType(dict(pools)),
        places=MappingProxyType({pool: _places(engines) for pool, engines in pools.items()}),
    )


def declared(policies: PolicySet) -> Fleet:
    """The fleet as the policies declare it, without reports."""
    return fleet_of({name: _engines(name, pool) for name, pool in policies.pools.items()})


def redeclared(policies: PolicySet, fleet: Fleet, previous: PolicySet | None = None) -> Fleet:
    """The fleet of edited policies, with the reports of engines that are still at the same address.

    ``previous`` are the policies that declared ``fleet``: pools that are the same object in both stay the same
    objects in the fleet, so that an edit of one pool costs one pool.
    """

    def carried(engine: Engine) -> Engine:
        before = fleet.engine(engine.id)
        if before is None or (before.address, before.port) != (engine.address, engine.port):
            return engine
        return replace(
            engine,
            report=before.report,
            received_at_s=before.received_at_s,
            good_looks=before.good_looks,
            bad_looks=before.bad_looks,
            pod_state=before.pod_state,
        )

    unedited = previous.pools if previous is not None else {}
    pools, places = {}, {}
    for name, pool in policies.pools.items():
        if unedited.get(name) is pool and name in fleet.pools:
            pools[name], places[name] = fleet.pools[name], fleet.places[name]
        else:
            pools[name] = tuple(map(carried, _engines(name, pool)))
            places[name] = _places(pools[name])
    return Fleet(pools=MappingProxyType(pools), places=MappingProxyType(places), traffic=fleet.traffic)


def with_traffic(fleet: Fleet, traffic: Mapping[str, PoolTraffic]) -> Fleet:
    """The fleet with the newest traffic; engines stay the same objects."""
    return replace(fleet, traffic=traffic)


def with_pod_states(fleet: Fleet, words: Mapping[EngineId, PodState]) -> Fleet:
    """The fleet with the orchestrator's present states; engines with an unchanged state stay the same objects.

    ``words`` are all states: an engine without one has none.
    """
    pools: dict[str, tuple[Engine, ...]] = {}
    for name, engines in fleet.pools.items():
        fresh = tuple(_with_pod_state(engine, words.get(engine.id)) for engine in engines)
        pools[name] = reuse_tuple(engines, fresh)
    if reuse_mapping(fleet.pools, pools) is fleet.pools:
        return fleet
    return replace(fleet, pools=MappingProxyType(pools))


def _with_pod_state(engine: Engine, word: PodState | None) -> Engine:
    return engine if engine.pod_state == word else replace(engine, pod_state=word)


def _engines(name: str, pool: EnginePool) -> tuple[Engine, ...]:
    return tuple(
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
            has_agent=endpoint.agent_port is not None,
            revision=endpoint.revision,
        )
        for endpoint in pool.spec.endpoints
    )


def _places(engines: tuple[Engine, ...]) -> Mapping[str, int]:
    return MappingProxyType({engine.id.engine: place for place, engine in enumerate(engines)})


def with_report(fleet: Fleet, report: EngineReport, now_s: float) -> Fleet:
    """The fleet with this report; the same fleet if its engine is unknown or a newer report is known.

    Costs a copy of one pool's tuple: other pools, and other engines of the pool, stay the same objects, so that
    ``decide`` can skip them.
    """
    place = fleet.places.get(report.pool, _NOWHERE).get(report.engine)
    if place is None:
        return fleet
    engines = fleet.pools[report.pool]
    engine = engines[place]
    if engine.report is not None and _repeated(engine.report, report):
        return fleet
    verdict = report.verdict
    bad = not verdict.good and verdict is not Verdict.DRAINING
    # Reports on one engine process prove nothing about the next, and probes of one source do not count for
    # another. An engine that does not answer does not name its process either.
    known = engine.report
    same = known is None or (
        known.source is report.source
        and (known.boot_id == report.boot_id or not (known.boot_id and report.boot_id))
    )
    updated = replace(
        engine,
        report=report,
        received_at_s=now_s,
        good_looks=(engine.good_looks if same else 0) + 1 if verdict.good else 0,
        bad_looks=(engine.bad_looks if same else 0) + 1 if bad else 0,
    )
    pool = (*engines[:place], updated, *engines[place + 1 :])
    return replace(fleet, pools=MappingProxyType({**fleet.pools, report.pool: pool}))


def _repeated(known: EngineReport, fresh: EngineReport) -> bool:
    """Whether a counting source repeats this report: a probe must not be counted twice.

    The clock is compared, too, because a restarted source counts from the beginning.
    """
    return (
        0 < fresh.sequence <= known.sequence
        and fresh.boot_id == known.boot_id
        and fresh.observed_at_s <= known.observed_at_s
    )
