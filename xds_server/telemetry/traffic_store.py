"""Stores proxy telemetry: access logs and load reports in, one frozen ``PoolTraffic`` per pool out.

Mutable and single-threaded; the time is always an argument. Memory is bounded by engines, by reporting proxies,
and by pairs of them with recent calls: a proxy's data on an engine is kept only while it reports on it.

Missing signals: stale data becomes absent, never zero, and absent is neutral to every decision:

- *Attempts* leave an engine's window after ``WINDOW_S``; rates and mean times cover the last ``RATE_S``, and
  without calls there is no mean. Tails cover the last minute, then are absent.
- *Load reports* of a proxy count until ``STALE_S`` after the last one, whether its stream ended, stalled or was
  never reopened; then its requests leave every engine's ``in_flight``. That is None, not 0, if no proxy reports
  load for the pool.
- A *proxy* that sent neither for ``STALE_S`` is not in the pool's traffic, and forgotten soon after.
- A *pool* without any data for ``STALE_S`` is not in the traffic at all: losing all telemetry looks like never
  having had any. Its windows stay, and age, in case data arrives again.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from engine.report import EngineTotals, TokenGaps
from policies.route import PriorityClass
from xds_server.model.fleet import EngineId
from xds_server.model.pool_traffic import (
    STALE_S,
    WINDOW_S,
    CallResult,
    DeadlineResult,
    LatencyTail,
    PoolTraffic,
    PrefillUse,
    ProxyTraffic,
    TenantId,
    TenantUse,
    TenantUses,
)
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.call_latency import FirstTries, ObjectivesOfPools, RoutesOfPools, route_latency
from xds_server.telemetry.objective_counts import COUNTED, same_counts
from xds_server.telemetry.pool_directory import EMPTY_DIRECTORY, PoolDirectory, PoolFacts
from xds_server.telemetry.pool_totals import PoolTotals, call_result
from xds_server.telemetry.prefill_counts import PrefillCounts
from xds_server.telemetry.request_tap import RequestTap
from xds_server.telemetry.sliding_windows import LatencyHistogram, RateWindow
from xds_server.telemetry.tally import NOTHING, EngineTally, ProxyTally, coarse_time, silent_engines
from xds_server.telemetry.tenant_counts import TenantCounts
from xds_server.telemetry.token_gap_counts import TokenGapCounts
from xds_server.telemetry.token_use import TokenUse

_FORGET_S: Final = 60.0
_TAILS_EACH_S: Final = 1.0
_SWEEP_EACH_S: Final = 0.5
_UNPACED: Final = 400
"""Engines and proxies up to which values are rebuilt at every reading; above, a pool is rebuilt less often."""

_INTERACTIVE: Final = PriorityClass.INTERACTIVE


class Attempt(NamedTuple):
    """One ended attempt; a tuple, because a busy proxy reports thousands of them per second.

    ``first``: of its request. ``asks``: it asked for work; what an engine refuses as invalid costs nothing, and
    many of these are not demand. ``complete``: the whole response arrived. ``late_s``: how long before the newest
    entry of its message it ended, for the rates. ``request`` is its ID; the store keeps failures by it.
    ``route`` is the ModelRoute, empty if unknown; ``began_s`` is its start on the proxy's clock. ``prefiller``:
    whether a prefill engine was named for it. ``prefillable``: its route names some to requests of its size.
    """

    engine: str
    outcome: AttemptOutcome
    first: bool
    priority: PriorityClass
    streaming: bool
    duration_s: float
    first_byte_s: float
    asks: bool = True
    complete: bool = True
    late_s: float = 0.0
    request: str = ""
    route: str = ""
    began_s: float = 0.0
    prefiller: bool = False
    prefillable: bool = True


class CallListener(Protocol):
    """Receives each call of each proxy while a canary is compared."""

    def on_call_ended(
        self, node: str, *, failed: bool, time_s: float | None, streaming: bool, weight: float
    ) -> None:
        """A call ended; ``time_s`` to its first byte if streamed, else to its end, if it succeeded."""

    def on_request_shed(self, node: str, weight: float) -> None:
        """A request was shed."""

    def on_request(self, node: str, route: str) -> None:
        """A request of this route counts for its objectives."""

    def on_answer(self, node: str, route: str, duration_s: float, first_byte_s: float) -> None:
        """A request of this route got a complete answer; ``first_byte_s`` 0: not a stream."""

    def is_other_engine(self, node: str, pool: str, engine: str) -> bool:
        """Whether this proxy knows another engine, at another address, by this name."""


_ARRIVED, _SHED, _DONE, _BUSY, _ABOVE_SHARE = range(1, 6)
"""Columns of a tenant's window."""


