"""Discovery responses framed around resources that are already encoded.

A resource is framed once, when its content changes, and the chunk is shared by every response that carries
it; a response is then one join. Fields stand in the order of their numbers, as Google's encoders write them,
so the result equals the encoding of the message it stands for.

Source: envoy/service/discovery/v3/discovery.proto
"""

from collections.abc import Iterable

from xds_server.wire.varint import delimited, text


def any_of(type_url: str, value: bytes) -> bytes:
    """An encoded google.protobuf.Any of the encoded message ``value``."""
    return text(1, type_url) + (delimited(2, value) if value else b"")


def sotw_chunk(type_url: str, value: bytes) -> bytes:
    """One entry of ``DiscoveryResponse.resources``, framed."""
    return delimited(2, any_of(type_url, value))


def delta_chunk(name: str, version: str, type_url: str, value: bytes) -> bytes:
    """One entry of ``DeltaDiscoveryResponse.resources``, framed."""
    return delimited(2, b"".join((text(1, version), delimited(2, any_of(type_url, value)), text(3, name))))


def sotw_response(
    type_url: str, version: str, nonce: str, chunks: Iterable[bytes], *, control_plane: str = ""
) -> bytes:
    """An encoded DiscoveryResponse; ``chunks`` come from ``sotw_chunk``.

    ``control_plane`` is the identifier Envoy shows in its ``control_plane.identifier`` stat.
    """
    return b"".join(
        (text(1, version), *chunks, text(4, type_url), text(5, nonce), _control_plane(6, control_plane))
    )


def delta_response(
    type_url: str,
    nonce: str,
    system_version: str,
    resources: Iterable[bytes],
    removed: Iterable[str] = (),
    *,
    control_plane: str = "",
) -> bytes:
    """An encoded DeltaDiscoveryResponse; ``resources`` come from ``delta_chunk``, ``removed`` are names.

    ``system_version`` is for people reading a dump: peers compare the versions of the resources only.
    """
    return b"".join(
        (
            text(1, system_version),
            *resources,
            text(4, type_url),
            text(5, nonce),
            *[delimited(6, name.encode()) for name in removed],
            _control_plane(7, control_plane),
        )
    )


def _control_plane(number: int, identifier: str) -> bytes:
    return delimited(number, text(1, identifier)) if identifier else b""
