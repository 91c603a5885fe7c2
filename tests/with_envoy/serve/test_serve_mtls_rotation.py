"""Real Envoys over mTLS: what their identity may see, and a rotation that no request notices."""

import json
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from engine.tls.paths import TlsFiles
from tests.engine.tls.certificate_fixtures import client_context
from tests.with_envoy.serve.conftest import PATIENT, Site, eventually
from xds_server.auth.lab_ca import LAB_CERTIFICATES, LabCertificate, make_certificates

pytestmark = pytest.mark.envoy

DAY = timedelta(days=1)
SOMEBODY = (*LAB_CERTIFICATES, LabCertificate(name="stranger", path="stranger"))
ACCESS = """
apiVersion: switchgear.dev/v1alpha1
kind: Access
metadata: {name: access}
spec:
  proxies:
    - {identity: "spiffe://switchgear.lab/proxy/*", nodes: ["n*"], pools: [POOLS]}
  admin:
    - {identity: spiffe://switchgear.lab/operator, role: write}
"""


class Locked:
    """A site whose control plane requires client certificates."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.certs = site.folder / "certs"
        self.access = site.folder / "access.yaml"
        make_certificates(self.certs, SOMEBODY, lasts=DAY)

    def allow(self, pools: str) -> None:
        new = self.access.with_suffix(".new")
        new.write_text(ACCESS.replace("POOLS", pools))
        new.replace(self.access)

    def files(self, name: str) -> TlsFiles:
        folder = self.certs
        return TlsFiles(
            certificate=folder / f"{name}.crt", key=folder / f"{name}.key", authorities=folder / "ca.crt"
        )

    async def serve(self) -> Any:
        tls = self.files("server")
        return await self.site.serve(
            *("--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--tls-ca", str(tls.authorities)),
            *("--access", str(self.access)),
        )

    async def envoy(self, node: str, name: str, *, wait_ready: bool = True) -> Any:
        tls = self.files(name)
        folder = self.site.folder / f"sds-{node}-{name}"
        folder.mkdir()
        return await self.site.envoy(
            node,
            *("--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--tls-ca", str(tls.authorities)),
            *("--server-name", "spiffe://switchgear.lab/control-plane", "--sds-dir", str(folder)),
            wait_ready=wait_ready,
        )

    async def get(self, path: str, name: str = "operator") -> Any:
        files = self.files(name)
        context = client_context(files)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://{self.site.admin}{path}", ssl=context) as answer,
        ):
            return await answer.json() if path != "/metrics" else await answer.text()

    async def metric(self, name: str) -> float:
        for line in (await self.get("/metrics")).splitlines():
            if line.startswith((f"{name} ", f"{name}{{")):
                return float(line.rpartition(" ")[2])
        return 0.0


def write_policies(site: Site) -> None:
    hidden = site.pool("hidden", engines=site.engines[1:])
    chat = site.pool("chat", engines=site.engines[:1], probe=PATIENT)
    site.write("policy.yaml", chat, hidden, site.route())


async def clusters(envoy: Any) -> set[str]:
    page = await envoy.json("/clusters?format=json")
    return {one["name"].partition("/")[0] for one in page.get("cluster_statuses", ())}


async def test_mtls_identity_limits_the_view_and_rotation_is_hitless(site: Site) -> None:
    await site.start_engines(2)
    write_policies(site)
    locked = Locked(site)
    locked.allow("chat")
    child = await locked.serve()
    envoy = await locked.envoy("n1", "proxy")
    await site.answered()
    seen = await clusters(envoy)
    assert "chat" in seen
    assert "hidden" not in seen

    stranger = await locked.envoy("n2", "stranger", wait_ready=False)
    await eventually(lambda: site.logged(child, "xds.peer_refused"), "the stranger is refused")
    (said,) = {one["reason"] for one in site.logged(child, "xds.peer_refused")}
    assert "spiffe://switchgear.lab/stranger" in said
    assert {one["node"] for one in (await locked.get("/v1/proxies"))["proxies"]} == {"n1"}
    stranger.stop()

    # Rotate everything under load, keys and certificates at different times.
    load = site.load()
    await load.more(20)
    streams = "cluster.switchgear.upstream_rq_active"
    connected_s = (await locked.get("/v1/proxies"))["proxies"][0]["connected_s"]
    new = site.folder / "new"
    new.mkdir(mode=0o700)
    for authority in ("ca.crt", "ca.key"):
        (new / authority).write_bytes((locked.certs / authority).read_bytes())
    make_certificates(new, SOMEBODY, lasts=DAY / 2)
    before_s = await locked.metric("switchgear_certificate_expiry_seconds")
    (new / "server.key").replace(locked.certs / "server.key")
    await eventually(lambda: site.logged(child, "certificate.refused"), "half of a rotation is reported")
    (new / "server.crt").replace(locked.certs / "server.crt")
    await eventually(lambda: site.logged(child, "certificate.changed"), "the server has its new certificate")
    (new / "proxy.key").replace(locked.certs / "proxy.key")
    (new / "proxy.crt").replace(locked.certs / "proxy.crt")
    serial = json.loads((await envoy.get("/certs")) or "{}")
    assert serial["certificates"]
    assert await locked.metric("switchgear_certificate_expiry_seconds") < before_s - 3600
    await load.more(20)

    async def rotated() -> bool:
        stats = await envoy.stats("cluster.switchgear.client_ssl_socket_factory.")
        return stats.get("cluster.switchgear.client_ssl_socket_factory.ssl_context_update_by_sds", 0) >= 3

    await eventually(rotated, "Envoy has taken up its new certificate")
    (proxy,) = (await locked.get("/v1/proxies"))["proxies"]
    assert proxy["connected_s"] > connected_s, "the same stream as before"
    assert (await envoy.stats(streams))[streams] >= 1

    # Other rules count at once, for streams that are open as well; what cannot be read leaves them as they are.
    locked.allow("chat, hidden")

    async def sees_both() -> bool:
        return {"chat", "hidden"} <= await clusters(envoy)

    await eventually(sees_both, "the other pool")
    locked.access.write_text("kind: Access\n")
    await eventually(lambda: site.logged(child, "access.refused"), "the bad edit is reported")
    assert await locked.metric("switchgear_access_refused") == 1
    await load.more(20)
    assert not load.failed
    assert (await locked.get("/v1/proxies"))["proxies"]
    state = await locked.get("/v1/access")
    assert "SG" in state["rules"]["trouble"]
    assert state["certificate"]["trouble"] == ""

    # The commands, by certificate; and without one.
    operator = locked.files("operator")
    asked = ("status", "--admin", f"https://{site.admin}", "--cacert", str(operator.authorities))
    proof = ("--cert", str(operator.certificate), "--key", str(operator.key))
    code, out, error = await site.switchgear(*asked, *proof)
    # The rules in the file are invalid: the previous ones apply, and `status` reports that.
    assert (code, "n1" in out, "SG213" in out) == (1, True, True), (out, error)
    code, _, error = await site.switchgear(*asked)
    assert code != 0
    assert "not authenticated" in error
    code, _, error = await site.switchgear("status", "--admin", f"https://{site.admin}", *proof)
    assert (code, "--cacert" in error) == (2, True), error
    log = child.log_path.read_text()
    assert "PRIVATE KEY" not in log
