"""Admin port over real HTTP: JSON answers and refusals."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from engine.address import ListenAddress
from xds_server.admin import json_http
from xds_server.admin.admin_server import AdminServer
from xds_server.admin_api.status_types import (
    EngineStatus,
    PoliciesStatus,
    ProxyStatus,
    Readiness,
    RefusedResource,
    SnapshotStatus,
    SyncState,
    TypeStatus,
)
from xds_server.metrics.control_metrics import ProxyMetrics
from xds_server.metrics.metric_registry import Metrics
from xds_server.serve_config import ConfigError


class Answers:
    """Answers set by the test."""

    def __init__(self) -> None:
        self.ready = Readiness(ready=False, reason="no verdicts yet")
        self.held = False

    def readiness(self) -> Readiness:
        return self.ready

    def proxies(self) -> list[ProxyStatus]:
        refused = RefusedResource(name="port-1", version="v2", origins=("a.yaml:3:1",), reason="bad regex")
        kind = TypeStatus(
            type="RDS", state=SyncState.NACK, age_s=1.5, version="v2", resources=1, refused=(refused,)
        )
        return [
            ProxyStatus(
                node="n1",
                zone="z1",
                role="gateway",
                pools=(),
                peer="ipv4:127.0.0.1:5",
                protocol="delta",
                connected_s=3.0,
                types=(kind,),
            )
        ]

    def engines(self) -> list[EngineStatus]:
        return [
            EngineStatus(
                pool=pool,
                engine="e1",
                address="10.0.0.1",
                port=8000,
                zone="z1",
                verdict=None,
                evidence="",
                report_age_s=None,
                health="HEALTHY",
                reason="nothing heard yet",
                health_age_s=1.0,
                requests_in_flight=None,
                requests_waiting=None,
            )
            for pool in ("p1", "p2")
        ]

    def policies(self) -> PoliciesStatus:
        return PoliciesStatus(
            state="accepted", digest="d", serving_digest="d", stale=False, age_s=1.0, pools=("p1",), routes=()
        )

    def snapshot(self, zone: str, role: str) -> SnapshotStatus:
        return SnapshotStatus(zone=zone, role=role, resources=())

    def release_shrink(self) -> str:
        return "" if self.held else "no policies are held back"


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
async def client(answers: Answers) -> AsyncIterator[aiohttp.ClientSession]:
    metrics = Metrics()
    metrics.nacks.labels(type="RDS").inc()
    metrics.observe(lambda: [ProxyMetrics.xds_connections.family({("gateway", "delta"): 2.0})])
    async with (
        AdminServer(ListenAddress("127.0.0.1", 0), answers, metrics) as admin,
        aiohttp.ClientSession(f"http://127.0.0.1:{admin.port}") as session,
    ):
        yield session


async def test_liveness_is_not_readiness(client: aiohttp.ClientSession, answers: Answers) -> None:
    async with client.get("/healthz") as answer:
        assert (answer.status, await answer.json()) == (200, {"status": "ok"})
    async with client.get("/readyz") as answer:
        assert (answer.status, await answer.json()) == (503, {"ready": False, "reason": "no verdicts yet"})
    answers.ready = Readiness(ready=True, reason="serving")
    async with client.get("/readyz") as answer:
        assert answer.status == 200


async def test_metrics_are_prometheus_text(client: aiohttp.ClientSession) -> None:
    async with client.get("/metrics") as answer:
        text = await answer.text()
        assert answer.headers["Content-Type"].startswith("text/plain")
    assert 'switchgear_xds_nacks_total{type="RDS"} 1.0' in text
    assert 'switchgear_xds_connections{protocol="delta",role="gateway"} 2.0' in text


async def test_refused_resource_names_its_policy_origin(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/proxies") as answer:
        (proxy,) = (await answer.json())["proxies"]
    assert proxy["types"][0]["state"] == "NACK"
    assert proxy["types"][0]["refused"] == [
        {"name": "port-1", "version": "v2", "origins": ["a.yaml:3:1"], "reason": "bad regex"}
    ]


async def test_engines_of_one_pool(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/engines", params={"pool": "p2"}) as answer:
        assert [engine["pool"] for engine in (await answer.json())["engines"]] == ["p2"]
    async with client.get("/v1/engines") as answer:
        assert len((await answer.json())["engines"]) == 2


async def test_snapshot_of_a_zone_and_role(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/snapshot", params={"zone": "z9", "role": "sidecar"}) as answer:
        assert await answer.json() == {"zone": "z9", "role": "sidecar", "resources": []}


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/v1/snapshot?role=king", 400, "allowed: gateway, sidecar"),
        ("GET", "/v1/snapshot?zoen=a", 400, "unknown parameter 'zoen'; allowed: zone, role"),
        ("GET", "/v1/snapshot?zone=a&zone=b", 400, "given twice"),
        ("GET", "/healthz?x=1", 400, "none is allowed"),
        ("GET", "/v1/events?since=" + "9" * 5_000, 400, "expected an event number"),
        ("GET", "/nothing", 404, "Not Found"),
        ("POST", "/v1/proxies", 405, "Method Not Allowed"),
        ("POST", "/v1/allow-shrink", 409, "no policies are held back"),
    ],
)
async def test_invalid_requests_are_refused(
    client: aiohttp.ClientSession, method: str, path: str, status: int, says: str
) -> None:
    async with client.request(method, path) as answer:
        assert answer.status == status
        assert says in (await answer.json())["error"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (b"Content-Encoding: gzip\r\nContent-Length: 3\r\n", b"\x1f\x8bx", 415),
        (b"Content-Length: 70000\r\n", b"x" * 70_000, 413),
        (b"Transfer-Encoding: chunked\r\n", b"11170\r\n" + b"x" * 70_000 + b"\r\n0\r\n\r\n", 413),
        (b"Transfer-Encoding: chunked\r\n", b"zz\r\n", 400),
        (b"Content-Length: 9\r\n", b"half", 408),
    ],
    ids=["packed", "large", "large in pieces", "broken pieces", "late"],
)
async def test_invalid_body_is_refused_with_a_reason(
    client: aiohttp.ClientSession,
    answers: Answers,
    monkeypatch: pytest.MonkeyPatch,
    headers: bytes,
    body: bytes,
    status: int,
) -> None:
    monkeypatch.setattr(answers, "order", None, raising=False)  # no request yet
    if status == 408:
        monkeypatch.setattr(json_http, "BODY_S", 0.2)
    assert client._base_url is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
    writer.write(b"POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    writer.write(headers + b"\r\n" + body)
    assert int((await reader.readline()).split()[1]) == status
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()


async def _end_of_refused_request(port: int) -> None:
    """Return when the server closes a connection whose request it refused before all of it came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /none HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70000\r\n\r\nhalf")
        assert int((await reader.readline()).split()[1]) == 404
        await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()


