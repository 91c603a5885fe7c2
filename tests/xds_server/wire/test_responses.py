"""Manually framed responses equal their messages, byte for byte."""

from envoy_data_plane.envoy.config.core.v3 import ControlPlane
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.google.protobuf import Any
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.model.type_urls import CLUSTER
from xds_server.wire.decode import DeltaDiscoveryResponse, DiscoveryResponse
from xds_server.wire.responses import any_of, delta_chunk, delta_response, sotw_chunk, sotw_response

NAMES = st.text(max_size=200)
# Lengths on both sides of every step of a varint: 0, 1 byte, 2 bytes, 3 bytes.
VALUES = st.one_of(
    st.binary(max_size=300), st.sampled_from([b"", b"x" * 127, b"x" * 128, b"x" * 16_384, b"x" * 70_000])
)


def test_an_any_is_known_bytes() -> None:
    assert any_of("t/a.B", b"\x08\x01") == b"\x0a\x05t/a.B\x12\x02\x08\x01"
    assert any_of("t/a.B", b"") == b"\x0a\x05t/a.B"


def test_a_delta_response_is_known_bytes() -> None:
    encoded = delta_response("t/a.B", "7", "v", [delta_chunk("n", "1", "t/a.B", b"\x08\x01")], ["gone"])
    assert encoded == (
        b"\x0a\x01v"
        b"\x12\x13\x0a\x011\x12\x0b\x0a\x05t/a.B\x12\x02\x08\x01\x1a\x01n"
        b"\x22\x05t/a.B\x2a\x017\x32\x04gone"
    )


@settings(max_examples=60, deadline=None)
@given(NAMES, NAMES, NAMES, NAMES, st.lists(VALUES, max_size=3))
def test_a_sotw_response_is_the_message(
    type_url: str, version: str, nonce: str, identifier: str, values: list[bytes]
) -> None:
    chunks = [sotw_chunk(type_url, value) for value in values]
    encoded = sotw_response(type_url, version, nonce, chunks, control_plane=identifier)
    message = discovery.DiscoveryResponse(
        version_info=version,
        resources=[Any(type_url=type_url, value=value) for value in values],
        type_url=type_url,
        nonce=nonce,
        control_plane=ControlPlane(identifier=identifier) if identifier else None,
    )
    assert encoded == bytes(message)
    assert DiscoveryResponse.FromString(encoded).SerializeToString() == encoded


@settings(max_examples=60, deadline=None)
@given(NAMES, NAMES, NAMES, st.lists(st.tuples(NAMES, NAMES, VALUES), max_size=3), st.lists(NAMES, max_size=3))
def test_a_delta_response_is_the_message(
    type_url: str, version: str, nonce: str, resources: list[tuple[str, str, bytes]], removed: list[str]
) -> None:
    chunks = [delta_chunk(name, hashed, type_url, value) for name, hashed, value in resources]
    encoded = delta_response(type_url, nonce, version, chunks, removed, control_plane="cp")
    message = discovery.DeltaDiscoveryResponse(
        system_version_info=version,
        resources=[
            discovery.Resource(name=name, version=hashed, resource=Any(type_url=type_url, value=value))
            for name, hashed, value in resources
        ],
        type_url=type_url,
        removed_resources=removed,
        nonce=nonce,
        control_plane=ControlPlane(identifier="cp"),
    )
    assert discovery.DeltaDiscoveryResponse.parse(encoded) == message
    # betterproto2 writes fields in declaration order, Google's codecs by number.
    assert DeltaDiscoveryResponse.FromString(bytes(message)).SerializeToString() == encoded


def test_a_large_response_survives() -> None:
    chunk = delta_chunk("big", "1", CLUSTER, b"\x5a" * 3_000_000)
    (resource,) = DeltaDiscoveryResponse.FromString(delta_response(CLUSTER, "1", "", [chunk])).resources
    assert (resource.name, len(resource.resource.value)) == ("big", 3_000_000)
