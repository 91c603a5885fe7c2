"""Desired status of each policy object, computed from the present state and the existing status.

Pure and level-triggered: equal inputs give equal status. The existing status matters twice only. A condition's
transition time changes with its status, not with its message. And Programmed stays True while neither the object
nor its served content changes: a newly connected proxy or an ejected engine does not revoke it. Conditions of
other writers are kept.

Source: Kubernetes API conventions, "Typical status properties"; metav1.Condition.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final

from xds_server.admin_api.status_types import Condition, Severity
from xds_server.decide.decisions import EngineDecision, Health
from xds_server.k8s.kube_api import KubeObject
from xds_server.k8s.policy_object import ACCEPTED, PolicyObject
from xds_server.k8s.status.write_context import WriteContext

PROGRAMMED: Final = "Programmed"
HEALTHY: Final = "Healthy"
"""Status condition: whether the server has a warning or a critical condition about the object."""

_OURS: Final = (ACCEPTED, PROGRAMMED, HEALTHY)

_SHOWN: Final = 10
_MOST_CHARACTERS: Final = 2000
"""Limit of a message."""

Status = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Condition:
    """A condition without its transition time."""

    type: str
    status: str
    reason: str
    message: str


def status_of(one: PolicyObject, scene: WriteContext, known: KubeObject, unix_s: float) -> Status:
    """Whole status of ``one``; ``known``: its present status, empty without one."""
    digest = digest_of(one, scene)
    generation = one.generation
    words = (_accepted(one), _programmed(one, scene, known, digest), _healthy(one, scene))
    before = _conditions(known)
    conditions: list[Mapping[str, Any]] = [
        {
            "type": word.type,
            "status": word.status,
            "observedGeneration": generation,
            "lastTransitionTime": _since(word, before.get(word.type), unix_s),
            "reason": word.reason,
            "message": word.message[:_MOST_CHARACTERS],
        }
        for word in words
    ]
    conditions += [other for kind, other in before.items() if kind not in _OURS]
    found: dict[str, Any] = {"observedGeneration": generation, "conditions": conditions, "digest": digest}
    if one.problems and one.last_accepted:
        found["lastAccepted"] = json.loads(one.last_accepted)
    if one.kind == "EnginePool":
        # Of two pools with one name only the older is served; the counts belong to that one.
        found |= _engines(one.name if one.serving else "", scene)
    return found


def digest_of(one: PolicyObject, scene: WriteContext) -> str:
    """Short hash of the served content of this object; empty if not served."""
    text = scene.texts.get(one.file) if one.serving else None
    return "" if text is None else blake2b(text.encode(), digest_size=8).hexdigest()


def condition(status: KubeObject, kind: str) -> Mapping[str, Any]:
    """The condition of this type in a status; empty if absent."""
    return _conditions(status).get(kind, {})


def rfc3339(unix_s: float) -> str:
    """Format a time as Kubernetes Time, in whole seconds."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _accepted(one: PolicyObject) -> _Condition:
    if not one.problems:
        return _Condition(
            type=ACCEPTED, status="True", reason="Accepted", message="the spec is valid and in force"
        )
    return _Condition(type=ACCEPTED, status="False", reason="Rejected", message=one.rejection)


def _programmed(one: PolicyObject, scene: WriteContext, known: KubeObject, digest: str) -> _Condition:
    against = _against(one, scene)
    if against is not None:
        return against
    was = condition(known, PROGRAMMED)
    same = known.get("digest") == digest and was.get("observedGeneration") == one.generation
    if not digest or not scene.digest:
        status, reason, message = "False", "Pending", "not served yet"
    elif (same and was.get("status") == "True") or (scene.programmed.proxies and not scene.programmed.waiting):
        status, reason, message = "True", "Programmed", "all connected proxies accepted it"
    elif scene.programmed.waiting:
        waiting = ", ".join(scene.programmed.waiting[:_SHOWN])
        status, reason, message = "False", "Pending", f"waiting for proxies of {waiting}"
    else:
        status, reason, message = "Unknown", "NoProxies", "no proxy is connected"
    return _Condition(type=PROGRAMMED, status=status, reason=reason, message=message)


def _healthy(one: PolicyObject, scene: WriteContext) -> _Condition:
    """The conditions of the server about this object, worst first, as ``switchgear status`` shows them."""
    found = [each for each in scene.conditions if each.severity != Severity.INFO and _concerns(each, one)]
    if not found:
        return _Condition(
            type=HEALTHY, status="True", reason="Healthy", message="no condition of the server is about it"
        )
    lines = [f"{each.severity} {each.code} {each.subject}: {each.sentence}. {each.fix}" for each in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more: `switchgear status`")
    return _Condition(type=HEALTHY, status="False", reason=found[0].code, message="\n".join(lines))


def _concerns(found: Condition, one: PolicyObject) -> bool:
    if one.kind == "EnginePool" and one.serving and found.pool == one.name:
        return True
    return any(origin == one.file or origin.startswith(f"{one.file}:") for origin in found.origins)


def _against(one: PolicyObject, scene: WriteContext) -> _Condition | None:
    """Why this object cannot be programmed, regardless of proxies; None if it can."""
    reason = message = ""
    place = f"{one.file}:"
    if one.problems:
        reason, message = "Rejected", "the latest spec is not in force"
    elif scene.hold_reason:
        reason, message = "Held", scene.hold_reason
    else:
        for refusal in scene.programmed.refusals:
            if any(origin == one.file or origin.startswith(place) for origin in refusal.origins):
                reason, message = "Refused", f"proxies refused {refusal.resource}: {refusal.reason}"
                break
    return _Condition(type=PROGRAMMED, status="False", reason=reason, message=message) if reason else None


def _engines(pool: str, scene: WriteContext) -> Mapping[str, Any]:
    """Engine counts of a pool. Busy engines count as ready: under load they alternate all day.

    An engine in rotation without a report and a request so far is unknown, not healthy, as in ``switchgear get``.
    """
    fleet = scene.fleet
    engines = () if fleet is None else fleet.pools.get(pool, ())
    decided = [found for engine in engines if (found := scene.engines.get(engine.id)) is not None]
    healths = Counter(one.health for one in decided)
    unknown = sum(
        fleet is not None
        and not fleet.is_known(engine)
        and (found := scene.engines.get(engine.id)) is not None
        and found.health is Health.HEALTHY
        for engine in engines
    )
    verdicts = Counter(map(_verdict, decided))
    return {
        "engines": {
            "total": len(engines),
            "healthy": healths[Health.HEALTHY] - unknown,
            "unknown": unknown,
            "draining": healths[Health.DRAINING],
            "unhealthy": len(engines) - healths[Health.HEALTHY] - healths[Health.DRAINING],
        },
        "verdicts": dict(sorted(verdicts.items())),
    }


def _verdict(decision: EngineDecision) -> str:
    if decision.verdict is None:
        return "unknown"
    return "ready" if decision.verdict.good else decision.verdict.value


def _since(word: _Condition, before: Mapping[str, Any] | None, unix_s: float) -> str:
    if before is not None and before.get("status") == word.status:
        known = before.get("lastTransitionTime")
        if isinstance(known, str):
            return known
    return rfc3339(unix_s)


def _conditions(status: KubeObject) -> dict[str, Mapping[str, Any]]:
    found = status.get("conditions")
    listed = found if isinstance(found, Sequence) and not isinstance(found, str) else ()
    return {str(one.get("type")): one for one in listed if isinstance(one, Mapping)}
