"""Authentication on the admin port: tokens, certificates, roles, browsers, refusals."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from engine import limited_listener
from engine.address import ListenAddress
from engine.tls.certificate_files import RotatingKeyPair
from engine.tls.contexts import server_context
from engine.tls.paths import TlsFiles
from tests.engine.tls.certificate_fixtures import client_context
from xds_server.admin import admin_server as admin
from xds_server.admin.admin_server import AdminServer
from xds_server.admin_api.status_types import Readiness
from xds_server.auth import admin_auth as doors
from xds_server.auth.admin_auth import CALL_LIMIT, COOKIE, FAILURE_LIMIT, MAX_BUCKETS, AdminAuth
from xds_server.auth.lab_ca import LAB_CERTIFICATES, LabCertificate, make_certificates
from xds_server.auth.rules_watcher import RulesWatcher
from xds_server.metrics.metric_registry import Metrics

READS, WRITES = "r" * 32, "w" * 32
RULES = """
apiVersion: switchgear.dev/v1alpha1
kind: Access
metadata: {name: access}
spec:
  admin:
    - {tokenFile: reads.token, name: robot}
    - {tokenFile: writes.token, name: ann, role: write}
    - {identity: spiffe://switchgear.lab/operator, role: write}
    - {identity: spiffe://switchgear.lab/watcher}
"""
FILES = (*LAB_CERTIFICATES, LabCertificate(name="watcher", path="watcher"))


class Answers:
    """A minimal server for these tests."""

    def __init__(self) -> None:
        self.released = 0

    def readiness(self) -> Readiness:
        return Readiness(ready=True, reason="serving")

    def proxies(self) -> list[object]:
        return []

    def release_shrink(self) -> str:
        self.released += 1
        return ""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def write_rules(folder: Path) -> RulesWatcher:
    for name, token in (("reads", READS), ("writes", WRITES)):
        path = folder / f"{name}.token"
        path.write_text(token + "\n")
        path.chmod(0o600)
    (folder / "access.yaml").write_text(RULES)
    return RulesWatcher(folder / "access.yaml", tell=lambda _: None)


@asynccontextmanager
async def port(door: AdminAuth, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, Answers]]:
    answers = Answers()
    metrics = Metrics()
    metrics.observe(door.families)
    async with AdminServer(ListenAddress("127.0.0.1", 0), answers, metrics, door=door, tls=tls) as admin:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{admin.port}", answers


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_token_roles_authorize_reads_and_writes_and_writes_are_audited(tmp_path: Path) -> None:
    door = AdminAuth(rules=write_rules(tmp_path))
    with capture_logs() as logs:
        async with port(door) as (url, answers), aiohttp.ClientSession(url) as http:

            async def status(method: str, path: str, token: str = "") -> int:
                async with http.request(method, path, headers=bearer(token) if token else {}) as answer:
                    return answer.status

            assert [await status("GET", path) for path in ("/healthz", "/readyz")] == [200, 200]
            assert await status("GET", "/v1/proxies") == 401
            assert await status("GET", "/metrics") == 401
            assert await status("GET", "/v1/proxies", "x" * 32) == 401
            assert await status("GET", "/v1/proxies", READS) == 200
            assert await status("GET", "/metrics", READS) == 200
            assert await status("POST", "/v1/allow-shrink") == 401
            assert await status("POST", "/v1/allow-shrink", READS) == 403
            assert answers.released == 0
            assert await status("POST", "/v1/allow-shrink", WRITES) == 200
            assert answers.released == 1
            async with http.get("/v1/audit", headers=bearer(READS)) as answer:
                document = (await answer.json())["writes"]
            async with http.get("/v1/proxies") as answer:
                assert "Authorization: Bearer" in (await answer.json())["error"]
                assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert [(one["by"], one["status"]) for one in document] == [("unknown", 401), ("robot", 403), ("ann", 200)]
    assert all(one["what"] == "POST /v1/allow-shrink" and one["peer"] == "127.0.0.1" for one in document)
    assert [one["by"] for one in logs if one["event"] == "admin.write"] == ["unknown", "robot", "ann"]
    assert READS not in str(logs)
    assert WRITES not in str(logs) + str(document)


async def test_revoked_token_is_rejected(tmp_path: Path) -> None:
    rules = write_rules(tmp_path)
    async with port(AdminAuth(rules=rules)) as (url, _), aiohttp.ClientSession(url) as http:

        async def status(token: str) -> int:
            rules.current()
            async with http.get("/v1/proxies", headers=bearer(token)) as answer:
                return answer.status

        assert await status(READS) == 200
        (tmp_path / "reads.token").write_text("n" * 40)
        assert (await status(READS), await status("n" * 40)) == (401, 200)
        (tmp_path / "reads.token").unlink()
        assert await status("n" * 40) == 401


def test_weak_or_world_readable_token_is_reported(tmp_path: Path) -> None:
    write_rules(tmp_path)
    (tmp_path / "reads.token").chmod(0o644)
    (tmp_path / "writes.token").write_text("short")
    document: list[str] = []
    rules = RulesWatcher(tmp_path / "access.yaml", tell=document.append)
    assert len(rules.tokens) == 1
    assert any("chmod 600" in one for one in document)
    assert any("at least 16 characters" in one for one in document)
    assert "short" not in " ".join(document).replace("shorter", "")
    rules.current()
    assert len(document) == 2, "once"


def test_token_file_of_another_owner_is_read_through_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a Secret mounted by Kubernetes with an fsGroup: owned by root, readable by the pod's group."""
    write_rules(tmp_path)
    document: list[str] = []
    (tmp_path / "reads.token").chmod(0o440)
    RulesWatcher(tmp_path / "access.yaml", tell=document.append)
    assert len(document) == 1, "our own file needs no group access"
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    RulesWatcher(tmp_path / "access.yaml", tell=document.append)
    assert len(document) == 1
    (tmp_path / "reads.token").chmod(0o444)
    RulesWatcher(tmp_path / "access.yaml", tell=document.append)
    assert len(document) == 2


def test_invalid_authorization_rules_keep_the_previous_ones(tmp_path: Path) -> None:
    rules = write_rules(tmp_path)
    before = rules.access
    (tmp_path / "access.yaml").write_text(RULES.replace("role: write}", "role: god}", 1))
    assert rules.current() is before
    assert "role" in rules.trouble
    (tmp_path / "access.yaml").unlink()
    assert rules.current() is before
    (tmp_path / "access.yaml").write_text(RULES.replace("name: robot", "name: cron"))
    assert rules.current() is not before
    assert rules.trouble == ""


async def test_mtls_roles_authorize_and_expired_certificates_are_rejected(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    make_certificates(certs, FILES, lasts=timedelta(days=1))

    def files(name: str) -> TlsFiles:
        return TlsFiles(certificate=certs / f"{name}.crt", key=certs / f"{name}.key", authorities=certs / "ca.crt")

    door = AdminAuth(rules=write_rules(tmp_path), secure=True)
    async with port(door, server_context(RotatingKeyPair(files("server")))) as (url, answers):

        async def status(name: str, method: str = "GET", path: str = "/v1/proxies") -> int:
            context = client_context(files(name))
            async with (
                aiohttp.ClientSession(url) as http,
                http.request(method, path, ssl=context) as answer,
            ):
                return answer.status

        assert await status("operator") == 200
        assert await status("watcher") == 200
        assert await status("proxy") == 401, "a certificate that no rule names"
        shown = client_context(files("proxy"))
        async with aiohttp.ClientSession(url) as http, http.get("/v1/proxies", ssl=shown) as answer:
            document = (await answer.json())["error"]
        assert document.startswith("no access rule names spiffe://switchgear.lab/proxy/gateway"), (
            "not a generic refusal"
        )
        assert await status("watcher", "POST", "/v1/allow-shrink") == 403
        assert await status("operator", "POST", "/v1/allow-shrink") == 200
        assert answers.released == 1
        long_ago = datetime.now(UTC) - timedelta(hours=2)
        make_certificates(
            certs, [one for one in FILES if one.name == "operator"], lasts=timedelta(hours=1), now=long_ago
        )
        with pytest.raises(aiohttp.ClientError):
            await status("operator")
        plain = ssl.create_default_context(cafile=certs / "ca.crt")
        async with aiohttp.ClientSession(url) as http:
            async with http.get("/healthz", ssl=plain) as answer:
                assert answer.status == 200
            async with http.get("/v1/proxies", ssl=plain, headers=bearer(READS)) as answer:
                assert answer.status == 200


async def test_a_browser_logs_in_and_only_reads(tmp_path: Path) -> None:
    clock = Clock()
    door = AdminAuth(rules=write_rules(tmp_path), clock=clock)
    jar = aiohttp.CookieJar(unsafe=True)
    async with port(door) as (url, answers), aiohttp.ClientSession(url, cookie_jar=jar) as http:
        async with http.get("/dashboard/", headers={"Accept": "text/html"}, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (302, "/login")
        async with http.get("/login") as answer:
            assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
        async with http.post("/login", data={"token": "no"}, allow_redirects=False) as answer:
            assert answer.status == 401
        async with http.post("/login", data={"token": WRITES}, allow_redirects=False) as answer:
            assert answer.status == 303
            cookie = answer.cookies[COOKIE]
            assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
            assert WRITES not in cookie.value
        async with http.get("/dashboard/") as answer:
            assert answer.status == 200
        async with http.post("/v1/allow-shrink") as answer:
            assert answer.status == 403
        assert answers.released == 0
        clock.now_s += 13 * 3600
        async with http.get("/v1/proxies") as answer:
            assert answer.status == 401, "a session ends"


async def test_token_guessing_is_rate_limited(tmp_path: Path) -> None:
    clock = Clock()
    door = AdminAuth(rules=write_rules(tmp_path), clock=clock)
    async with port(door) as (url, _), aiohttp.ClientSession(url) as http:

        async def status(token: str) -> int:
            async with http.get("/v1/proxies", headers=bearer(token)) as answer:
                return answer.status

        document = [await status(f"{number:032}") for number in range(int(FAILURE_LIMIT.burst) + 5)]
        assert document == [401] * int(FAILURE_LIMIT.burst) + [429] * 5
        assert await status(READS) == 429, "this address waits, whatever it says"
        assert [(one.code, one.peers) for one in door.reached.current()] == [("SG285", ("127.0.0.1",))]
        clock.now_s += 60
        assert await status(READS) == 200
        document = [await status(READS) for _ in range(int(CALL_LIMIT.burst) + 5)]
        assert document.count(429) >= 5
        async with http.get("/metrics", headers=bearer(WRITES)) as answer:
            page = await answer.text()
        assert 'switchgear_admin_refused_total{reason="rate"}' in page
    take: Callable[..., bool] = door._take
    for number in range(MAX_BUCKETS + 100):
        take("failure", str(number), FAILURE_LIMIT)
    assert len(door._buckets) <= MAX_BUCKETS


@pytest.mark.parametrize("trusts", [False, True], ids=["default", "trust-loopback"])
async def test_loopback_with_certificates_requires_one_for_changes(tmp_path: Path, trusts: bool) -> None:
    certs = tmp_path / "certs"
    make_certificates(certs, FILES, lasts=timedelta(days=1))
    own = TlsFiles(certificate=certs / "server.crt", key=certs / "server.key", authorities=certs / "ca.crt")
    proxy = TlsFiles(certificate=certs / "proxy.crt", key=certs / "proxy.key", authorities=certs / "ca.crt")
    door = AdminAuth(secure=True, certified_writes=not trusts)
    async with port(door, server_context(RotatingKeyPair(own))) as (url, _):
        plain = ssl.create_default_context(cafile=certs / "ca.crt")
        for method, path, tls, status in (
            ("GET", "/v1/proxies", plain, 200),
            ("POST", "/v1/allow-shrink", plain, 200 if trusts else 401),
            ("POST", "/v1/allow-shrink", client_context(proxy), 200),
        ):
            async with aiohttp.ClientSession(url) as http, http.request(method, path, ssl=tls) as answer:
                assert answer.status == status, (method, tls)
    assert [record.by for _, record in door._written] == (["unknown"] if trusts else []) + [
        "spiffe://switchgear.lab/proxy/gateway"
    ]
    assert [record.status for _, record in door._tried] == ([] if trusts else [401])


async def test_without_rules_certificates_may_only_read(tmp_path: Path) -> None:
    certs = tmp_path / "certs"
    make_certificates(certs, FILES, lasts=timedelta(days=1))
    own = TlsFiles(certificate=certs / "server.crt", key=certs / "server.key", authorities=certs / "ca.crt")
    proxy = TlsFiles(certificate=certs / "proxy.crt", key=certs / "proxy.key", authorities=certs / "ca.crt")
    async with port(
        AdminAuth(secure=True, is_open=False, open_metrics=True), server_context(RotatingKeyPair(own))
    ) as (
        url,
        _,
    ):
        context = client_context(proxy)
        plain = ssl.create_default_context(cafile=certs / "ca.crt")
        for method, path, tls, status in (
            ("GET", "/v1/proxies", context, 200),
            ("POST", "/v1/allow-shrink", context, 403),
            ("GET", "/v1/proxies", plain, 401),
            ("GET", "/metrics", plain, 200),
        ):
            async with aiohttp.ClientSession(url) as http, http.request(method, path, ssl=tls) as answer:
                assert (path, answer.status) == (path, status)


async def test_non_ascii_token_is_rejected_and_rate_limited(tmp_path: Path) -> None:
    door = AdminAuth(rules=write_rules(tmp_path))
    async with port(door) as (url, _), aiohttp.ClientSession(url) as http:
        for _ in range(int(FAILURE_LIMIT.burst) - 2):
            async with http.get("/v1/proxies", headers=bearer("sécret" * 5)) as answer:
                assert answer.status == 401
        number = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(b"GET /v1/proxies HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"401"
        writer.close()
        form = {"Content-Type": "application/x-www-form-urlencoded; charset=nonsense"}
        async with http.post("/login", data=b"token=%FF", headers=form) as answer:
            assert answer.status == 401
        async with http.get("/v1/proxies", headers=bearer(READS)) as answer:
            assert answer.status == 429, "all of them were counted"


async def test_anonymous_flood_does_not_evict_the_audit_log_of_known_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "MAX_AUDIT", 5)
    door = AdminAuth(rules=write_rules(tmp_path))
    with capture_logs() as logs:
        async with port(door) as (url, _), aiohttp.ClientSession(url) as http:
            async with http.post("/v1/allow-shrink", headers=bearer(WRITES)) as answer:
                assert answer.status == 200
            document = []
            for _ in range(int(FAILURE_LIMIT.burst) + 5):
                async with http.post("/v1/allow-shrink") as answer:
                    document.append(answer.status)
    assert document == [401] * int(FAILURE_LIMIT.burst) + [429] * 5
    assert [one.by for _, one in door._written] == ["ann"]
    assert len(door._tried) == 5
    assert len([one for one in logs if one["event"] == "admin.write"]) == 1 + int(FAILURE_LIMIT.burst)


async def test_slow_login_forms_are_rate_limited(tmp_path: Path) -> None:
    door = AdminAuth(rules=write_rules(tmp_path))
    async with port(door) as (url, _):
        number = int(url.rpartition(":")[2])
        begun = []
        for _ in range(int(FAILURE_LIMIT.burst) + 5):
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(
                b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n\r\n"
            )
            assert b"100" in await reader.readline(), "it is let in, and its body awaited"
            await reader.readline()
            begun.append((reader, writer))
        document = []
        for reader, writer in begun:
            writer.write(b"token=abcd")
            document.append((await reader.readline()).split()[1])
            writer.close()
    assert document == [b"401"] * int(FAILURE_LIMIT.burst) + [b"429"] * 5


@pytest.mark.parametrize(
    ("host", "status"),
    [
        (b"127.0.0.1:18001", 200),
        (b"localhost", 200),
        (b"LOCALHOST:18001", 200),
        (b"[::1]:18001", 200),
        (b"10.2.0.1:18001", 200),
        (None, 200),
        (b"evil.example:18001", 403),
        (b"localhost.evil.example", 403),
        (b"127.0.0.1.evil.example", 403),
        (b"[::1", 403),
    ],
)
async def test_loopback_admin_port_rejects_foreign_host_headers(host: bytes | None, status: int) -> None:
    async with port(AdminAuth()) as (url, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        version = b"1.1\r\nHost: " + host if host is not None else b"1.0"
        writer.write(b"GET /v1/proxies HTTP/" + version + b"\r\n\r\n")
        assert int((await reader.readline()).split()[1]) == status
        writer.close()


async def test_revoked_reader_loses_authorization(tmp_path: Path) -> None:
    rules = write_rules(tmp_path)
    door = AdminAuth(rules=rules)
    request = make_mocked_request("GET", "/v1/live", headers=bearer(READS))
    assert door.still_authorized(request)
    (tmp_path / "reads.token").unlink()
    rules.current()
    assert not door.still_authorized(request)
    assert AdminAuth().still_authorized(request)


async def test_token_file_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    rules = write_rules(tmp_path)
    (tmp_path / "reads.token").unlink()
    os.mkfifo(tmp_path / "reads.token")
    rules.current()
    assert [rule.name for rule in rules.tokens] == ["ann"]
    assert any("not a regular file" in one.sentence for one in rules.file_problems())


def test_ipv6_prefix_shares_one_rate_limit(tmp_path: Path) -> None:
    door = AdminAuth(rules=write_rules(tmp_path), clock=Clock())
    document = []
    for number in range(int(FAILURE_LIMIT.burst) + 2):
        request = make_mocked_request("GET", "/v1/proxies", headers=bearer(f"{number:032}"))
        refusal = door._judge(request.clone(remote=f"2001:db8::{number:x}"), writes=False)[1]
        assert refusal is not None
        document.append(refusal.status)
    assert document == [401] * int(FAILURE_LIMIT.burst) + [429] * 2


async def opened(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection without any request yet."""
    return await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def test_login_form_body_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "FORM_S", 0.2)
    async with port(AdminAuth(rules=write_rules(tmp_path))) as (url, _):
        reader, writer = await opened(url)
        writer.write(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n")
        writer.write(b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken")
        assert int((await reader.readline()).split()[1]) == 401
        writer.close()
        await writer.wait_closed()


async def test_idle_admin_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "MOST_OF_HOST", 3)
    door = AdminAuth(rules=write_rules(tmp_path), open_metrics=True)
    async with port(door) as (url, _):
        known, asker = await opened(url)
        asked = f"GET /v1/audit HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {READS}\r\n\r\n".encode()
        asker.write(asked)
        assert await asyncio.wait_for(known.readline(), 30.0) == b"HTTP/1.1 200 OK\r\n"
        begun = [await opened(url) for _ in range(5)]
        for reader, writer in begun[:3]:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 30.0) == b"", "closed, the oldest first"
            writer.close()
        async with aiohttp.ClientSession(url) as http, http.get("/metrics") as answer:
            page = await answer.text()
        assert 'switchgear_admin_refused_total{reason="crowd"} 4.0' in page, "one more for who asks"
        asker.write(asked)
        # The rest of the previous answer precedes it, on the same line.
        while not (line := await asyncio.wait_for(known.readline(), 30.0)).endswith(b"HTTP/1.1 200 OK\r\n"):
            assert line, "who was let in stays connected"
        for _, writer in (*begun[3:], (known, asker)):
            writer.close()


@pytest.mark.parametrize("document", [b"", b"GET /healthz HT"])
async def test_idle_admin_connection_is_closed(
    document: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "IDLE_S", 0.2)
    monkeypatch.setattr(limited_listener, "SILENT_S", 0.2)
    async with port(AdminAuth(rules=write_rules(tmp_path))) as (url, _):
        reader, writer = await opened(url)
        writer.write(document)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 30.0) == b"", "closed without a word"
        writer.close()
