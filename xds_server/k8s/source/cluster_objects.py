"""The fields of pods, nodes and EndpointSlices that concern engines, parsed on arrival.

Parsing never fails: missing or invalid fields are absent. Versions that differ in other fields are equal, so that
heartbeats cause no change.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xds_server.k8s.kube_api import KubeObject
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules

PREFIX: Final = "switchgear.dev/"
GATE: Final = "switchgear.dev/engine-ready"
SERVICE_LABEL: Final = "kubernetes.io/service-name"
_ZONE: Final = "topology.kubernetes.io/zone"
_REGION: Final = "topology.kubernetes.io/region"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod. ``annotations``: ours only. ``unready``: why it is not ready, apart from our own gate."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node: str
    addresses: tuple[str, ...]
    ports: Mapping[str, int]
    over: bool
    leaving: bool
    gated: bool
    unready: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeNode:
    """A node: its zone and region, and faults of its GPUs."""

    zone: str
    region: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEndpoint:
    """One endpoint of a slice. ``pod`` and ``pod_uid`` are empty if it names none."""

    address: str
    pod: str
    pod_uid: str
    node: str
    zone: str
    ready: bool
    terminating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSlice:
    """Part of a Service's endpoints; ``ports`` by name, empty for an unnamed single port."""

    namespace: str
    name: str
    service: str
    ports: Mapping[str, int]
    endpoints: tuple[SliceEndpoint, ...]


def pod(item: KubeObject) -> Pod:
    """Parse a Pod object."""
    metadata, spec, status = _block(item, "metadata"), _block(item, "spec"), _block(item, "status")
    conditions = {_text(one, "type"): one for one in _blocks(status, "conditions")}
    gates = {_text(one, "conditionType") for one in _blocks(spec, "readinessGates")}
    ips = [_text(one, "ip") for one in _blocks(status, "podIPs")] or [_text(status, "podIP")]
    return Pod(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        labels=_texts(metadata, "labels"),
        annotations={
            key: value for key, value in _texts(metadata, "annotations").items() if key.startswith(PREFIX)
        },
        node=_text(spec, "nodeName"),
        addresses=tuple(ip for ip in ips if ip),
        ports=_container_ports(spec),
        over=_text(status, "phase") in {"Succeeded", "Failed"},
        leaving=bool(metadata.get("deletionTimestamp")),
        gated=GATE in gates,
        unready=_unready(conditions, gates - {GATE}, gated=GATE in gates),
        fault=_device_fault(status),
    )


def node_reader(rules: NodeFaultRules) -> Callable[[KubeObject], KubeNode]:
    """Parser of Node objects with these rules."""

    def node(item: KubeObject) -> KubeNode:
        labels = _texts(_block(item, "metadata"), "labels")
        return KubeNode(
            zone=labels.get(_ZONE, ""),
            region=labels.get(_REGION, ""),
            fault=rules.fault(
                _blocks(_block(item, "spec"), "taints"), _blocks(_block(item, "status"), "conditions")
            ),
        )

    return node


def endpoint_slice(item: KubeObject) -> EndpointSlice:
    """Parse an EndpointSlice object."""
    metadata = _block(item, "metadata")
    ports = {
        _text(one, "name"): one["port"]
        for one in _blocks(item, "ports")
        if isinstance(one.get("port"), int) and one.get("protocol") in (None, "TCP")
    }
    return EndpointSlice(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        service=_texts(metadata, "labels").get(SERVICE_LABEL, ""),
        ports=ports,
        endpoints=tuple(one for value in _blocks(item, "endpoints") if (one := _listed(value)) is not None),
    )


def _listed(value: Mapping[str, Any]) -> SliceEndpoint | None:
    addresses = value.get("addresses")
    # Several addresses have no defined meaning: use the first (API reference).
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        return None
    conditions, target = _block(value, "conditions"), _block(value, "targetRef")
    is_pod = _text(target, "kind") == "Pod"
    return SliceEndpoint(
        address=addresses[0],
        pod=_text(target, "name") if is_pod else "",
        pod_uid=_text(target, "uid") if is_pod else "",
        node=_text(value, "nodeName"),
        zone=_text(value, "zone"),
        # Absent means ready and not terminating (API reference).
        ready=conditions.get("ready") is not False,
        terminating=conditions.get("terminating") is True,
    )


def _unready(conditions: Mapping[str, Mapping[str, Any]], gates: set[str], *, gated: bool) -> str:
    """Why a pod is not ready, empty if ready; with our gate, ignoring the gate."""
    asked = ["ContainersReady", *sorted(gates)] if gated else ["Ready"]
    for name in asked:
        value = conditions.get(name, {})
        if value.get("status") != "True":
            message = _text(value, "message")
            return f"{name} is {_text(value, 'status') or 'missing'}" + (f": {message}" if message else "")
    return ""


def _device_fault(status: Mapping[str, Any]) -> str:
    """Fault that a device plugin reports for a device of the pod."""
    for container in _blocks(status, "containerStatuses"):
        for resource in _blocks(container, "allocatedResourcesStatus"):
            bad = [_text(one, "resourceID") for one in _blocks(resource, "resources") if _is_bad(one)]
            if bad:
                return f"{_text(resource, 'name')} {', '.join(sorted(bad))} is unhealthy"
    return ""


def _is_bad(device: Mapping[str, Any]) -> bool:
    # A restarting plugin leaves Unknown behind: not a fault of the device.
    return device.get("health") == "Unhealthy"


def _container_ports(spec: Mapping[str, Any]) -> dict[str, int]:
    # Sidecars are init containers that keep running; include their ports.
    found: dict[str, int] = {}
    for container in (*_blocks(spec, "containers"), *_blocks(spec, "initContainers")):
        for port in _blocks(container, "ports"):
            name, number = _text(port, "name"), port.get("containerPort")
            if name and isinstance(number, int) and port.get("protocol") in (None, "TCP"):
                found.setdefault(name, number)
    return found


def _block(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _blocks(of: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    value = of.get(name)
    return (one for one in (value if isinstance(value, list) else ()) if isinstance(one, dict))


def _text(of: Mapping[str, Any], name: str) -> str:
    value = of.get(name)
    return value if isinstance(value, str) else ""


def _texts(of: Mapping[str, Any], name: str) -> dict[str, str]:
    return {key: value for key, value in _block(of, name).items() if isinstance(value, str)}
