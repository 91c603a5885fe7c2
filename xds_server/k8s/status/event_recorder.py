"""Which Events are told of engines that go out, drain and come back, and when.

Kubernetes keeps Events for people, for about an hour. What repeats is one Event whose count grows. There is a
bucket of tokens for each object and one for all: a pool that flaps, or a rack that burns, must not flood the API.
What finds no token waits and is added up, and goes out as one when there is one. Only so many objects are
remembered; what comes beyond is counted as dropped.
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
"""Objects and reasons that are remembered at one time."""

_MESSAGE: Final = 1024
_NAME: Final = 236
"""A name has 253 characters; ours adds a dot and sixteen digits."""

COMPONENT: Final = "switchgear"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReference:
    """The object an Event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeEvent:
    """One thing to tell of an object: so many times, from the first to the last (Unix seconds)."""

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
        """The name of its Event: the same for the same thing told of the same object, by whichever replica."""
        what = "\n".join((self.involved_object.uid, self.engine, self.reason))
        return f"{self.involved_object.name[:_NAME]}.{blake2b(what.encode(), digest_size=8).hexdigest()}"


def event_for(
    event: Event, pods: Mapping[EngineId, PodRef], pools: Mapping[str, PolicyObject]
) -> KubeEvent | None:
    """What this transition is worth telling; None where it is no engine's health, or nobody knows its object."""
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
    if pool is None:
        return None
    return ObjectReference(
        api_version=f"{ENGINE_POOLS.group}/{ENGINE_POOLS.version}",
        kind=pool.kind,
        namespace=pool.namespace,
        name=pool.name,
        uid=pool.uid,
    )


class EventRecorder:
    """What waits to be told, oldest first, and the tokens there are for it."""

    def __init__(self, of_one: RateLimit = OF_ONE, of_all: RateLimit = OF_ALL, most: int = MOST) -> None:
        self._of_one = of_one
        self._of_all = of_all
        self._most = most
        self._waiting: dict[str, KubeEvent] = {}
        self._buckets: dict[str, TokenBucket] = {}
        self._all: TokenBucket | None = None
        self.dropped = 0

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, tellings: Iterable[KubeEvent]) -> None:
        """Let these be told; what waits already grows."""
        for one in tellings:
            known = self._waiting.get(one.name)
            if known is None and len(self._waiting) >= self._most:
                self.dropped += one.times
                continue
            self._waiting[one.name] = one if known is None else _added(known, one)

    def due(self, now_s: float) -> tuple[KubeEvent, ...]:
        """What may be told now, each for a token; it waits no longer."""
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
        """Let this wait again: it could not be told."""
        known = self._waiting.get(telling.name)
        self._waiting[telling.name] = telling if known is None else _added(telling, known)

    def clear(self) -> None:
        """Let go of all that waits: somebody else tells now."""
        self._waiting.clear()


def _added(known: KubeEvent, one: KubeEvent) -> KubeEvent:
    return replace(
        one,
        times=known.times + one.times,
        first_unix_s=min(known.first_unix_s, one.first_unix_s),
        last_unix_s=max(known.last_unix_s, one.last_unix_s),
    )


def event_object(telling: KubeEvent, identity: str) -> KubeObject:
    """The Event that tells it for the first time."""
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
    """The patch that makes an Event that exists tell it again; None where another replica has told it already."""
    last, count = known.get("lastTimestamp"), known.get("count")
    newest = rfc3339(telling.last_unix_s)
    if isinstance(last, str) and last >= newest:
        return None
    return {
        "count": (count if isinstance(count, int) else 0) + telling.times,
        "lastTimestamp": newest,
        "message": telling.message[:_MESSAGE],
    }
