"""Writes back to the cluster what became of its policies and engines, while this replica holds the Lease.

Level-triggered: each look makes everything that should be written from the present, and writes what differs from
what was last seen of the object. Nothing is written when nothing differs. Before each write the Lease is asked
again; a status is written over the version that was read, so that of two writers, should there ever be two, one is
refused. Nothing here is in the way of proxies: the control plane serves the same whether this works or not.

A conflict means to read again. What an operator has to mend (a right, a definition) is said once and tried slowly.
A server that has had enough is left alone for as long as it asks.
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
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.status.event_recorder import EventRecorder, KubeEvent, event_for, event_object, repeat_patch
from xds_server.k8s.status.object_status import status_of
from xds_server.k8s.status.readiness_gate import ReadinessGate, condition_patch, is_current, readiness_gates
from xds_server.k8s.status.write_context import WriteContext
from xds_server.k8s.status.write_target import WriteTarget, backoff_after, retained_targets
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

EACH_S: Final = 0.5
"""Longest time between two looks."""

SPACING_S: Final = 1.0
"""Shortest time between two writes to one object: counts of a pool in trouble move many times a second."""

SETTLE_S: Final = 1.0
"""So long a generation is known before it is written of: it takes a round to serve it, and until then what is
known of proxies is about the one before."""

REQUESTS: Final = RateLimit(burst=60, per_s=10)

_MARGIN_S: Final = (DURATION_S - DEADLINE_S) / 2
"""How long a write may still be on its way after the hold has ended: nobody else has begun by then."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """The Lease that says who writes, and who would."""

    namespace: str
    lease: str
    identity: str


class _EnoughError(Exception):
    """Nothing more may be asked in this look."""


class StatusWriter:
    """One replica's hand in the cluster; see ``run``."""

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
        """``scene`` says how it stands, with the ledger's events after a number; None where there is none."""
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
        """Whether this replica is the one that writes."""
        return self._lease.holds()

    @property
    def holder(self) -> str:
        """Who writes, as far as is known; empty when nobody does."""
        return self._lease.holder

    def request_write(self) -> None:
        """Note that something to be written may be different now."""
        self._wake.set()

    async def run(self) -> None:
        """Write for ever; when cancelled, stop, and let go of the Lease for the next."""
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
        """Write what differs now; nothing without the Lease."""
        if not self._lease.holds():
            # Whoever holds it meanwhile writes too: what was seen is no longer true.
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
        """The objects whose newest generation has been known for long enough."""
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
        """Take in what the ledger has that is to be told."""
        since_unix_s = float("-inf")
        if self._after is None:
            # What was before is told. What happened while nobody held the Lease is not.
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
            seen = target.known(one.resource_version, now_s)
            if seen is None:
                seen = await self._request(lambda: self._api.get(resource, one.namespace, one.name))
                if _metadata(seen).get("uid") != one.uid:
                    return  # another object by now; the source will say so
                target = self._targets[key] = target.refreshed(seen, one.resource_version, now_s)
            before = seen.get("status")
            known = before if isinstance(before, Mapping) else {}
            status = status_of(one, scene, known, self._wall())
            if status == known or now_s - target.written_s < SPACING_S:
                return
            body = {**seen, "status": status}
            answer = await self._request(
                lambda: self._api.replace(resource, one.namespace, one.name, body, subresource="status")
            )
            self._targets[key] = target.refreshed(answer, one.resource_version, now_s, wrote=True)
        except ApiError as error:
            self._setback(key, resource.plural, error)

    async def _gate(self, gate: ReadinessGate) -> None:
        pod = gate.pod
        target, now_s = self._targets.get(pod.uid, WriteTarget()), self._clock()
        if now_s < target.not_before_s:
            return
        try:
            seen = target.known("", now_s)
            if seen is None:
                seen = await self._request(lambda: self._api.get(PODS, pod.namespace, pod.name))
                if _metadata(seen).get("uid") != pod.uid:
                    return
                target = self._targets[pod.uid] = target.refreshed(seen, "", now_s)
            if is_current(gate, seen):
                return
            change = condition_patch(gate, seen, self._wall())
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
        """The answer to a request made under the Lease; ``_EnoughError`` where none may be made."""
        bucket = take_token(self._bucket, REQUESTS, self._clock())
        left_s = self._lease.remaining_s()
        if bucket is None or not left_s or self._clock() < self._not_before_s:
            raise _EnoughError
        self._bucket = bucket
        try:
            async with asyncio.timeout(left_s + _MARGIN_S):
                answer = await request()
        except TimeoutError as error:
            raise ApiError(0, "Timeout", "no answer while the Lease was held") from error
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
        # Once for each kind of object: a right that is missing is missing for all of them.
        self._said.add((what, error.status))
        _log.warning("writeback.refused", what=what, reason=str(error))


def _key(one: PolicyObject) -> str:
    return f"{one.kind}/{one.namespace}/{one.name}/{one.uid}"


def _metadata(of: KubeObject) -> Mapping[str, object]:
    found = of.get("metadata")
    return found if isinstance(found, Mapping) else {}
