"""Parsing of discovery requests, the only protobuf messages that a stream decodes."""

from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError

from engine.bounded_dict import BoundedDict
from xds_server.wire.decode import DeltaDiscoveryRequest, DiscoveryRequest, NodeMessage
from xds_server.xds.messages import (
    MAX_NAME_CHARACTERS,
    MAX_NAMES_OF_REQUEST,
    DeltaRequest,
    NodeInfo,
    Request,
    SotwRequest,
    StreamError,
    StreamErrorKind,
    XdsVariant,
)

MAX_TEXT_CHARACTERS: Final = 1_024
"""Limit of each text in a node; real ids are host names."""

MAX_METADATA_BYTES: Final = 64 * 1024
"""An Envoy next to an istiod sends about four thousand bytes."""

MAX_USER_AGENT_CHARACTERS: Final = 64

METADATA: Final = ("cuts", "listen_address", "pools", "role")
"""What is used of it; the rest is not kept."""

MAX_EXTENSIONS_BYTES: Final = 512 * 1024
"""An Envoy lists about 600, in 60 KB."""

MAX_BUILDS: Final = 64
"""Limit of different lists of extensions at once; a proxy with a further one counts as listing none."""


def node_info(node: NodeMessage) -> NodeInfo:
    """The peer; ``StreamError`` for an invalid node."""
    texts = {
        "id": node.id,
        "cluster": node.cluster,
        "locality.region": node.locality.region,
        "locality.zone": node.locality.zone,
    }
    for name, text in texts.items():
        if len(text) > MAX_TEXT_CHARACTERS:
            raise StreamError(
                f"node.{name} has {len(text)} characters; limit {MAX_TEXT_CHARACTERS}",
                StreamErrorKind.NODE,
            )
        if not text.isprintable():
            raise StreamError(f"node.{name} has unprintable characters", StreamErrorKind.NODE)
    return NodeInfo(
        id=node.id,
        cluster=node.cluster,
        region=node.locality.region,
        zone=node.locality.zone,
        user_agent_name=_short(node.user_agent_name),
        user_agent_version=_short(_version(node)),
        metadata=_metadata(node),
        extensions=_names(_extensions(node)),
    )


def _extensions(node: NodeMessage) -> tuple[bytes, ...]:
    # Two bytes for each: the minimum encoding of an extension.
    size = 2 * len(node.extensions) + sum(map(len, node.extensions))
    if size > MAX_EXTENSIONS_BYTES:
        raise StreamError(f"node.extensions has {size} bytes; limit {MAX_EXTENSIONS_BYTES}", StreamErrorKind.NODE)
    return tuple(node.extensions)


_builds: WeakValueDictionary[tuple[bytes, ...], frozenset[str]] = WeakValueDictionary()


def _names(extensions: tuple[bytes, ...]) -> frozenset[str]:
    """Names in ``NodeMessage.extensions``: 60 KB, equal for all Envoys of one build, so they are shared."""
    if (known := _builds.get(extensions)) is not None:
        return known
    if not extensions or len(_builds) >= MAX_BUILDS:
        return frozenset()
    _builds[extensions] = names = frozenset(map(_name, extensions))
    return names


def _name(extension: bytes) -> str:
    """Field 1 of an undecoded Extension; empty if it is not first, as all known encoders write it."""
    if len(extension) < 2 or extension[0] != 0x0A or extension[1] > 0x7F:
        return ""
    return extension[2 : 2 + extension[1]].decode(errors="replace")


def _metadata(node: NodeMessage) -> Mapping[str, object]:
    size = node.metadata.ByteSize()
    if size > MAX_METADATA_BYTES:
        raise StreamError(f"node.metadata has {size} bytes; limit {MAX_METADATA_BYTES}", StreamErrorKind.NODE)
    try:
        metadata: Mapping[str, object] = MessageToDict(node.metadata)
    except ValueError as error:
        raise StreamError("node.metadata has an invalid number", StreamErrorKind.NODE) from error
    return {key: metadata[key] for key in METADATA if key in metadata}


def _short(text: str) -> str:
    """Name or version of the peer's software, truncated for display."""
    return "".join(one if one.isprintable() else " " for one in text[:MAX_USER_AGENT_CHARACTERS])


def _version(node: Any) -> str:
    """``1.40.0``, or the text of the older field; the typed classes omit this one-of."""
    if node.HasField("user_agent_build_version"):
        version = node.user_agent_build_version.version
        return f"{version.major_number}.{version.minor_number}.{version.patch}"
    return str(node.user_agent_version)


ACK_BYTES: Final = 256
"""Longest request that is kept: a type, a nonce, and the name of a resource or two."""

MAX_ACKS: Final = 64

_acks: BoundedDict[tuple[XdsVariant, bytes], Request] = BoundedDict(MAX_ACKS)
"""ACKs, read once: those of a push are the same bytes from a thousand proxies."""


def decode_request(mode: XdsVariant, data: bytes) -> Request:
    """Parse a request; raises ``StreamError`` if invalid."""
    if (known := _acks.get((mode, data))) is not None:
        return known
    try:
        request = _delta(data) if mode is XdsVariant.DELTA else _sotw(data)
    except DecodeError as error:
        raise StreamError(f"not a discovery request: {error}", StreamErrorKind.GARBAGE) from error
    if len(request.type_url) > MAX_NAME_CHARACTERS or not request.type_url.isprintable():
        raise StreamError("type_url is not a type name")
    if len(data) <= ACK_BYTES and request.nonce and request.node is None and request.error is None:
        _acks[mode, data] = request
    return request


def _check_count(count: int) -> None:
    """``StreamError`` for more names than a proxy sends; parsing is cheap, a Python object of each is not."""
    if count > MAX_NAMES_OF_REQUEST:
        raise StreamError(f"{count} names in one request; limit {MAX_NAMES_OF_REQUEST}", StreamErrorKind.SIZE)


def _delta(data: bytes) -> DeltaRequest:
    message = DeltaDiscoveryRequest.FromString(data)
    subscribe, unsubscribe = message.resource_names_subscribe, message.resource_names_unsubscribe
    _check_count(len(subscribe) + len(unsubscribe) + len(message.initial_resource_versions))
    return DeltaRequest(
        type_url=message.type_url,
        node=node_info(message.node) if message.HasField("node") else None,
        subscribe=tuple(subscribe),
        unsubscribe=tuple(unsubscribe),
        initial_versions=dict(message.initial_resource_versions),
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
    )


def _sotw(data: bytes) -> SotwRequest:
    message = DiscoveryRequest.FromString(data)
    _check_count(len(message.resource_names))
    return SotwRequest(
        type_url=message.type_url,
        node=node_info(message.node) if message.HasField("node") else None,
        names=tuple(message.resource_names),
        version=message.version_info,
        nonce=message.response_nonce,
        error=message.error_detail.message if message.HasField("error_detail") else None,
    )
