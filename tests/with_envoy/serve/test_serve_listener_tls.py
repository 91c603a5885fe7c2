"""TLS from real callers to a real Envoy: the listener's certificate comes by SDS and is rotated under a stream."""

import asyncio
import shutil
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.with_envoy.serve.conftest import Site, document, eventually
from xds_server.auth.lab_ca import LabCertificate, make_certificates

pytestmark = pytest.mark.envoy

NAME = "gateway.test"
TLS = {"secret": "front"}


class Certificate:
    """A lab authority with a certificate for the gateway."""

    def __init__(self, folder: Path) -> None:
        make_certificates(
            folder, [LabCertificate(name="gateway", path="g", names=(NAME,))], lasts=timedelta(days=30)
        )
        self.folder = folder

    def put(self, secret: Path) -> None:
        """Write the secret of the listener, the certificate last."""
        secret.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / "ca.crt", secret / "ca.crt")
        shutil.copy(self.folder / "gateway.key", secret / "tls.key")
        shutil.copy(self.folder / "gateway.crt", secret / "tls.crt")

    @property
    def context(self) -> ssl.SSLContext:
        """What a caller trusts: this authority alone."""
        return ssl.create_default_context(cafile=str(self.folder / "ca.crt"))


def write(site: Site, listener: dict[str, Any]) -> None:
    listener = {"port": site.port, "address": "127.0.0.1", **listener}
    spec = {
        "model": "fake-model",
        "endpoints": [{"address": "127.0.0.1", "port": one.port} for one in site.engines],
        "probe": {"enabled": False},
    }
    site.write("all.yaml", document("EnginePool", "chat", spec), site.route(listener=listener))


async def ask(site: Site, certificate: Certificate, *, stream: bool = False, tokens: int = 1) -> int:
    """Status of the answer to a caller that trusts only this certificate's authority."""
    body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "stream": stream}
    connector = aiohttp.TCPConnector(ssl=certificate.context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://127.0.0.1:{site.port}/v1/completions", json=body, server_hostname=NAME) as answer,
    ):
        await answer.read()
        return answer.status


async def shows(site: Site, certificate: Certificate) -> bool:
    """Whether a new caller is served with this certificate."""
    try:
        return await ask(site, certificate) == 200
    except (aiohttp.ClientError, OSError):
        return False


@pytest.mark.parametrize("protocol", ["delta", "sotw"])
async def test_listener_certificate_rotates_under_a_stream(site: Site, tmp_path: Path, protocol: str) -> None:
    one, two = Certificate(tmp_path / "one"), Certificate(tmp_path / "two")
    secret = tmp_path / "secrets" / "front"
    one.put(secret)
    await site.start_engines(1, token_s=0.05)
    write(site, {"tls": TLS})
    await site.serve("--secrets", str(secret.parent))
    envoy = await site.envoy("n1", "--protocol", protocol)
    await eventually(lambda: shows(site, one), "an answer over TLS")
    long = asyncio.create_task(ask(site, one, stream=True, tokens=100))
    before = (await envoy.stats("listener_manager."))["listener_manager.listener_modified"]
    two.put(secret)
    await eventually(lambda: shows(site, two), "the new certificate")
    assert not await shows(site, one), "callers that trust only the old authority"
    assert await long == 200
    assert (await envoy.stats("listener_manager."))["listener_manager.listener_modified"] == before


async def test_listener_without_certificate_is_refused(site: Site, tmp_path: Path) -> None:
    """The policies in force stay, and name the missing files."""
    certificate = Certificate(tmp_path / "one")
    secret = tmp_path / "secrets" / "front"
    secret.mkdir(parents=True)
    shutil.copy(certificate.folder / "ca.crt", secret / "ca.crt")
    await site.start_engines(1)
    write(site, {})
    await site.serve("--secrets", str(secret.parent))
    await site.envoy("n1")
    await site.answered()
    write(site, {"tls": TLS})

    async def refused() -> bool:
        _, text, error = await site.switchgear("status", "--admin", f"http://{site.admin}")
        return "unusable secret front: tls.crt and tls.key are missing" in text + error

    await eventually(refused, "the refusal in status")
    assert (await site.ask())[0] == 200
    certificate.put(secret)
    await eventually(lambda: shows(site, certificate), "an answer over TLS")


async def test_plain_text_caller_is_not_served_on_a_tls_listener(site: Site, tmp_path: Path) -> None:
    certificate = Certificate(tmp_path / "one")
    certificate.put(tmp_path / "secrets" / "front")
    await site.start_engines(1)
    write(site, {"tls": TLS})
    await site.serve("--secrets", str(tmp_path / "secrets"))
    await site.envoy("n1")
    await eventually(lambda: shows(site, certificate), "an answer over TLS")
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{site.port}/v1/models")
