"""One engine as an entry of a pool's ``endpoints``, from its endpoint, pod annotations and node. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from policies.discovery import Discovery
from policies.findings import format_value
from policies.pool import Endpoint
from xds_server.k8s.source.cluster_objects import PREFIX, KubeNode, Pod, SliceEndpoint

_NUMBERS: Final = {"slots": "slots", "gpus": "gpus", "weight": "weight"}
_TEXTS: Final = {"revision": "revision", "tensor-parallel-group": "tensorParallelGroup"}
AGENT_PORT: Final = "agent-port"


@dataclass(frozen=True, slots=True)
class EndpointEntry:
    """An item of ``spec.endpoints``: ``fields`` as JSON, only those that are set."""

    fields: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Name of the engine in its pool."""
        return str(self.fields["name"])

    @property
    def address(self) -> str:
        """Its address."""
        return str(self.fields["address"])

    @property
    def port(self) -> int:
        """Port of its API."""
        return int(self.fields["port"])


def endpoint_entry(
    block: Discovery,
    pod: Pod | None,
    listed: SliceEndpoint | None,
    node: KubeNode | None,
    ports: Mapping[str, int],
) -> tuple[EndpointEntry | None, tuple[str, ...]]:
    """The entry, or None; with a sentence for each part that was left out.

    ``ports``: searched first for the block's port names; from the slice, or the pod's containers.
    """
    address = listed.address if listed is not None else (pod.addresses[0] if pod is not None else "")
    who = f"pod {pod.name}" if pod is not None else f"endpoint {listed.pod if listed and listed.pod else address}"
    own = pod.ports if pod is not None else {}
    port = _number(block.port, ports, own)
    if port is None:
        return None, (f"{who} is left out: no port named {block.port}",)
    host = f"[{address}]" if ":" in address else address
    name = (pod.name if pod is not None else "") or (listed.pod if listed is not None else "") or f"{host}:{port}"
    base: dict[str, Any] = {"name": name, "address": address, "port": port}
    wrong = _wrong(base)
    if wrong:
        return None, (f"{who} is left out: {wrong}",)
    remarks: list[str] = []
    extras: dict[str, Any] = {}
    for field, value, origin in _extras(block, pod, listed, node, ports):
        if value is None:
            continue
        # One at a time, so that one invalid field does not affect the others.
        wrong = value.reason if isinstance(value, _Unusable) else _wrong({**base, field: value})
        if wrong:
            remarks.append(f"{who}: {origin} is ignored: {wrong}")
        else:
            extras[field] = value
    return EndpointEntry({**base, **extras}), tuple(remarks)


@dataclass(frozen=True, slots=True)
class _Unusable:
    reason: str


def _extras(
    block: Discovery,
    pod: Pod | None,
    listed: SliceEndpoint | None,
    node: KubeNode | None,
    ports: Mapping[str, int],
) -> Iterator[tuple[str, Any, str]]:
    """Field, value and origin of each optional setting."""
    annotations = {} if pod is None else {key.removeprefix(PREFIX): text for key, text in pod.annotations.items()}
    own = pod.ports if pod is not None else {}
    wanted: int | str | None = block.agent_port
    origin = "spec.kubernetes.agentPort"
    if AGENT_PORT in annotations:
        text = annotations[AGENT_PORT].strip()
        wanted, origin = (int(text) if _is_number(text) else text), f"annotation {PREFIX}{AGENT_PORT}"
    if wanted is not None:
        number = _number(wanted, own, ports)
        yield "agentPort", _Unusable(f"no port named {wanted}") if number is None else number, origin
    zone = (listed.zone if listed is not None else "") or (node.zone if node is not None else "")
    yield "zone", zone or None, "the zone"
    yield "region", (node.region or None) if node is not None else None, "the region"
    for key, field in _NUMBERS.items():
        if key in annotations:
            text = annotations[key].strip()
            value = (
                int(text)
                if _is_number(text)
                else _Unusable(f"{format_value(annotations[key])} is not a whole number")
            )
            yield field, value, f"annotation {PREFIX}{key}"
    for key, field in _TEXTS.items():
        if key in annotations:
            yield field, annotations[key], f"annotation {PREFIX}{key}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20


def _number(port: int | str, *named: Mapping[str, int]) -> int | None:
    if isinstance(port, int):
        return port
    return next((ports[port] for ports in named if port in ports), None)


def _wrong(fields: Mapping[str, Any]) -> str:
    """Error of the pool model for these fields, empty if valid."""
    try:
        Endpoint.model_validate_json(json.dumps(fields), strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return f"{format_value(first['input'])}: {first['msg']}"
    return ""
