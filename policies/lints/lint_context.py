"""A pool with its effective policy, as the lint rules see it, and findings about it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from policies.findings import Finding
from policies.merge import setter
from policies.model import PolicySet
from policies.origin import Origin
from policies.pool import EnginePoolSpec
from policies.resilience import ResilienceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LintContext:
    """A pool: its own fields (``pool``) and its effective policy (``spec``)."""

    policies: PolicySet
    name: str
    pool: EnginePoolSpec
    spec: ResilienceSpec

    @property
    def slots(self) -> int:
        """Requests that all engines of the pool run at once."""
        return sum(one.slots or self.pool.slots_per_engine for one in self.pool.endpoints)

    @property
    def longest_s(self) -> float:
        """Longest time a healthy request holds a slot, in seconds."""
        return self.pool.longest_s

    @property
    def wait_s(self) -> float:
        """Longest time the limits let a request wait for a slot, in seconds."""
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
        """The field that sets the admission limit."""
        limits = self.spec.limits
        if limits.max_concurrent is not None:
            return "spec.limits.maxConcurrent"
        return "spec.limits.maxWait" if limits.concurrent_per_slot is None else "spec.limits.concurrentPerSlot"

    @property
    def stream_deadline_s(self) -> float:
        """Deadline of a stream in seconds; infinite when off."""
        return self.spec.timeouts.streaming.total or math.inf

    @property
    def unary_deadline_s(self) -> float:
        """Deadline of a non-streaming request in seconds; infinite when off."""
        return self.spec.timeouts.non_streaming.total or math.inf

    @property
    def tries(self) -> int:
        """Most engines that one request may run on."""
        attempts, hedging = self.spec.retries.attempts, self.spec.hedging
        # While hedging is on, perRequest limits hedges and retries together; otherwise attempts does.
        return 1 + (max(attempts, hedging.per_request) if hedging.enabled else attempts)

    def declares(self, path: str) -> bool:
        """Whether a policy sets this field; otherwise it has the built-in default."""
        return setter(self.policies, self.name, path) is not None

    def policy(self, code: str, path: str, message: str, fix: str, *, causes: Sequence[str] = ()) -> Finding:
        """About a field of the effective policy, at the line that sets it.

        A built-in default has no line. Then it is at the first of ``causes`` that is written, fields of the policy
        or the pool whose values make the default matter; else at the name of the pool.
        """
        origin = next(filter(None, map(self._origin, (path, *causes))), None)
        origin = origin or self.policies.origin("EnginePool", self.name, "metadata.name")
        return Finding(code=code, origin=origin, path=path, message=f"pool {self.name}: {message}", fix=fix)

    def _origin(self, path: str) -> Origin | None:
        """The line that sets this field of a policy or of the pool; None for a built-in default."""
        name = setter(self.policies, self.name, path)
        document = f"EnginePool/{self.name}" if name is None else f"ResiliencePolicy/{name}"
        return self.policies.origins.get(f"{document}.{path}")

    def engines(self, code: str, path: str, message: str, fix: str) -> Finding:
        """About a field of the pool itself."""
        origin = self.policies.origin("EnginePool", self.name, path)
        return Finding(code=code, origin=origin, path=path, message=f"pool {self.name}: {message}", fix=fix)


def has_verdicts(pool: EnginePoolSpec) -> bool:
    """Whether a prober or agents report on the engines of the pool."""
    found = pool.kubernetes is not None and pool.kubernetes.agent_port is not None
    return pool.probe.enabled or found or any(one.agent_port is not None for one in pool.endpoints)


PoolRule: TypeAlias = Callable[[LintContext], Iterator[Finding]]
SetRule: TypeAlias = Callable[[PolicySet], Iterator[Finding]]
