"""Discovery messages as fast message classes with typed interfaces.

The classes are derived at import from envoy-data-plane (see ``descriptors``): protobuf's C core parses a request
in microseconds. The Protocols declare the fields that the control plane reads, for type checking; at run time a
class has every field of the real message.

``NodeMessage.extensions`` is most of an Envoy's first request (some 60 KB of extension names); it stays
undecoded. Any other message is one call away: ``decoder(StreamAccessLogsMessage)``.
"""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from typing import Final, Protocol, Self

from envoy_data_plane.envoy.service.discovery import v3 as discovery
from google.protobuf.any_pb2 import Any
from google.protobuf.struct_pb2 import Struct

from xds_server.wire.descriptors import decoder

__all__ = (
    "ControlPlaneMessage",
    "DeltaDiscoveryRequest",
    "DeltaDiscoveryRequestMessage",
    "DeltaDiscoveryResponse",
    "DeltaDiscoveryResponseMessage",
    "DiscoveryRequest",
    "DiscoveryRequestMessage",
    "DiscoveryResponse",
    "DiscoveryResponseMessage",
    "LocalityMessage",
    "Message",
    "NodeMessage",
    "ResourceMessage",
    "StatusMessage",
    "decoder",
)


class Message(Protocol):
    """Methods of every derived class; the names are protobuf's."""

    def __init__(self, **fields: object) -> None: ...

    @classmethod
    def FromString(cls, data: bytes) -> Self:  # noqa: N802
        """The message in ``data``; ``google.protobuf.message.DecodeError`` when it is not one."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...  # noqa: N802

    def HasField(self, name: str) -> bool: ...  # noqa: N802


class LocalityMessage(Message, Protocol):
    """Locality of a node or an endpoint."""

    region: str
    zone: str
    sub_zone: str


class NodeMessage(Message, Protocol):
    """The requesting node; ``extensions`` stays undecoded."""

    id: str
    cluster: str
    metadata: Struct
    locality: LocalityMessage
    user_agent_name: str
    client_features: MutableSequence[str]
    extensions: MutableSequence[bytes]


class StatusMessage(Message, Protocol):
    """google.rpc.Status: why a peer refused a response."""

    code: int
    message: str
    details: MutableSequence[Any]


class ControlPlaneMessage(Message, Protocol):
    """The responding control plane."""

    identifier: str


class DiscoveryRequestMessage(Message, Protocol):
    """A state-of-the-world request: first, subscription change, ACK or NACK."""

    version_info: str
    node: NodeMessage
    resource_names: MutableSequence[str]
    type_url: str
    response_nonce: str
    error_detail: StatusMessage


class DeltaDiscoveryRequestMessage(Message, Protocol):
    """An incremental request: first, subscription change, ACK or NACK."""

    node: NodeMessage
    type_url: str
    resource_names_subscribe: MutableSequence[str]
    resource_names_unsubscribe: MutableSequence[str]
    initial_resource_versions: MutableMapping[str, str]
    response_nonce: str
    error_detail: StatusMessage


class DiscoveryResponseMessage(Message, Protocol):
    """A state-of-the-world response."""

    version_info: str
    resources: MutableSequence[Any]
    type_url: str
    nonce: str
    control_plane: ControlPlaneMessage


class ResourceMessage(Message, Protocol):
    """One named, versioned resource of an incremental response."""

    name: str
    version: str
    resource: Any


class DeltaDiscoveryResponseMessage(Message, Protocol):
    """An incremental response."""

    system_version_info: str
    resources: MutableSequence[ResourceMessage]
    type_url: str
    nonce: str
    removed_resources: MutableSequence[str]
    control_plane: ControlPlaneMessage


_NODE_BULK: Final = ("Node.extensions",)

DiscoveryRequest: type[DiscoveryRequestMessage] = decoder(discovery.DiscoveryRequest, _NODE_BULK)
DeltaDiscoveryRequest: type[DeltaDiscoveryRequestMessage] = decoder(discovery.DeltaDiscoveryRequest, _NODE_BULK)
DiscoveryResponse: type[DiscoveryResponseMessage] = decoder(discovery.DiscoveryResponse)
DeltaDiscoveryResponse: type[DeltaDiscoveryResponseMessage] = decoder(discovery.DeltaDiscoveryResponse)
