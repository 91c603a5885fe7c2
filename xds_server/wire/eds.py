"""ClusterLoadAssignments joined from cached chunks, one per endpoint.

Health and weights of single endpoints change all day, in clusters of up to thousands. An endpoint is encoded when
its value changes and never again; an assignment is a join. The cache holds the endpoints of the last
assignment of each cluster and nothing older, so it cannot outgrow the fleet.

The bytes are those of the equal envoy-data-plane message under ``encode``.

Source: envoy/config/endpoint/v3/endpoint.proto, endpoint_components.proto
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from google.protobuf.struct_pb2 import Struct, Value

from xds_server.wire.assignment import (
    DESTINATION_METADATA,
    AssignmentSpec,
    DropOverload,
    EndpointSpec,
    HostPort,
    Label,
    LocalitySpec,
)
from xds_server.wire.varint import LENGTH_DELIMITED, VARINT, delimited, tag, text, uint32, varint

_ENDPOINTS_TAG: Final = tag(2, LENGTH_DELIMITED)
# envoy.type.v3.FractionalPercent.DenominatorType.MILLION
_MILLION: Final = 2
_LABELS_NAMESPACE: Final = "envoy.lb"
# Endpoints compared at once: from 32 to 256 the cost at 1 000 and 10 000 endpoints hardly differs (25 and 165 us).
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locality:
    """One locality as it was last encoded: a chunk per endpoint, their total length, and the whole, framed."""

    spec: LocalitySpec
    chunks: list[bytes]
    length: int
    framed: bytes


class AssignmentEncoder:
    """Encodes assignments, remembering the endpoints of each cluster's last one.

    Clusters are distinguished by name. Assignments of one cluster for different zones can share an encoder: they
    differ in weights and priorities, seldom in endpoints.
    """

    def __init__(self) -> None:
        self._clusters: dict[tuple[str, bool], dict[tuple[str, str, int], _Locality]] = {}

    def encode(self, assignment: AssignmentSpec) -> bytes:
        """The wire format of the ClusterLoadAssignment; ``ValueError`` for a number out of its field's range."""
        # Proxies with and without internal listeners alternate.
        of_cluster = (assignment.cluster, _is_internal(assignment))
        last = self._clusters.get(of_cluster, {})
        kept: dict[tuple[str, str, int], _Locality] = {}
        parts = [text(1, assignment.cluster)]
        for spec in assignment.localities:
            # A zone may have several priorities, different for different views.
            nth = 0
            while (key := (spec.region, spec.zone, nth)) in kept:
                nth += 1
            kept[key] = locality = _locality(spec, last.get(key))
            parts.append(locality.framed)
        self._clusters[of_cluster] = kept
        parts.append(_policy(assignment))
        return b"".join(parts)

    def retain(self, clusters: Collection[str]) -> None:
        """Forget every cluster that is not among these."""
        self._clusters = {key: kept for key, kept in self._clusters.items() if key[0] in clusters}

    @property
    def cached_endpoints(self) -> int:
        """Number of endpoint chunks held."""
        return sum(len(one.chunks) for kept in self._clusters.values() for one in kept.values())


def encode_assignment(assignment: AssignmentSpec) -> bytes:
    """Wire format of the ClusterLoadAssignment, without a cache."""
    return AssignmentEncoder().encode(assignment)


def _is_internal(assignment: AssignmentSpec) -> bool:
    return any(
        not isinstance(endpoint.address, HostPort)
        for locality in assignment.localities
        for endpoint in locality.endpoints[:1]
    )


def _locality(spec: LocalitySpec, last: _Locality | None) -> _Locality:
    if last is not None and last.spec is spec:
        return last
    chunks, length = _chunks(spec.endpoints, last)
    if last is not None and chunks is last.chunks and _label(spec) == _label(last.spec):
        return _Locality(spec=spec, chunks=chunks, length=length, framed=last.framed)
    head = delimited(1, text(1, spec.region) + text(2, spec.zone))
    tail = _uint32_value(3, spec.weight) + _number(5, spec.priority)
    size = varint(len(head) + length + len(tail))
    framed = b"".join((_ENDPOINTS_TAG, size, head, *chunks, tail))
    return _Locality(spec=spec, chunks=chunks, length=length, framed=framed)


