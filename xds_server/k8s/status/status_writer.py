"""Writes status, events and readiness gates to the cluster while this replica is the leader.

Level-triggered: each cycle computes the desired state and writes only differences from what was last read. The
Lease is checked before each write. A status replaces the version that was read, so that of two writers one gets a
conflict. Proxies do not depend on this: they are served the same if writes fail.

After a conflict the object is read again. A failure that an operator must fix (missing permission or CRD) is
logged once and retried slowly. Retry-After is respected.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from xds_server.k8s.api_resources import EVENTS, PODS, POLICY_RESOURCES
from xds_server.k8s.kube_api import ApiError, KubeApi, KubeObject
from xds_server.k8s.lease import DEADLINE_S, DURATION_S, POLL_S, LeaderElector
from xds_server.k8s.policy_object import ACCEPTED, PolicyObject
from xds_server.k8s.status.event_recorder import (
    EventRecorder,
    KubeEvent,
    acceptance_event,
    event_for,
    event_object,
    repeat_patch,
)
from xds_server.k8s.status.object_status import condition, status_of
from xds_server.k8s.status.readiness_gate import ReadinessGate, condition_patch, is_current, readiness_gates
from xds_server.k8s.status.write_context import WriteContext
from xds_server.k8s.status.write_target import WriteTarget, backoff_after, retained_targets
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

EACH_S: Final = 0.5
"""Maximum time between cycles."""

SPACING_S: Final = 1.0
"""Minimum time between writes to one object: counts of a failing pool change many times a second."""

SETTLE_S: Final = 1.0
"""Wait before writing about a new generation: serving it takes a round, and until then the state of proxies
concerns the previous one.
"""

REQUESTS: Final = RateLimit(burst=60, per_s=10)

_MARGIN_S: Final = (DURATION_S - DEADLINE_S) / 2
"""Time for a write in flight after leadership ends; no other replica starts before."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """Lease of the leader, and the identity of this candidate."""

    namespace: str
    lease: str
    identity: str


class _EnoughError(Exception):
    """No further requests in this cycle."""


class StatusWriter:
    """Writer of one replica; see ``run``."""

    def __init__(
        self,
        api: KubeApi,
        writing: LeaderElectionConfig,
        scene: Callable[[int], WriteContext | None],
        *,
        lease: LeaderElector | None = None,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``scene`` returns the current state with the ledger events after a number; None before a round."""
        self._api = api
        self._writing = writing
        self._scene = scene
        self._clock = clock
        self._wall = wall
        self._wake = asyncio.Event()
        self._lease = lease or LeaderElector(
            api,
            namespace=writing.namespace,
            name=writing.lease,
            identity=writing.identity,
            on_change=self.request_write,
        )
        self._settle_s = settle_s
        self._generations: dict[str, tuple[int, float]] = {}
        self._targets: dict[str, WriteTarget] = {}
        self._tellings = EventRecorder()
        self._after: int | None = None
        self._bucket: TokenBucket | None = None
        self._not_before_s = float("-inf")
        self._failures = 0
        self._said: set[tuple[str, int]] = set()

    @property
    def holds(self) -> bool:
        """Whether this replica is the leader."""
        return self._lease.holds()

    @property
    def holder(self) -> str:
        """The leader as far as known; empty without one."""
        return self._lease.holder

    def request_write(self) -> None:
        """Note that the desired state may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled; then release the Lease."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lease.run(), name="lease")
                tasks.create_task(self._write(), name="writing")
        finally:
            await self._lease.release()

    async def _write(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EACH_S):
                    await self._wake.wait()
            self._wake.clear()
            await self.write_once()

    async def write_once(self) -> None:
        """Write current differences; does nothing without the Lease."""
        if not self._lease.holds():
            # The other leader writes, too: drop the cache.
            self._targets, self._after = {}, None
            self._tellings.clear()
            return
        scene = self._scene(0 if self._after is None else self._after)
        if scene is None:
            return
        self._listen(scene)
        if self._clock() < self._not_before_s:
            return
        wanted = (
            readiness_gates(scene.fleet, scene.engines, scene.pods, scene.now_s) if scene.fleet is not None else ()
        )
        self._targets = retained_targets(
            self._targets, {*map(_key, scene.objects), *(pod.uid for pod in scene.pods.values() if pod.has_gate)}
        )
        with contextlib.suppress(_EnoughError):
            for one in self._settled(scene):
                await self._status(one, scene)
            for gate in wanted:
                await self._gate(gate)
            await self._tell_all(self._tellings.due(self._clock()))

    async def _tell_all(self, due: Sequence[KubeEvent]) -> None:
        for place, telling in enumerate(due):
            try:
                await self._tell(telling)
            except _EnoughError:
                for left in due[place + 1 :]:
                    self._tellings.requeue(left)
                raise

    def _settled(self, scene: WriteContext) -> Sequence[PolicyObject]:
        """Objects whose latest generation has been known long enough."""
        now_s, before = self._clock(), self._generations
        self._generations = {
            key: known
            if (known := before.get(key)) is not None and known[0] == one.generation
            else (one.generation, now_s)
            for one in scene.objects
            for key in (_key(one),)
        }
        return [one for one in scene.objects if now_s - self._generations[_key(one)][1] >= self._settle_s]

    def _listen(self, scene: WriteContext) -> None:
        """Add new ledger events to the pending Events."""
        since_unix_s = float("-inf")
        if self._after is None:
            # Pending Events are written; events from a time without a leader are not.
            self._after, since_unix_s = 0, self._wall() - DURATION_S - POLL_S
        pools = {one.name: one for one in scene.objects if one.kind == "EnginePool" and one.serving}
        for event in scene.events:
            self._after = max(self._after, event.number)
            telling = event_for(event, scene.pods, pools) if event.at_unix_s >= since_unix_s else None
            if telling is not None:
                self._tellings.add((telling,))

    async def _status(self, one: PolicyObject, scene: WriteContext) -> None:
        key, resource = _key(one), POLICY_RESOURCES[one.kind]
        target, now_s = self._targets.get(key, WriteTarget()), self._clock()
        if now_s < target.not_before_s:
            return
        try:
            current = target.known(one.resource_version, now_s)
            if current is None:
                current = await self._request(lambda: self._api.get(resource, one.namespace, one.name))
                if _metadata(current).get("uid") != one.uid:
                    return  # another object by now; the source will report it
                target = self._targets[key] = target.refreshed(current, one.resource_version, now_s)
            before = current.get("status")
            known = before if isinstance(before, Mapping) else {}
            status = status_of(one, scene, known, self._wall())
            if status == known or now_s - target.written_s < SPACING_S:
                return
            body = {**current, "status": status}
            answer = await self._request(
                lambda: self._api.replace(resource, one.namespace, one.name, body, subresource="status")
            )
            self._targets[key] = target.refreshed(answer, one.resource_version, now_s, wrote=True)
            event = acceptance_event(one, condition(known, ACCEPTED), condition(status, ACCEPTED), self._wall())
            if event is not None:
                self._tellings.add((event,))
        except ApiError as error:
            self._setback(key, resource.plural, error)

    async def _gate(self, gate: ReadinessGate) -> None:
        pod = gate.pod
        target, now_s = self._targets.get(pod.uid, WriteTarget()), self._clock()
        if now_s < target.not_before_s:
            return
        try:
            current = target.known("", now_s)
            if current is None:
                current = await self._request(lambda: self._api.get(PODS, pod.namespace, pod.name))
                if _metadata(current).get("uid") != pod.uid:
                    return
                target = self._targets[pod.uid] = target.refreshed(current, "", now_s)
            if is_current(gate, current):
                return
            change = condition_patch(gate, current, self._wall())
            answer = await self._request(
                lambda: self._api.strategic(PODS, pod.namespace, pod.name, change, subresource="status")
            )
            self._targets[pod.uid] = target.refreshed(answer, "", now_s, wrote=True)
        except ApiError as error:
            self._setback(pod.uid, PODS.plural, error)

    async def _tell(self, telling: KubeEvent) -> None:
        namespace = telling.involved_object.namespace
        try:
            try:
                body = event_object(telling, self._writing.identity)
                await self._request(lambda: self._api.create(EVENTS, namespace, body))
            except ApiError as error:
                if not error.conflict:
                    raise
                known = await self._request(lambda: self._api.get(EVENTS, namespace, telling.name))
                change = repeat_patch(telling, known)
                if change is not None:
                    await self._request(lambda: self._api.merge(EVENTS, namespace, telling.name, change))
        except ApiError as error:
            if error.status in {0, 429} or error.status >= 500:
                self._tellings.requeue(telling)
            self._setback("", EVENTS.plural, error)
        except _EnoughError:
            self._tellings.requeue(telling)
            raise

    async def _request(self, request: Callable[[], Awaitable[KubeObject]]) -> KubeObject:
        """Answer to a request made as leader; ``_EnoughError`` if no request may be made."""
        bucket = take_token(self._bucket, REQUESTS, self._clock())
        left_s = self._lease.remaining_s()
        if bucket is None or not left_s or self._clock() < self._not_before_s:
            raise _EnoughError
        self._bucket = bucket
        try:
            async with asyncio.timeout(left_s + _MARGIN_S):
                answer = await request()
        except TimeoutError as error:
            raise ApiError(0, "Timeout", "no answer while this replica was the leader") from error
        self._failures = 0
        return answer

    def _setback(self, key: str, what: str, error: ApiError) -> None:
        found = backoff_after(self._targets.get(key, WriteTarget()), error, self._failures, self._clock())
        if key:
            self._targets[key] = found.target
        self._not_before_s = max(self._not_before_s, found.all_not_before_s)
        if error.status == 0 or error.status >= 500:
            self._failures += 1
        if error.conflict or (what, error.status) in self._said:
            return
        # Once per kind of object: a missing permission affects all of them.
        self._said.add((what, error.status))
        _log.warning("writeback.refused", what=what, reason=str(error))


def _key(one: PolicyObject) -> str:
    return f"{one.kind}/{one.namespace}/{one.name}/{one.uid}"


def _metadata(of: KubeObject) -> Mapping[str, object]:
    found = of.get("metadata")
    return found if isinstance(found, Mapping) else {}
