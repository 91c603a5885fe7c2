"""Pods, nodes and EndpointSlices as far as engines are concerned: read once, where they come in.

Whatever a server sends is read without complaint: what is not there, or not as it should be, is absent. Two
versions of an object that differ in nothing kept here are equal, so that the heartbeats of a cluster are no news.
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
    """A pod. ``annotations`` are ours alone; ``unready`` is why it is not ready, our own gate set aside."""

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
    """A node: where it stands, and what speaks against its GPUs."""

    zone: str
    region: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEndpoint:
    """One endpoint of a slice. ``pod`` is empty where it names none, ``pod_uid`` where it does not say which."""

    address: str
    pod: str
    pod_uid: str
    node: str
    zone: str
    ready: bool
    terminating: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSlice:
    """A part of the endpoints of a Service; ``ports`` by name, the name of a lone one may be empty."""

    namespace: str
    name: str
    service: str
    ports: Mapping[str, int]
    endpoints: tuple[SliceEndpoint, ...]


def pod(item: KubeObject) -> Pod:
    """The pod of a Pod object."""
    metadata, spec, status = _block(item, "metadata"), _block(item, "spec"), _block(item, "status")
    conditions = {_text(one, "type"): one for one in _blocks(status, "conditions")}
    gates = {_text(one, "conditionType") for one in _blocks(spec, "readinessGates")}
    ips = [_text(one, "ip") for one in _blocks(status, "podIPs")] or [_text(status, "podIP")]
    return Pod(
        namespace=_text(metadata, "namespace"),
        name=_text(metadata, "name"),
        uid=_text(metadata, "uid"),
        labels=_texts(metadata, "labels"),
        annotations={key: said for key, said in _texts(metadata, "annotations").items() if key.startswith(PREFIX)},
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
    """A function that reads Node objects by these rules."""

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
    """The slice of an EndpointSlice object."""
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
        endpoints=tuple(one for said in _blocks(item, "endpoints") if (one := _listed(said)) is not None),
    )


def _listed(said: Mapping[str, Any]) -> SliceEndpoint | None:
    addresses = said.get("addresses")
    # More than one has no meaning of its own: the first is the one to use (API reference).
    if not isinstance(addresses, list) or not addresses or not isinstance(addresses[0], str):
        return None
    conditions, target = _block(said, "conditions"), _block(said, "targetRef")
    is_pod = _text(target, "kind") == "Pod"
    return SliceEndpoint(
        address=addresses[0],
        pod=_text(target, "name") if is_pod else "",
        pod_uid=_text(target, "uid") if is_pod else "",
        node=_text(said, "nodeName"),
        zone=_text(said, "zone"),
        # Not said means ready, and not terminating (API reference).
        ready=conditions.get("ready") is not False,
        terminating=conditions.get("terminating") is True,
    )


def _unready(conditions: Mapping[str, Mapping[str, Any]], gates: set[str], *, gated: bool) -> str:
    """Why a pod is not ready, empty when it is; with our gate, as if it had none."""
    asked = ["ContainersReady", *sorted(gates)] if gated else ["Ready"]
    for name in asked:
        said = conditions.get(name, {})
        if said.get("status") != "True":
            message = _text(said, "message")
            return f"{name} is {_text(said, 'status') or 'not said'}" + (f": {message}" if message else "")
    return ""


def _device_fault(status: Mapping[str, Any]) -> str:
    """What a device plugin says of a device that a container of the pod was given, where it is bad."""
    for container in _blocks(status, "containerStatuses"):
        for resource in _blocks(container, "allocatedResourcesStatus"):
            bad = [_text(one, "resourceID") for one in _blocks(resource, "resources") if _is_bad(one)]
            if bad:
                return f"{_text(resource, 'name')} {', '.join(sorted(bad))} is unhealthy"
    return ""


def _is_bad(device: Mapping[str, Any]) -> bool:
    # Unknown is what a plugin leaves behind that is being restarted: no word against the device.
    return device.get("health") == "Unhealthy"


def _container_ports(spec: Mapping[str, Any]) -> dict[str, int]:
    # Sidecars are init containers that go on; their ports are as good.
    found: dict[str, int] = {}
    for container in (*_blocks(spec, "containers"), *_blocks(spec, "initContainers")):
        for port in _blocks(container, "ports"):
            name, number = _text(port, "name"), port.get("containerPort")
            if name and isinstance(number, int) and port.get("protocol") in (None, "TCP"):
                found.setdefault(name, number)
    return found


def _block(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    said = of.get(name)
    return said if isinstance(said, dict) else {}


def _blocks(of: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    said = of.get(name)
    return (one for one in (said if isinstance(said, list) else ()) if isinstance(one, dict))


def _text(of: Mapping[str, Any], name: str) -> str:
    said = of.get(name)
    return said if isinstance(said, str) else ""


def _texts(of: Mapping[str, Any], name: str) -> dict[str, str]:
    return {key: said for key, said in _block(of, name).items() if isinstance(said, str)}
