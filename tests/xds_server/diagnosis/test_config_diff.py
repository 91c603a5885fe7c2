"""Equivalent spellings of a configuration make no difference, and differences are always found."""

import base64
import contextlib
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.admin_api.answers import ResourceContent
from xds_server.diagnosis.config_diff import TYPES, canonical, config_diff
from xds_server.diagnosis.envoy_dump import (
    DumpedResource,
    DumpError,
    dumped_resources,
    node_attributes,
    node_of,
    runtime_layers,
)


def meant(kind: str, name: str, content: Any) -> ResourceContent:
    return ResourceContent(type=kind, name=name, version="v1", origins=("a.yaml:3:1",), content=content)


def assignment(*endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "cluster_name": "chat",
        "endpoints": [{"locality": {"zone": "a"}, "lb_endpoints": list(endpoints)}],
    } | more


def endpoint(port: int, **more: Any) -> dict[str, Any]:
    address = {"socket_address": {"address": "10.0.0.1", "port_value": port}}
    return {"endpoint": {"address": address}, "health_status": "HEALTHY"} | more


def told(kind: str, left: Any, right: Any) -> list[str]:
    answer = config_diff([meant(kind, "x", left)], [DumpedResource(type=kind, name="x", content=right)], {}, TYPES)
    return [line for one in answer.differences for line in one.lines]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"timeout": "0.25s"}, {"timeout": "0.250s"}),
        ({"timeout": "10s"}, {"timeout": "10.000s"}),
        ({"budget": {"value": 100.0}}, {"budget": {"value": 100}}),
        ({"buffer": 16777216}, {"buffer": "16777216"}),
        ({"a": 1, "b": [1, 2]}, {"@type": "type.googleapis.com/x", "b": [1, 2], "a": 1}),
    ],
)
def test_equivalent_json_is_not_a_difference(left: Any, right: Any) -> None:
    assert told("CDS", left, right) == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"timeout": "0.25s"}, {"timeout": "0.26s"}),
        ({"panic": {"value": 0}}, {}),
        ({"list": [1, 2]}, {"list": [2, 1]}),
        ({"filter": {"@type": "a"}}, {"filter": {"@type": "b"}}),
    ],
)
def test_different_values_are_a_difference(left: Any, right: Any) -> None:
    lines = told("CDS", left, right)
    assert any(line.startswith(("-", "+")) for line in lines[2:])


def test_endpoints_are_compared_by_address() -> None:
    left = assignment(endpoint(1), endpoint(2, load_balancing_weight=1))
    right = assignment(
        {**endpoint(2), "endpoint": {**endpoint(2)["endpoint"], "health_check_config": {}}},
        endpoint(1, load_balancing_weight=1),
        policy={"overprovisioning_factor": 140},
    )
    right["endpoints"].append({"locality": {"zone": "empty"}})
    assert told("EDS", left, right) == []
    sick = assignment(endpoint(1, health_status="UNHEALTHY"), endpoint(2))
    assert "-        health_status: HEALTHY" in told("EDS", left, sick)
    assert "+policy:" in told(
        "EDS", left, assignment(endpoint(1), endpoint(2), policy={"overprovisioning_factor": 100})
    )


@pytest.mark.parametrize(("meant_as", "same"), [("DRAINING", True), ("UNHEALTHY", True), ("HEALTHY", False)])
def test_draining_host_is_unhealthy_in_a_dump(meant_as: str, same: bool) -> None:
    left = assignment(endpoint(1, health_status=meant_as))
    assert (told("EDS", left, assignment(endpoint(1, health_status="UNHEALTHY"))) == []) is same


def test_bootstrap_secrets_are_ignored() -> None:
    from_file = {"name": "identity", "sds_config": {"path_config_source": {"path": "/etc/a.json"}}}
    over_xds = {"name": "mesh", "sds_config": {"ads": {}}}
    secrets = [{"name": name, "secret": {"name": name}} for name in ("identity", "mesh")]
    dump = {
        "configs": [
            {
                "@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump",
                "bootstrap": {"clusters": [{"tls": {"one": [from_file], "two": over_xds}}]},
            },
            {
                "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
                "dynamic_active_secrets": secrets,
            },
        ]
    }
    assert [(one.type, one.name, one.content) for one in dumped_resources(dump)] == [("SDS", "mesh", None)]
    assert [one.name for one in dumped_resources({"configs": dump["configs"][1:]})] == ["identity", "mesh"]


