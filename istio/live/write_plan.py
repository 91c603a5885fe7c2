"""Writes from desired to actual state: first those that add engines, then those that remove them.

In that order, because of two writes one may fail: too many engines for a moment is better than too few.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from istio.live.desired_state import (
    MANAGED_LABEL,
    MANAGER,
    SERVING_LABEL,
    DesiredState,
    DesiredWorkloadEntry,
    PodServingLabel,
)
from xds_server.k8s.kube_api import KubeObject


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPod:
    """Say on a pod whether it serves."""

    mark: PodServingLabel


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmarkPod:
    """Take our label off a pod."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyEntry:
    """Write a WorkloadEntry: all of it, or only label and weight of another owner's."""

    entry: DesiredWorkloadEntry
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreEntry:
    """Return a foreign entry to rotation."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveEntry:
    """Remove a WorkloadEntry of ours."""

    namespace: str
    name: str


Write: TypeAlias = MarkPod | UnmarkPod | ApplyEntry | RestoreEntry | RemoveEntry

Objects: TypeAlias = Mapping[tuple[str, str], KubeObject]
"""Objects of one kind by namespace and name."""


def write_plan(wanted: DesiredState, pods: Objects, entries: Objects) -> tuple[Write, ...]:
    """The writes that are due, in their order; none when all is as it is wanted.

    ``pods`` are all that carry our label; a pod that is wanted and not among them has none yet. ``entries`` are
    our WorkloadEntries and those that were exported: of the latter only the label and the weight are changed, and
    when we leave they serve. One that is out of rotation returns only by evidence.
    """
    let_in: list[Write] = []
    take_out: list[Write] = []
    for key, mark in sorted(wanted.pods.items()):
        pod = pods.get(key)
        # Another one of its name has nothing decided of it yet.
        if pod is not None and (_uid(pod) != mark.uid or _waits(mark, _labels(pod))):
            continue
        if pod is None or _labels(pod).get(SERVING_LABEL) != ("true" if mark.serving else "false"):
            (let_in if mark.serving else take_out).append(MarkPod(mark=mark))
    for key, entry in sorted(wanted.entries.items()):
        known = entries.get(key)
        if not _says(known, entry) and not _waits(entry, _spec_labels(known or {})):
            write = ApplyEntry(entry=entry, whole=known is None or _ours(known))
            (let_in if entry.serving else take_out).append(write)
    for key, pod in sorted(pods.items()):
        if key not in wanted.pods and SERVING_LABEL in _labels(pod):
            take_out.append(UnmarkPod(namespace=key[0], name=key[1], uid=str(_uid(pod))))
    for key, found in sorted(entries.items()):
        if key in wanted.entries:
            continue
        if _ours(found):
            take_out.append(RemoveEntry(namespace=key[0], name=key[1]))
        elif _spec_labels(found).get(SERVING_LABEL) == "false":
            let_in.append(RestoreEntry(namespace=key[0], name=key[1]))
    return (*let_in, *take_out)


def write_text(write: Write) -> str:
    """A write in one line, for people."""
    match write:
        case MarkPod(mark=mark):
            serves = "serves" if mark.serving else f"out of rotation: {mark.reason}"
            return f"pod {mark.namespace}/{mark.name} {serves}"
        case UnmarkPod(namespace=namespace, name=name):
            return f"pod {namespace}/{name} is no longer one of our engines: label removed"
        case ApplyEntry(entry=entry):
            serves = "serves" if entry.serving else f"out of rotation: {entry.reason}"
            weight = f", weight {entry.weight}" if entry.weight and entry.serving else ""
            return f"workload entry {entry.namespace}/{entry.name} {serves}{weight}"
        case RestoreEntry(namespace=namespace, name=name):
            return f"workload entry {namespace}/{name} serves again, independent of its engine"
        case RemoveEntry(namespace=namespace, name=name):
            return f"workload entry {namespace}/{name} removed"


def _says(found: KubeObject | None, entry: DesiredWorkloadEntry) -> bool:
    """Whether an object says already what it should; what others added to it does not count."""
    if found is None:
        return False
    if not _ours(found):
        return _within(entry.adjustment()["spec"], found.get("spec"))
    wanted = entry.body()
    weight = (found.get("spec") or {}).get("weight")
    return (
        _within(wanted["spec"], found.get("spec"))
        and _within(
            {key: part for key, part in _metadata(wanted).items() if key in {"labels", "annotations"}},
            _metadata(found),
        )
        and (bool(entry.weight) or not weight)
    )


def _ours(found: KubeObject) -> bool:
    return _labels(found).get(MANAGED_LABEL) == MANAGER


def _waits(wanted: PodServingLabel | DesiredWorkloadEntry, labels: Mapping[str, object]) -> bool:
    """Whether an engine that is out of rotation stays out, for want of evidence."""
    return wanted.serving and not wanted.proven and labels.get(SERVING_LABEL) == "false"


def _spec_labels(found: KubeObject) -> Mapping[str, object]:
    labels = (found.get("spec") or {}).get("labels")
    return labels if isinstance(labels, Mapping) else {}


def _within(wanted: object, found: object) -> bool:
    if isinstance(wanted, dict):
        return isinstance(found, Mapping) and all(
            key in found and _within(one, found[key]) for key, one in wanted.items()
        )
    return wanted == found


def _metadata(item: KubeObject) -> Mapping[str, object]:
    found = item.get("metadata")
    return found if isinstance(found, Mapping) else {}


def _labels(item: KubeObject) -> Mapping[str, object]:
    found = _metadata(item).get("labels")
    return found if isinstance(found, Mapping) else {}


def _uid(item: KubeObject) -> object:
    return _metadata(item).get("uid")
