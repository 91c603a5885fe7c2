"""Authorization on the ADS port, and the effect of changed rules and certificates."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from engine.address import ListenAddress
from engine.tls.certificate_files import read_pair
from engine.tls.grpc_credentials import channel_credentials
from engine.tls.paths import TlsFiles
from policies.load import load_contents
from xds_server.admin_api.status_types import FileDefect
from xds_server.auth.lab_ca import LAB_CERTIFICATES, LabCertificate, make_certificates
from xds_server.auth.node_view import NO_POOL, view_of
from xds_server.auth.server_auth import ServerAuth
from xds_server.model.snapshot import resource, snapshot
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.publish import Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.publish.h2_ads import H2AdsServer
from xds_server.serve_config import ConfigError, ServeConfig
from xds_server.translate.visibility import visible_policies
from xds_server.wire.decode import DeltaDiscoveryRequest, DeltaDiscoveryResponse
from xds_server.xds import DeniedPeerError, NodeInfo

LIMIT_S = 60.0
METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
RULES = """
apiVersion: switchgear.dev/v1alpha1
kind: Access
metadata: {name: access}
spec:
  proxies:
    - {identity: spiffe://switchgear.lab/proxy/gateway, nodes: ["n*"], pools: [chat]}
"""
POLICIES = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: %s}
spec: {model: m, endpoints: [{address: 127.0.0.1, port: %d}]}
---
"""
ROUTES = """
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: one}
spec: {listener: {port: 10000}, match: {model: one}, pools: [{pool: chat}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: two}
spec: {listener: {port: 10000}, match: {model: two}, pools: [{pool: chat}], fallbacks: [small]}
"""


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    folder = tmp_path / "certs"
    make_certificates(
        folder, (*LAB_CERTIFICATES, LabCertificate(name="stranger", path="stranger")), lasts=timedelta(days=1)
    )
    return folder


def guard(certs: Path, *, rules: str | None = RULES, clock: Callable[[], float] = time.monotonic) -> ServerAuth:
    access = None
    if rules is not None:
        access = certs / "access.yaml"
        access.write_text(rules)
    return ServerAuth(
        ServeConfig(
            policies=(certs,),
            tls_cert=certs / "server.crt",
            tls_key=certs / "server.key",
            tls_ca=certs / "ca.crt",
            access=access,
        ),
        clock=clock,
    )


def node(identity: str = "proxy/gateway", name: str = "n1", **metadata: object) -> NodeInfo:
    return NodeInfo(id=name, metadata=metadata, identities=(f"spiffe://switchgear.lab/{identity}",))


def test_proxy_authorization_limits_pools(certs: Path) -> None:
    made = guard(certs)
    assert made.view_of(node()).pools == {"chat"}
    assert made.view_of(node(pools=["chat", "hidden"])).pools == {"chat"}
    nothing = made.view_of(node(pools=["hidden"]))
    assert nothing.pools == {NO_POOL}
    for who in (node("stranger"), node(name="x1"), NodeInfo(id="n1")):
        with pytest.raises(DeniedPeerError):
            made.view_of(who)
    counted = {
        sample.labels["reason"]: sample.value
        for family in made.families()
        if family.name == "switchgear_xds_refused_peers"
        for sample in family.samples
    }
    assert counted == {"identity": 2, "node": 1}


def test_absent_proxy_gets_the_grant_of_its_node(certs: Path) -> None:
    made = guard(certs)
    gone = NodeInfo(id="n1", metadata={"pools": ["chat", "hidden"]})
    assert made.view_expected(gone) == made.view_of(node(pools=["chat", "hidden"]))
    assert made.view_expected(gone).keys, "it would have to prove itself"
    with pytest.raises(DeniedPeerError, match="no rule allows node 'x1'"):
        made.view_expected(NodeInfo(id="x1"))
    assert guard(certs, rules=None).view_expected(gone) == view_of(gone, keys=True)
    assert not list(made.file_problems()), "no proxy was refused"


def test_without_rules_any_certificate_may_be_any_proxy(certs: Path) -> None:
    assert guard(certs, rules=None).view_of(node("stranger")) == view_of(node("stranger"), keys=True)


def test_private_keys_need_mtls_identity_or_loopback(certs: Path) -> None:
    proved, nameless = node(), NodeInfo(id="n1")
    files = {"tls_cert": certs / "server.crt", "tls_key": certs / "server.key", "tls_ca": certs / "ca.crt"}
    everywhere = ListenAddress("0.0.0.0", 0)
    for settings, who, expected in (
        ({**files, "listen": everywhere}, proved, True),
        ({**files, "listen": everywhere}, nameless, False),
        ({"insecure": True, "listen": everywhere}, nameless, False),
        # Without client certificates identities are unverified.
        ({"insecure": True, "listen": everywhere}, proved, False),
        ({"listen": ListenAddress("127.0.0.1", 0)}, nameless, True),
        ({"listen": ListenAddress("::1", 0)}, nameless, True),
    ):
        made = ServerAuth(ServeConfig(policies=(certs,), **settings))  # type: ignore[arg-type]
        assert made.view_of(who).keys is expected, settings
    client = replace(proved, user_agent_name="gRPC Python")
    assert not ServerAuth(ServeConfig(policies=(certs,), **files)).view_of(client).keys


def test_repeated_authorization_denial_is_logged_once(certs: Path) -> None:
    made = guard(certs)
    with capture_logs() as logs:
        for _ in range(5):
            with pytest.raises(DeniedPeerError):
                made.view_of(node("stranger"))
    assert len(logs) == 1


def test_denied_proxies_are_reported_while_they_retry(certs: Path) -> None:
    now = [0.0]
    made = guard(certs, clock=lambda: now[0])
    assert not [one for one in made.file_problems() if one.what == "rules"]
    for who in (node("stranger"), node(name="x1")):
        with pytest.raises(DeniedPeerError):
            made.view_of(who)
    (problem,) = (one for one in made.file_problems() if one.what == "rules")
    assert problem.defect is FileDefect.REFUSES
    assert problem.sentence.endswith(
        "spiffe://switchgear.lab/proxy/gateway may not be node 'x1' in zone '', and 1 more"
    )
    made.view_of(node())  # under the stranger's node id
    (problem,) = (one for one in made.file_problems() if one.what == "rules")
    assert problem.sentence.endswith("in zone ''")
    now[0] = 60.0
    assert not [one for one in made.file_problems() if one.what == "rules"]


def test_proxy_authorization_rules_require_mtls(tmp_path: Path) -> None:
    (tmp_path / "access.yaml").write_text(RULES)
    with pytest.raises(ConfigError, match="require TLS"):
        ServerAuth(ServeConfig(policies=(tmp_path,), access=tmp_path / "access.yaml"))


def test_unauthorized_pools_have_no_routes() -> None:
    text = "".join(POLICIES % one for one in (("chat", 1), ("small", 2), ("hidden", 3))) + ROUTES
    policies = load_contents({Path("all.yaml"): text.encode()})
    everything = visible_policies(policies, View())
    assert set(everything.pools) == {"chat", "hidden", "small"}
    assert [route.metadata.name for route in everything.routes[10000]] == ["one", "two"]
    limited = visible_policies(policies, view_of(node(), frozenset({"chat"})))
    assert set(limited.pools) == {"chat"}
    assert [route.metadata.name for route in limited.routes[10000]] == ["one"]
    nothing = visible_policies(policies, view_of(node(pools=["hidden"]), frozenset({"chat"})))
    assert (nothing.pools, nothing.routes) == ((), {})


TRANSPORTS = ("grpc", "h2")


@asynccontextmanager
async def serving(made: ServerAuth, transport: str) -> AsyncIterator[tuple[int, Publisher]]:
    publisher = Publisher(
        view_of=made.view_of, snapshot_for=lambda _view: snapshot([resource(CLUSTER, "c", b"1")])
    )
    server: GrpcAdsServer | H2AdsServer = GrpcAdsServer(publisher, credentials=made.server_credentials())
    if transport == "h2":
        server = H2AdsServer(publisher, tls=made.h2_context())
    port = await server.start()
    try:
        yield port, publisher
    finally:
        await server.stop()


@asynccontextmanager
async def stream(port: int, certs: Path, name: str, node_id: str = "n1") -> AsyncIterator[Any]:
    pair = read_pair(
        TlsFiles(certificate=certs / f"{name}.crt", key=certs / f"{name}.key", authorities=certs / "ca.crt")
    )
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", channel_credentials(pair)) as channel:
        call = channel.stream_stream(METHOD)()
        with contextlib.suppress(grpc.aio.AioRpcError):  # reading reports the same, and is what tests check
            await call.write(_request(node_id))
        yield call
        call.cancel()


def _request(node_id: str) -> bytes:
    request = DeltaDiscoveryRequest(type_url=CLUSTER)
    request.node.id = node_id
    return request.SerializeToString()


async def received(call: Any) -> list[str]:
    answer = DeltaDiscoveryResponse.FromString(await asyncio.wait_for(call.read(), LIMIT_S))
    return [one.name for one in answer.resources]


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    async def read_on() -> None:
        while (await asyncio.wait_for(call.read(), LIMIT_S)) is not grpc.aio.EOF:
            pass

    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await read_on()
    return failure.value.code(), failure.value.details() or ""


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_authorized_streams_are_served_and_others_get_permission_denied(certs: Path, transport: str) -> None:
    async with serving(guard(certs), transport) as (port, publisher):
        async with stream(port, certs, "proxy") as call:
            assert await received(call) == ["c"]
            assert publisher.speaks_for("n1", ("spiffe://switchgear.lab/proxy/gateway", "localhost"))
            assert not publisher.speaks_for("n1", ("spiffe://switchgear.lab/stranger",))
            assert not publisher.speaks_for("n2", ("spiffe://switchgear.lab/proxy/gateway",))
        async with stream(port, certs, "stranger") as call:
            code, reason = await ended(call)
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "may not connect as a proxy" in reason
        async with stream(port, certs, "proxy", "x1") as call:
            assert (await ended(call))[0] is grpc.StatusCode.PERMISSION_DENIED
        async with stream(port, certs, "proxy") as call:
            assert await received(call) == ["c"]
            await call.write(_request("n2"))
            code, reason = await ended(call)
            assert (code, reason) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "node.id must not change within a stream",
            )


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_changed_authorization_rules_end_disallowed_streams(certs: Path, transport: str) -> None:
    made = guard(certs)
    async with serving(made, transport) as (port, publisher), stream(port, certs, "proxy") as call:
        assert await received(call) == ["c"]
        (certs / "access.yaml").write_text(RULES.replace("pools: [chat]", "pools: [small]"))
        made.check_files(publisher.reauthorize, lambda: None)
        code, reason = await ended(call)
        assert (code, "visibility of this proxy changed" in reason) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        async with stream(port, certs, "proxy") as again:
            assert await received(again) == ["c"]
            (certs / "access.yaml").write_text(RULES.replace("gateway", "other"))
            made.check_files(publisher.reauthorize, lambda: None)
            assert (await ended(again))[0] is grpc.StatusCode.PERMISSION_DENIED
        assert publisher.views == ()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_expired_server_certificate_is_refused(certs: Path, transport: str) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    make_certificates(
        certs, [one for one in LAB_CERTIFICATES if one.name == "proxy"], lasts=timedelta(hours=1), now=long_ago
    )
    async with serving(guard(certs), transport) as (port, _), stream(port, certs, "proxy") as call:
        assert (await ended(call))[0] is grpc.StatusCode.UNAVAILABLE