def test_resource_on_one_side_is_a_difference() -> None:
    answer = config_diff(
        [meant("CDS", "gone", {"name": "gone"})],
        [
            DumpedResource(type="CDS", name="extra", content={"name": "extra"}),
            DumpedResource(type="RTDS", name="admin", content={}),
        ],
        {},
        TYPES,
    )
    assert [(one.name, one.what) for one in answer.differences] == [
        ("extra", "in the proxy, but not intended"),
        ("gone", "missing in the proxy"),
    ]


def test_envoy_error_is_part_of_the_difference() -> None:
    found = DumpedResource(type="LDS", name="x", content={"a": 1}, problem="Envoy refused a newer version: bad")
    answer = config_diff([meant("LDS", "x", {"a": 2})], [found], {"RTDS": "no runtime"}, ("LDS", "RTDS"))
    assert answer.differences[0].what == "Envoy refused a newer version: bad"
    assert answer.differences[0].origins == ("a.yaml:3:1",)
    assert answer.unseen == {"RTDS": "no runtime"}


def test_secrets_are_compared_by_name() -> None:
    both = config_diff(
        [meant("SDS", "tls", None)], [DumpedResource(type="SDS", name="tls", content=None)], {}, TYPES
    )
    assert (both.same, both.differences) == ({"SDS": 1}, ())
    assert len(config_diff([meant("SDS", "tls", None)], [], {}, TYPES).differences) == 1


def test_runtime_layer_is_compared_as_envoy_writes_it() -> None:
    page = {
        "layers": ["static", "switchgear", "admin"],
        "entries": {"a.b": {"layer_values": ["", "384", ""]}, "a.c": {"layer_values": ["1", "", ""]}},
    }
    (layer,) = [one for one in runtime_layers(page) if one.name == "switchgear"]
    assert told("RTDS", {"name": "switchgear", "layer": {"a.b": 384.0}}, layer.content) == []
    assert told("RTDS", {"name": "switchgear", "layer": {"a": {"b": 384}}}, layer.content) == []
    assert "-a.b: '385'" in told("RTDS", {"layer": {"a.b": 385}}, layer.content)


def test_config_dump_parts_are_read() -> None:
    kind = "type.googleapis.com/envoy.admin.v3."
    eds = {"name": "chat", "type": "EDS", "eds_cluster_config": {}}
    inside = {"name": "hop", "type": "STATIC"}
    listener = {"name": "in", "active_state": {"listener": {"name": "in"}}, "error_state": {"details": "no port"}}
    dump = {
        "configs": [
            {"@type": f"{kind}BootstrapConfigDump", "bootstrap": {"node": {"id": "n1"}}},
            {
                "@type": f"{kind}ClustersConfigDump",
                "static_clusters": [{"cluster": {"name": "switchgear"}}],
                "dynamic_active_clusters": [{"cluster": eds}, {"cluster": inside}],
                "dynamic_warming_clusters": [{"cluster": {"name": "new"}}, {"cluster": eds}],
            },
            {
                "@type": f"{kind}EndpointsConfigDump",
                "dynamic_endpoint_configs": [
                    {"endpoint_config": {"cluster_name": name}} for name in ("chat", "hop")
                ],
            },
            {
                "@type": f"{kind}ListenersConfigDump",
                "dynamic_listeners": [
                    listener,
                    {"name": "warm", "warming_state": {"listener": {"name": "warm"}}},
                    {"name": "bad", "error_state": {"details": "worse"}},
                ],
            },
            {"@type": f"{kind}RoutesConfigDump", "dynamic_route_configs": [{"route_config": {"name": "r"}}, {}]},
            {"@type": f"{kind}SecretsConfigDump", "dynamic_active_secrets": [{"name": "tls"}]},
        ]
    }
    found = {(one.type, one.name): one.problem for one in dumped_resources(dump)}
    assert found == {
        ("CDS", "chat"): "a newer version is warming",
        ("CDS", "hop"): "",
        ("CDS", "new"): "warming, not in use yet",
        ("EDS", "chat"): "",
        ("LDS", "in"): "Envoy refused a newer version: no port",
        ("LDS", "warm"): "warming, not in use yet",
        ("LDS", "bad"): "Envoy refused a newer version: worse",
        ("RDS", "r"): "",
        ("SDS", "tls"): "",
    }
    assert node_of(dump) == "n1"


