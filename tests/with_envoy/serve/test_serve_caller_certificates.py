"""Callers with certificates, at a real Envoy: who is refused, and whose identity becomes a tenant."""

import asyncio
import shutil
import ssl
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.with_envoy.serve.conftest import Site, document, eventually
from xds_server.auth.lab_ca import LabCertificate, make_certificates

pytestmark = pytest.mark.envoy

GATEWAY, SEARCH, LAB = "gateway.test", "spiffe://switchgear.lab/search", "spiffe://switchgear.lab/lab"
BODY = {"model": "fake-model", "prompt": "x", "max_tokens": 1}
ADMITTED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Certificates of callers and of authorities that the listener trusts or not."""

    folder: Path

    def context(self, name: str = "") -> ssl.SSLContext:
        """What a caller shows; nothing without ``name``."""
        context = ssl.create_default_context(cafile=str(self.folder / "front" / "ca.crt"))
        if name:
            context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        return context


@pytest.fixture
def callers(tmp_path: Path) -> Callers:
    front, clients, strangers = tmp_path / "secrets/front", tmp_path / "clients", tmp_path / "strangers"
    lasts = timedelta(days=30)
    make_certificates(front, [LabCertificate(name="tls", path="g", names=(GATEWAY,))], lasts=lasts)
    some = [LabCertificate(name=name, path=name, names=(f"{name}.test",)) for name in ("search", "lab")]
    make_certificates(clients, some, lasts=lasts)
    make_certificates(strangers, [LabCertificate(name="search", path="search")], lasts=lasts)
    trusted = tmp_path / "secrets/clients"
    trusted.mkdir()
    shutil.copy(clients / "ca.crt", trusted / "ca.crt")
    shown = tmp_path / "shown"
    shutil.copytree(front, shown / "front")
    for path in clients.glob("*.*"):
        shutil.copy(path, shown / path.name)
    for path in strangers.glob("search.*"):
        shutil.copy(path, shown / f"stranger{path.suffix}")
    return Callers(folder=shown)


async def served(site: Site, tmp_path: Path, callers: Callers, who: str, **tls: Any) -> None:
    """A listener that asks callers for certificates; returns once ``who`` is answered."""
    await site.start_engines(1)
    spec = {
        "model": "fake-model",
        "endpoints": [{"address": "127.0.0.1", "port": one.port} for one in site.engines],
        "probe": {"enabled": False},
    }
    listener = {
        "port": site.port,
        "address": "127.0.0.1",
        "tls": {"secret": "front", "callers": {"secret": "clients", "identityHeader": "x-tenant", **tls}},
        "tenants": {
            "header": "x-tenant",
            "named": [
                {"name": SEARCH, "requests": ADMITTED, "per": "hour", "burst": ADMITTED},
                {"name": "search.test", "requests": ADMITTED, "per": "hour", "burst": ADMITTED},
                {"name": LAB, "requests": 1, "per": "hour", "burst": 1},
            ],
            "others": {"requests": 2, "per": "hour", "burst": 2},
        },
    }
    site.write("all.yaml", document("EnginePool", "chat", spec), site.route(listener=listener))
    await site.serve("--secrets", str(tmp_path / "secrets"))
    await site.envoy("n1")

    async def answered() -> bool:
        try:
            return (await ask(site, callers.context(who)))[0] == 200
        except (aiohttp.ClientError, OSError):
            return False

    await eventually(answered, "an answer over mTLS")


async def ask(
    site: Site, context: ssl.SSLContext, headers: dict[str, str] | None = None
) -> tuple[int, str | None, str]:
    """Status, number of further requests that the quota admits at once, and the body."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(
            f"https://127.0.0.1:{site.port}/v1/completions", json=BODY, headers=headers, server_hostname=GATEWAY
        ) as answer,
    ):
        return answer.status, answer.headers.get("x-ratelimit-remaining"), await answer.text()


async def refused(site: Site, context: ssl.SSLContext) -> bool:
    """Whether the connection ends without an answer."""
    try:
        await ask(site, context)
    except (aiohttp.ClientError, OSError):
        return True
    return False


async def test_certificate_names_the_tenant_whatever_the_caller_sends(
    site: Site, tmp_path: Path, callers: Callers
) -> None:
    await served(site, tmp_path, callers, "search")
    before = (await ask(site, callers.context("search")))[1]
    assert before is not None
    for claimed in (LAB, f"{LAB},{SEARCH}", "other"):
        status, left, _ = await ask(site, callers.context("search"), {"x-tenant": claimed})
        assert (status, left) == (200, str(int(before) - 1))
        before = left
    assert [(await ask(site, callers.context("lab"), {"x-tenant": SEARCH}))[0] for _ in range(2)] == [200, 429]
    assert await refused(site, callers.context())
    assert await refused(site, callers.context("stranger"))
    rows = {one["tenant"]: one for one in (await site.get("/v1/tenants"))["tenants"]}
    assert {SEARCH, LAB} <= set(rows)


async def test_optional_certificates_leave_callers_without_one_to_the_others(
    site: Site, tmp_path: Path, callers: Callers
) -> None:
    await served(site, tmp_path, callers, "search", required=False)
    outcomes = [(await ask(site, callers.context(), {"x-tenant": SEARCH}))[0] for _ in range(3)]
    assert outcomes == [200, 200, 429]
    assert (await ask(site, callers.context("search")))[0] == 200
    assert await refused(site, callers.context("stranger"))


async def test_host_name_of_a_certificate_can_be_the_identity(
    site: Site, tmp_path: Path, callers: Callers
) -> None:
    await served(site, tmp_path, callers, "search", identity="dns")
    lefts = [(await ask(site, callers.context("search")))[1] for _ in range(2)]
    assert None not in lefts
    assert int(lefts[0] or 0) - int(lefts[1] or 0) == 1
    assert int(lefts[0] or 0) > 2, "not the bucket of others"


async def test_rotated_authorities_refuse_the_old_callers(site: Site, tmp_path: Path, callers: Callers) -> None:
    await served(site, tmp_path, callers, "search")
    strangers = tmp_path / "strangers"
    shutil.copy(strangers / "ca.crt", tmp_path / "secrets/clients/ca.crt")
    await eventually(lambda: refused(site, callers.context("search")), "the refusal of the old authority")
    status, _, _ = await asyncio.wait_for(ask(site, callers.context("stranger")), 60)
    assert status == 200
