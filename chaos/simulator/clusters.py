"""One pool as one proxy has it: who may be picked, what is in flight where, and how many retries run."""

import random
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from chaos.simulator.asking import Try
from chaos.simulator.ejecting import Ejections, HealthLooks
from chaos.simulator.engine import SimulatedEngine
from chaos.simulator.picking import Picker
from chaos.simulator.timeline import Timeline
from chaos.simulator.told import Cluster, Limits, Locality

_NO_LIMITS: Final = Limits()


class SimulatedCluster:
    """``engines`` are those of the pool, by name. ``obey`` before anything else."""

    def __init__(
        self, timeline: Timeline, cluster: Cluster, engines: Mapping[str, SimulatedEngine], rng: random.Random
    ) -> None:
        self.engines = engines
        self.active: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.limits = _NO_LIMITS
        self.localities: tuple[Locality, ...] = ()
        self._timeline = timeline
        self._picker = Picker(cluster, rng)
        self._rng = rng
        self._ejections = None if cluster.outliers is None else Ejections(cluster.outliers, self.hosts)
        self._checks = None if cluster.checks is None else HealthLooks(cluster.checks)
        self._stale = True
        self._in_flight: Counter[bool] = Counter()
        self._retrying: Counter[bool] = Counter()
        self._issued: Counter[str] = Counter()
        self._held: dict[str, set[Try]] = {}
        if self._ejections is not None:
            self._tick(self._ejections)

    def obey(self, localities: tuple[Locality, ...], limits: Limits) -> None:
        """These hosts and limits from now on."""
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
        """All hosts, well or not."""
        return [host.engine for zone in self.localities for host in zone.hosts]

    @property
    def ejected(self) -> tuple[str, ...]:
        """Hosts that this proxy keeps out by its own outlier detection."""
        return () if self._ejections is None else tuple(sorted(self._ejections.out))

    def held(self, engine: str) -> tuple[Try, ...]:
        """The tries that an engine holds, in the order in which they began."""
        return tuple(sorted(self._held.get(engine, ()), key=lambda one: (one.started_s, one.ask.request_id)))

    # -- tries ---------------------------------------------------------------------------------------------

    def choose(self, avoid: Collection[str]) -> str | None:
        """The host for one try; None where none is well."""
        if self._stale:
            self._stale = False
            ejected = set() if self._ejections is None else self._ejections.out
            failed = set() if self._checks is None else self._checks.failed
            self._picker.see(self.localities, ejected | failed)
        return self._picker.choose(self.active, avoid)

    def full(self, *, batch: bool) -> bool:
        """Whether no more requests of this class may be in flight."""
        return self._in_flight[batch] >= (self.limits.batch if batch else self.limits.interactive)

    def opened(self, one: Try) -> None:
        """A try is in flight."""
        self._in_flight[one.ask.batch] += 1
        self.active[one.engine] += 1
        self.sent[one.engine] += 1
        self._issued[one.engine] += 1
        self._held.setdefault(one.engine, set()).add(one)

    def closed(self, one: Try) -> None:
        """It no longer is."""
        self._in_flight[one.ask.batch] -= 1
        self.active[one.engine] -= 1
        self._held[one.engine].discard(one)

    def may_retry(self, *, batch: bool) -> bool:
        """Whether the budget has room for one more."""
        percent = self.limits.retry_percent
        if percent is None:
            return True
        most = max(self.limits.retry_min_concurrency, percent / 100 * self._in_flight[batch])
        return self._retrying[batch] < most

    def retrying(self, by: int, *, batch: bool) -> None:
        """One more retry holds a place in the budget, or one less."""
        self._retrying[batch] += by

    # -- what becomes of them ------------------------------------------------------------------------------

    def connected(self, engine: str) -> None:
        """A connection was made."""
        if self._ejections is not None:
            self._ejections.connected(engine)

    def answered(self, engine: str, status: int) -> None:
        """Headers came."""
        if self._ejections is not None and self._ejections.answered(engine, status, self._timeline.now_s):
            self._stale = True

    def failed(self, engine: str) -> None:
        """None came, and none will."""
        if self._ejections is not None and self._ejections.failed(engine, self._timeline.now_s):
            self._stale = True

    def load(self) -> Mapping[str, tuple[int, int]]:
        """By engine, requests in progress, and those issued since this was asked last."""
        issued, self._issued = self._issued, Counter()
        return {
            engine: (self.active[engine], issued[engine])
            for engine in self.sent
            if self.active[engine] or issued[engine]
        }

    def _tick(self, ejections: Ejections) -> None:
        if ejections.tick(self._timeline.now_s):
            self._stale = True
        self._timeline.after(ejections.rules.interval_s, lambda: self._tick(ejections))

    def _check_after(self, seconds: float, checks: HealthLooks, host: str) -> None:
        self._timeline.after(seconds, lambda: self._check(checks, host))

    def _check(self, checks: HealthLooks, host: str) -> None:
        engine = self.engines[host]
        if checks.look(engine):
            self._stale = True
        silent = engine.listening and (not engine.answers or engine.health == "slow")
        self._check_after(checks.rules.interval_s + (checks.rules.timeout_s if silent else 0.0), checks, host)
