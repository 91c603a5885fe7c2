"""Discovery requests from bytes: the one place where a stream meets protobuf messages."""

from google.protobuf.message import DecodeError

from xds_server.streams.node import node_info
from xds_server.streams.values import (
    MAX_NAME_CHARACTERS,
    DeltaRequest,
    Flaw,
    Mode,
    Request,
    SotwRequest,
    StreamError,
)
from xds_server.wire.decode import DeltaDiscoveryRequest, DiscoveryRequest


def read_request(mode: Mode, data: bytes) -> Request:
    """The request in ``data``; ``StreamError`` when it is none."""
    try:
        request = _delta(data) if mode is Mode.DELTA else _sotw(data)
    except DecodeError as error:
        raise StreamError(f"not a discovery request: {error}", Flaw.GARBAGE) from error
    if len(request.type_url) > MAX_NAME_CHARACTERS or not request.type_url.isprintable():
        raise StreamError("type_url is no name of a type")
    return request


def _delta(data: bytes) -> DeltaRequest:
    message = DeltaDiscoveryRequest.FromString(data)
    return DeltaRequest(
        type_url=message.type_url,
        node=node_info(message.node) if message.HasField("node") else None,
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
        node=node_info(message.node) if message.HasField("node") else None,
        names=tuple(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
    )
