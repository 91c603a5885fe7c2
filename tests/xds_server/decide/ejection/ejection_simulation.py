"""A pool of simulated engines for tests of decisions: calls arrive, take time, succeed or fail.

No sockets and no clock: ``World.run`` advances time by tenths of a second, reports what proxies and probes would
report, decides, and lets the decisions steer the calls. Only inputs of decisions are simulated.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.report import CanaryResults, Doubt, EngineReport, ReportSource, Verdict
from policies.model import PolicySet
from policies.pool import EnginePool, EnginePoolSpec
from policies.resilience import ResilienceSpec
from xds_server.decide.decision_memory import NO_POOL_MEMORY, PoolMemory
from xds_server.decide.decisions import AdmissionDecision, EngineDecision, Health, PoolDecisions, TimeLimits
from xds_server.decide.ejection.engine_decisions import EjectionOutcome, engine_decisions
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.order import Order
from xds_server.model.pool_traffic import NEWEST_ANSWERS, EngineTraffic, LatencyTail, PoolTraffic

STEP_S = 0.1
CANARY_S = 0.05


def pool(zones: str, slots: int = 8, groups: tuple[str, ...] = ()) -> EnginePool:
    """A pool with one engine per letter, in the zone of that letter: e0, e1, ..."""
    endpoints = [
        {
            "name": f"e{place}",
            "address": "10.0.0.1",
            "port": 8000 + place,
            "zone": zone,
            "tensorParallelGroup": groups[place] if groups else "",
        }
        for place, zone in enumerate(zones)
    ]
    return EnginePool.model_validate(
        {"metadata": {"name": "pool"}, "spec": {"model": "m", "slotsPerEngine": slots, "endpoints": endpoints}}
    )


def key(engine: str) -> EngineId:
    """The id of an engine of the pool."""
    return EngineId("pool", engine)


@dataclass(slots=True)
class Call:
    """One call at an engine; ``left_s`` of work at full speed."""

    left_s: float
    began_s: float
    fails: bool


@dataclass(slots=True)
class Simulated:
    """One engine: its fault, its calls, and its counts.

    ``unreached``: it is healthy, but no packet passes between it and the proxies. ``stopped``: its process is
    stopped.
    """

    name: str
    fails: float = 0.0
    slower: float = 1.0
    hung: bool = False
    dead: bool = False
    unreached: bool = False
    stopped: bool = False
    boot: str = "1"
    calls: list[Call] = field(default_factory=list)
    ended: deque[tuple[float, bool, float]] = field(default_factory=lambda: deque(maxlen=25))
    times: deque[tuple[float, float]] = field(default_factory=deque)
    succeeded: int = 0
    failed: int = 0
    canaries: int = 0
    canary: CanaryResults | None = None
    probed_s: float = 0.0
    bad: int = 0


class World:
    """The pool, its traffic and its decisions; ``telemetry`` can be switched off; ``streams``: answers are."""

    def __init__(
        self,
        zones: str = "aaaaaaaa",
        *,
        rate_per_engine: float = 12.8,
        seed: int = 1,
        service: Callable[[random.Random], float] = lambda rng: rng.uniform(0.28, 0.72),
        resilience: dict[str, object] | None = None,
    ) -> None:
        declaration = pool(zones)
        self.spec: EnginePoolSpec = declaration.spec
        self.resilience = ResilienceSpec.model_validate(resilience or {})
        self.fleet: Fleet = declared(
            PolicySet(pools={"pool": declaration}, routes={}, policies={}, effective={"pool": self.resilience})
        )
        self.rng = random.Random(seed)
        self.engines = {f"e{place}": Simulated(f"e{place}") for place in range(len(zones))}
        self.rate_per_s = rate_per_engine * len(zones)
        self.service = service
        self.telemetry = True
        self.streams = False
        self.probing = True
        self.source = ReportSource.PROBE
        self.limits: TimeLimits | None = None
        self.admission: AdmissionDecision | None = None
        self.overrides: Mapping[EngineId, Order] = {}
        self.now_s = 100.0
        self.before = NO_POOL_MEMORY
        self.history: list[tuple[float, dict[str, EngineDecision]]] = []
        self._sequence = 0
        self._report()
        self.decide()

    def decide(self) -> EjectionOutcome:
        """Decide on the present state."""
        outcome = engine_decisions(
            self.spec,
            self.resilience,
            self.fleet.pools["pool"],
            self.traffic() if self.telemetry else None,
            orders=self.overrides,
            before=self.before,
            now_s=self.now_s,
        )
        self.before = PoolMemory(
            decided=PoolDecisions(
                engines=outcome.engines,
                zones={},
                ceilings={},
                declared=self.fleet.pools["pool"],
                breakers=outcome.breakers,
                slow=outcome.slow,
                limits=self.limits,
                admission=self.admission,
            ),
            inputs=(self.spec, self.resilience),
            valid_until_s=outcome.until_s,
            ejection=outcome.memory,
        )
        self.history.append((self.now_s, {name.engine: one for name, one in outcome.engines.items()}))
        return outcome

    def run(self, seconds: float) -> "World":
        """Advance time."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            self._arrive()
            self._work()
            if self.probing:
                self._report()
            self.decide()
        return self

    def decision(self, engine: str) -> EngineDecision:
        """The newest decision for an engine."""
        return self.history[-1][1][engine]

    def letters(self) -> str:
        """One letter per engine: H, U or D."""
        return "".join(one.health.value[0] for one in self.history[-1][1].values())

    def out(self, since_s: float = 0.0) -> set[str]:
        """Engines that were ejected at any time since."""
        return {
            name
            for at_s, decided in self.history
            if at_s > since_s
            for name, one in decided.items()
            if one.health is not Health.HEALTHY
        }

    def first_s(self, since_s: float, wanted: Callable[[dict[str, EngineDecision]], bool]) -> float:
        """Seconds from ``since_s`` until decisions first were as wanted; infinite if never."""
        return next((at_s - since_s for at_s, one in self.history if at_s > since_s and wanted(one)), float("inf"))

    def sequence(self) -> int:
        """The next report sequence number."""
        self._sequence += 1
        return self._sequence

    def _arrive(self) -> None:
        shares = {
            name: one.traffic_percent / 100
            for name, one in self.history[-1][1].items()
            if one.health is Health.HEALTHY and not self.engines[name].dead
        }
        if not shares:
            return
        arrivals = self.rate_per_s * STEP_S
        count = int(arrivals) + (self.rng.random() < arrivals % 1)
        for _ in range(count):
            picks = self.rng.choices(list(shares), weights=list(shares.values()), k=3)
            engine = self.engines[min(picks, key=lambda name: len(self.engines[name].calls))]
            engine.calls.append(
                Call(left_s=self.service(self.rng), began_s=self.now_s, fails=self.rng.random() < engine.fails)
            )

    def _work(self) -> None:
        for engine in self.engines.values():
            if self.history[-1][1][engine.name].cut or engine.dead:
                for call in engine.calls:
                    self._end(engine, call, failed=True)
                engine.calls.clear()
            while engine.times and engine.times[0][0] < self.now_s - 2:
                engine.times.popleft()
            if engine.hung or engine.unreached or engine.stopped:
                continue
            left_s = STEP_S / engine.slower
            for call in engine.calls[:8]:
                call.left_s -= left_s
            for call in [one for one in engine.calls if one.left_s <= 0]:
                engine.calls.remove(call)
                self._end(engine, call, failed=call.fails)

    def _end(self, engine: Simulated, call: Call, *, failed: bool) -> None:
        engine.ended.append((self.now_s, failed, self.now_s - call.began_s))
        if failed:
            engine.failed += 1
        else:
            engine.succeeded += 1
            engine.times.append((self.now_s, self.now_s - call.began_s))

    def traffic(self) -> PoolTraffic:
        """The telemetry of the proxies."""
        engines = {}
        for name, one in self.engines.items():
            in_row = 0
            for _, failed, _ in reversed(one.ended):
                if not failed:
                    break
                in_row += 1
            times = [took_s for _, took_s in one.times]
            engines[name] = EngineTraffic(
                window_calls=len(one.ended),
                window_failures=sum(failed for _, failed, _ in one.ended),
                failures_in_a_row=in_row,
                newest_failed=sum(failed << age for age, (_, failed, _) in enumerate(reversed(one.ended))),
                newest_answers=len(newest := list(one.ended)[-NEWEST_ANSWERS:]),
                newest_spoiled=sum(failed for _, failed, _ in newest),
                succeeded=one.succeeded,
                failed=one.failed,
                done_per_s=len(times) / 2,
                busy=sum(times) / 2,
                service_s=sum(times) / len(times) if times else None,
                in_flight=len(one.calls),
                heard_at_s=self.now_s,
            )
        first_byte = LatencyTail(p50_s=0.1, p95_s=0.2, p99_s=0.3, calls=100) if self.streams else None
        return PoolTraffic(engines=engines, first_byte=first_byte, heard_at_s=self.now_s)

    def _report(self) -> None:
        """Probe each engine as often as the prober does; send a canary where it does not queue."""
        for name, one in self.engines.items():
            decided = self.history[-1][1][name] if self.history else None
            out = decided is not None and decided.health is not Health.HEALTHY
            if self.history and self.now_s - one.probed_s < (0.25 if out or one.bad else 0.5) - 1e-9:
                continue
            one.probed_s = self.now_s
            verdict, running = Verdict.READY, min(8, len(one.calls))
            held = 0 if one.unreached else len(one.calls)
            if one.dead or one.hung or one.stopped:
                verdict = Verdict.HUNG if one.hung else Verdict.DEAD
            elif one.unreached:
                self._ask(one)
            elif len(one.calls) < 8:
                self._ask(one)
                if one.canary is not None and not one.canary.in_row:
                    verdict = Verdict.DEGRADED
            else:
                verdict = Verdict.BUSY
            one.bad = 0 if verdict.good else one.bad + 1
            report = EngineReport(
                pool="pool",
                engine=name,
                verdict=verdict,
                evidence="simulated",
                observed_at_s=self.now_s,
                sequence=self.sequence(),
                boot_id="" if one.dead else one.boot,
                requests_in_flight=None if one.stopped else held,
                requests_waiting=max(0, held - 8),
                doubt=Doubt.SILENT if one.stopped else None,
                source=self.source,
                tokens_per_s=0.0 if one.hung else 30.0 * running / one.slower,
                canary=one.canary,
            )
            self.fleet = with_report(self.fleet, report, self.now_s)

    def _ask(self, one: Simulated) -> None:
        if self.rng.random() < one.fails:
            one.canary = one.canary and CanaryResults(in_row=0, at_s=one.canary.at_s, took_s=one.canary.took_s)
            return
        in_row = 1 if one.canary is None else one.canary.in_row + 1
        one.canary = CanaryResults(in_row=in_row, at_s=self.now_s, took_s=CANARY_S * one.slower)