async def test_refused_requests_are_closed_before_those_of_a_plain_server(client: aiohttp.ClientSession) -> None:
    plain = web.AppRunner(web.Application())
    await plain.setup()
    await web.TCPSite(plain, "127.0.0.1", 0).start()
    assert client._base_url is not None
    assert client._base_url.port is not None
    try:
        theirs = asyncio.create_task(_end_of_refused_request(plain.addresses[0][1]))
        ours = asyncio.create_task(_end_of_refused_request(client._base_url.port))
        ended, _ = await asyncio.wait({theirs, ours}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert ended == {ours}
    finally:
        theirs.cancel()
        await asyncio.gather(theirs, return_exceptions=True)
        await plain.cleanup()


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET / HTTP/9.x\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"],
)
async def test_requests_that_are_not_http_write_no_traceback(
    client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    assert client._base_url is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", client._base_url.port)
    writer.write(request_bytes)
    writer.write_eof()
    await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()
    assert "Traceback" not in caplog.text
    assert "Error handling request" not in caplog.text


@pytest.mark.parametrize("text", ["\x1b[2Jgone", "two\nlines", "\u202eback", "x" * 501])
@pytest.mark.parametrize("field", ["reason", "by"])
async def test_unprintable_text_is_refused(
    client: aiohttp.ClientSession, answers: Answers, monkeypatch: pytest.MonkeyPatch, field: str, text: str
) -> None:
    monkeypatch.setattr(answers, "order", None, raising=False)
    order = {"engine": "chat/a", "action": "drain", "for_s": 60.0, "reason": "bad link", "by": "ann", field: text}
    async with client.post("/v1/orders", json=order) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"].startswith(f"{field} must be one line of at most 500 printable")


async def test_held_policies_are_released(client: aiohttp.ClientSession, answers: Answers) -> None:
    answers.held = True
    async with client.post("/v1/allow-shrink") as answer:
        assert (answer.status, await answer.json()) == (200, {"released": True})


async def test_port_in_use_is_a_config_error(answers: Answers) -> None:
    async with AdminServer(ListenAddress("127.0.0.1", 0), answers, Metrics()) as first:
        with pytest.raises(ConfigError, match="cannot listen on --admin"):
            async with AdminServer(ListenAddress("127.0.0.1", first.port), answers, Metrics()):
                pass
