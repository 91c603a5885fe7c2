"""A body of 13.9 MB at a real Envoy with one worker delays the small requests next to it no more than plain Envoy.

``benchmarks.request_cost`` measures the delay; this test only tells tens of milliseconds from seconds.
"""

import asyncio
import time
from typing import Any

import pytest

from tests.with_envoy.translate.test_large_body_flood import Discarding, discarding
from tests.with_envoy.translate.test_route_match_per_try_and_hedging import pool, route

__all__ = ["discarding"]
pytestmark = pytest.mark.envoy

LIMIT_S = 120.0
IDS = b'{"model":"fake-model","prompt":[' + b"12345," * 2_316_000 + b"0]}"
"""Token ids: the body that costs a parser most."""

SMALL = b'{"model":"fake-model","prompt":"x"}'
ROUNDS = 20
RATIO, SLACK_S = 5.0, 0.25
"""How much longer than at plain Envoy a neighbour may wait. A parser on the worker takes seconds."""


async def _answered(port: int, body: bytes) -> bytes:
    """The first line of the answer to a completion request with this body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    try:
        async with asyncio.timeout(LIMIT_S):
            writer.write(head + b"content-length: %d\r\n\r\n" % len(body))
            writer.write(body)
            return await reader.readuntil(b"\r\n")
    finally:
        writer.transport.abort()


async def _longest_wait_s(port: int) -> float:
    """The longest that small requests take, one after the other, while a large body passes."""
    large = asyncio.create_task(_answered(port, IDS))
    longest_s, answers = 0.0, set()
    while not large.done():
        began_s = time.monotonic()
        answers.add(await _answered(port, SMALL))
        longest_s = max(longest_s, time.monotonic() - began_s)
    assert {await large, *answers} == {b"HTTP/1.1 200 OK\r\n"}
    return longest_s


def _plain(engine_port: int) -> dict[str, Any]:
    """An Envoy with one route and the router alone."""
    endpoint = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": engine_port}}}}
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3."
        "HttpConnectionManager",
        "stat_prefix": "plain",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "p", "timeout": "0s"}}],
                }
            ]
        },
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "plain",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
                    "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "p",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "load_assignment": {"cluster_name": "p", "endpoints": [{"lb_endpoints": [endpoint]}]},
                }
            ],
        }
    }


@pytest.mark.parametrize("cuts", [False, True])
async def test_large_body_delays_neighbours_like_plain_envoy(
    rig: Any, start_envoy: Any, discarding: Discarding, cuts: bool
) -> None:
    discarding.wait_s = 0.0
    ours = await rig(pool("p", discarding) + route("r", "p", match="{model: fake-model}"), cuts=cuts)
    ours_port = int(ours.url.rpartition(":")[2])
    plain = await start_envoy(_plain(discarding.port))
    plain_port = await plain.listener_port("plain")
    waits: list[tuple[float, float]] = []
    # A busy machine delays either, so one round of many must show it.
    while len(waits) < ROUNDS:
        plain_s, ours_s = await _longest_wait_s(plain_port), await _longest_wait_s(ours_port)
        if ours_s <= RATIO * plain_s + SLACK_S:
            return
        waits.append((plain_s, ours_s))
    pytest.fail(f"(plain, ours) in seconds: {waits}")
