"""Minimal controllers: EndpointSlices from Services and Pods, and the end of pods.

Level-triggered: the desired state is recomputed from all objects, and only differences are written.

Source: Kubernetes' endpointslice controller (conditions of pods that end); kubelet (end after the grace period).
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tests.cluster_double.asking import Request
from tests.cluster_double.cluster import Cluster
from tests.cluster_double.journal import Key
from tests.cluster_double.json_object import Object, at, canonical, metadata
from tests.cluster_double.kinds import NODES, PODS, SERVICES, SLICES
from tests.cluster_double.selection import matches

_SERVICE: Final = "kubernetes.io/service-name"
_MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
_NAME: Final = "endpointslice-controller.k8s.io"
_PER_SLICE: Final = 100
_ZONE: Final = "topology.kubernetes.io/zone"
_AGENT: Final = "kube-controller-manager"


class Controllers:
    """Both, over one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ending: dict[Key, str] = {}
        self._seen = 0

    def run(self) -> tuple[tuple[Key, float], ...]:
        """Do what is due after a write; pods that end come back, each with the seconds until it is gone."""
        journal = self._cluster.journal
        changes = journal.since(self._seen)
        self._seen = journal.revision
        touched = {PODS.storage, SERVICES.storage, NODES.storage, SLICES.storage}
        if changes is not None and not any(one.key[0] in touched for one in changes):
            return ()
        self._write_slices()
        self._seen = journal.revision
        return tuple(self._newly_ending())

    def _newly_ending(self) -> Iterator[tuple[Key, float]]:
        now = datetime.now(UTC)
        for key, one in self._cluster.journal.objects.items():
            deadline = metadata(one).get("deletionTimestamp") if key[0] == PODS.storage else None
            if deadline is not None and self._ending.get(key) != f"{metadata(one)['uid']} {deadline}":
                self._ending[key] = f"{metadata(one)['uid']} {deadline}"
                yield key, max(0.0, (datetime.fromisoformat(deadline) - now).total_seconds())

    def _write_slices(self) -> None:
        objects = self._cluster.journal.objects
        wanted = {f"{one['metadata']['namespace']}/{one['metadata']['name']}": one for one in slices(objects)}
        ours = {
            f"{key[1]}/{key[2]}": one
            for key, one in objects.items()
            if key[0] == SLICES.storage and (metadata(one).get("labels") or {}).get(_MANAGED_BY) == _NAME
        }
        for place, one in wanted.items():
            if place not in ours:
                self._ask("POST", one, "")
            elif any(
                canonical(ours[place].get(part)) != canonical(one.get(part)) for part in ("endpoints", "ports")
            ):
                self._ask("PUT", one, metadata(one)["name"])
        for place in ours.keys() - wanted.keys():
            self._ask("DELETE", ours[place], metadata(ours[place])["name"])

    def _ask(self, method: str, about: Object, name: str) -> None:
        namespace = metadata(about)["namespace"]
        path = f"/apis/{SLICES.api_version}/namespaces/{namespace}/{SLICES.plural}/{name}".rstrip("/")
        body = b"" if method == "DELETE" else json.dumps(about).encode()
        self._cluster.answer(Request(method=method, path=path, body=body, agent=_AGENT))


def slices(objects: Mapping[Key, Object]) -> Iterator[Object]:
    """The EndpointSlices of all services that select pods."""
    zones = {
        key[2]: (metadata(one).get("labels") or {}).get(_ZONE) for key, one in objects.items() if key[0] == "nodes"
    }
    for (storage, namespace, name), service in objects.items():
        selector = at(service, "spec.selector")
        if storage != SERVICES.storage or not selector:
            continue
        pods = [
            one
            for key, one in sorted(objects.items(), key=lambda pair: pair[0])
            if key[0] == PODS.storage and key[1] == namespace and matches(selector, one)
        ]
        publish = bool(at(service, "spec.publishNotReadyAddresses"))
        # Pods without an address or a node that exists, or that have ended, are not endpoints.
        ended = {"Succeeded", "Failed"}
        live = [
            one
            for one in pods
            if at(one, "status.podIP")
            and at(one, "status.phase") not in ended
            and (publish or at(one, "spec.nodeName") in zones)
        ]
        endpoints = [_endpoint(one, zones, publish=publish) for one in live]
        for number in range(0, max(1, len(endpoints)), _PER_SLICE):
            yield {
                "apiVersion": SLICES.api_version,
                "kind": SLICES.kind,
                "metadata": {
                    "name": f"{name}-{number // _PER_SLICE:05}",
                    "namespace": namespace,
                    "labels": {_SERVICE: name, _MANAGED_BY: _NAME},
                    "ownerReferences": [
                        {"apiVersion": "v1", "kind": "Service", "name": name, "uid": metadata(service)["uid"],
                         "controller": True, "blockOwnerDeletion": True}
                    ],
                },
                "addressType": "IPv4",
                # Null, not an empty list, of a Service without pods.
                "endpoints": endpoints[number : number + _PER_SLICE] or None,
                "ports": [_port(one, live) for one in at(service, "spec.ports") or ()],
            }  # fmt: skip


def _endpoint(pod: Object, zones: Mapping[str, str | None], *, publish: bool) -> Object:
    conditions = at(pod, "status.conditions") or ()
    serving = publish or any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    terminating = "deletionTimestamp" in metadata(pod)
    node = at(pod, "spec.nodeName")
    zone = zones.get(node) if node else None
    return {
        "addresses": [at(pod, "status.podIP")],
        "conditions": {
            "ready": serving and (publish or not terminating),
            "serving": serving,
            "terminating": terminating,
        },
        "targetRef": {
            "kind": "Pod", "namespace": metadata(pod)["namespace"], "name": metadata(pod)["name"],
            "uid": metadata(pod)["uid"],
        },
        **({"nodeName": node} if node else {}),
        **({"zone": zone} if zone else {}),
    }  # fmt: skip


def _port(port: Mapping[str, Any], pods: list[Object]) -> Object:
    wanted = port.get("targetPort", port["port"])
    number = wanted
    if isinstance(wanted, str):
        named = [
            one["containerPort"]
            for pod in pods
            for container in at(pod, "spec.containers") or ()
            for one in container.get("ports") or ()
            if one.get("name") == wanted
        ]
        number = named[0] if named else port["port"]
    return {"name": port.get("name", ""), "port": number, "protocol": port.get("protocol", "TCP")}
