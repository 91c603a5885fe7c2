"""A pool of engines with queues, proxies with ceilings and open-loop callers, in simulated time.

The ceilings are set by the product's own ``engine_capacities`` and ``admission_decision``, ten times a second,
from simulated telemetry: callers, engines and networks are simulated. Engines of
``slots`` serve first come first served; a proxy picks the one with the fewest requests of three.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec
from policies.route import PriorityClass
from xds_server.decide.admission.ceiling import admission_decision
from xds_server.decide.admission.engine_capacity import engine_capacities
from xds_server.decide.decision_memory import AdmissionMemory, CapacityMemory
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.decide.pool_inputs import ConnectedProxies, PoolEngines, PoolPolicy
from xds_server.model.fleet import Engine, EngineId
from xds_server.model.pool_traffic import EngineTraffic, PoolTraffic, Proxy, ProxyTraffic

ROUND_S = 0.1
RATE_S = 2.0
INTERACTIVE, BATCH = PriorityClass.INTERACTIVE, PriorityClass.BATCH


@dataclass(slots=True)
class Request:
    """One request; ``ended_s`` None: still running, or lost. ``refused``: met a full ceiling."""

    arrived_s: float
    proxy: str
    of: PriorityClass
    deadline_s: float
    started_s: float = -1.0
    ended_s: float | None = None
    refused: bool = False
    tries: int = 0
    engine: int | None = None


@dataclass(slots=True)
class _Server:
    slots: int
    mean_s: float
    up: bool = True
    listed: bool = True
    running: set[int] = field(default_factory=set)
    queue: deque[int] = field(default_factory=deque)
    done: deque[tuple[float, float]] = field(default_factory=deque)
    succeeded: int = 0

    @property
    def held(self) -> int:
        return len(self.running) + len(self.queue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Parameters of the simulation. ``rates(proxy, now_s)``: interactive and batch requests per second."""

    rates: Callable[[str, float], tuple[float, float]]
    proxies: tuple[Proxy, ...] = (Proxy(node="p0", zone="", role="gateway"),)
    engines: int = 8
    slots: int = 8
    service_s: float = 0.5
    declared_s: float = 0.5
    deadline_s: float = 10.0
    until_s: float = 38.0
    crash_s: tuple[float, float] | None = None
    crashing: int = 0
    lag_s: float = 0.3
    resilience: ResilienceSpec = field(default_factory=ResilienceSpec)
    telling: Callable[[str, float], bool] = lambda _node, _now_s: True
    seed: int = 1


