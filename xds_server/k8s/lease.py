"""Leader election by a Lease: at most one replica writes, whatever clocks and networks do.

The holder renews every second. It counts as leader for ``deadline_s`` from when it *sent* its last successful
renewal; a candidate takes over no sooner than ``duration_s`` after it *saw* that renewal, which is later. In
between, no replica writes. Writers check ``holds`` before each write, so that a process suspended for a minute
notices before it acts, not when its timer fires.

Timestamps in the Lease are informational. The holder measures time with two clocks, wall time and a clock that
counts during suspend, and uses the larger elapsed time. A candidate measures how long it has seen no change; a
jumping clock ends no wait.

Release clears the holder; the next candidate takes over at its next read.

Source: Kubernetes API reference, Lease v1 (coordination.k8s.io); client-go's tools/leaderelection.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Self
from uuid import uuid4

import structlog

from xds_server.k8s.api_resources import LEASES
from xds_server.k8s.kube_api import ApiError, KubeApi, KubeObject

DURATION_S: Final = 10.0
"""Takeover delay after the last observed renewal: the cost of a leader crash."""

DEADLINE_S: Final = 6.0
"""Time a holder counts as leader after sending a renewal. The rest of ``DURATION_S`` covers writes in flight."""

POLL_S: Final = 1.0
"""Interval of reads by candidates and renewals by the holder; about the time of a graceful handover."""

_JITTER: Final = 0.2
_LEAST_DURATION_S: Final = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTime:
    """Two clocks at one moment, in seconds: a monotonic one that also counts during suspend, and wall time."""

    awake_s: float
    unix_s: float

    @classmethod
    def now(cls) -> Self:
        """Current time."""
        # CLOCK_MONOTONIC stops during suspend; the Lease does not.
        kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return cls(awake_s=time.clock_gettime(kind), unix_s=time.time())

    def since(self, then: "LeaseTime") -> float:
        """Maximum time that can have passed since ``then``; a clock set back is ignored."""
        return max(self.awake_s - then.awake_s, self.unix_s - then.unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionRecord:
    """Content of a Lease; ``holder`` is empty after release."""

    holder: str
    duration_s: float
    acquired: str
    renewed: str
    transitions: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRecord:
    """A record, and when it was first seen."""

    record: LeaderElectionRecord
    at: LeaseTime


def lease_record(lease: KubeObject) -> LeaderElectionRecord:
    """Parse a Lease; missing or invalid fields count as no holder."""
    spec, metadata = _mapping(lease, "spec"), _mapping(lease, "metadata")
    duration, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    return LeaderElectionRecord(
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=float(duration) if isinstance(duration, int) and duration > 0 else _LEAST_DURATION_S,
        acquired=str(spec.get("acquireTime") or ""),
        renewed=str(spec.get("renewTime") or ""),
        transitions=transitions if isinstance(transitions, int) else 0,
        version=str(metadata.get("resourceVersion") or ""),
    )


def observed_record(known: ObservedRecord | None, record: LeaderElectionRecord, now: LeaseTime) -> ObservedRecord:
    """The record with the time since when it is unchanged."""
    if known is not None and known.record == record:
        return known
    return ObservedRecord(record=record, at=now)


def may_acquire(known: ObservedRecord, identity: str, now: LeaseTime) -> bool:
    """Whether ``identity`` may acquire: it holds the Lease, nothing holds it, or its holder is silent."""
    record = known.record
    if not record.holder or record.holder == identity:
        return True
    # Monotonic clock only: advancing the wall clock is not silence.
    return now.awake_s - known.at.awake_s >= record.duration_s


def lease_spec(known: LeaderElectionRecord | None, identity: str, duration_s: float, now: LeaseTime) -> KubeObject:
    """Spec of a Lease held by ``identity`` from ``now`` on."""
    moment = micro_time(now.unix_s)
    mine = known is not None and known.holder == identity
    before = 0 if known is None else known.transitions
    return {
        "holderIdentity": identity,
        "leaseDurationSeconds": round(duration_s),
        "acquireTime": known.acquired if known is not None and mine and known.acquired else moment,
        "renewTime": moment,
        "leaseTransitions": before if known is None or mine else before + 1,
    }


def micro_time(unix_s: float) -> str:
    """Format a time as Kubernetes MicroTime."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_of(moment: str) -> float:
    """Unix time of a MicroTime; minus infinity if invalid."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimings:
    """Duration of a Lease, deadline of its holder, and poll interval."""

    duration_s: float = DURATION_S
    deadline_s: float = DEADLINE_S
    poll_s: float = POLL_S

    def __post_init__(self) -> None:
        if not self.poll_s < self.deadline_s < self.duration_s:
            raise ValueError("a Lease needs poll_s < deadline_s < duration_s")


DEFAULT_TIMINGS: Final = LeaseTimings()


class LeaderElector:
    """Leader election for one replica; see ``run``."""

    def __init__(
        self,
        api: KubeApi,
        *,
        namespace: str,
        name: str,
        identity: str,
        on_change: Callable[[], None] = lambda: None,
        timings: LeaseTimings = DEFAULT_TIMINGS,
        clock: Callable[[], LeaseTime] = LeaseTime.now,
        rng: random.Random | None = None,
    ) -> None:
        """``on_change`` is called when this replica gains or loses the Lease."""
        self._api = api
        self._namespace = namespace
        self._name = name
        # Distinguishes two replicas configured with the same name.
        self.identity = f"{identity}_{uuid4().hex[:8]}"
        self._on_change = on_change
        self._timings = timings
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads requests, hides nothing
        self._known: ObservedRecord | None = None
        self._renewed: LeaseTime | None = None
        self._reported = False
        self._failure = ""

    @property
    def holder(self) -> str:
        """Current holder as far as known; empty without one."""
        return self._known.record.holder if self._known is not None else ""

    def remaining_s(self) -> float:
        """Seconds this replica may still write without renewal; 0 if it may not."""
        if self._renewed is None:
            return 0.0
        return max(0.0, self._timings.deadline_s - self._clock().since(self._renewed))

    def holds(self) -> bool:
        """Whether this replica may write now. Check before each write."""
        return self.remaining_s() > 0

    async def run(self) -> None:
        """Compete for the Lease until cancelled; then call ``release``."""
        while True:
            await self._attempt()
            self._report_change()
            wait_s = self._timings.poll_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
            await asyncio.sleep(min(wait_s, self.remaining_s() or wait_s))
            self._report_change()

    async def release(self) -> None:
        """Stop holding at once, and clear the holder in the Lease if the server answers."""
        held, self._renewed = self._renewed is not None, None
        self._report_change()
        if not held:
            return
        try:
            async with asyncio.timeout(self._timings.poll_s):
                # Read again: a renewal in flight at cancellation may have arrived.
                record = lease_record(await self._api.get(LEASES, self._namespace, self._name))
                if record.holder == self.identity:
                    mine = lease_spec(record, self.identity, self._timings.duration_s, self._clock())
                    await self._write(record, {**mine, "holderIdentity": ""})
        except (ApiError, TimeoutError) as error:
            _log.warning("lease.not_released", lease=self._name, reason=str(error) or "timeout")

    async def _attempt(self) -> None:
        """Try once to acquire or renew."""
        try:
            # A slower answer would be too late.
            async with asyncio.timeout(self._timings.deadline_s / 2):
                await self._acquire_or_renew(self._clock())
        except ApiError as error:
            # On conflict another replica wrote first; the next read shows its record.
            self._record_failure("" if error.conflict else str(error))
        except TimeoutError:
            self._record_failure("timeout")
        else:
            self._record_failure("")

    async def _acquire_or_renew(self, asked: LeaseTime) -> None:
        try:
            record = lease_record(await self._api.get(LEASES, self._namespace, self._name))
        except ApiError as error:
            if not error.missing:
                raise
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": lease_spec(None, self.identity, self._timings.duration_s, asked),
            }
            made = lease_record(await self._api.create(LEASES, self._namespace, body))
            self._known, self._renewed = ObservedRecord(record=made, at=asked), asked
            return
        self._known = observed_record(self._known, record, self._clock())
        if record.holder != self.identity:
            self._renewed = None  # another replica holds it now
        if may_acquire(self._known, self.identity, self._clock()):
            written = await self._write(record, lease_spec(record, self.identity, self._timings.duration_s, asked))
            self._known, self._renewed = ObservedRecord(record=written, at=asked), asked

    async def _write(self, known: LeaderElectionRecord, wanted: KubeObject) -> LeaderElectionRecord:
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                # Replace only the version that was read: of two simultaneous acquirers, one gets a conflict.
                "resourceVersion": known.version,
            },
            "spec": wanted,
        }
        return lease_record(await self._api.replace(LEASES, self._namespace, self._name, body))

    def _report_change(self) -> None:
        holds = self.holds()
        if holds is not self._reported:
            self._reported = holds
            _log.info("lease.held" if holds else "lease.not_held", lease=self._name, identity=self.identity)
            self._on_change()

    def _record_failure(self, reason: str) -> None:
        if reason and not self._failure:
            _log.warning("lease.unreachable", lease=self._name, reason=reason)
        self._failure = reason


def _mapping(of: KubeObject, key: str) -> Mapping[str, Any]:
    found = of.get(key)
    return found if isinstance(found, Mapping) else {}
