"""TLS from a real Envoy to engines: certificates are rotated under a running stream, and nothing else moves."""

import asyncio
import base64
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from chaos.processes import free_ports
from tests.with_envoy.serve.conftest import Site, document, eventually
from xds_server.auth.lab_ca import LabCertificate, make_certificates

pytestmark = pytest.mark.envoy

NAME = "engine.test"
TLS = {"secret": "engines", "serverName": NAME}
DIRECT = {"retries": {"conditions": ["connect-failure"]}}
"""Without a condition that covers a cut, engines are reached without a hop."""


class Engine:
    """Speaks TLS, asks for a certificate, and notes whose it was; each answer ends its connection."""

    def __init__(self, certs: Path) -> None:
        self.port = free_ports(1)[0]
        self.seen: list[int] = []
        self.finish = asyncio.Event()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_3  # Envoy speaks it only if configured
        self._context.verify_mode = ssl.CERT_REQUIRED
        self.speak_for(certs)
        self.trust(certs)
        app = web.Application()
        app.router.add_post("/v1/completions", self._answer)
        self._runner = web.AppRunner(app)

    def speak_for(self, certs: Path) -> None:
        """Show this certificate from the next connection on."""
        self._context.load_cert_chain(certs / "engine.crt", certs / "engine.key")

    def trust(self, certs: Path) -> None:
        """Take also proxies of this authority."""
        self._context.load_verify_locations(certs / "ca.crt")

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._context).start()

    async def stop(self) -> None:
        self.finish.set()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        shown = request.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        self.seen.append(x509.load_der_x509_certificate(shown).serial_number)
        answer = web.StreamResponse()
        answer.force_close()
        await answer.prepare(request)
        if (await request.json()).get("stream"):
            count = 0
            while not self.finish.is_set():
                await answer.write(b"data: %d\n\n" % count)
                count += 1
                await asyncio.sleep(0.02)
            await answer.write(b"data: [DONE] after %d\n\n" % count)
        return answer


class Certs:
    """A temporary authority, an engine's certificate and a proxy's."""

    def __init__(self, folder: Path, name: str = NAME) -> None:
        make_certificates(
            folder,
            [LabCertificate(name="engine", path="e", names=(name,)), LabCertificate(name="proxy", path="p")],
            lasts=timedelta(days=30),
        )
        self.folder = folder

    @property
    def serial(self) -> int:
        return x509.load_pem_x509_certificate((self.folder / "proxy.crt").read_bytes()).serial_number

    def put(self, secret: Path, *, also_trust: "Certs | None" = None) -> None:
        """Write the secret of proxies, one file after the other."""
        secret.mkdir(parents=True, exist_ok=True)
        more = b"" if also_trust is None else (also_trust.folder / "ca.crt").read_bytes()
        (secret / "ca.crt").write_bytes((self.folder / "ca.crt").read_bytes() + more)
        shutil.copy(self.folder / "proxy.crt", secret / "tls.crt")
        shutil.copy(self.folder / "proxy.key", secret / "tls.key")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    made = Engine(Certs(tmp_path / "one").folder)
    await made.start()
    yield made
    await made.stop()


def write(site: Site, engine: Engine, tls: dict[str, Any], **policy: Any) -> None:
    spec = {
        "model": "fake-model",
        "endpoints": [{"address": "127.0.0.1", "port": engine.port, "name": "e"}],
        "probe": {"enabled": False},
        "tls": tls,
    }
    site.write(
        "all.yaml",
        document("EnginePool", "chat", spec),
        site.route(),
        document("ResiliencePolicy", "default", policy),
    )


async def stream(site: Site, started: asyncio.Event) -> bytes:
    """All of one long answer."""
    url = f"http://127.0.0.1:{site.port}/v1/completions"
    body = {"model": "fake-model", "prompt": "x", "stream": True}
    received = b""
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.status == 200
        async for chunk in answer.content.iter_any():
            received += chunk
            started.set()
    return received


