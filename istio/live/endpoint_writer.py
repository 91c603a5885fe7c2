"""Reconciles Istio's objects with the desired state while the Lease is held: I/O around ``write_plan``.

Level-triggered: each round compares desired with actual objects and writes the difference in order, within the
rate limit. Refused writes are retried with backoff. If the API server is lost, objects stay as last written;
requests are not affected and Envoy's own outlier detection still works.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from istio.live.desired_state import (
    MANAGED_LABEL,
    MANAGER,
    NOTHING_DESIRED,
    SERVING_LABEL,
    DesiredState,
    serving_entry,
)
from istio.live.write_plan import (
    ApplyEntry,
    MarkPod,
    RemoveEntry,
    RestoreEntry,
    UnmarkPod,
    Write,
    write_plan,
    write_text,
)
from xds_server.k8s.api_resources import PODS, ApiResource
from xds_server.k8s.kube_api import ApiError, KubeApi, KubeObject, ObjectSelector
from xds_server.k8s.lease import LeaderElector
from xds_server.k8s.reflector import Reflector, ReflectorHandlers
from xds_server.model.backoff import ExponentialBackoff
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

WORKLOAD_ENTRIES: Final = ApiResource(
    group="networking.istio.io", version="v1", plural="workloadentries", kind="WorkloadEntry"
)
EXPORTER: Final = "switchgear"
"""Value of the same label written by `switchgear export istio`."""

RECONCILE_INTERVAL_S: Final = 0.25
"""Longest time between two rounds: an ejected engine is gone within a second, istiod's push included."""

RATE: Final = RateLimit(burst=50, per_s=10)
"""A third of a fleet can be ejected at once; flapping is rate-limited."""

_ECHO_S: Final = 2.0
"""How long the watch may take to show what was written before it is written again."""

_RETRY: Final = ExponentialBackoff(first_s=0.5, most_s=30.0)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBackoff:
    """Consecutive refusals of a write (0: it succeeded), and when (monotonic) it may be retried."""

    times: int
    until_s: float


