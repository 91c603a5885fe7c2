"""Discovery requests from bytes: the one place where a stream meets protobuf messages."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from xds_server.streams.values import DeltaRequest, Mode, NodeInfo, Request, SotwRequest, StreamError
from xds_server.wire.decode import DeltaDiscoveryRequest, DiscoveryRequest, Node


def read_request(mode: Mode, data: bytes) -> Request:
    """The request in ``data``; ``StreamError`` when it is none."""
    try:
        return _delta(data) if mode is Mode.DELTA else _sotw(data)
    except DecodeError as error:
        raise StreamError(f"not a discovery request: {error}") from error


def _delta(data: bytes) -> DeltaRequest:
    message = DeltaDiscoveryRequest.FromString(data)
    return DeltaRequest(
        type_url=message.type_url,
        node=_node(message.node) if message.HasField("node") else None,
        subscribe=tuple(message.resource_names_subscribe),
        unsubscribe=tuple(message.resource_names_unsubscribe),
        initial_versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
    )


def _sotw(data: bytes) -> SotwRequest:
    message = DiscoveryRequest.FromString(data)
    return SotwRequest(
        type_url=message.type_url,
        node=_node(message.node) if message.HasField("node") else None,
        names=tuple(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
    )


def _node(node: Node) -> NodeInfo:
    metadata: Mapping[str, object] = MessageToDict(node.metadata)
    return NodeInfo(
        id=node.id,
        cluster=node.cluster,
        region=node.locality.region,
        zone=node.locality.zone,
        user_agent_name=node.user_agent_name,
        user_agent_version=_version(node),
        metadata=metadata,
    )


def _version(node: Any) -> str:
    """``1.40.0`` or what the peer calls its version; the field is one of two, which the typed face leaves out."""
    if node.HasField("user_agent_build_version"):
        version = node.user_agent_build_version.version
        return f"{version.major_number}.{version.minor_number}.{version.patch}"
    return str(node.user_agent_version)
