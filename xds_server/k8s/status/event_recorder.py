"""Kubernetes Events for engines that are ejected, drained or returned to rotation, and for rejected objects.

Kubernetes keeps Events for people, for about an hour. Repeats raise the count of one Event. Token buckets per
object and in total keep a flapping pool or a failing rack from flooding the API. Events without a token wait and
merge. The number of remembered objects is limited; further ones count as dropped.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from xds_server.decide.decisions import Health
from xds_server.decide.diff.change import ChangeKind
from xds_server.k8s.api_resources import ENGINE_POOLS
from xds_server.k8s.kube_api import KubeObject
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.status.object_status import rfc3339
from xds_server.ledger.event import Event
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef
from xds_server.model.token_bucket import RateLimit, TokenBucket, available_tokens, take_token

OF_ONE: Final = RateLimit(burst=8, per_s=1 / 60)
OF_ALL: Final = RateLimit(burst=40, per_s=2)

MOST: Final = 2000
"""Limit of remembered pairs of object and reason."""

_MESSAGE: Final = 1024
_NAME: Final = 236
"""Names are limited to 253 characters; ours add a dot and sixteen digits."""

COMPONENT: Final = "switchgear"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """Object that an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeEvent:
    """One Event of an object: count, first and last occurrence (Unix seconds)."""

    involved_object: ObjectReference
    engine: str
    reason: str
    warning: bool
    message: str
    times: int
    first_unix_s: float
    last_unix_s: float

    @property
    def name(self) -> str:
        """Name of the Event: equal for the same reason and object on all replicas."""
        what = "\n".join((self.involved_object.uid, self.engine, self.reason))
        return f"{self.involved_object.name[:_NAME]}.{blake2b(what.encode(), digest_size=8).hexdigest()}"


def event_for(
    event: Event, pods: Mapping[EngineId, PodRef], pools: Mapping[str, PolicyObject]
) -> KubeEvent | None:
    """Event for this transition; None if it is not about an engine's health, or its object is unknown."""
    if event.kind is not ChangeKind.HEALTH or not event.subject.engine:
        return None
    key = EngineId(event.subject.pool, event.subject.engine)
    about = _involved_object(key, pods, pools)
    if about is None:
        return None
    reason, warning = {
        Health.UNHEALTHY.value: ("EngineEjected", True),
        Health.DRAINING.value: ("EngineDraining", False),
        Health.HEALTHY.value: ("EngineAdmitted", False),
    }.get(event.after, ("", False))
    if not reason or (reason == "EngineAdmitted" and not event.before):
        return None
    return KubeEvent(
        involved_object=about,
        engine=str(key),
        reason=reason,
        warning=warning,
        message=f"{key}: {event.evidence}",
        times=1,
        first_unix_s=event.at_unix_s,
        last_unix_s=event.at_unix_s,
    )


def _involved_object(
    key: EngineId, pods: Mapping[EngineId, PodRef], pools: Mapping[str, PolicyObject]
) -> ObjectReference | None:
    pod, pool = pods.get(key), pools.get(key.pool)
    if pod is not None:
        return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
    return None if pool is None else _reference(pool)


def acceptance_event(
    one: PolicyObject, before: Mapping[str, Any], after: Mapping[str, Any], unix_s: float
) -> KubeEvent | None:
    """Event for a new Accepted condition of an object; None if it was accepted before and is now, or is as before.

    The condition in the cluster is the memory: another leader writes no second Event.
    """
    was, now = before.get("status"), after.get("status")
    rejected = now == "False"
    if (was, before.get("message")) == (now, after.get("message")) or not (rejected or was == "False"):
        return None
    return KubeEvent(
        involved_object=_reference(one),
        engine="",
        reason="SpecRejected" if rejected else "SpecAccepted",
        warning=rejected,
        message=str(after.get("message", "")),
        times=1,
        first_unix_s=unix_s,
        last_unix_s=unix_s,
    )


def _reference(one: PolicyObject) -> ObjectReference:
    return ObjectReference(
        api_version=f"{ENGINE_POOLS.group}/{ENGINE_POOLS.version}",
        kind=one.kind,
        namespace=one.namespace,
        name=one.name,
        uid=one.uid,
    )


class EventRecorder:
    """Pending Events, oldest first, with their token buckets."""

    def __init__(self, of_one: RateLimit = OF_ONE, of_all: RateLimit = OF_ALL, most: int = MOST) -> None:
        self._of_one = of_one
        self._of_all = of_all
        self._most = most
        self._waiting: dict[str, KubeEvent] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._all: TokenBucket | None = None
        self.dropped = 0

    def __len__(self) -> int:
        """Number of pending Events."""
        return len(self._waiting)

    def add(self, tellings: Iterable[KubeEvent]) -> None:
        """Add Events; merges them into pending ones."""
        for one in tellings:
            known = self._waiting.get(one.name)
            if known is None and len(self._waiting) >= self._most:
                self.dropped += one.times
                continue
            self._waiting[one.name] = one if known is None else _added(known, one)

    def due(self, now_s: float) -> tuple[KubeEvent, ...]:
        """Remove and return the Events that may be written now, one token each."""
        found = []
        for name, one in list(self._waiting.items()):
            whole = take_token(self._all, self._of_all, now_s)
            if whole is None:
                break
            uid = one.involved_object.uid
            single = take_token(self._buckets.get(uid), self._of_one, now_s)
            if single is None:
                continue
            self._all, self._buckets[uid] = whole, single
            found.append(self._waiting.pop(name))
        if len(self._buckets) > self._most:
            full = self._of_one.burst
            self._buckets = {
                uid: one for uid, one in self._buckets.items() if available_tokens(one, self._of_one, now_s) < full
            }
        return tuple(found)

    def requeue(self, telling: KubeEvent) -> None:
        """Return an Event that could not be written."""
        known = self._waiting.get(telling.name)
        self._waiting[telling.name] = telling if known is None else _added(telling, known)

    def clear(self) -> None:
        """Drop all pending Events: another replica is the leader."""
        self._waiting.clear()


def _added(known: KubeEvent, one: KubeEvent) -> KubeEvent:
    return replace(
        one,
        times=known.times + one.times,
        first_unix_s=min(known.first_unix_s, one.first_unix_s),
        last_unix_s=max(known.last_unix_s, one.last_unix_s),
    )


def event_object(telling: KubeEvent, identity: str) -> KubeObject:
    """Object of a new Event."""
    about = telling.involved_object
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": telling.name, "namespace": about.namespace},
        "involvedObject": {
            "apiVersion": about.api_version,
            "kind": about.kind,
            "namespace": about.namespace,
            "name": about.name,
            "uid": about.uid,
        },
        "reason": telling.reason,
        "message": telling.message[:_MESSAGE],
        "type": "Warning" if telling.warning else "Normal",
        "count": telling.times,
        "firstTimestamp": rfc3339(telling.first_unix_s),
        "lastTimestamp": rfc3339(telling.last_unix_s),
        "source": {"component": COMPONENT},
        "reportingComponent": "switchgear.dev/control-plane",
        "reportingInstance": identity[:128],
    }


def repeat_patch(telling: KubeEvent, known: KubeObject) -> Mapping[str, Any] | None:
    """Patch that increments an existing Event; None if another replica did already."""
    last, count = known.get("lastTimestamp"), known.get("count")
    newest = rfc3339(telling.last_unix_s)
    if isinstance(last, str) and last >= newest:
        return None
    return {
        "count": (count if isinstance(count, int) else 0) + telling.times,
        "lastTimestamp": newest,
        "message": telling.message[:_MESSAGE],
    }
