"""Desired Istio state per engine: whether it serves, and its weight.

Istio accepts no external health, but follows labels within seconds: a subset of a
DestinationRule, and the workload selector of a ServiceEntry, take only endpoints whose labels match. So each
engine has one label that says whether it serves. A pod gets it as a label of the pod; an engine outside of the
cluster as one of its WorkloadEntry, which also carries its weight: of pods Istio takes none.

A weight of 0 would not do: Istio makes 1 of it.

Source: Istio's API reference (WorkloadEntry, ServiceEntry, DestinationRule); istio/istio issue 36865.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from policies.model import PolicySet
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.model.fleet import Engine, EngineId, Fleet
from xds_server.model.pod_state import PodRef

SERVING_LABEL: Final = "switchgear.dev/serving"
POOL_LABEL: Final = "switchgear.dev/pool"
ENGINE_ANNOTATION: Final = "switchgear.dev/engine"
MANAGED_LABEL: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "switchgear-istio"
"""Who owns the fields that we write, and the value of the label on objects that are ours alone."""

_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_CHARACTERS: Final = 63
"""Names of objects may be longer, but this one may end up as a label somewhere."""
_WHOLE_WEIGHT: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PodServingLabel:
    """Whether a pod serves; ``uid`` tells it from a later one of its name, ``reason`` is for the log.

    ``proven``: by evidence; without any, a pod that an earlier process took out of rotation stays out.
    """

    namespace: str
    name: str
    uid: str
    serving: bool
    reason: str
    proven: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredWorkloadEntry:
    """A WorkloadEntry of an engine outside of the cluster. ``weight`` is 0 where all of a pool weigh the same.

    ``proven`` as for pods.
    """

    namespace: str
    name: str
    pool: str
    engine: str
    address: str
    port: int
    locality: str
    weight: int
    serving: bool
    reason: str
    proven: bool = True
    topology: Mapping[str, str] = field(default_factory=dict)
    """Labels of region and zone, by which failover goes."""

    def body(self) -> dict[str, object]:
        """The object as it is applied."""
        labels = {SERVING_LABEL: _flag(self.serving), POOL_LABEL: self.pool, **self.topology}
        spec: dict[str, object] = {
            "address": self.address,
            "ports": {"http": self.port},
            # Istio selects endpoints by these, not by those of the object.
            "labels": labels,
        }
        if self.locality:
            spec["locality"] = self.locality
        if self.weight:
            spec["weight"] = self.weight
        made = _entry_object(self.namespace, self.name, spec)
        made["metadata"] = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": {**labels, MANAGED_LABEL: MANAGER},
            "annotations": {ENGINE_ANNOTATION: f"{self.pool}/{self.engine}"},
        }
        return made

    def adjustment(self) -> dict[str, object]:
        """The fields set on another owner's object: the serving label, and a weight if any."""
        spec: dict[str, object] = {"labels": {SERVING_LABEL: _flag(self.serving)}}
        if self.weight:
            spec["weight"] = self.weight
        return _entry_object(self.namespace, self.name, spec)


def serving_entry(namespace: str, name: str) -> dict[str, object]:
    """The fields set on such an object when Switchgear releases it: it serves."""
    return _entry_object(namespace, name, {"labels": {SERVING_LABEL: _flag(True)}})


def _entry_object(namespace: str, name: str, spec: dict[str, object]) -> dict[str, object]:
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "WorkloadEntry",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """Desired objects by namespace and name."""

    pods: Mapping[tuple[str, str], PodServingLabel]
    entries: Mapping[tuple[str, str], DesiredWorkloadEntry]


NOTHING_DESIRED: Final = DesiredState(pods=MappingProxyType({}), entries=MappingProxyType({}))
"""What is wanted by someone who leaves: no label, no entry."""


