"""What is kept of nodes and of ACKs."""

import pytest

from xds_server.wire.decode import DeltaDiscoveryRequest
from xds_server.xds import NodeInfo, StreamError, XdsVariant, discovery_requests
from xds_server.xds.discovery_requests import ACK_BYTES, MAX_ACKS, MAX_BUILDS, decode_request


def decoded(metadata: dict[str, str] | None = None, extensions: tuple[str, ...] = ()) -> NodeInfo:
    request = DeltaDiscoveryRequest(type_url="t")
    request.node.id = "gw-1"
    for name, value in (metadata or {}).items():
        request.node.metadata[name] = value
    for name in extensions:
        request.node.extensions.append(b"\x0a" + bytes([len(name)]) + name.encode())
    node = decode_request(XdsVariant.DELTA, request.SerializeToString()).node
    assert node is not None
    return node


def test_only_used_metadata_is_kept() -> None:
    assert decoded({"role": "gateway", "made-up": "m" * 10_000}).metadata == {"role": "gateway"}


def test_proxies_of_one_build_share_their_list_of_extensions() -> None:
    one, other = decoded(extensions=("a", "b")), decoded(extensions=("a", "b"))
    assert one.extensions is other.extensions
    assert one.extensions == {"a", "b"}


def test_different_lists_of_extensions_are_limited() -> None:
    before = decoded(extensions=("honest",))
    made_up = [decoded(extensions=(f"made-up-{number}",)) for number in range(2 * MAX_BUILDS)]
    assert 0 < sum(bool(one.extensions) for one in made_up) < MAX_BUILDS
    assert decoded(extensions=("honest",)).extensions == before.extensions
    made_up.clear()
    assert decoded(extensions=("later",)).extensions


def request(**fields: object) -> bytes:
    made: bytes = DeltaDiscoveryRequest(type_url="t", **fields).SerializeToString()
    return made


def test_equal_acks_are_parsed_once() -> None:
    one, other = (decode_request(XdsVariant.DELTA, request(response_nonce="e7.1")) for _ in range(2))
    assert one is other
    with pytest.raises(StreamError):
        decode_request(XdsVariant.SOTW, request(response_nonce="e7.1"))  # other fields have these numbers there


def test_only_short_answers_that_accept_are_kept_and_a_limited_number() -> None:
    refusal = DeltaDiscoveryRequest(type_url="t", response_nonce="e7.2")
    refusal.error_detail.message = "no"
    node = DeltaDiscoveryRequest(type_url="t", response_nonce="e7.3")
    node.node.id = "gw-1"
    for data in (
        refusal.SerializeToString(),
        node.SerializeToString(),
        request(),
        request(response_nonce="e7.4", resource_names_subscribe=["x" * ACK_BYTES]),
    ):
        assert decode_request(XdsVariant.DELTA, data) is not decode_request(XdsVariant.DELTA, data)
    for number in range(2 * MAX_ACKS):
        decode_request(XdsVariant.DELTA, request(response_nonce=f"made-up-{number}"))
    assert len(discovery_requests._acks) == MAX_ACKS