class Callers:
    """Requests one after the other, each a connection of its own to the engine; ``statuses`` is how they end."""

    def __init__(self, site: Site) -> None:
        self.statuses: list[int] = []
        self._site = site
        self._task = asyncio.create_task(self._call())

    async def _call(self) -> None:
        while True:
            status, _ = await self._site.ask()
            self.statuses.append(status)

    async def more(self, count: int = 5) -> None:
        wanted = len(self.statuses) + count
        await eventually(lambda: len(self.statuses) >= wanted, "more answers")

    async def stop(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def still(envoy: Any) -> dict[str, int]:
    """What counts every change of clusters, listeners and endpoints."""
    names = (
        "cluster_manager.cds.update_success",
        "cluster_manager.cluster_modified",
        "listener_manager.lds.update_success",
        "listener_manager.listener_modified",
        "listener_manager.listener_added",
        "cluster.chat.update_success",
        "cluster.chat.assignment_stale",
    )
    stats = await envoy.stats()
    return {name: stats.get(name, 0) for name in names}


@pytest.mark.parametrize(
    ("policy", "protocol"), [({}, "delta"), (DIRECT, "sotw")], ids=["through a hop, delta", "directly, sotw"]
)
async def test_stream_survives_rotation_of_all_sds_certificates(
    site: Site, engine: Engine, tmp_path: Path, policy: dict[str, Any], protocol: str
) -> None:
    two, secrets = Certs(tmp_path / "two"), tmp_path / "secrets"
    one = Certs(tmp_path / "one")  # the authority that the engine has a certificate of already
    one.put(secrets / "engines")
    engine.trust(one.folder)
    write(site, engine, TLS, **policy)
    lines = ("--ledger", str(tmp_path / "ledger.jsonl"), "--record", str(tmp_path / "record.jsonl"))
    child = await site.serve("--secrets", str(secrets), *lines)
    envoy = await site.envoy("n1", "--protocol", protocol)
    await site.answered()
    assert engine.seen[-1] == one.serial
    through_hops = bool(
        (await envoy.stats("cluster.hop/chat.upstream_cx_total"))["cluster.hop/chat.upstream_cx_total"]
    )
    assert through_hops is not bool(policy)
    started = asyncio.Event()
    long = asyncio.create_task(stream(site, started))
    await started.wait()
    await eventually(lambda: connected(site), "the proxy has everything")
    callers, before = Callers(site), await still(envoy)

    # First all trust both and proxies show the new one; then engines show the new one; then the old one goes.
    engine.trust(two.folder)
    two.put(secrets / "engines", also_trust=one)
    await eventually(lambda: engine.seen[-1] == two.serial, "the new certificate of the proxy")
    engine.speak_for(two.folder)
    await callers.more()
    two.put(secrets / "engines")

    async def trusts_the_new_one_only() -> bool:
        dump = await envoy.get("/config_dump?resource=dynamic_active_secrets")
        return f'"{base64.b64encode((two.folder / "ca.crt").read_bytes()).decode()}"' in dump

    await eventually(trusts_the_new_one_only, "the new authority alone")
    await callers.more()
    engine.finish.set()
    received = await long
    await callers.stop()
    assert b"[DONE]" in received
    told = received.count(b"data: ") - 1
    assert f"after {told}\n".encode() in received, "the stream lost something"
    assert set(callers.statuses) == {200}, callers.statuses
    assert await still(envoy) == before
    assert await site.stop(child) == 0
    await site.serve("--secrets", str(secrets), *lines)
    await eventually(lambda: connected(site), "the proxy, back after the restart")
    assert await site.metric("switchgear_xds_pushes_total", without='type="RTDS"') == 0
    if through_hops:  # once is enough
        await holds_no_key(site, envoy, [one.folder, two.folder, secrets])


async def connected(site: Site, but: tuple[str, ...] = ()) -> bool:
    """Whether the proxy is connected, asks for secrets, and has all that it asked for ``but`` of these types."""
    proxies = (await site.get("/v1/proxies"))["proxies"]
    states = {kind["type"]: kind["state"] for one in proxies for kind in one["types"]}
    return "SDS" in states and {state for kind, state in states.items() if kind not in but} == {"SYNCED"}


async def holds_no_key(site: Site, envoy: Any, but: list[Path]) -> None:
    """No file and no answer contains a byte of a private key."""
    keys = [
        line.encode()
        for folder in but
        for path in folder.rglob("*.key")
        for line in path.read_text().split("\n")[1:-2]
    ]
    assert len(keys) > 3
    live = ("--envoy-admin", f"http://127.0.0.1:{envoy.admin_port}")
    ours = ("--admin", f"http://{site.admin}")
    code, compared, error = await site.switchgear("config-dump", "n1", *ours, "--diff", *live)
    assert code == 0, compared + error
    code, shown, error = await site.switchgear("config-dump", "n1", *ours, "-o", "yaml")
    assert code == 0, error
    report = site.folder / "report.tar.gz"
    code, said, error = await site.switchgear("bug-report", *ours, *live, "--proxy", "n1", "--out", str(report))
    assert code == 0, error + said
    shutil.unpack_archive(report, site.folder / "report")
    told = {"config-dump": (shown + compared).encode(), "bug-report": said.encode()}
    async with aiohttp.ClientSession() as session:
        for path in (
            "/v1/status",
            "/v1/resources?node=n1",
            "/v1/about",
            "/v1/proxies",
            "/v1/events",
            "/metrics",
            "/",
        ):
            async with session.get(f"http://{site.admin}{path}") as answer:
                told[path] = await answer.read()
    assert b"engines/certificate" in told["/v1/resources?node=n1"]
    for path in site.folder.rglob("*"):
        if path.is_file() and not any(path.is_relative_to(one) for one in but):
            told[str(path)] = path.read_bytes()
    assert any(name.endswith("last-good.json") for name in told)
    assert [name for name, content in told.items() for key in keys if key in content] == []


async def test_engine_with_a_mismatched_san_is_rejected(site: Site, engine: Engine, tmp_path: Path) -> None:
    Certs(tmp_path / "one").put(tmp_path / "secrets" / "engines")
    engine.trust(tmp_path / "one")
    write(site, engine, {**TLS, "serverName": "other.test"}, **DIRECT)
    await site.serve("--secrets", str(tmp_path / "secrets"))
    envoy = await site.envoy()
    await site.answered(503)
    assert (await envoy.stats("cluster.chat.ssl.fail_verify_san"))["cluster.chat.ssl.fail_verify_san"] > 0
    assert engine.seen == []
    write(
        site, engine, {"secret": "engines", "subjectAltNames": ["no.test", "spiffe://switchgear.lab/*"]}, **DIRECT
    )
    await site.answered(200)


async def test_missing_sds_secret_is_reported_and_served_once_present(
    site: Site, engine: Engine, tmp_path: Path
) -> None:
    one, secrets = Certs(tmp_path / "one"), tmp_path / "secrets"
    one.put(secrets / "engines")
    engine.trust(one.folder)
    write(site, engine, TLS)
    child = await site.serve("--secrets", str(secrets))
    envoy = await site.envoy()
    await site.answered()
    write(site, engine, {**TLS, "secret": "later"})

    async def refused() -> bool:
        return bool((await site.get("/v1/policies"))["state"] == "refused")

    await eventually(refused, "policies that cannot be used yet")
    [error] = (await site.get("/v1/policies"))["errors"]
    assert "SG043" in str(error)
    assert "spec.tls.secret" in str(error)
    assert (await site.ask())[0] == 200
    one.put(secrets / "later")
    shutil.rmtree(secrets / "engines")

    async def holds() -> bool:
        return "later/certificate" in await envoy.get("/config_dump?resource=dynamic_active_secrets")

    await eventually(holds, "the other secret at the proxy")
    await site.answered()

    # A server that starts and cannot read it takes nothing from proxies, and leaves clusters as they are.
    await eventually(lambda: '"certified": [' in (site.state_dir / "last-good.json").read_text(), "what is kept")
    assert await site.stop(child) == 0
    shutil.rmtree(secrets / "later")
    before = await still(envoy)
    await site.serve("--secrets", str(secrets))
    await eventually(lambda: connected(site, but=("SDS",)), "the proxy, back after the restart")
    assert (await site.get("/v1/policies"))["state"] == "refused"
    assert {(await site.ask())[0] for _ in range(5)} == {200}
    assert await still(envoy) == before


async def test_plaintext_proxy_gets_no_sds_private_key(site: Site, engine: Engine, tmp_path: Path) -> None:
    Certs(tmp_path / "one").put(tmp_path / "secrets" / "engines")
    engine.trust(tmp_path / "one")
    write(site, engine, TLS, **DIRECT)
    port = site.xds.rpartition(":")[2]
    child = await site.serve("--secrets", str(tmp_path / "secrets"), "--insecure", "--listen", f"0.0.0.0:{port}")
    envoy = await site.envoy()
    await site.answered(503)
    assert "engines/authorities" in await envoy.get("/config_dump?resource=dynamic_active_secrets")
    told = [one for one in (await site.get("/v1/troubles"))["troubles"] if one["defect"] == "withheld"]
    assert ["plaintext connection" in one["sentence"] for one in told] == [True]
    assert await site.metric("switchgear_secrets_withheld") == 1
    assert len(site.logged(child, "secret.withheld")) == 1
    assert engine.seen == []
