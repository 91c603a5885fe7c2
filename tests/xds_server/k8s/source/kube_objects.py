"""Builders of Kubernetes objects as JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

from policies.discovery import Discovery
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.source import cluster_objects
from xds_server.k8s.source.cluster_cache import ClusterCache
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.pool_members import DiscoveredMembers, MemberDiscovery

Json = dict[str, Any]

SERVICE = Discovery.model_validate({"service": "vllm", "port": "http"})
BY_LABEL = Discovery.model_validate({"selector": {"app": "vllm"}, "port": "http"})


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    uid: str = "",
    namespace: str = "ns",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node: str = "node",
    ports: Mapping[str, int] | None = None,
    conditions: Mapping[str, str] | None = None,
    gates: Iterable[str] = (),
    phase: str = "Running",
    leaving: bool = False,
    **status: Any,
) -> Json:
    """A pod, ready by default."""
    metadata: Json = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-of-{name}",
        "labels": {"app": "vllm"} if labels is None else dict(labels),
        "annotations": {f"switchgear.dev/{key}": text for key, text in (annotations or {}).items()},
    }
    if leaving:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    container_ports = {"http": 8000} if ports is None else ports
    fields = {"Ready": "True", "ContainersReady": "True"} if conditions is None else conditions
    return {
        "metadata": metadata,
        "spec": {
            "nodeName": node,
            "containers": [
                {"ports": [{"name": key, "containerPort": number} for key, number in container_ports.items()]}
            ],
            "readinessGates": [{"conditionType": one} for one in gates],
        },
        "status": {
            "phase": phase,
            "podIP": ip,
            "podIPs": [{"ip": ip}] if ip else [],
            "conditions": [{"type": key, "status": value} for key, value in fields.items()],
            **status,
        },
    }


def endpoint(
    address: str = "10.0.0.1",
    pod: str = "",
    *,
    uid: str = "",
    zone: str = "",
    node: str = "node",
    **conditions: bool,
) -> Json:
    """An endpoint of a slice."""
    fields: Json = {"addresses": [address], "conditions": conditions, "nodeName": node}
    if pod:
        fields["targetRef"] = {"kind": "Pod", "name": pod, "namespace": "ns", "uid": uid or f"uid-of-{pod}"}
    return {**fields, "zone": zone} if zone else fields


def part(name: str, *endpoints: Json, ports: Mapping[str, int] | None = None, kind: str = "IPv4") -> Json:
    """A slice of the Service ``vllm``."""
    numbers = {"http": 8000} if ports is None else ports
    return {
        "metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": "vllm"}},
        "addressType": kind,
        "endpoints": list(endpoints),
        "ports": [{"name": key, "port": number, "protocol": "TCP"} for key, number in numbers.items()],
    }


def node(
    name: str = "node",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Iterable[tuple[str, str]] = (),
    conditions: Mapping[str, str] | None = None,
) -> Json:
    """A node; taints are key and effect."""
    return {
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"taints": [{"key": key, "effect": effect} for key, effect in taints]},
        "status": {"conditions": [{"type": key, "status": fields} for key, fields in (conditions or {}).items()]},
    }


def world(*, pods: Iterable[Json] = (), slices: Iterable[Json] = (), nodes: Iterable[Json] = ()) -> ClusterCache:
    """A cache with these objects."""
    made = ClusterCache()
    for one in pods:
        made.set_pod(key(one), cluster_objects.pod(one))
    for one in slices:
        made.set_slice(key(one), cluster_objects.endpoint_slice(one))
    for one in nodes:
        made.set_node(one["metadata"]["name"], cluster_objects.node_reader(NodeFaultRules())(one))
    return made


def key(one: Json) -> ObjectKey:
    """Key of an object."""
    return ObjectKey(one["metadata"].get("namespace", ""), one["metadata"]["name"])


def found(
    block: Discovery = SERVICE,
    *,
    pods: Iterable[Json] = (),
    slices: Iterable[Json] = (),
    nodes: Iterable[Json] = (),
) -> DiscoveredMembers:
    """Engines of a block in the namespace ``ns``."""
    return MemberDiscovery(block, "ns").discover(world(pods=pods, slices=slices, nodes=nodes))


def standings(of: DiscoveredMembers) -> dict[str, str]:
    """Pod state of each engine, by name; empty if normal."""
    return {one.entry.name: one.pod_state.standing.value if one.pod_state else "" for one in of.members}
