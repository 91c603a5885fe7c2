"""Envoy's outlier detection and health checks of one cluster, as one proxy sees it.

Source: Envoy's documentation of outlier detection, and measurements of Envoy 1.40 (docs/simulator.md).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.simulator.proxy_config import HealthCheckConfig, OutlierDetectionConfig
from chaos.simulator.simulated_engine import SimulatedEngine


@dataclass(slots=True, eq=False)
class _Host:
    in_a_row: int = 0
    local_in_a_row: int = 0
    calls: int = 0
    failures: int = 0
    ejected_at_s: float | None = None
    times: int = 0


class OutlierDetector:
    """Feed it the results of calls, and call ``tick`` every interval; ``out`` are the ejected hosts."""

    def __init__(self, rules: OutlierDetectionConfig, hosts: Callable[[], Sequence[str]]) -> None:
        self.rules = rules
        self._hosts = hosts
        self._known: dict[str, _Host] = {}
        self.out: set[str] = set()

    def connected(self, host: str) -> None:
        """Record a connection: with split errors, a success of local origin."""
        if self.rules.split and (known := self._known.get(host)) is not None:
            known.local_in_a_row = 0

    def answered(self, host: str, status: int, now_s: float) -> bool:
        """Record response headers; return whether they eject the host."""
        known = self._known.setdefault(host, _Host())
        known.calls += 1
        if status not in self.rules.statuses:
            known.in_a_row = 0
            if not self.rules.split:
                known.local_in_a_row = 0
            return False
        known.failures += 1
        known.in_a_row += 1
        if self.rules.local_as_gateway:
            # Any other answer is not a gateway failure.
            known.local_in_a_row = 0
        return (
            bool(self.rules.consecutive) and known.in_a_row >= self.rules.consecutive and self._eject(host, now_s)
        )

    def failed(self, host: str, now_s: float) -> bool:
        """Record a refusal, reset or timeout before headers; return whether it ejects the host."""
        rules, known = self.rules, self._known.setdefault(host, _Host())
        if rules.split or rules.local_as_gateway:
            known.local_in_a_row += 1
            if rules.consecutive_local and known.local_in_a_row >= rules.consecutive_local:
                return self._eject(host, now_s)
            if rules.split:
                return False
        known.calls += 1
        known.failures += 1
        known.in_a_row += 1
        return bool(rules.consecutive) and known.in_a_row >= rules.consecutive and self._eject(host, now_s)

    def tick(self, now_s: float) -> bool:
        """Return hosts whose ejection has ended, and check failure shares; return whether anything changed."""
        changed, rules = False, self.rules
        for host, known in self._known.items():
            if known.ejected_at_s is not None:
                held_s = min(rules.base_ejection_s * known.times, rules.max_ejection_s)
                if now_s - known.ejected_at_s >= held_s - 1e-9:
                    known.ejected_at_s = None
                    known.in_a_row = known.local_in_a_row = 0
                    self.out.discard(host)
                    changed = True
            elif known.times:
                known.times -= 1
            if (
                rules.failure_percent
                and known.calls >= rules.failure_volume
                and 100 * known.failures >= rules.failure_percent * known.calls
            ):
                changed |= self._eject(host, now_s)
            known.calls = known.failures = 0
        return changed

    def forget(self, hosts: Sequence[str]) -> None:
        """Forget hosts not in this list; a returning host is a new one."""
        for gone in [host for host in self._known if host not in hosts]:
            del self._known[gone]
            self.out.discard(gone)

    def _eject(self, host: str, now_s: float) -> bool:
        known = self._known[host]
        known.in_a_row = known.local_in_a_row = 0
        total = len(self._hosts())
        if known.ejected_at_s is not None or 100 * (len(self.out) + 1) > self.rules.max_ejection_percent * total:
            return False
        known.ejected_at_s = now_s
        known.times += 1
        self.out.add(host)
        return True


class ActiveHealthChecker:
    """One proxy's active health checks; ``failed`` are the unhealthy hosts."""

    def __init__(self, rules: HealthCheckConfig) -> None:
        self.rules = rules
        self._in_a_row: dict[str, int] = {}
        self.failed: set[str] = set()

    def probe(self, engine: SimulatedEngine) -> bool:
        """Check one engine; return whether its state changed. A status other than 200 counts at once."""
        name = engine.name
        well = engine.answers and engine.health == "ok"
        at_once = engine.answers and engine.health == "fail"
        before = self._in_a_row.get(name, 0)
        row = self._in_a_row[name] = (max(before, 0) + 1) if well else (min(before, 0) - 1)
        if well and name in self.failed and row >= self.rules.healthy_after:
            self.failed.discard(name)
            return True
        if not well and name not in self.failed and (at_once or -row >= self.rules.unhealthy_after):
            self.failed.add(name)
            return True
        return False
