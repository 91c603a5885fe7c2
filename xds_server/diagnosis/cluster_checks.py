"""Checks of Kubernetes API permissions and of pod grace periods."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from policies.quantity import parse_duration
from xds_server.diagnosis.check_result import Check, fail, ok, warn
from xds_server.model.text import count_text, names_text

DEFAULT_GRACE_S: Final = 30
"""Kubernetes' default."""

_GROUP: Final = "switchgear.dev"
_KINDS: Final = ("enginepools", "modelroutes", "resiliencepolicies")


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource; ``part`` is a subresource. ``use`` is its purpose."""

    group: str
    resource: str
    verb: str
    part: str = ""
    use: str

    @property
    def sentence(self) -> str:
        """``update leases (coordination.k8s.io)``."""
        whole = f"{self.resource}/{self.part}" if self.part else self.resource
        return f"{self.verb} {whole}" + (f" ({self.group})" if self.group else "")


def _rights(use: str, group: str, resources: Iterable[str], verbs: Iterable[str], part: str = "") -> list[Right]:
    return [
        Right(group=group, resource=resource, verb=verb, part=part, use=use)
        for resource in resources
        for verb in verbs
    ]


READS: Final = (
    *_rights("read policies", _GROUP, _KINDS, ("list", "watch")),
    *_rights("read engines", "", ("pods",), ("list", "watch")),
    *_rights("read engines", "discovery.k8s.io", ("endpointslices",), ("list", "watch")),
    *_rights("find other replicas", "coordination.k8s.io", ("leases",), ("create", "delete", "list", "patch")),
)
NODES: Final = (*_rights("read zones and taints", "", ("nodes",), ("list", "watch")),)
WRITES: Final = (
    *_rights("write status", _GROUP, _KINDS, ("get",)),
    *_rights("write status", _GROUP, _KINDS, ("update",), "status"),
    *_rights("write events", "", ("events",), ("create", "get", "patch")),
    *_rights("hold the writer lease", "coordination.k8s.io", ("leases",), ("get", "update")),
)
GATES: Final = (
    *_rights("set readiness gates", "", ("pods",), ("get",)),
    *_rights("set readiness gates", "", ("pods",), ("patch",), "status"),
)


def rbac_checks(answers: Mapping[Right, bool | None]) -> Iterator[Check]:
    """Missing rights by purpose; None is a right without an answer. Only policies and engines are vital."""
    by_use: dict[str, list[Right]] = {}
    for right in answers:
        by_use.setdefault(right.use, []).append(right)
    for use, rights in by_use.items():
        unknown = [one for one in rights if answers[one] is None]
        denied = [one.sentence for one in rights if answers[one] is False]
        subject = f"rights to {use}"
        if denied:
            vital = any(one in READS for one in rights)
            yield (fail if vital else warn)(subject, "SG240", f"missing: {names_text(denied)}")
        elif unknown:
            yield warn(subject, "SG241", "the API does not report this permission")
        else:
            yield ok(subject, f"all {len(rights)} granted")


def grace_period_checks(pods: Sequence[Mapping[str, Any]]) -> Iterator[Check]:
    """Pods that are killed before their drain can finish; others are skipped."""
    fine = 0
    for pod in pods:
        wanted_s = drain_s(pod.get("spec") or {})
        if wanted_s is None:
            continue
        given_s = (pod.get("spec") or {}).get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
        if given_s < wanted_s:
            meta = pod.get("metadata") or {}
            yield fail(
                f"pod {meta.get('namespace', 'default')}/{meta.get('name', '?')}",
                "SG243",
                f"killed after {given_s:g} s, but its drain may take {wanted_s:g} s",
                f"Set terminationGracePeriodSeconds to at least {wanted_s + 5:g}.",
            )
        else:
            fine += 1
    if fine:
        yield ok("grace periods", f"long enough for the drain of {count_text(fine, 'pod')}")


def drain_s(spec: Mapping[str, Any]) -> float | None:
    """The longest drain of a pod: ``--deadline`` of a preStop hook, ``--drain-deadline`` of an agent."""
    found = []
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        hook = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
        said = (*(container.get("args") or ()), *(container.get("command") or ()), *(hook.get("command") or ()))
        words = " ".join(map(str, said))
        for text in re.findall(r"--(?:drain-)?deadline[= ](\S+)", words):
            try:
                found.append(float(text) if text.isdecimal() else parse_duration(text))
            except ValueError:
                continue  # a shell variable: its value is not in the pod
    return max(found, default=None)
