"""Requests to an API server: refusals, invalid answers, timeouts, credentials."""

# ruff: noqa: ARG001 - a handler is given its request

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from xds_server.k8s import kube_api as api_module
from xds_server.k8s.api_resources import NODES, PODS
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector, WatchEvent

ALL = ObjectSelector(resource=PODS)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, folder: Path, **user: Any) -> AsyncIterator[KubeApi]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        file = folder / "kubeconfig"
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://{host}:{port}"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        file.write_text(yaml.safe_dump(said))
        async with open_kube_api(ClientConfig(kubeconfig=file)) as api:
            yield api
    finally:
        await runner.cleanup()


def lines(*said: Any, raw: bytes = b"") -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for one in said:
            await response.write(json.dumps(one).encode() + b"\n")
        await response.write(raw)
        return response

    return handler


_BAD_CERTIFICATE = """
apiVersion: v1
kind: Config
clusters:
  - name: c
    cluster: {server: "https://127.0.0.1:1", certificate-authority-data: bm90IGEgY2VydGlmaWNhdGU=}
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


async def watched(api: KubeApi, **more: Any) -> list[WatchEvent]:
    return [event async for event in api.watch(ALL, "1", timeout_s=5, **more)]


async def test_requests_have_token_path_and_query(tmp_path: Path) -> None:
    asked: list[tuple[str, str, dict[str, str]]] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append((request.headers.get("Authorization", ""), request.path, dict(request.query)))
        return web.json_response({"metadata": {"resourceVersion": "7", "continue": "more"}, "items": [{}]})

    async with serving(handler, tmp_path, token="secret") as api:
        which = ObjectSelector(resource=PODS, namespace="ns", labels="a in (b,c)", fields="x=y")
        page = await api.page(which, more="there")
        await api.page(ObjectSelector(resource=NODES, namespace="ignored"))
    assert (page.resource_version, page.more, len(page.items)) == ("7", "more", 1)
    assert asked[0] == (
        "Bearer secret",
        "/api/v1/namespaces/ns/pods",
        {"limit": "500", "labelSelector": "a in (b,c)", "fieldSelector": "x=y", "continue": "there"},
    )
    assert asked[1][1] == "/api/v1/nodes"


async def test_api_error_has_reason_and_retry_after(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        status = {"kind": "Status", "reason": "TooManyRequests", "message": "slow down"}
        return web.json_response(status, status=429, headers={"Retry-After": "3"})

    async with serving(handler, tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await api.page(ALL)
    assert str(caught.value) == "429 TooManyRequests: slow down"
    assert caught.value.retry_after_s == 3.0


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"[]", b"\xff\xfe"])
async def test_non_kubernetes_error_is_an_api_error(tmp_path: Path, body: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, body=body)

    async with serving(handler, tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await api.page(ALL)
    assert caught.value.status == 502


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1]"])
async def test_unreadable_answer_is_an_api_error(tmp_path: Path, body: bytes) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with serving(handler, tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await api.page(ALL)
    assert caught.value.unreadable


async def test_watch_yields_events_and_its_open_moment(tmp_path: Path) -> None:
    opened: list[bool] = []
    said = [{"type": kind, "object": {"metadata": {"name": kind}}} for kind in ("ADDED", "BOOKMARK", "NEW")]
    async with serving(lines(*said), tmp_path) as api:
        events = await watched(api, on_open=lambda: opened.append(True))
    assert [event.type for event in events] == ["ADDED", "BOOKMARK", "NEW"]
    assert opened == [True]


async def test_expired_resource_version_in_mid_watch_is_410(tmp_path: Path) -> None:
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    async with serving(lines({"type": "ADDED", "object": {}}, error), tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await watched(api)
    assert caught.value.expired


@pytest.mark.parametrize(
    "raw",
    [b"{\n", b"[]\n", b'{"type": 1}\n', b'{"type": "ADDED", "object": 7}\n', b"[" * 100_000 + b"\n"],
)
async def test_malformed_watch_event(tmp_path: Path, raw: bytes) -> None:
    async with serving(lines(raw=raw), tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await watched(api)
    assert caught.value.unreadable


async def test_watch_error_without_numeric_code(tmp_path: Path) -> None:
    error = {"type": "ERROR", "object": {"code": "gone", "reason": "Expired", "message": "too old"}}
    async with serving(lines(error), tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await watched(api)
    assert (caught.value.status, caught.value.expired) == (0, True)


async def test_unterminated_watch_event_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_module, "MAX_LINE_BYTES", 1000)
    async with serving(lines(raw=b"x" * 5000), tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await watched(api)
    assert caught.value.unreadable


async def test_silent_watch_times_out(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async with serving(handler, tmp_path) as api:
        with pytest.raises(ApiError) as caught:
            await watched(api, silent_s=0.1)
    assert caught.value.status == 0
    assert not caught.value.unreadable


async def test_watches_exceed_the_default_connection_pool(tmp_path: Path) -> None:
    open_now = 0
    everyone = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal open_now
        open_now += 1
        if open_now == 130:
            everyone.set()
        await everyone.wait()
        return await lines()(request)

    async with serving(handler, tmp_path) as api, asyncio.timeout(60):
        await asyncio.gather(*(watched(api) for _ in range(130)))
    assert open_now == 130


async def test_unreachable_server_is_an_api_error(tmp_path: Path) -> None:
    async with serving(lines(), tmp_path) as api:
        pass
    file = tmp_path / "kubeconfig"
    async with open_kube_api(ClientConfig(kubeconfig=file)) as api:
        with pytest.raises(ApiError) as caught:
            await api.page(ALL)
    assert caught.value.status == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "not: [yaml",
        "apiVersion: v1\nkind: Config\n",
        "7",
        "clusters: 7\ncurrent-context: x\n",
        _BAD_CERTIFICATE,
    ],
)
async def test_missing_cluster_configuration_is_an_api_error(tmp_path: Path, content: str) -> None:
    file = tmp_path / "kubeconfig"
    if content:
        file.write_text(content)
    with pytest.raises(ApiError) as caught:
        async with open_kube_api(ClientConfig(kubeconfig=file)):
            pass
    assert (caught.value.status, caught.value.reason) == (0, "NotConfigured")


async def test_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="nowhere: No such file"):
        async with open_kube_api(ClientConfig(kubeconfig=tmp_path / "nowhere")):
            pass


async def test_empty_kubeconfig_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text("\n")
    with pytest.raises(ApiError, match="kubeconfig is not a kubeconfig: it is empty"):
        async with open_kube_api(ClientConfig(kubeconfig=file)):
            pass