def test_certificate_changes_and_errors_are_logged_once(certs: Path) -> None:
    made = guard(certs)
    keys: list[str] = []
    first = made.channel_credentials()
    assert made.channel_credentials() is first
    make_certificates(certs, LAB_CERTIFICATES, lasts=timedelta(minutes=30))
    (certs / "access.yaml").write_text("kind: Access\n")
    with capture_logs() as logs:
        for _ in range(3):
            made.check_files(lambda: keys.append("rules"), lambda: keys.append("keys"))
    events = [one["event"] for one in logs]
    assert sorted(events) == ["access.refused", "certificate.changed", "certificate.ends"]
    assert keys == ["keys"]
    assert made.channel_credentials() is not first
    problem = {family.name: family.samples[0].value for family in made.families()}
    assert problem["switchgear_access_refused"] == 1
    assert 0 < problem["switchgear_certificate_expiry_seconds"] <= 1800


def test_summaries_require_a_rule(certs: Path) -> None:
    region = ("spiffe://switchgear.lab/region/eu",)
    assert guard(certs, rules=None).may_watch_summaries(region)
    assert not guard(certs).may_watch_summaries(region), "rules without a matching name"
    made = guard(certs, rules=RULES + '  summaries: ["spiffe://switchgear.lab/region/*"]\n')
    assert made.may_watch_summaries(region)
    assert not made.may_watch_summaries(("spiffe://switchgear.lab/proxy/gateway", "localhost"))
    assert not made.may_watch_summaries(())
    (certs / "access.yaml").write_text(RULES)
    made.check_files(lambda: None, lambda: None)
    assert not made.may_watch_summaries(region), "no longer"


def test_summary_authorization_rules_require_mtls(tmp_path: Path) -> None:
    path = tmp_path / "access.yaml"
    path.write_text(RULES.partition("  proxies")[0] + "  summaries: [region.eu]\n")
    with pytest.raises(ConfigError, match="rules for summaries require TLS"):
        ServerAuth(ServeConfig(policies=(tmp_path,), access=path))
