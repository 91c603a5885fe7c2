"""Server info, and resources decoded from their bytes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import Extension
from envoy_data_plane.envoy.config.core.v3 import Node as EnvoyNode
from envoy_data_plane.envoy.service.discovery.v3 import DeltaDiscoveryRequest

from policies.load import load_contents
from tests.golden.golden_case import CASES, HERE, golden_case
from xds_server.admin.config_dump_routes import add_config_dump
from xds_server.admin.published_config import PublishedConfig
from xds_server.admin.resource_decoder import ResourceDecoder
from xds_server.admin.server_info import (
    NEEDED_EXTENSIONS,
    missing_extensions,
    optional_extensions,
    server_info,
)
from xds_server.admin.views.context import UnknownNameError
from xds_server.auth.node_view import view_of
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml
from xds_server.model.snapshot import Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, RUNTIME, SECRET
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.translate.envoy_json import as_json
from xds_server.translate.upstream_tls import certificate_secret
from xds_server.xds import DeniedPeerError, NodeInfo, XdsVariant
from xds_server.xds.discovery_requests import decode_request

KEY = b"-----BEGIN PRIVATE KEY-----"


def served() -> Snapshot:
    return snapshot(
        [
            resource(SECRET, "tls", bytes(certificate_secret("tls", b"public", KEY))),
            resource(CLUSTER, "chat", bytes(Cluster(name="chat")), ["a.yaml:3:1"]),
            resource(RUNTIME, "live", b"\x0a\x04live"),
        ]
    )


def test_config_dump_is_in_push_order_and_redacts_private_keys() -> None:
    found = json.loads(ResourceDecoder().read(served()))
    assert [(one["type"], one["name"]) for one in found] == [("RTDS", "live"), ("CDS", "chat"), ("SDS", "tls")]
    public = {"certificate_chain_sha256": sha256(b"public").hexdigest()}
    assert [one["content"] for one in found] == [{"name": "live"}, {"name": "chat"}, public]
    assert found[1]["origins"] == ["a.yaml:3:1"]


def test_decoded_resources_are_cached_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []

    class Counted(Cluster):
        @classmethod
        def parse(cls, value: bytes) -> Cluster:  # type: ignore[override]
            parsed.append(value)
            return Cluster.parse(value)

    monkeypatch.setattr("xds_server.admin.resource_decoder._CLASSES", {CLUSTER: Counted})
    one, other = (resource(CLUSTER, name, bytes(Cluster(name=name))) for name in ("one", "another"))
    reader = ResourceDecoder()
    texts = [reader.read(snapshot(some)) for some in ([one], [one], [one, other], [one])]
    assert parsed == [one.value, other.value]
    assert texts[0] == texts[1] == texts[3]
    moved = replace(one, origins=("b.yaml:1:1",))
    assert json.loads(reader.read(snapshot([moved])))[0]["origins"] == ["b.yaml:1:1"], "never kept"
    small = ResourceDecoder(most_characters=20)
    for some in ([one], [one], [other], [one]):
        small.read(snapshot(some))
    assert parsed[2:] == [one.value, other.value, one.value], "the oldest is forgotten where there is too much"


def node(*extensions: str, **metadata: object) -> NodeInfo:
    return NodeInfo(id="n1", extensions=frozenset(extensions), metadata=MappingProxyType(dict(metadata)))


def test_proxy_lacks_required_extensions() -> None:
    gateway, cuts = NEEDED_EXTENSIONS["gateway"], NEEDED_EXTENSIONS["cuts"]
    assert missing_extensions(node()) is None, "who says nothing is not accused"
    assert missing_extensions(node(*gateway)) == ()
    assert missing_extensions(node(*gateway, cuts=True)) == cuts
    assert missing_extensions(node(*gateway[1:], *cuts, cuts=True)) == gateway[:1]


def _named(value: Any) -> Iterator[str]:
    """Extension names in a message, next to their settings."""
    if isinstance(value, dict):
        if "typed_config" in value:
            yield value.get("name", "an extension without a name")
        for one in value.values():
            yield from _named(one)
    elif isinstance(value, list):
        for one in value:
            yield from _named(one)


def test_served_extensions_are_required_extensions() -> None:
    resources = [one for name in CASES for one in golden_case(name).resources]
    assert len(resources) > 200
    # Second filters of one kind have names of their own.
    named = {name for one in resources for name in _named(as_json(one))}
    used = {name for name in named if not name.startswith("switchgear.")}
    # Internal listeners require a bootstrap extension.
    start = yaml.safe_load(bootstrap_yaml(Bootstrap(node="n", zone="z")))
    switched_on = set(_named(start["bootstrap_extensions"]))
    assert used | switched_on == {name for names in NEEDED_EXTENSIONS.values() for name in names}


@pytest.mark.parametrize(("case", "field"), [("affinity-strict", "affinity"), ("disaggregated", "prefill")])
def test_route_requires_what_its_fields_need(case: str, field: str) -> None:
    def required(name: str) -> set[str]:
        policies = load_contents({Path("p.yaml"): (HERE / name / "policy.yaml").read_bytes()})
        return set(optional_extensions(policies.routes.values()))

    assert set(NEEDED_EXTENSIONS[field]) <= required(case)
    assert not set(NEEDED_EXTENSIONS[field]) & required("minimal")


def test_extension_names_are_shared_between_proxies() -> None:
    names = ["envoy.filters.http.lua", "x" * 300, ""]
    sent = DeltaDiscoveryRequest(
        node=EnvoyNode(id="n1", extensions=[Extension(name=name, category="c") for name in names]),
        type_url=CLUSTER,
    )
    first, again = (decode_request(XdsVariant.DELTA, bytes(sent)).node for _ in range(2))
    assert first is not None
    assert again is not None
    assert "envoy.filters.http.lua" in first.extensions
    assert first.extensions is again.extensions


def test_server_info_has_limits_and_disk_space(tmp_path: Path) -> None:
    pools = ["b", "a"]
    found = server_info(
        5.0, state_dir=tmp_path, listen="127.0.0.1:1", gated_pools=pools, tls_pools=pools[:1], nodes=[node()]
    )
    assert found.now_unix_s == 5.0
    assert found.libraries["grpcio"]
    assert found.gated_pools == ("a", "b")
    assert found.tls_pools == ("b",)
    assert found.proxies[0].lacks is None
    assert found.disk is not None
    assert found.disk.writable
    assert found.disk.free_bytes > 0
    gone = server_info(5.0, state_dir=tmp_path / "gone", listen="", gated_pools=(), nodes=()).disk
    assert gone is not None
    assert not gone.writable


async def test_admin_config_dump_routes_answer_json_and_report_disconnected_nodes() -> None:
    class Inside(PublishedConfig):
        def served(self, node: str) -> Snapshot:
            return served() if node == "n1" else super().served(node)

    inside = Inside(Publisher(view_of=lambda _: "v", snapshot_for=lambda _: Snapshot()), wall=lambda: 7.0)
    app = Application()
    add_config_dump(app, inside)
    async with TestClient(TestServer(app)) as client:
        assert (await (await client.get("/v1/about")).json())["now_unix_s"] == 7.0
        answer = await (await client.get("/v1/resources?node=n1")).text()
        assert '"chat"' in answer
        assert "PRIVATE KEY" not in answer
    with pytest.raises(UnknownNameError, match="proxy 'n2' is not connected"):
        inside.served("n2")


async def test_absent_proxy_is_described_by_the_query() -> None:
    asked: list[NodeInfo] = []

    def expected(node: NodeInfo) -> View:
        asked.append(node)
        if node.zone == "closed":
            raise DeniedPeerError("no rule for that zone")
        return View(zone=node.zone)

    publisher = Publisher(view_of=lambda _: "v", snapshot_for=lambda _: Snapshot())
    inside = PublishedConfig(
        publisher, view_expected=expected, peek=lambda view: served() if view.zone == "z1" else None
    )
    app = Application(middlewares=[answer_refusals])
    add_config_dump(app, inside)
    async with TestClient(TestServer(app)) as client:
        node_query = "zone=z1&region=r&role=sidecar&pool=a&pool=b&listen_address=10.0.0.1&cuts=true"
        answer = await (await client.get(f"/v1/resources?node=n1&absent=true&{node_query}")).json()
        assert answer["connected"] is False
        assert [one["name"] for one in answer["resources"]] == ["live", "chat", "tls"]
        node = asked[-1]
        assert (node.id, node.region, node.zone) == ("n1", "r", "z1")
        assert view_of(node) == View(
            zone="z1",
            region="r",
            role="sidecar",
            pools=frozenset("ab"),
            listen_address="10.0.0.1",
            cuts=True,
        )
        for query, why in (
            ("", "proxy 'n1' is not connected"),
            ("&absent=true&zone=other", "is not connected, and no resources are served yet"),
            ("&absent=true&zone=closed", "the access rules would refuse it: no rule for that zone"),
        ):
            refused = await client.get(f"/v1/resources?node=n1{query}")
            assert refused.status == 404
            assert why in (await refused.json())["error"]


@web.middleware
async def answer_refusals(request: web.Request, handler: Any) -> web.StreamResponse:
    """As on the admin port."""
    try:
        return await handler(request)  # type: ignore[no-any-return]  # aiohttp's own signature
    except UnknownNameError as refusal:
        return web.json_response({"error": str(refusal)}, status=404)