def _label(spec: LocalitySpec) -> tuple[object, ...]:
    """Everything about a locality except its endpoints."""
    return spec.region, spec.zone, spec.weight, spec.priority


def _chunks(endpoints: tuple[EndpointSpec, ...], last: _Locality | None) -> tuple[list[bytes], int]:
    """One chunk per endpoint, reused from the last ones if the value is equal, and their total length."""
    if last is None:
        chunks = [_chunk(endpoint) for endpoint in endpoints]
        return chunks, sum(map(len, chunks))
    before = last.spec.endpoints
    if endpoints is before:
        return last.chunks, last.length
    if len(endpoints) != len(before):
        known = dict(zip(before, last.chunks, strict=True))
        chunks = [known.get(endpoint) or _chunk(endpoint) for endpoint in endpoints]
        return chunks, sum(map(len, chunks))
    chunks, length = last.chunks, last.length
    # Nearly all are identical objects, and tuples compare identical elements without calling __eq__.
    for start in range(0, len(endpoints), _BLOCK):
        stop = start + _BLOCK
        if endpoints[start:stop] == before[start:stop]:
            continue
        for index in range(start, min(stop, len(endpoints))):
            now, was = endpoints[index], before[index]
            # ``!=`` alone would compare an object with itself field by field.
            if now is not was and now != was:
                if chunks is last.chunks:
                    chunks = last.chunks.copy()
                chunks[index] = chunk = _chunk(now)
                length += len(chunk) - len(last.chunks[index])
    return chunks, length


def _chunk(endpoint: EndpointSpec) -> bytes:
    """One entry of ``LocalityLbEndpoints.lb_endpoints``, framed."""
    return delimited(
        2,
        b"".join(
            (
                delimited(1, delimited(1, _address(endpoint)) + text(3, endpoint.hostname)),
                _number(2, endpoint.health),
                _metadata(3, endpoint),
                _uint32_value(4, endpoint.weight),
            )
        ),
    )


def _address(endpoint: EndpointSpec) -> bytes:
    """The payload of a core.v3.Address."""
    address = endpoint.address
    if isinstance(address, HostPort):
        return delimited(1, text(2, address.host) + tag(3, VARINT) + uint32(address.port))
    return delimited(3, delimited(1, address.name.encode()) + text(2, address.endpoint_id))


def _metadata(number: int, endpoint: EndpointSpec) -> bytes:
    """A core.v3.Metadata: labels, and the destination of a listener; empty without both."""
    entries = b""
    # The entries of filter_metadata are ordered by key.
    if not isinstance(endpoint.address, HostPort):
        entries += _entry(DESTINATION_METADATA, _strings((("local", endpoint.address.endpoint_id),)))
    if endpoint.labels:
        entries += _entry(_LABELS_NAMESPACE, _strings(endpoint.labels))
    return delimited(number, entries) if entries else b""


def _entry(namespace: str, struct: bytes) -> bytes:
    """An entry of ``Metadata.filter_metadata``."""
    return delimited(1, text(1, namespace) + delimited(2, struct))


def _strings(labels: tuple[Label, ...]) -> bytes:
    """The payload of a Struct of strings and lists of strings; of two labels with one name the last counts."""
    struct = Struct()
    for name, value in dict(labels).items():
        if isinstance(value, str):
            struct.fields[name].string_value = value
        else:
            struct.fields[name].list_value.values.extend(Value(string_value=one) for one in value)
            struct.fields[name].list_value.SetInParent()
    return struct.SerializeToString(deterministic=True)


def _policy(assignment: AssignmentSpec) -> bytes:
    if not assignment.drop_overloads and assignment.overprovisioning_percent is None:
        return b""
    drops = b"".join(_drop_overload(drop) for drop in assignment.drop_overloads)
    return delimited(4, drops + _uint32_value(3, assignment.overprovisioning_percent))


def _drop_overload(drop: DropOverload) -> bytes:
    share = _number(1, drop.parts_per_million) + _number(2, _MILLION)
    return delimited(2, text(1, drop.category) + delimited(2, share))


def _uint32_value(number: int, value: int | None) -> bytes:
    return b"" if value is None else delimited(number, _number(1, value))


def _number(number: int, value: int) -> bytes:
    return tag(number, VARINT) + uint32(value) if value else b""