class _Pool:
    __slots__ = (
        "answer", "built_at_s", "engines", "facts", "first_byte", "heard_at_s", "latency", "objectives", "prefill",
        "prefill_use", "proxies", "tails", "tails_at_s", "tenants", "totals", "urgent", "value",
    )  # fmt: skip

    def __init__(self, facts: PoolFacts) -> None:
        self.facts = facts
        self.engines: dict[str, EngineTally] = {}
        self.proxies: dict[str, ProxyTally] = {}
        self.tenants: dict[TenantId, RateWindow] = {}
        self.answer = LatencyHistogram()
        self.first_byte = LatencyHistogram()
        self.totals = PoolTotals()
        self.latency = {name: route_latency(route, None) for name, route in facts.routes.items()}
        self.objectives = same_counts(facts.objectives, None)
        self.prefill = PrefillCounts() if facts.prefilled else None
        self.prefill_use: PrefillUse | None = None
        self.tails: tuple[LatencyTail | None, LatencyTail | None] = (None, None)
        self.tails_at_s = float("-inf")
        self.heard_at_s = float("-inf")
        self.built_at_s = float("-inf")
        self.urgent = True
        self.value: PoolTraffic | None = None

    def set_facts(self, facts: PoolFacts) -> None:
        """Use these facts; latency of remaining routes of the same class is kept."""
        self.facts, self.urgent = facts, True
        before = self.latency
        self.latency = {name: route_latency(route, before.get(name)) for name, route in facts.routes.items()}
        self.objectives = same_counts(facts.objectives, self.objectives)
        self.prefill = (self.prefill or PrefillCounts()) if facts.prefilled else None
        self.prefill_use = None

    def engine(self, name: str) -> EngineTally:
        engine = self.engines.get(name)
        if engine is None:
            engine = self.engines[name] = EngineTally(self.facts.window_calls)
        return engine

    def proxy(self, node: str) -> ProxyTally:
        proxy = self.proxies.get(node)
        if proxy is None:
            proxy = self.proxies[node] = ProxyTally()
        return proxy


