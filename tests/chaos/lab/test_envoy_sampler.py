"""What is read off Envoy's admin pages; a real Envoy's are read where the bench runs one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.history.history_events import ProxySample
from chaos.lab.envoy_sampler import CEILING_EVERY, EnvoySampler, SampledPool, proxy_sample, request_limit
from tests.eventually import eventually


def host(port: int = 0, *, name: str = "", active: int = 0, total: int = 0, failed: int = 0, **health: Any) -> Any:
    address: dict[str, Any] = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    if name:
        address = {"envoy_internal_address": {"server_listener_name": f"cut/chat/{name}"}}
    stats = [
        {"name": "rq_active", "value": str(active), "type": "GAUGE"},
        {"name": "rq_total", "value": str(total)},
        {"name": "cx_connect_fail", "value": str(failed)},
        {"name": "rq_error"},
    ]
    return {"address": address, "stats": stats, "health_status": {"eds_health_status": "HEALTHY", **health}}


def clusters(*hosts: Any, limit: int | None = None) -> Any:
    thresholds = [{"priority": "HIGH", "max_requests": 7}]
    if limit is not None:
        thresholds.append({"max_requests": limit})
    other = {"name": "other", "host_statuses": [host(1, active=9)]}
    pool = {"name": "chat", "host_statuses": list(hosts), "circuit_breakers": {"thresholds": thresholds}}
    return {"cluster_statuses": [other, pool]}


WATCHED = SampledPool(pool="chat", admins={}, ports={1: "e0", 2: "e1"}, names={"engine-2": "e2"})


def test_engines_are_identified_by_port_or_listener() -> None:
    page = clusters(
        host(1, active=2, total=10, failed=1), host(2), host(3, active=5), host(name="engine-2", active=4, total=4)
    )
    assert proxy_sample(WATCHED, "p0", page, at_s=1.5, ceiling=9.0, retries=1, refused=0) == ProxySample(
        at_s=1.5,
        proxy="p0",
        in_flight={"e0": 2, "e1": 0, "e2": 4},
        sent={"e0": 11, "e1": 0, "e2": 4},
        ceiling=9.0,
        retries=1,
        refused=0,
    )


def test_envoy_outlier_ejection_is_distinguished_from_control_plane_ejection() -> None:
    page = clusters(
        host(1, failed_outlier_check=True),
        host(2, eds_health_status="UNHEALTHY", failed_outlier_check=True),
        host(name="engine-2", failed_active_health_check=True),
    )
    sample = proxy_sample(WATCHED, "p0", page, at_s=0.0)
    assert sample.ejected == ("e0", "e1")
    assert sample.unhealthy == ("e1", "e2")
    assert proxy_sample(WATCHED, "p0", {}, at_s=0.0).in_flight == {}


@pytest.mark.parametrize(
    ("limit", "expected", "ceiling"),
    [(None, None, None), (60, None, 60.0), (60, "25", 25.0), (60, "", 60.0), (4_000_000_000, None, None)],
)
def test_max_requests_ceiling_is_read_from_rtds_if_set(
    limit: int | None, expected: str | None, ceiling: float | None
) -> None:
    runtime = None
    if expected is not None:
        runtime = {"entries": {"circuit_breakers.chat.default.max_requests": {"final_value": expected}}}
    assert request_limit("chat", clusters(limit=limit), runtime) == ceiling


@contextlib.asynccontextmanager
async def envoy(pages: dict[str, Any]) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        page = pages.get(request.path)
        return web.Response(status=503) if page is None else web.json_response(page)

    app = web.Application()
    app.router.add_get("/{page}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def test_silent_envoy_is_a_gap_for_that_envoy_only() -> None:
    counted = "cluster.chat.upstream_rq_retry"
    pages = {
        "/clusters": clusters(host(1)),
        "/stats": {"stats": [{"name": counted, "value": 3}, {"name": f"{counted}_overflow", "value": 2}]},
    }
    silent: dict[str, Any] = {}
    samples: list[ProxySample] = []
    async with envoy(pages) as one, envoy(silent) as other, aiohttp.ClientSession() as session:
        watched = SampledPool(pool="chat", admins={"p0": one, "p1": other}, ports={1: "e0"}, names={})
        task = asyncio.create_task(EnvoySampler(session, watched, samples.append, began_s=0.0).run())
        await eventually(lambda: len(samples) > CEILING_EVERY, "some samples", 60)
        assert {sample.proxy for sample in samples} == {"p0"}
        silent |= pages
        await eventually(lambda: samples[-1].proxy == "p1", "the other speaks", 60)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert [sample.retries for sample in samples[: CEILING_EVERY + 1]] == [3, None, None, None, None, 3]
    assert samples[0].refused == 2
