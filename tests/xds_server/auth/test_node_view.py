"""A proxy's node determines its view, and no node makes the view unusable."""

import pytest

from xds_server.auth.node_view import view_of
from xds_server.model.view import View
from xds_server.xds import NodeInfo


def node(metadata=None, *, agent="envoy", zone="a"):
    return NodeInfo(id="n", zone=zone, user_agent_name=agent, metadata=metadata or {})


def test_node_without_metadata_is_a_gateway_of_its_locality_zone():
    assert view_of(node()) == View(zone="a", role="gateway")


def test_role_pools_and_address_come_from_the_metadata():
    value = {"role": "sidecar", "pools": ["big", "small"], "listen_address": "127.0.0.2"}
    assert view_of(node(value)) == View(
        zone="a", role="sidecar", pools=frozenset({"big", "small"}), listen_address="127.0.0.2"
    )


def test_grpc_client_is_detected_by_its_user_agent():
    assert view_of(node(agent="gRPC Python")).role == "grpc"


@pytest.mark.parametrize(
    ("value", "cuts"), [(True, True), (False, False), ("true", False), (1, False), (None, False)]
)
def test_only_declared_capability_enables_internal_listeners(value, cuts):
    assert view_of(node({"cuts": value})).cuts is cuts


@pytest.mark.parametrize(
    ("agent", "version", "expected"),
    [
        ("envoy", "1.36.4", True),
        ("envoy", "1.37.0", False),
        ("envoy", "2.0.0", False),
        ("envoy", "", False),
        ("envoy", "unknown", False),
        ("gRPC Python", "1.30.0", False),
    ],
)
def test_envoys_before_1_37_limit_bodies_by_the_listener(agent, version, expected):
    one = NodeInfo(id="n", user_agent_name=agent, user_agent_version=version)
    assert view_of(one).listener_buffers is expected


@pytest.mark.parametrize(
    ("version", "expected"), [("1.36.4", True), ("1.37.9", True), ("1.38.0", False), ("unknown", False)]
)
def test_envoys_before_1_38_have_no_prompt_keys(version, expected):
    one = NodeInfo(id="n", user_agent_name="envoy", user_agent_version=version)
    assert view_of(one).no_prompt_keys is expected


def test_grpc_client_has_no_internal_listeners():
    assert not view_of(node({"cuts": True, "role": "grpc"})).cuts


@pytest.mark.parametrize("address", ["localhost", "", 7, None, ["127.0.0.2"], "127.0.0.1:80"])
def test_unbindable_address_is_ignored(address):
    assert view_of(node({"listen_address": address})).listen_address == ""


@pytest.mark.parametrize("pools", ["big", 7, [], [7], None])
def test_invalid_pool_names_mean_all_pools(pools):
    assert view_of(node({"pools": pools})).pools == frozenset()


def test_region_comes_from_the_locality():
    assert view_of(NodeInfo(id="n", zone="a", region="eu")).region == "eu"
