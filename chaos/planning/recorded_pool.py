"""Read a pool at its busiest from a recording of ``switchgear serve --record``.

Replays the rounds under the recorded policies, to get the slots and service times learned so far. The busiest
moment is the one with the most arrivals over ten seconds.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from chaos.planning.error import PlanError
from chaos.planning.pool_situation import EngineSlots, PoolSituation, chosen_pool, planned_objectives
from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.model import PolicySet
from policies.objectives import Objective, ObjectiveKind
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import Decisions, Health
from xds_server.ledger.decision_recording import RecordingError, RecordingReader, read_rounds
from xds_server.model.fleet import Engine, Fleet, redeclared
from xds_server.model.pool_traffic import PoolTraffic

WINDOW_S: Final = 10.0


@dataclass(slots=True)
class _Busiest:
    """Busiest moment of a pool so far."""

    arrivals_per_s: float = 0.0
    fleet: Fleet | None = None
    decisions: Decisions | None = None
    window: deque[tuple[float, float]] = field(default_factory=deque)

    def note(self, now_s: float, arrivals_per_s: float, fleet: Fleet, decisions: Decisions) -> None:
        self.window.append((now_s, arrivals_per_s))
        while now_s - self.window[0][0] > WINDOW_S:
            self.window.popleft()
        mean = sum(one for _, one in self.window) / len(self.window)
        # The first seconds count too: a recording may be shorter than the window.
        if mean >= self.arrivals_per_s:
            self.arrivals_per_s, self.fleet, self.decisions = mean, fleet, decisions


def recorded_pool(path: Path, pool: str = "") -> PoolSituation:
    """Read the pool from ``path``; ``PlanError`` if data is missing. ``pool`` may be empty if there is one."""
    busiest: dict[str, _Busiest] = {}
    reading = RecordingReader()
    policies: PolicySet | None = None
    fleet: Fleet | None = None
    memory = NO_MEMORY
    texts: object = None
    try:
        for one in read_rounds(path, reading):
            if policies is None or reading.texts is not texts:
                before, policies, texts = policies, _policies(path, reading), reading.texts
                fleet = None if fleet is None else redeclared(policies, fleet, before)
            fleet = reading.fleet(policies, fleet)
            decisions, memory = decide(
                policies,
                fleet,
                memory,
                proxies=reading.connected,
                now_s=one.now_s,
                orders=reading.orders_at(one.now_s),
            )
            for name, traffic in fleet.traffic.items():
                if name in decisions.pools:
                    busiest.setdefault(name, _Busiest()).note(one.now_s, _arrivals(traffic), fleet, decisions)
    except RecordingError as error:
        raise PlanError(str(error)) from error
    if policies is None:
        raise PlanError(f"{path}: the recording is empty")
    name = chosen_pool(sorted(policies.pools), pool)
    found = busiest.get(name)
    if found is None or found.fleet is None or found.decisions is None or not found.arrivals_per_s:
        raise PlanError(f"{path}: no traffic reported for pool {name}")
    return _situation(name, policies, found, found.fleet, found.decisions)


def _policies(path: Path, reading: RecordingReader) -> PolicySet:
    try:
        return load_contents({Path(name): text.encode() for name, text in reading.texts.items()})
    except PolicyErrors as errors:
        raise PlanError(f"{path}: this version rejects the recorded policies: {errors.exceptions[0]}") from errors


def _situation(
    name: str, policies: PolicySet, busiest: _Busiest, fleet: Fleet, decisions: Decisions
) -> PoolSituation:
    admission = decisions.pools[name].admission
    declared_s = policies.pools[name].spec.service_time

    def profile(engine: Engine) -> EngineSlots:
        capacity = None if admission is None else admission.capacities.get(engine.id)
        decision = decisions.engines.get(engine.id)
        return EngineSlots(
            name=engine.id.engine,
            zone=engine.zone,
            slots=float(engine.slots) if capacity is None else capacity.slots,
            service_s=declared_s if capacity is None else capacity.service_s,
            up=decision is not None and decision.health is Health.HEALTHY,
        )

    situation = PoolSituation(
        pool=name,
        engines=tuple(profile(engine) for engine in fleet.pools[name]),
        arrivals_per_s=busiest.arrivals_per_s,
        max_wait_s=None if admission is None else admission.wait_s,
        source=f"a recording (busiest {WINDOW_S:g} s): slots and service times learned by then",
    )
    measured = _objectives(name, policies, fleet.traffic[name])
    return replace(situation, objectives=planned_objectives(situation, measured))


def _objectives(
    name: str, policies: PolicySet, traffic: PoolTraffic
) -> Iterator[tuple[str, Objective, float | None]]:
    """Objectives of the pool and of routes to it, with the latency measured at their percentile."""
    for route, declared in policies.routes.items():
        if any(one.pool == name for one in declared.spec.pools):
            for one in declared.spec.objectives.all():
                yield f"{route}/{one.name}", one, _latency_s(one, traffic)
    for one in policies.pools[name].spec.objectives.all():
        yield f"pool/{name}/{one.name}", one, _latency_s(one, traffic)


def _latency_s(one: Objective, traffic: PoolTraffic) -> float | None:
    """Of whole answers without streaming, or of first bytes of streams."""
    tails = {ObjectiveKind.TOTAL: traffic.answer, ObjectiveKind.FIRST_TOKEN: traffic.first_byte}
    tail = tails.get(one.kind)
    return None if tail is None else tail.p95_s if one.name.endswith("p95") else tail.p99_s


def _arrivals(traffic: PoolTraffic) -> float:
    return sum(sum(one.arrivals_per_s.values()) for one in traffic.proxies.values())