class Simulation:
    """One run; ``requests`` in the order of arrival and ``admissions`` of every round, by time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.random = random.Random(stage.seed)
        self.servers = [_Server(slots=stage.slots, mean_s=stage.service_s) for _ in range(stage.engines)]
        self.engines = tuple(
            Engine(
                id=EngineId("pool", f"e{place}"), address="10.0.0.1", port=8000 + place, zone="", region="",
                slots=stage.slots, weight=1, tensor_parallel_group="", labels={},
            )
            for place in range(stage.engines)
        )  # fmt: skip
        self.pool = EnginePoolSpec.model_validate(
            {"model": "m", "serviceTime": f"{stage.declared_s}s", "slotsPerEngine": stage.slots}
        )
        self.requests: list[Request] = []
        self.admissions: list[tuple[float, AdmissionMemory]] = []
        self.capacity = CapacityMemory()
        self.in_flight = {(one.node, of): 0 for one in stage.proxies for of in PriorityClass}
        self.arrived = {key: deque[float]() for key in self.in_flight}
        self.shed = {key: deque[float]() for key in self.in_flight}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()

    def at(self, when_s: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._order), what))

    def run(self) -> "Simulation":
        for proxy in self.stage.proxies:
            for place, of in enumerate((INTERACTIVE, BATCH)):
                self._next(proxy.node, place, of, 0.0)
        self._round(0.0)
        if self.stage.crash_s is not None:
            start_s, end_s = self.stage.crash_s
            self.at(start_s, self._crash)
            self.at(start_s + self.stage.lag_s, lambda _: self._list(False))
            self.at(end_s, lambda _: self._recover())
            self.at(end_s + 0.5, lambda _: self._list(True))
        while self._events:
            now_s, _, what = heapq.heappop(self._events)
            if now_s > self.stage.until_s + self.stage.deadline_s:
                break
            what(now_s)
        return self

    # -- callers -------------------------------------------------------------------------------------------

    def _next(self, node: str, place: int, of: PriorityClass, now_s: float) -> None:
        rate = self.stage.rates(node, now_s)[place]
        if rate <= 0:
            self.at(now_s + 0.1, lambda when_s: self._next(node, place, of, when_s))
            return

        def arrives(when_s: float) -> None:
            if when_s < self.stage.until_s:
                self._next(node, place, of, when_s)
                number = len(self.requests)
                self.requests.append(Request(when_s, node, of, when_s + self.stage.deadline_s))
                self.arrived[node, of].append(when_s)
                self._try(number, when_s)

        self.at(now_s + self.random.expovariate(rate), arrives)

    def _try(self, number: int, now_s: float) -> None:
        request = self.requests[number]
        admitted = self.admissions[-1][1]
        ceiling = admitted.decided.by_proxy.get(request.proxy)
        parts = admitted.idle_limit if ceiling is None else (ceiling.interactive, ceiling.batch)
        most = parts[request.of is BATCH]
        # A proxy that finds an engine dead tries another, and soon ejects the dead one itself.
        listed = [
            place
            for place, server in enumerate(self.servers)
            if server.listed and (server.up or not request.tries)
        ]
        if self.in_flight[request.proxy, request.of] >= most or not listed:
            request.refused = True
            self.shed[request.proxy, request.of].append(now_s)
            return
        self.in_flight[request.proxy, request.of] += 1
        request.tries += 1
        choice = min(self.random.choices(listed, k=3), key=lambda place: self.servers[place].held)
        request.engine = choice
        server = self.servers[choice]
        if not server.up:
            self._let_go(request)
            if request.tries <= 3:
                self.at(now_s + 0.02, lambda when_s: self._try(number, when_s))
            return
        server.queue.append(number)
        self._serve(choice, now_s)

    def _let_go(self, request: Request) -> None:
        self.in_flight[request.proxy, request.of] -= 1
        request.engine = None

    # -- engines -------------------------------------------------------------------------------------------

    def _serve(self, place: int, now_s: float) -> None:
        server = self.servers[place]
        while server.up and server.queue and len(server.running) < server.slots:
            number = server.queue.popleft()
            request = self.requests[number]
            if now_s > request.deadline_s:
                self._let_go(request)
                continue
            request.started_s = now_s
            server.running.add(number)
            taking_s = server.mean_s * self.random.uniform(0.56, 1.44)
            self.at(now_s + taking_s, lambda when_s, one=number: self._end(place, one, when_s))

    def _end(self, place: int, number: int, now_s: float) -> None:
        server, request = self.servers[place], self.requests[number]
        if number not in server.running or request.engine != place:
            return
        server.running.discard(number)
        request.ended_s = now_s
        server.done.append((now_s, now_s - request.arrived_s))
        server.succeeded += 1
        self._let_go(request)
        self._serve(place, now_s)

    def _crash(self, now_s: float) -> None:
        for server in self.servers[: self.stage.crashing]:
            lost = [*server.running, *server.queue]
            server.up = False
            server.running.clear()
            server.queue.clear()
            for number in lost:
                self._let_go(self.requests[number])
                self._try(number, now_s)

    def _list(self, listed: bool) -> None:
        for server in self.servers[: self.stage.crashing]:
            server.listed = listed

    def _recover(self) -> None:
        for server in self.servers[: self.stage.crashing]:
            server.up = True

    # -- control -------------------------------------------------------------------------------------------

    def _round(self, now_s: float) -> None:
        decisions = {
            engine.id: EngineDecision(
                health=Health.HEALTHY if server.listed else Health.UNHEALTHY, reason="", since_s=0.0
            )
            for engine, server in zip(self.engines, self.servers, strict=True)
        }
        traffic = self._traffic(now_s)
        before = self.admissions[-1][1] if self.admissions else None
        self.capacity = engine_capacities(
            self.pool,
            self.stage.resilience,
            self.engines,
            traffic,
            decisions=decisions,
            before=self.capacity,
            now_s=now_s,
        )
        both = any(self.stage.rates(one.node, when)[1] for one in self.stage.proxies for when in range(40))
        decided = admission_decision(
            PoolPolicy(
                spec=self.pool,
                resilience=self.stage.resilience,
                classes=frozenset(PriorityClass) if both else frozenset({INTERACTIVE}),
            ),
            PoolEngines(engines=self.engines, decisions=decisions, capacities=self.capacity.capacities),
            traffic=traffic,
            proxies=ConnectedProxies(
                by_node={one.node: one for one in self.stage.proxies},
                by_role={"gateway": len(self.stage.proxies)},
            ),
            degradation=None,
            before=before,
            now_s=now_s,
        )
        self.admissions.append((now_s, decided))
        if now_s < self.stage.until_s:
            self.at(now_s + ROUND_S, self._round)

    def _traffic(self, now_s: float) -> PoolTraffic:
        def rate(times: deque[float]) -> float:
            while times and times[0] < now_s - RATE_S:
                times.popleft()
            return len(times) / RATE_S

        engines = {}
        for place, server in enumerate(self.servers):
            while server.done and server.done[0][0] < now_s - RATE_S:
                server.done.popleft()
            engines[f"e{place}"] = EngineTraffic(
                done_per_s=len(server.done) / RATE_S,
                busy=sum(taken_s for _, taken_s in server.done) / RATE_S,
                in_flight=server.held,
                succeeded=server.succeeded,
                heard_at_s=now_s,
            )
        proxies = {
            one.node: ProxyTraffic(
                arrivals_per_s={of: rate(self.arrived[one.node, of]) for of in PriorityClass},
                shed_per_s={of: rate(self.shed[one.node, of]) for of in PriorityClass},
                in_flight_on={},
                load_at_s=now_s,
                heard_at_s=now_s,
            )
            for one in self.stage.proxies
            if self.stage.telling(one.node, now_s)
        }
        return PoolTraffic(engines=engines, proxies=proxies, heard_at_s=now_s)

    # -- results -------------------------------------------------------------------------------------------

    def good(
        self, since_s: float, until_s: float, proxy: str | None = None, of: PriorityClass | None = None
    ) -> float:
        """Percent of the requests arriving then that were answered in time."""
        came = [
            one
            for one in self.requests
            if since_s <= one.arrived_s < until_s and proxy in {None, one.proxy} and of in {None, one.of}
        ]
        answered = sum(one.ended_s is not None and one.ended_s <= one.deadline_s for one in came)
        return 100 * answered / len(came)

    def waits(self, since_s: float, until_s: float) -> list[float]:
        """Waits for a slot of the answered requests that arrived then, sorted."""
        return sorted(
            one.started_s - one.arrived_s
            for one in self.requests
            if one.ended_s is not None and since_s <= one.arrived_s < until_s
        )
