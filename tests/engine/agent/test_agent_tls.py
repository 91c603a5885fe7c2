"""An agent under TLS: probes without a certificate, drains from elsewhere with one that may."""

import asyncio
import json
import ssl
import sys
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from engine.agent.agent_http import _permit
from xds_server.auth.lab_ca import LAB_CERTIFICATES, make_certificates

LIMIT_S = 60.0
AGENT = str(Path(sys.executable).with_name("switchgear-agent"))


async def test_probes_need_no_certificate_and_drain_uses_https(tmp_path: Path) -> None:
    make_certificates(tmp_path, LAB_CERTIFICATES, lasts=timedelta(days=1))
    process = await asyncio.create_subprocess_exec(
        *(AGENT, "run", "--engine", "http://127.0.0.1:1", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"),
        *("--gpu", "off", "--tls-cert", f"{tmp_path}/agent.crt", "--tls-key", f"{tmp_path}/agent.key"),
        *("--tls-ca", f"{tmp_path}/ca.crt"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        listening = json.loads(await asyncio.wait_for(process.stdout.readline(), LIMIT_S))
        assert listening["http"].startswith("https://")
        plain = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        async with aiohttp.ClientSession(listening["http"]) as http, http.get("/livez", ssl=plain) as answer:
            assert answer.status in (200, 503)
        for proof, code in (("ca.crt", (0, 1)), ("proxy.crt", (2,))):
            command = (
                "drain",
                "--agent",
                listening["http"],
                "--deadline",
                "100ms",
                "--cacert",
                f"{tmp_path}/{proof}",
            )
            asked = await asyncio.create_subprocess_exec(AGENT, *command, stderr=asyncio.subprocess.PIPE)
            await asyncio.wait_for(asked.communicate(), LIMIT_S)
            assert asked.returncode in code, proof
    finally:
        process.kill()
        await process.wait()


class Connection:
    """The transport of a request from somewhere, with what its certificate proves."""

    def __init__(self, peer: str, *uris: str) -> None:
        self._said = {"peername": (peer, 1), "ssl_object": self}
        self._uris = uris

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._said.get(name, default)

    def getpeercert(self) -> dict[str, object]:
        return {"subjectAltName": tuple(("URI", uri) for uri in self._uris)}


class Permitting:
    def __init__(self, *, remote_drain: bool) -> None:
        self.remote_drain = remote_drain

    def permits(self, identities: tuple[str, ...]) -> bool:
        return "spiffe://lab/control-plane" in identities


@pytest.mark.parametrize(
    ("peer", "uri", "remote_drain", "may"),
    [
        ("127.0.0.1", "", False, True),
        ("10.0.0.1", "spiffe://lab/control-plane", False, False),
        ("127.0.0.1", "", True, True),
        ("10.0.0.1", "spiffe://lab/control-plane", True, True),
        ("10.0.0.1", "spiffe://lab/proxy", True, False),
        ("10.0.0.1", "", True, False),
    ],
)
def test_drain_authorization_by_client_certificate(peer: str, uri: str, remote_drain: bool, may: bool) -> None:
    connection = Connection(peer, *([uri] if uri else []))
    request = make_mocked_request("POST", "/drain", transport=connection)
    agent = Permitting(remote_drain=remote_drain)
    if may:
        _permit(request, agent)
    else:
        with pytest.raises(web.HTTPForbidden):
            _permit(request, agent)
