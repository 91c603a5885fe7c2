"""Derived classes decode betterproto2's bytes, and keep opaque fields undecoded."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.service.accesslog import v3 as access_log
from envoy_data_plane.envoy.service.discovery import v3 as discovery
from envoy_data_plane.envoy.service.load_stats import v3 as load_stats
from envoy_data_plane.google.protobuf import Struct
from envoy_data_plane.google.rpc import Status
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_server.model.type_urls import ENDPOINT
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, decoder
from xds_server.wire.encode import encode

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # some fields of Envoy are deprecated

NODE = core.Node(
    id="gw-1",
    cluster="gateways",
    metadata=Struct.from_dict({"pools": ["a", "b"], "role": "gateway"}),
    locality=core.Locality(region="eu", zone="eu-1"),
    user_agent_name="envoy",
    extensions=[core.Extension(name=f"envoy.filter.{n}", category="envoy.filters.http") for n in range(500)],
)


def test_a_request_is_read_field_by_field() -> None:
    sent = discovery.DeltaDiscoveryRequest(
        node=NODE,
        type_url=ENDPOINT,
        resource_names_subscribe=["a", "b"],
        resource_names_unsubscribe=["c"],
        initial_resource_versions={"a": "1"},
        response_nonce="7",
        error_detail=Status(code=13, message="refused"),
    )
    request = DeltaDiscoveryRequest.FromString(bytes(sent))
    assert (request.node.id, request.node.cluster, request.node.user_agent_name) == ("gw-1", "gateways", "envoy")
    assert (request.node.locality.region, request.node.locality.zone) == ("eu", "eu-1")
    assert request.node.metadata["role"] == "gateway"
    assert list(request.node.metadata["pools"]) == ["a", "b"]
    assert request.type_url == ENDPOINT
    assert list(request.resource_names_subscribe) == ["a", "b"]
    assert list(request.resource_names_unsubscribe) == ["c"]
    assert dict(request.initial_resource_versions) == {"a": "1"}
    assert request.response_nonce == "7"
    assert request.HasField("error_detail")
    assert (request.error_detail.code, request.error_detail.message) == (13, "refused")


def test_an_ack_has_neither_node_nor_error() -> None:
    request = DiscoveryRequest.FromString(
        bytes(discovery.DiscoveryRequest(version_info="1", type_url=ENDPOINT, response_nonce="7"))
    )
    assert not request.HasField("node")
    assert not request.HasField("error_detail")
    assert (request.version_info, list(request.resource_names), request.response_nonce) == ("1", [], "7")


def test_node_extensions_stay_undecoded() -> None:
    sent = encode(discovery.DiscoveryRequest(node=NODE))
    request = DiscoveryRequest.FromString(sent)
    assert request.node.extensions[0] == encode(NODE.extensions[0])
    assert isinstance(request.node.extensions[0], bytes)
    assert request.SerializeToString(deterministic=True) == sent


def test_invalid_bytes_are_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        DiscoveryRequest.FromString(b"\x0a\xff")


def test_fields_of_a_newer_envoy_survive() -> None:
    newer = b"\x2a\x017" + b"\xfa\xff\x03\x03new"
    assert DiscoveryRequest.FromString(newer).SerializeToString() == newer


def test_unknown_opaque_field_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"DiscoveryRequest reaches no field Node\.nothing"):
        decoder(discovery.DiscoveryRequest, opaque={"Node.nothing"})


def test_opaque_field_type_is_not_derived() -> None:
    whole = decoder(discovery.DiscoveryRequest).DESCRIPTOR.file.message_types_by_name
    partial = decoder(discovery.DiscoveryRequest, opaque={"Node.extensions"}).DESCRIPTOR.file.message_types_by_name
    assert set(whole) - set(partial) == {"envoy_config_core_v3_Extension"}


def test_optional_scalar_distinguishes_zero_from_absent() -> None:
    derived = decoder(core.SocketAddress)
    assert not derived.FromString(b"").HasField("port_value")
    zero = derived.FromString(encode(core.SocketAddress(port_value=0)))
    assert zero.HasField("port_value")
    assert zero.WhichOneof("port_specifier") == "port_value"


def test_an_unknown_enum_number_passes_through() -> None:
    derived = decoder(endpoint.LbEndpoint)
    assert derived.FromString(b"\x10\x4d").health_status == 77
    assert derived(health_status=77).SerializeToString() == b"\x10\x4d"


@pytest.mark.parametrize(
    "cls",
    [
        access_log.StreamAccessLogsMessage,
        load_stats.LoadStatsRequest,
        load_stats.LoadStatsResponse,
        discovery.DeltaDiscoveryRequest,
        discovery.DiscoveryRequest,
    ],
    ids=lambda cls: cls.__name__,
)
def test_every_message_that_a_proxy_sends_is_read(
    cls: type[Any], random_message: Callable[[type[Any], int], Any]
) -> None:
    derived = decoder(cls)

    @settings(max_examples=25, deadline=None, database=None)
    @given(seed=st.integers(0, 2**64))
    def compare(seed: int) -> None:
        message = random_message(cls, seed)
        read = derived.FromString(encode(message))
        assert cls.parse(read.SerializeToString()) == message

    compare()


def test_load_report_is_decoded() -> None:
    sent = load_stats.LoadStatsRequest(
        cluster_stats=[
            endpoint.ClusterStats(
                cluster_name="pool", total_dropped_requests=3, load_report_interval=timedelta(seconds=1.5)
            )
        ]
    )
    (stats,) = decoder(load_stats.LoadStatsRequest).FromString(encode(sent)).cluster_stats
    assert (stats.cluster_name, stats.total_dropped_requests) == ("pool", 3)
    assert stats.load_report_interval.ToTimedelta() == timedelta(seconds=1.5)


def test_response_resource_is_a_typed_any() -> None:
    response = DeltaDiscoveryResponse(
        resources=[{"name": "a", "resource": {"type_url": ENDPOINT, "value": b"x"}}], nonce="1"
    )
    (resource,) = DeltaDiscoveryResponse.FromString(response.SerializeToString()).resources
    assert (resource.name, resource.resource.type_url, resource.resource.value) == ("a", ENDPOINT, b"x")