class TrafficStore:
    """All telemetry, by pool. ``directory`` describes pools and routes."""

    def __init__(self) -> None:
        self.directory: PoolDirectory = EMPTY_DIRECTORY
        self.listener: CallListener | None = None
        """Called for each call, in addition to the counts here."""
        self.tap = RequestTap()
        self.token_use = TokenUse()
        self.tenants = TenantCounts(self.token_use)
        self.token_gaps = TokenGapCounts()
        self._pools: dict[str, _Pool] = {}
        self._first_tries = FirstTries()
        self._swept_at_s = float("-inf")
        self._all: Mapping[str, PoolTraffic] = MappingProxyType({})

    def set_directory(self, directory: PoolDirectory) -> None:
        """Use this directory from now on; data of remaining engines is kept."""
        self.directory = directory
        engines = {name: facts.zone_of.keys() for name, facts in directory.pools.items()}
        self.token_gaps.keep(engines)
        self.token_use.keep(engines)
        for name in [name for name in self._pools if name not in directory.pools]:
            del self._pools[name]
        for name, pool in self._pools.items():
            facts = directory.pools[name]
            if facts is pool.facts:
                continue
            pool.set_facts(facts)
            for engine in [engine for engine in pool.engines if engine not in facts.zone_of]:
                del pool.engines[engine]
            for record in pool.engines.values():
                record.resize(facts.window_calls)
            for proxy in pool.proxies.values():
                proxy.in_flight_on = {
                    engine: count for engine, count in proxy.in_flight_on.items() if engine in facts.zone_of
                }

    # -- input ---------------------------------------------------------------------------------------------

    def record_attempt(
        self, node: str, facts: PoolFacts, attempt: Attempt, *, weight: float, now_s: float
    ) -> None:
        """Record an ended attempt; ``weight``: the number of attempts it stands for."""
        (
            engine, outcome, first, priority, streaming, duration_s, first_byte_s, asks, complete, late_s, request,
            _route, _began_s, _prefiller, _prefillable,
        ) = attempt  # fmt: skip
        pool = self._pool(facts)
        pool.heard_at_s = now_s
        proxy = pool.proxies.get(node) or pool.proxy(node)
        proxy.heard_at_s = now_s
        at_s = now_s - late_s if late_s > 0.0 else now_s
        slot = proxy.recent.slot(at_s)
        batch = priority is not _INTERACTIVE
        if outcome is AttemptOutcome.NOT_SENT:
            self._record_unsent(pool, node, attempt, slot, weight)
            return
        if self.listener is not None:
            self.listener.on_call_ended(
                node,
                failed=outcome is AttemptOutcome.FAILURE,
                time_s=(first_byte_s if streaming else duration_s) if outcome is AttemptOutcome.SUCCESS else None,
                streaming=streaming,
                weight=weight,
            )
        if not first:
            slot[5] += weight
        elif asks:
            slot[1 + batch] += weight
        pool.totals.add_call(
            result := call_result(outcome, complete=complete, asks=asks),
            first=first,
            priority=priority,
            weight=weight,
            gpu_s=duration_s * facts.gpus_per_slot.get(engine, 1.0),
        )
        self._record_latency(pool, node, attempt, result, weight)
        if pool.prefill is not None and first:
            _record_prefill(pool.prefill, attempt, weight, now_s)
        record = (
            (pool.engines.get(engine) or pool.engine(engine))
            if self.listener is None
            else self._record(pool, node, engine)
        )
        record.heard_at_s = now_s
        began_at_s = at_s - duration_s
        record.began_at_s = max(began_at_s, record.began_at_s)
        if outcome is AttemptOutcome.SUCCESS:
            record.succeeded += weight
            record.succeeded_entries += 1
            record.count(False, now_s)
            done = record.done.slot(at_s)
            done[1] += weight
            done[2] += weight * duration_s
            if streaming:
                pool.first_byte.add(first_byte_s, now_s)
            else:
                pool.answer.add(duration_s, now_s)
        elif outcome is AttemptOutcome.FAILURE:
            record.failed += weight
            record.failed_entries += 1
            record.count(True, now_s)
            record.failed_requests.add(request, now_s)
            pool.urgent = True
        else:
            record.count_neutral(weight, now_s, shed=result is CallResult.SHED)

    def _record_unsent(self, pool: _Pool, node: str, attempt: Attempt, slot: list[float], weight: float) -> None:
        first, batch = attempt.first, attempt.priority is not _INTERACTIVE
        if first:
            slot[1 + batch] += weight
            self._count_request(pool, node, attempt.route, weight)
        # A refused retry ends the request, unless it is a hedge: then the first try continues.
        ended = first or not pool.facts.hedged
        if ended:
            slot[3 + batch] += weight
            if self.listener is not None:
                self.listener.on_request_shed(node, weight)
        pool.totals.add_unsent(arrived=first, ended=ended, priority=attempt.priority, weight=weight)
        pool.urgent = True

    def _record_latency(self, pool: _Pool, node: str, attempt: Attempt, result: CallResult, weight: float) -> None:
        request, first_byte_s, earlier_s, counted = attempt.request, 0.0, 0.0, False
        if request:
            if attempt.first:
                self._first_tries.add(node, request, attempt.began_s, counted=result in COUNTED)
            else:
                earlier_s, counted = self._first_tries.find(node, request, attempt.began_s)
        latency = pool.latency.get(attempt.route)
        if latency is not None:
            if attempt.streaming and attempt.first_byte_s:
                first_byte_s = attempt.first_byte_s + earlier_s
            duration_s = attempt.duration_s + earlier_s
            latency.add(result.value, duration_s, first_byte_s, weight)
            objectives, own, listener = latency.objectives, pool.objectives, self.listener
            if objectives is not None or own is not None or listener is not None:
                success = result is CallResult.SUCCESS
                # A hedge that won: its first try counted as abandoned, so nothing counted the request.
                won = success and pool.facts.hedged and not counted
                if (attempt.first and result in COUNTED) or (won and not attempt.first):
                    self._count_request(pool, node, attempt.route, weight)
                if success:
                    if objectives is not None:
                        objectives.add_answer(duration_s, first_byte_s, weight)
                    if own is not None:
                        own.add_answer(duration_s, first_byte_s, weight)
                    if listener is not None:
                        listener.on_answer(node, attempt.route, duration_s, first_byte_s)

    def _count_request(self, pool: _Pool, node: str, route: str, weight: float) -> None:
        """Count a request for the objectives of its route and pool."""
        latency = pool.latency.get(route)
        if latency is not None and latency.objectives is not None:
            latency.objectives.add_request(weight)
        if latency is not None and pool.objectives is not None:
            pool.objectives.add_request(weight)
        if self.listener is not None:
            self.listener.on_request(node, route)

    def record_tenant(
        self, facts: PoolFacts, tenant: TenantId, attempt: Attempt, *, weight: float, now_s: float
    ) -> None:
        """Record an ended attempt of a tenant with a fair share of the pool."""
        slot = self._tenant(facts, tenant).slot(now_s - max(attempt.late_s, 0.0))
        if attempt.first and attempt.asks:
            slot[_ARRIVED] += weight
        if attempt.outcome is AttemptOutcome.NOT_SENT:
            slot[_SHED] += weight
        elif attempt.outcome is AttemptOutcome.SUCCESS:
            slot[_DONE] += weight
            slot[_BUSY] += weight * attempt.duration_s

    def record_tenant_refusal(
        self, facts: PoolFacts, tenant: TenantId, *, above_share: bool, weight: float, now_s: float
    ) -> None:
        """Record a request of such a tenant that was refused before it became an attempt."""
        slot = self._tenant(facts, tenant).slot(now_s)
        slot[_ARRIVED] += weight
        slot[_ABOVE_SHARE if above_share else _SHED] += weight
        self._pool(facts).heard_at_s = now_s

    def _tenant(self, facts: PoolFacts, tenant: TenantId) -> RateWindow:
        tenants = self._pool(facts).tenants
        window = tenants.get(tenant)
        if window is None:
            window = tenants[tenant] = RateWindow(_ABOVE_SHARE)
        return window

    def record_failure(
        self,
        facts: PoolFacts,
        engine: str,
        *,
        node: str = "",
        request: str = "",
        route: str = "",
        weight: float,
        now_s: float,
    ) -> None:
        """Record that an attempt counted as neutral was the engine's failure."""
        pool = self._pool(facts)
        self._count_request(pool, node, route, weight)
        pool.heard_at_s = now_s
        pool.urgent = True
        pool.totals.timed_out += weight
        record = self._record(pool, node, engine)
        record.heard_at_s = now_s
        record.failed += weight
        record.failed_entries += 1
        record.count(True, now_s)
        record.failed_requests.add(request, now_s)

    def record_shed(
        self,
        node: str,
        facts: PoolFacts,
        priority: PriorityClass,
        *,
        route: str = "",
        weight: float,
        now_s: float,
    ) -> None:
        """Record a request that was refused before it became an attempt."""
        pool = self._pool(facts)
        self._count_request(pool, node, route, weight)
        pool.heard_at_s = now_s
        pool.urgent = True
        proxy = pool.proxy(node)
        proxy.heard_at_s = now_s
        slot = proxy.recent.slot(now_s)
        batch = priority is not _INTERACTIVE
        slot[1 + batch] += weight
        slot[3 + batch] += weight
        if self.listener is not None:
            self.listener.on_request_shed(node, weight)
        pool.totals.add_unsent(arrived=True, ended=True, priority=priority, weight=weight)

    def record_deadline(self, facts: PoolFacts, result: DeadlineResult, *, weight: float) -> None:
        """Record a request that was not answered because of its deadline."""
        self._pool(facts).totals.deadlines[result] += weight

    def record_totals(self, engine: EngineId, boot_id: str, totals: EngineTotals, now_s: float) -> None:
        """Record the growing counters of an engine."""
        if totals.gaps is not None:
            self.record_token_gaps(engine, boot_id, totals.gaps)
        facts = self.directory.pools.get(engine.pool)
        if totals.work is not None and facts is not None and engine.engine in facts.zone_of:
            self.token_use.read(engine, boot_id, totals.work, now_s)

    def record_token_gaps(self, engine: EngineId, boot_id: str, gaps: TokenGaps) -> None:
        """Record the time between tokens of an engine: a histogram since it started."""
        facts = self.directory.pools.get(engine.pool)
        if facts is None or engine.engine not in facts.zone_of:
            return
        fresh = self.token_gaps.grown(engine, boot_id, gaps)
        if fresh is not None and facts.objectives:
            objectives = self._pool(facts).objectives
            if objectives is not None:
                objectives.add_token_gaps(fresh)

    def record_load(
        self, node: str, facts: PoolFacts, counts: Mapping[str, tuple[int, int]], now_s: float
    ) -> None:
        """Record a load report: by engine, requests in progress and issued since the last report.

        A report has everything that this proxy has open in the pool. A proxy that never sent a request to the pool
        is not stored.
        """
        pool = self._pools.get(facts.name)
        proxy = None if pool is None else pool.proxies.get(node)
        if not counts and proxy is None:
            return
        pool = pool or self._pool(facts)
        proxy = proxy or pool.proxy(node)
        pool.heard_at_s = proxy.heard_at_s = now_s
        self._replace_load(
            pool, proxy, {engine: progress for engine, (progress, _) in counts.items() if progress > 0}
        )
        proxy.loaded(sum(proxy.in_flight_on.values()), now_s)
        proxy.load_at_s = now_s
        issued = {engine: new for engine, (_, new) in counts.items() if new > 0}
        proxy.issue(issued, now_s)
        for engine, new in issued.items():
            zone = facts.zone_of.get(engine, "")
            proxy.zone_calls[zone] = proxy.zone_calls.get(zone, 0) + new
        proxy.silent = silent_engines(facts, proxy)

    def _replace_load(self, pool: _Pool, proxy: ProxyTally, fresh: Mapping[str, int]) -> None:
        for engine, count in proxy.in_flight_on.items():
            if (record := pool.engines.get(engine)) is not None:
                record.in_flight -= count
        for engine, count in fresh.items():
            pool.engine(engine).in_flight += count
        proxy.in_flight_on = fresh or NOTHING

    def _record(self, pool: _Pool, node: str, engine: str) -> EngineTally:
        """The engine's tally; an unused one if this proxy means another engine by its name."""
        if self.listener is not None and self.listener.is_other_engine(node, pool.facts.name, engine):
            return EngineTally(pool.facts.window_calls)
        return pool.engine(engine)

    def _pool(self, facts: PoolFacts) -> _Pool:
        pool = self._pools.get(facts.name)
        if pool is None:
            pool = self._pools[facts.name] = _Pool(facts)
        return pool

    # -- output --------------------------------------------------------------------------------------------

    def traffic(self, now_s: float) -> Mapping[str, PoolTraffic]:
        """Traffic by pool; the same objects if nothing changed."""
        if now_s - self._swept_at_s >= _SWEEP_EACH_S:
            self._swept_at_s = now_s
            for pool in self._pools.values():
                self._sweep(pool, now_s)
        found = {name: value for name, pool in self._pools.items() if (value := _traffic(pool, now_s)) is not None}
        before = self._all
        if found.keys() != before.keys() or any(before[name] is not value for name, value in found.items()):
            self._all = MappingProxyType(found)
        return self._all

    def totals(self) -> Mapping[str, PoolTotals]:
        """Totals by pool since the start."""
        return {name: pool.totals for name, pool in self._pools.items()}

    def latency(self) -> RoutesOfPools:
        """Latency by pool and route since the start."""
        return {name: pool.latency for name, pool in self._pools.items()}

    def take_zone_calls(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """Calls since the last time by pool, proxy and zone of the engine, from load reports."""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for name, pool in self._pools.items():
            for node, proxy in pool.proxies.items():
                if proxy.zone_calls:
                    found.setdefault(name, {})[node] = proxy.zone_calls
                    proxy.zone_calls = {}
        return found

    def objectives_of_pools(self) -> ObjectivesOfPools:
        """Counts of pools with objectives of their own, since the start."""
        return {name: pool.objectives for name, pool in self._pools.items() if pool.objectives is not None}

    def tails(self, pool: str) -> tuple[LatencyTail | None, LatencyTail | None]:
        """Recent quantiles of this pool: of whole answers, and of first bytes of streams."""
        known = self._pools.get(pool)
        return (None, None) if known is None else known.tails

    def earlier_s(self, node: str, request: str, began_s: float) -> float:
        """How long before ``began_s`` the first try of this request began; 0 if unknown."""
        return self._first_tries.find(node, request, began_s)[0]

    def began_at_s(self, pool: str, engine: str) -> float | None:
        """When the newest ended call to this engine began; None without calls.

        As its proxy timed it, relative to the arrival of the newest entry of the same message.
        """
        known = self._pools.get(pool)
        record = None if known is None else known.engines.get(engine)
        return None if record is None or record.began_at_s == float("-inf") else record.began_at_s

    def failed_requests(self, pool: str, engine: str, now_s: float) -> tuple[str, ...]:
        """IDs of the newest requests whose failure counts against this engine, newest first."""
        known = self._pools.get(pool)
        record = None if known is None else known.engines.get(engine)
        return () if record is None else record.failed_requests.since(now_s - WINDOW_S)

    def _sweep(self, pool: _Pool, now_s: float) -> None:
        """Drop stale load reports, and proxies that are gone."""
        for node, proxy in list(pool.proxies.items()):
            if proxy.load_at_s is not None and now_s - proxy.load_at_s > STALE_S:
                self._replace_load(pool, proxy, NOTHING)
                proxy.forget_load()
            if now_s - proxy.heard_at_s > _FORGET_S:
                del pool.proxies[node]
        # Their names are bounded by the policies, which may have changed.
        for tenant in [tenant for tenant, window in pool.tenants.items() if window.rates(now_s) is None]:
            del pool.tenants[tenant]


def _record_prefill(counts: PrefillCounts, attempt: Attempt, weight: float, now_s: float) -> None:
    counts.add(named=attempt.prefiller, weight=weight, now_s=now_s)
    # A short prompt is quick anywhere.
    if attempt.streaming and attempt.outcome is AttemptOutcome.SUCCESS and attempt.prefillable:
        counts.add_first_byte(attempt.first_byte_s, named=attempt.prefiller, now_s=now_s)


def _tenant_uses(pool: _Pool, proxies: Mapping[str, ProxyTraffic], now_s: float) -> TenantUses:
    """What tenants ask of the pool, and strangers.

    Whose a call is, is known when it ends. Calls in progress count as those that found no room, which are known at
    once: a surge shows in these first. They also count as strangers, whosever they are: they will take room.
    """
    rates = {tenant: one for tenant, window in pool.tenants.items() if (one := window.rates(now_s)) is not None}
    logged = [one for node in proxies if (one := pool.proxies[node].recent.rates(now_s)) is not None]
    arrived = sum(sum(one.arrivals_per_s.values()) for one in proxies.values())
    begun = max(0.0, arrived - sum(interactive + batch for interactive, batch, *_ in logged))
    shed = sum(interactive + batch for _, _, interactive, batch, _ in logged)
    found = {}
    for tenant, (ended, refused, done, busy, above) in rates.items():
        found[tenant] = TenantUse(
            arrivals_per_s=ended + (begun * refused / shed if shed > 0 else 0.0),
            shed_per_s=refused,
            over_share_per_s=above,
            done_per_s=done,
            busy=busy,
        )
    known = sum(ended - above for ended, _, _, _, above in rates.values())
    return TenantUses(by_tenant=found, strangers_per_s=max(0.0, arrived - known), proxies=len(proxies))


def _traffic(pool: _Pool, now_s: float) -> PoolTraffic | None:
    if now_s - pool.heard_at_s > STALE_S:
        pool.value = None
        return None
    many = len(pool.engines) + len(pool.proxies)
    if many > _UNPACED and pool.value is not None:
        pace_s = min(1.0, 0.25 * many / _UNPACED)
        if now_s - pool.built_at_s < (pace_s / 2 if pool.urgent else pace_s):
            return pool.value
    if now_s - pool.tails_at_s >= _TAILS_EACH_S:
        pool.tails_at_s = now_s
        pool.tails = (pool.answer.tail(now_s), pool.first_byte.tail(now_s))
        pool.prefill_use = None if pool.prefill is None else pool.prefill.use(now_s)
    proxies = {
        node: proxy.traffic(now_s, pool.facts.priority)
        for node, proxy in pool.proxies.items()
        if now_s - proxy.heard_at_s <= STALE_S
    }
    load_known = any(proxy.load_at_s is not None for proxy in proxies.values())
    engines = {name: engine.traffic(now_s, load_known) for name, engine in pool.engines.items()}
    pool.urgent, pool.built_at_s = False, now_s
    answer, first_byte = pool.tails
    before = pool.value
    fresh = PoolTraffic(
        engines=engines,
        proxies=proxies,
        answer=answer,
        first_byte=first_byte,
        heard_at_s=coarse_time(None if before is None else before.heard_at_s, pool.heard_at_s),
        tenants=_tenant_uses(pool, proxies, now_s) if pool.tenants else None,
        prefill=pool.prefill_use,
    )
    if before is None or fresh != before:
        pool.value = fresh
    return pool.value
