"""What the lint rules share: a pool with its effective policy, and how a finding is said about it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from policies.findings import Finding
from policies.merge import setter
from policies.model import PolicySet
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LintContext:
    """A pool, what it says of itself (``pool``) and what its policies come to (``spec``)."""

    policies: PolicySet
    name: str
    pool: EnginePoolSpec
    spec: ResilienceSpec

    @property
    def slots(self) -> int:
        """Requests all engines of the pool run at once."""
        return sum(one.slots or self.pool.slots_per_engine for one in self.pool.endpoints)

    @property
    def longest_s(self) -> float:
        """Longest time a healthy request holds a slot."""
        return self.pool.longest_s

    @property
    def wait_s(self) -> float:
        """How long the pool's limits let a request wait for a slot."""
        limits = self.spec.limits
        if limits.max_concurrent is not None:
            per_slot = limits.max_concurrent / self.slots if self.slots else 1.0
        elif limits.concurrent_per_slot is not None:
            per_slot = limits.concurrent_per_slot
        else:
            return limits.max_wait
        return max(0.0, per_slot - 1) * self.pool.service_time

    @property
    def limit_path(self) -> str:
        """The field that decides how much is let in."""
        limits = self.spec.limits
        if limits.max_concurrent is not None:
            return "spec.limits.maxConcurrent"
        return "spec.limits.maxWait" if limits.concurrent_per_slot is None else "spec.limits.concurrentPerSlot"

    @property
    def stream_deadline_s(self) -> float:
        """Longest a stream may last; infinite when off."""
        return self.spec.timeouts.streaming.total or math.inf

    @property
    def unary_deadline_s(self) -> float:
        """Longest a non-streaming request may take; infinite when off."""
        return self.spec.timeouts.non_streaming.total or math.inf

    @property
    def tries(self) -> int:
        """Engines one request may be tried on."""
        attempts, hedging = self.spec.retries.attempts, self.spec.hedging
        # While hedging is on, perRequest limits hedges and retries together; otherwise attempts does.
        return 1 + (max(attempts, hedging.per_request) if hedging.enabled else attempts)

    def declares(self, path: str) -> bool:
        """Whether a policy of the operator's sets this field, rather than the built-in default."""
        return setter(self.policies, self.name, path) is not None

    def policy(self, code: str, path: str, message: str, fix: str) -> Finding:
        """About a field of the effective policy, at the layer that set it; at the pool for a built-in default."""
        name = setter(self.policies, self.name, path)
        if name is None:
            origin = self.policies.origin("EnginePool", self.name)
        else:
            origin = self.policies.origins.get(f"ResiliencePolicy/{name}.{path}")
        return Finding(code=code, origin=origin, path=path, message=f"pool {self.name}: {message}", fix=fix)

    def engines(self, code: str, path: str, message: str, fix: str) -> Finding:
        """About a field of the pool itself."""
        origin = self.policies.origin("EnginePool", self.name, path)
        return Finding(code=code, origin=origin, path=path, message=f"pool {self.name}: {message}", fix=fix)


PoolRule: TypeAlias = Callable[[LintContext], Iterator[Finding]]
SetRule: TypeAlias = Callable[[PolicySet], Iterator[Finding]]
