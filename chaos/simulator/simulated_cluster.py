"""One pool in one proxy: host selection, requests in flight, and running retries."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from chaos.simulator.envoy_health import ActiveHealthChecker, OutlierDetector
from chaos.simulator.hash_table import HashTable, hash_table
from chaos.simulator.proxied_request import UpstreamAttempt
from chaos.simulator.proxy_config import ClusterConfig, LocalityConfig, RequestLimits, UpstreamHost
from chaos.simulator.simulated_clock import SimulatedClock
from chaos.simulator.simulated_engine import SimulatedEngine

_ZoneHosts: TypeAlias = tuple[float, list[UpstreamHost], bool]
"""Share of the requests, usable hosts, and whether these have equal weights."""

_HASH_BITS: Final = 64

_ATTEMPTS = 100
"""Picks after which a retry accepts an engine that was already tried."""


@dataclass(slots=True, eq=False)
class HostPicker:
    """Call ``update_hosts`` first, and again when hosts or their health change; then ``choose``."""

    cluster: ClusterConfig
    rng: random.Random
    _levels: list[tuple[float, list[_ZoneHosts]]] = field(default_factory=list)
    _turn: int = 0

    def update_hosts(self, localities: tuple[LocalityConfig, ...], out: Collection[str]) -> None:
        """Set the hosts, and those that the proxy itself ejects."""
        self._levels, left = [], 1.0
        for priority in sorted({one.priority for one in localities}):
            level = [one for one in localities if one.priority == priority]
            zones = self._zones(level, out)
            if zones and left > 0:
                healthy = sum(len(hosts) for _, hosts, _ in zones)
                share = healthy * level[0].overprovisioning / sum(len(one.hosts) for one in level)
                self._levels.append((min(left, share), zones))
                left -= share

    def _zones(self, localities: Sequence[LocalityConfig], out: Collection[str]) -> list[_ZoneHosts]:
        found: list[_ZoneHosts] = []
        for one in localities:
            if one.weight is None or not one.hosts:
                continue
            well = [host for host in one.hosts if host.healthy and host.engine not in out]
            if 100 * len(well) < self.cluster.panic_percent * len(one.hosts):
                # Panic mode: too few healthy hosts to trust health.
                well = list(one.hosts)
            if well:
                # A zone's weight shrinks with its share of healthy hosts; decisions take that into account.
                # Where Envoy hashes it does not do that, and the configured weights have it.
                hashed = self.cluster.bound_percent is not None
                healthy = 1.0 if hashed else min(1.0, one.overprovisioning * len(well) / len(one.hosts))
                share = one.weight * healthy
                alike = len({host.weight for host in well}) == 1
                found.append((share, well, alike))
        return found

    def choose(self, active: Mapping[str, int], avoid: Collection[str], key: int | None = None) -> str | None:
        """Host for one attempt, of this key if the cluster hashes; None if none is healthy."""
        if not self._levels:
            return None
        if self.cluster.bound_percent is not None:
            place = self.rng.getrandbits(_HASH_BITS) if key is None else key
            table = self._table(place)
            for attempt in range(_ATTEMPTS if avoid else 1):
                found = table.choose(place, attempt, active, self.cluster.bound_percent)
                if found not in avoid:
                    break
            return found
        for _ in range(_ATTEMPTS if avoid else 1):
            found = self._once(active)
            if found not in avoid:
                break
        return found

    def _table(self, place: int) -> HashTable:
        """The table of the level that the hash falls into."""
        shares = [share for share, _ in self._levels]
        at = sum(shares) * (place % 100) / 100
        level = next((n for n, share in enumerate(itertools.accumulate(shares)) if at < share), len(shares) - 1)
        return hash_table(
            tuple(
                (host.engine, share * host.weight / sum(one.weight for one in hosts))
                for share, hosts, _ in self._levels[level][1]
                for host in hosts
            )
        )

    def has(self, engine: str, localities: Sequence[LocalityConfig], out: Collection[str]) -> bool:
        """Whether a session may ask for this host: it is healthy or draining."""
        return engine not in out and any(
            host.engine == engine and (host.healthy or host.draining) for one in localities for host in one.hosts
        )

    def _once(self, active: Mapping[str, int]) -> str:
        _, zones = (
            self._levels[0]
            if len(self._levels) == 1
            else self.rng.choices(self._levels, [share for share, _ in self._levels])[0]
        )
        _, hosts, alike = (
            zones[0] if len(zones) == 1 else self.rng.choices(zones, [share for share, _, _ in zones])[0]
        )
        if self.cluster.round_robin:
            self._turn += 1
            return hosts[self._turn % len(hosts)].engine
        if not alike:
            weights = [host.weight / (active.get(host.engine, 0) + 1) for host in hosts]
            return self.rng.choices(hosts, weights)[0].engine
        some = (hosts[int(self.rng.random() * len(hosts))].engine for _ in range(self.cluster.choices))
        return min(some, key=lambda engine: active.get(engine, 0))


_NO_LIMITS: Final = RequestLimits()


class SimulatedCluster:
    """``engines`` are the pool's, by name. Call ``apply_config`` first."""

    def __init__(
        self,
        timeline: SimulatedClock,
        cluster: ClusterConfig,
        engines: Mapping[str, SimulatedEngine],
        rng: random.Random,
    ) -> None:
        self.engines = engines
        self._connections = cluster.connections
        self._connected: Counter[str] = Counter()
        self._pending: list[tuple[UpstreamAttempt, Callable[[], None]]] = []
        self.active: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.limits = _NO_LIMITS
        self.localities: tuple[LocalityConfig, ...] = ()
        self._timeline = timeline
        self._cluster = cluster
        self._pickers: dict[frozenset[str] | None, HostPicker] = {}
        self._rng = rng
        self._ejections = None if cluster.outliers is None else OutlierDetector(cluster.outliers, self.hosts)
        self._checks = None if cluster.checks is None else ActiveHealthChecker(cluster.checks)
        self._stale = True
        self._fresh: set[frozenset[str] | None] = set()
        self._in_flight: Counter[bool] = Counter()
        self._retrying: Counter[bool] = Counter()
        self._issued: Counter[str] = Counter()
        self._held: dict[str, set[UpstreamAttempt]] = {}
        if self._ejections is not None:
            self._tick(self._ejections)

    def apply_config(self, localities: tuple[LocalityConfig, ...], limits: RequestLimits) -> None:
        """Set hosts and limits."""
        first = not self.localities
        self.limits = limits
        if localities is not self.localities:
            self.localities = localities
            if self._ejections is not None:
                self._ejections.forget(self.hosts())
            self._stale = True
        if first and self._checks is not None:
            for host in self.hosts():
                self._check_after(self._rng.random() * self._checks.rules.interval_s, self._checks, host)

    def hosts(self) -> list[str]:
        """All hosts, healthy or not."""
        return [host.engine for zone in self.localities for host in zone.hosts]

    @property
    def ejected(self) -> tuple[str, ...]:
        """Hosts ejected by this proxy's outlier detection."""
        return () if self._ejections is None else tuple(sorted(self._ejections.out))

    def held(self, engine: str) -> tuple[UpstreamAttempt, ...]:
        """Attempts in flight at an engine, oldest first."""
        return tuple(sorted(self._held.get(engine, ()), key=lambda one: (one.started_s, one.ask.request_id)))

    # -- tries ---------------------------------------------------------------------------------------------

    def choose(
        self,
        avoid: Collection[str],
        *,
        key: int | None = None,
        wanted: str = "",
        among: frozenset[str] | None = None,
    ) -> str | None:
        """Host for one attempt: the ``wanted`` one if it is there, else by ``key``; None if none is healthy.

        ``among``: the subset that the route selects; None: all hosts.
        """
        ejected = set() if self._ejections is None else self._ejections.out
        failed = set() if self._checks is None else self._checks.failed
        if self._stale:
            self._stale = False
            self._fresh.clear()
        localities = self.localities
        if among is not None:
            localities = tuple(
                replace(one, hosts=tuple(host for host in one.hosts if host.engine in among)) for one in localities
            )
        if among not in self._fresh:
            if among not in self._pickers:
                # Subsets of earlier lists are not asked for again.
                self._pickers = {known: one for known, one in self._pickers.items() if known is None}
                self._fresh.intersection_update(self._pickers)
                self._pickers[among] = HostPicker(self._cluster, self._rng)
            self._fresh.add(among)
            self._pickers[among].update_hosts(localities, ejected | failed)
        picker = self._pickers[among]
        if wanted and picker.has(wanted, localities, ejected | failed):
            return wanted
        return picker.choose(self.active, avoid, key)

    def full(self, *, batch: bool) -> bool:
        """Whether the limit of this class is reached."""
        return self._in_flight[batch] >= (self.limits.batch if batch else self.limits.interactive)

    def connection(self, one: UpstreamAttempt, send: Callable[[], None]) -> None:
        """Send an attempt when it has a connection; call ``no_connection`` first."""
        if self._may_connect(one.engine):
            self._connected[one.engine] += 1
            send()
        else:
            self._pending.append((one, send))

    def no_connection(self, engine: str) -> bool:
        """Whether an attempt at this engine gets no connection and may not wait for one."""
        return not self._may_connect(engine) and len(self._pending) >= self._connections

    def _may_connect(self, engine: str) -> bool:
        # Envoy opens one connection to each host even above the limit (ConnPoolImplBase).
        return self._connected.total() < self._connections or not self._connected[engine]

    def _disconnected(self, one: UpstreamAttempt) -> None:
        waiting = next((place for place, (other, _) in enumerate(self._pending) if other is one), None)
        if waiting is not None:
            del self._pending[waiting]
            return
        self._connected[one.engine] -= 1
        for place, (other, send) in enumerate(self._pending):
            if self._may_connect(other.engine):
                del self._pending[place]
                self._connected[other.engine] += 1
                send()
                return

    def opened(self, one: UpstreamAttempt) -> None:
        """Count an attempt in flight."""
        self._in_flight[one.ask.batch] += 1
        self.active[one.engine] += 1
        self.sent[one.engine] += 1
        self._issued[one.engine] += 1
        self._held.setdefault(one.engine, set()).add(one)

    def closed(self, one: UpstreamAttempt) -> None:
        """Count the end of an attempt."""
        self._in_flight[one.ask.batch] -= 1
        self.active[one.engine] -= 1
        self._held[one.engine].discard(one)
        self._disconnected(one)

    def may_retry(self, *, batch: bool) -> bool:
        """Whether the retry budget allows one more."""
        percent = self.limits.retry_percent
        if percent is None:
            return True
        most = max(self.limits.retry_min_concurrency, percent / 100 * self._in_flight[batch])
        return self._retrying[batch] < most

    def retrying(self, by: int, *, batch: bool) -> None:
        """Add or remove running retries."""
        self._retrying[batch] += by

    # -- what becomes of them ------------------------------------------------------------------------------

    def connected(self, engine: str) -> None:
        """Record a connection."""
        if self._ejections is not None:
            self._ejections.connected(engine)

    def answered(self, engine: str, status: int) -> None:
        """Record response headers."""
        if self._ejections is not None and self._ejections.answered(engine, status, self._timeline.now_s):
            self._stale = True

    def failed(self, engine: str) -> None:
        """Record a failure before headers."""
        if self._ejections is not None and self._ejections.failed(engine, self._timeline.now_s):
            self._stale = True

    def load(self) -> Mapping[str, tuple[int, int]]:
        """By engine: requests in progress, and those issued since the last call."""
        issued, self._issued = self._issued, Counter()
        return {
            engine: (self.active[engine], issued[engine])
            for engine in self.sent
            if self.active[engine] or issued[engine]
        }

    def _tick(self, ejections: OutlierDetector) -> None:
        if ejections.tick(self._timeline.now_s):
            self._stale = True
        self._timeline.after(ejections.rules.interval_s, lambda: self._tick(ejections))

    def _check_after(self, seconds: float, checks: ActiveHealthChecker, host: str) -> None:
        self._timeline.after(seconds, lambda: self._check(checks, host))

    def _check(self, checks: ActiveHealthChecker, host: str) -> None:
        engine = self.engines[host]
        if checks.probe(engine):
            self._stale = True
        silent = engine.listening and (not engine.answers or engine.health == "slow")
        self._check_after(checks.rules.interval_s + (checks.rules.timeout_s if silent else 0.0), checks, host)