def desired_state(
    policies: PolicySet,
    fleet: Fleet,
    decisions: Decisions,
    pods: Mapping[EngineId, PodRef],
    *,
    namespace: str,
    unproven: Set[EngineId] = frozenset(),
) -> DesiredState:
    """What follows from these decisions. ``namespace`` is that of pools that name none, ``unproven`` are engines
    that this process has no evidence of yet.

    A pod in several pools has one label: it serves as long as one of them wants it. In a pool whose engines are
    found in the cluster, one that has no pod is left alone: an entry would let Istio know it twice.
    """
    marks: dict[tuple[str, str], PodServingLabel] = {}
    entries: dict[tuple[str, str], DesiredWorkloadEntry] = {}
    for pool, engines in fleet.pools.items():
        declared = policies.pools.get(pool)
        if declared is None:
            continue
        home = declared.metadata.namespace or namespace
        weights = _weights(engines, decisions.engines)
        for engine in engines:
            decision = decisions.engines.get(engine.id)
            if decision is None:
                continue
            serving, pod = decision.health is Health.HEALTHY, pods.get(engine.id)
            proven = engine.id not in unproven
            if pod is None:
                if declared.spec.kubernetes is not None:
                    continue
                name = entry_name(engine.id)
                entries[home, name] = DesiredWorkloadEntry(
                    namespace=home,
                    name=name,
                    pool=pool,
                    engine=engine.id.engine,
                    address=engine.address,
                    port=engine.port,
                    locality=_locality(engine),
                    topology=_topology(engine),
                    weight=weights.get(engine.id, 0),
                    serving=serving,
                    reason=decision.reason,
                    proven=proven,
                )
                continue
            key = (pod.namespace, pod.name)
            if key not in marks or (serving, proven) > (marks[key].serving, marks[key].proven):
                marks[key] = PodServingLabel(
                    namespace=pod.namespace,
                    name=pod.name,
                    uid=pod.uid,
                    serving=serving,
                    reason=decision.reason,
                    proven=proven,
                )
    return DesiredState(pods=MappingProxyType(marks), entries=MappingProxyType(entries))


def entry_name(engine: EngineId) -> str:
    """The name of an engine's WorkloadEntry: ``POOL.ENGINE``, where that is a name, else one with a digest.

    No pool has a dot in its name, so no two engines have the same.
    """
    said = f"{engine.pool}.{engine.engine}"
    if len(said) <= _NAME_CHARACTERS and _NAME.fullmatch(said):
        return said
    digest = hashlib.sha256(f"{engine.pool}/{engine.engine}".encode()).hexdigest()[:10]
    plain = re.sub(r"[^a-z0-9]+", "-", engine.engine.lower())
    return f"{engine.pool}.{plain}"[: _NAME_CHARACTERS - 11].strip("-.") + f"-{digest}"


def _weights(engines: Sequence[Engine], decisions: Mapping[EngineId, EngineDecision]) -> Mapping[EngineId, int]:
    """Relative weights of a pool's engines; none where all weigh the same, which Istio balances best."""
    raw = {
        engine.id: engine.weight * engine.slots * decision.traffic_percent / 100
        for engine in engines
        if (decision := decisions.get(engine.id)) is not None and decision.health is Health.HEALTHY
    }
    if len(set(raw.values())) <= 1:
        return {}
    heaviest = max(raw.values())
    return {key: max(1, round(_WHOLE_WEIGHT * one / heaviest)) for key, one in raw.items()}


def _locality(engine: Engine) -> str:
    """``region/zone`` as Istio has it; only what a label may be, since Istio makes one of it."""
    parts = [engine.region, engine.zone] if engine.region else [engine.zone]
    return "/".join(parts) if all(_LABEL.fullmatch(part) for part in parts) else ""


def _topology(engine: Engine) -> Mapping[str, str]:
    said = {"topology.kubernetes.io/region": engine.region, "topology.kubernetes.io/zone": engine.zone}
    return MappingProxyType({name: text for name, text in said.items() if _LABEL.fullmatch(text)})


def _flag(serving: bool) -> str:
    return "true" if serving else "false"