@pytest.mark.parametrize(
    "said", [None, [], {}, {"configs": 3}, {"configs": [3]}, {"configs": [{"@type": "x"}, None]}], ids=repr
)
def test_invalid_dump_is_refused(said: Any) -> None:
    with pytest.raises(DumpError):
        dumped_resources(said)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    )
)
def test_canonical_form_is_idempotent(content: Any) -> None:
    once = canonical("CDS", {"content": content})
    assert canonical("CDS", once) == once


def test_manual_runtime_override_is_a_difference() -> None:
    page = {
        "layers": ["static", "switchgear", "admin"],
        "entries": {"a.b": {"layer_values": ["1", "384", "5"]}, "a.c": {"layer_values": ["2", "7", ""]}},
    }
    (layer,) = [one for one in runtime_layers(page) if one.name == "switchgear"]
    answer = config_diff([meant("RTDS", "switchgear", {"layer": {"a.b": 384, "a.c": 7}})], [layer], {}, ("RTDS",))
    (found,) = answer.differences
    assert found.what == "a.b is overridden by layer admin"
    assert [line for line in found.lines if line[0] in "+-"][2:] == ["-a.b: '384'", "+a.b: '5'"]


@pytest.mark.parametrize("dump", [[], "x", None, {"configs": {}}, {"configs": ["x"]}, {"configs": [{"@type": 3}]}])
def test_foreign_page_is_refused_as_dump(dump: Any) -> None:
    def looked() -> str:
        dumped_resources(dump)
        return node_of(dump)

    with contextlib.suppress(DumpError):
        assert looked() == ""
    with contextlib.suppress(DumpError):
        assert node_of(dump) == ""


@pytest.mark.parametrize(
    "content", ["x", {"endpoints": 3}, {"endpoints": [{"lb_endpoints": [{}]}]}, {"endpoints": [[]]}]
)
def test_malformed_resource_is_reported(content: Any) -> None:
    held_so = DumpedResource(type="EDS", name="x", content=content)
    (found,) = config_diff([meant("EDS", "x", assignment(endpoint(1)))], [held_so], {}, ("EDS",)).differences
    assert found.what.startswith("not valid for Envoy")


def secrets(**lists: list[dict[str, Any]]) -> dict[str, Any]:
    return {"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump", **lists}]}


def test_pending_certificate_rotation_is_a_difference() -> None:
    shown = {
        "certificate_chain": {"inline_bytes": base64.b64encode(b"old").decode()},
        "private_key": {"inline_bytes": base64.b64encode(b"[redacted]").decode()},
    }
    old = {"name": "e/certificate", "secret": {"name": "e/certificate", "tls_certificate": shown}}
    trust = {"validation_context": {"trusted_ca": {"inline_bytes": base64.b64encode(b"ca").decode()}}}
    ca = {"name": "e/authorities", "secret": {"name": "e/authorities", **trust}}
    awaited = {"name": "late", "secret": {"name": "late"}}
    found = dumped_resources(secrets(dynamic_active_secrets=[old, ca], dynamic_warming_secrets=[awaited]))
    intended = [
        meant("SDS", "e/certificate", {"certificate_chain_sha256": sha256(b"new").hexdigest()}),
        meant("SDS", "e/authorities", {"trusted_ca_sha256": sha256(b"ca").hexdigest()}),
        meant("SDS", "late", {"trusted_ca_sha256": sha256(b"ca").hexdigest()}),
    ]
    answer = config_diff(intended, found, {}, ("SDS",))
    assert [(one.name, one.what) for one in answer.differences] == [
        ("e/certificate", "differs"),
        ("late", "not received yet"),
    ]
    assert answer.same == {"SDS": 1}
    bad = {"name": "x", "secret": {"validation_context": {"trusted_ca": {"inline_bytes": "%"}}}}
    with pytest.raises(DumpError, match="not base64"):
        dumped_resources(secrets(dynamic_active_secrets=[bad]))


def test_dump_node_attributes_select_the_view() -> None:
    kind = "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump"
    metadata = {"role": "sidecar", "pools": ["a", "b", 3], "listen_address": "", "cuts": True}
    node = {"id": "n1", "locality": {"zone": "z1", "region": 4}, "metadata": metadata}
    said = node_attributes({"configs": [{"@type": kind, "bootstrap": {"node": node}}]})
    assert said == (("zone", "z1"), ("role", "sidecar"), ("cuts", "true"), ("pool", "a"), ("pool", "b"))
    for strange in ({"id": "n1"}, {"locality": [], "metadata": "x"}):
        assert node_attributes({"configs": [{"@type": kind, "bootstrap": {"node": strange}}]}) == ()
    assert node_attributes({"configs": []}) == ()