@dataclass(slots=True)
class WriteCounts:
    """Counts since the start."""

    written: int = 0
    refused: int = 0
    held_back: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class EndpointWriter:
    """One replica's writer of Istio objects; see ``run``.

    ``wanted`` returns the desired state; None while unknown, then nothing is written. With ``dry_run`` nothing is
    written, and each write that would be made is reported once through ``tell``.
    """

    def __init__(
        self,
        api: KubeApi,
        lease: LeaderElector,
        wanted: Callable[[], DesiredState | None],
        *,
        namespaces: tuple[str, ...] = (),
        rate: RateLimit = RATE,
        dry_run: bool = False,
        tell: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._lease = lease
        self._wanted = wanted
        self._rate = rate
        self._dry_run = dry_run
        self._tell = tell
        self._clock = clock
        self._wake = asyncio.Event()
        self._bucket: TokenBucket | None = None
        self._setbacks: dict[str, WriteBackoff] = {}
        self._said: frozenset[str] = frozenset()
        self.counts = WriteCounts()
        self._pods = [self._reflector(PODS, one, SERVING_LABEL) for one in namespaces or ("",)]
        self._entries = [
            self._reflector(WORKLOAD_ENTRIES, one, f"{MANAGED_LABEL} in ({MANAGER},{EXPORTER})")
            for one in namespaces or ("",)
        ]

    def _reflector(self, resource: ApiResource, namespace: str, labels: str) -> Reflector[KubeObject]:
        return Reflector(
            self._api,
            ObjectSelector(resource=resource, namespace=namespace, labels=labels),
            lambda found: found,
            ReflectorHandlers(on_change=lambda *_: self._wake.set()),
        )

    async def run(self) -> None:
        """Sync until cancelled; then release the Lease and leave objects as they are."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lease.run(), name="lease")
                for reflector in (*self._pods, *self._entries):
                    tasks.create_task(reflector.run(), name=f"watch {reflector.selector.resource.plural}")
                tasks.create_task(self._reconcile_forever(), name="istio")
        finally:
            await self._lease.release()

    async def remove(self) -> int:
        """Remove all our objects and return the number of writes; ``ApiError`` if one is refused."""
        async with asyncio.TaskGroup() as tasks:
            watches = [tasks.create_task(reflector.run()) for reflector in (*self._pods, *self._entries)]
            while not self._known():
                await asyncio.sleep(RECONCILE_INTERVAL_S / 10)
            writes = write_plan(NOTHING_DESIRED, self._all(self._pods), self._all(self._entries))
            try:
                for write in writes:
                    self._tell(write_text(write))
                    if not self._dry_run:
                        await self._do(write)
            finally:
                for watch in watches:
                    watch.cancel()
        return len(writes)

    async def _reconcile_forever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECONCILE_INTERVAL_S):
                    await self._wake.wait()
            self._wake.clear()
            await self.reconcile()

    def _known(self) -> bool:
        return all(reflector.complete for reflector in (*self._pods, *self._entries))

    async def reconcile(self) -> None:
        """Write the differences; nothing without the Lease, or before all watches are in sync."""
        if not self._known() or not (self._dry_run or self._lease.holds()):
            return
        want = self._wanted()
        if want is None:
            return
        writes = write_plan(want, self._all(self._pods), self._all(self._entries))
        due = {write_text(write): write for write in writes}
        self._setbacks = {line: one for line, one in self._setbacks.items() if line in due}
        if self._dry_run:
            for line in due.keys() - self._said:
                self._tell(f"would: {line}")
            self._said = frozenset(due)
            return
        for line, write in due.items():
            now_s = self._clock()
            held = self._setbacks.get(line)
            if held is not None and now_s < held.until_s:
                continue
            bucket = take_token(self._bucket, self._rate, now_s)
            if bucket is None:
                self.counts.held_back += 1
                return
            self._bucket = bucket
            # Check before each write: after a stall another replica may be the writer.
            if not self._lease.holds():
                return
            await self._attempt(line, write)

    async def _attempt(self, line: str, write: Write) -> None:
        try:
            await self._do(write)
        except ApiError as error:
            times = self._setbacks[line].times + 1 if line in self._setbacks else 1
            pause_s = error.retry_after_s or _RETRY.wait_s(times)
            self._setbacks[line] = WriteBackoff(times=times, until_s=self._clock() + pause_s)
            self.counts.refused += 1
            if times == 1:
                _log.warning("istio.refused", write=line, reason=str(error), again_in_s=pause_s)
        else:
            self._setbacks[line] = WriteBackoff(times=0, until_s=self._clock() + _ECHO_S)
            self.counts.written += 1
            kind = type(write).__name__
            self.counts.by_kind[kind] = self.counts.by_kind.get(kind, 0) + 1
            _log.info("istio.told", write=line)

    async def _do(self, write: Write) -> None:
        match write:
            case MarkPod(mark=mark):
                label = {SERVING_LABEL: "true" if mark.serving else "false"}
                await self._apply_to_pod(mark.namespace, mark.name, mark.uid, {"labels": label})
            case UnmarkPod(namespace=namespace, name=name, uid=uid):
                # Applying nothing gives up what was applied before: the label goes, and nothing else.
                await self._apply_to_pod(namespace, name, uid, {})
            case ApplyEntry(entry=entry, whole=whole):
                body = entry.body() if whole else entry.adjustment()
                await self._api.apply(WORKLOAD_ENTRIES, entry.namespace, entry.name, body, manager=MANAGER)
            case RestoreEntry(namespace=namespace, name=name):
                body = serving_entry(namespace, name)
                await self._api.apply(WORKLOAD_ENTRIES, namespace, name, body, manager=MANAGER)
            case RemoveEntry(namespace=namespace, name=name):
                await self._api.delete(WORKLOAD_ENTRIES, namespace, name)

    async def _apply_to_pod(self, namespace: str, name: str, uid: str, metadata: Mapping[str, object]) -> None:
        # With the uid: a pod that is gone is not made again by an apply, nor is another of its name touched.
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, **metadata},
        }
        await self._api.apply(PODS, namespace, name, body, manager=MANAGER)

    @staticmethod
    def _all(reflectors: list[Reflector[KubeObject]]) -> Mapping[tuple[str, str], KubeObject]:
        return {key: found for reflector in reflectors for key, found in _by_name(reflector)}


def _by_name(reflector: Reflector[KubeObject]) -> list[tuple[tuple[str, str], KubeObject]]:
    return [((str(key[0]), str(key[1])), found) for key, found in reflector.objects.items()]
