"""A real Envoy that tells a real server of its calls: our listener, static clusters, engines that can fail."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.fake_engine.engine_port import reset_connection
from policies.listener import Listener as ListenerSpec
from policies.load import load
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.pool_traffic import PoolTraffic
from xds_server.model.type_urls import LISTENER
from xds_server.telemetry import Telemetry
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.translate.envoy_json import as_json, static_bootstrap
from xds_server.translate.listeners import connection_manager, listener
from xds_server.translate.translated_resource import TranslatedResource

LIMIT_S = 60.0
NODE = "envoy-under-test"
RETRY: dict[str, Any] = {
    "retry_on": "connect-failure,reset,retriable-status-codes",
    "retriable_status_codes": [503],
    "num_retries": 2,
    # Of two engines the other one is picked, then, but once in 2^100 times.
    "host_selection_retry_max_attempts": "100",
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
            },
        }
    ],
}


@dataclass(frozen=True, kw_only=True)
class RecordedOutcome:
    """One thing that was counted."""

    pool: str
    engine: str
    outcome: AttemptOutcome
    first: bool = True
    streaming: bool = False


class Recording(TrafficStore):
    """A traffic store that also records each entry."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[RecordedOutcome] = []

    def record_attempt(self, node, facts, attempt, **other):  # type: ignore[no-untyped-def]
        assert node == NODE
        self.told.append(
            RecordedOutcome(
                pool=facts.name,
                engine=attempt.engine,
                outcome=attempt.outcome,
                first=attempt.first,
                streaming=attempt.streaming,
            )
        )
        super().record_attempt(node, facts, attempt, **other)

    def record_failure(self, facts, engine, **other):  # type: ignore[no-untyped-def]
        self.told.append(RecordedOutcome(pool=facts.name, engine=engine, outcome=AttemptOutcome.FAILURE))
        super().record_failure(facts, engine, **other)

    def record_shed(self, node, facts, priority, **other):  # type: ignore[no-untyped-def]
        self.told.append(RecordedOutcome(pool=facts.name, engine="", outcome=AttemptOutcome.NOT_SENT))
        super().record_shed(node, facts, priority, **other)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """``call`` makes one request over a route and returns what the store recorded of it."""

    engines: dict[str, FakeEngine]
    telemetry: Telemetry
    book: Recording
    client: aiohttp.ClientSession
    url: str
    admin_port: int
    stop_server: Callable[[], Awaitable[None]]
    statuses: list[int | str] = field(default_factory=list)

    async def call(
        self,
        route: str,
        *,
        told: int = 1,
        stream: bool = False,
        leaves: Callable[[], object] | None = None,
        tokens: int = 4,
        headers: Mapping[str, str] | None = None,
    ) -> list[RecordedOutcome]:
        """Records of one request; its caller ``leaves`` once they exist, or reads the whole answer."""
        before = len(self.book.told)
        body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "stream": stream}
        asked = asyncio.create_task(self._answered(f"{self.url}/{route}", body, headers))
        try:
            if leaves is not None:
                await until(leaves, f"the caller of {route} leaves")
                asked.cancel()
            await asyncio.wait([asked])
        finally:
            asked.cancel()
        if not asked.cancelled():
            self.statuses.append(asked.result())
        await until(lambda: len(self.book.told) >= before + told, f"{told} records of {route}")
        return self.book.told[before:]

    async def _answered(self, url: str, body: Any, headers: Mapping[str, str] | None) -> int | str:
        try:
            async with self.client.post(url, json=body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError as error:
            return type(error).__name__

    def traffic(self, pool: str) -> PoolTraffic | None:
        return self.telemetry.traffic(time.monotonic()).get(pool)

    async def set_runtime(self, key: str, value: int) -> None:
        url = f"http://127.0.0.1:{self.admin_port}/runtime_modify"
        async with self.client.post(url, params={key: value}) as done:
            assert done.status == 200


async def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.01)


async def _odd_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An engine with bad manners; the path says which."""
    path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
    if path == b"/reset":
        reset_connection(writer.transport)
        return
    answers = {
        b"/busy": b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"/missing": b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
        b"/rubbish": b"HELLO\r\n\r\n",
        b"/half": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    }
    writer.write(answers.get(path, b""))
    await writer.drain()
    writer.close()


def _cluster(name: str, ports: list[int], **other: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        # With round robin, calls and their retries would always hit the same two engines.
        "lb_policy": "RANDOM",
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [
                {
                    "lb_endpoints": [
                        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
                        for port in ports
                    ]
                }
            ],
        },
        **other,
    }


def _policies(ports: dict[str, dict[str, int]], routes: list[str], folder: Path) -> Any:
    documents: list[dict[str, Any]] = [
        {
            "kind": "EnginePool",
            "metadata": {"name": pool},
            "spec": {
                "model": pool,
                "endpoints": [
                    {"address": "127.0.0.1", "port": port, "name": name} for name, port in engines.items()
                ],
            },
        }
        for pool, engines in ports.items()
    ]
    for number, name in enumerate(routes):
        pool = name.split("-")[0]
        spec = {"listener": {"port": 8000 + number}, "pools": [{"pool": pool}]}
        documents.append({"kind": "ModelRoute", "metadata": {"name": name}, "spec": spec})
    documents.append(
        {
            "kind": "ResiliencePolicy",
            "metadata": {"name": "hedged"},
            "spec": {"pools": ["hedge"], "hedging": {"enabled": True}},
        }
    )
    path = folder / "policies.yaml"
    path.write_text(
        "\n---\n".join(json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **one}) for one in documents)
    )
    return load([path])


@pytest.fixture
async def rig(start_envoy: Any, tmp_path: Path) -> AsyncIterator[Rig]:
    """Routes ``/<pool>-<how>`` to the pool, each with one thing about it; see ``actions``."""
    engines = {}
    for name in ("e0", "e1"):
        engines[name] = FakeEngine(replace(EngineConfig(), name=name, prefill_s=0.01, token_s=0.005))
        await engines[name].start()
    one, other = engines["e0"].port, engines["e1"].port
    odd = await asyncio.start_server(_odd_server, "127.0.0.1", 0)
    odd_port = odd.sockets[0].getsockname()[1]
    # Bound, never listening: connections are refused, and no other process gets the port.
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))
    dead = gone.getsockname()[1]

    actions: dict[str, dict[str, Any]] = {
        "one-plain": {},
        "one-retried": {"retry_policy": RETRY},
        "one-per-try": {"retry_policy": {"per_try_timeout": "0.3s"}},
        "one-per-try-idle": {"retry_policy": {"per_try_idle_timeout": "0.3s"}},
        "one-timeout": {"timeout": "0.3s"},
        "one-idle": {"idle_timeout": "0.3s"},
        "two-retried": {"retry_policy": RETRY},
        "hedge-on": {
            "retry_policy": {**RETRY, "per_try_timeout": "0.15s"},
            "hedge_policy": {"hedge_on_per_try_timeout": True},
        },
        "dead-plain": {},
        "empty-plain": {},
        "full-plain": {},
        "shut-plain": {},
        "cut-plain": {},
        **{
            f"odd-{how}": {"prefix_rewrite": f"/{how}"}
            for how in ("reset", "close", "rubbish", "half", "busy", "missing")
        },
    }
    ports = {
        "one": {"e0": one},
        "two": {"gone": dead, "e1": other},
        "hedge": {"e0": one, "e1": other},
        "dead": {"gone": dead},
        "empty": {},
        "full": {"e0": one},
        "shut": {"e0": one},
        "cut": {"e0": one},
        "odd": {"odd": odd_port},
    }
    metrics = Metrics()
    telemetry = Telemetry(metrics)
    telemetry.traffic_store = book = Recording()
    telemetry.watch(_policies(ports, list(actions), tmp_path))
    server = grpc.aio.server(handlers=telemetry.handlers())
    server_port = server.add_insecure_port("127.0.0.1:0")
    await server.start()

    bootstrap = static_bootstrap([], ("127.0.0.1", server_port))
    bootstrap["node"] = {"id": NODE, "cluster": "test"}
    bootstrap["cluster_manager"] = {
        "load_stats_config": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "switchgear"}}],
        }
    }
    bootstrap["bootstrap_extensions"] = [
        {
            "name": "envoy.bootstrap.internal_listener",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener"
            },
        }
    ]
    clusters = bootstrap["static_resources"]["clusters"]
    clusters += [_cluster(pool, list(found.values())) for pool, found in ports.items()]
    by_name = {cluster["name"]: cluster for cluster in clusters}
    by_name["full"]["circuit_breakers"] = {"thresholds": [{"max_requests": 0}]}
    hop = "engine/cut/e0"
    clusters.append(_cluster(hop, [one]))
    by_name["cut"]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"envoy_internal_address": {"server_listener_name": hop}}}}
    ]
    tcp = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
        "stat_prefix": "hop",
        "cluster": hop,
    }
    front = as_json(
        TranslatedResource(
            type_url=LISTENER,
            name="in",
            message=listener(0, "127.0.0.1", connection_manager(ListenerSpec(port=1))),
        )
    )
    manager = front["filter_chains"][0]["filters"][0]["typed_config"]
    del manager["rds"]
    manager["route_config"] = {
        "virtual_hosts": [
            {
                "name": "all",
                "domains": ["*"],
                "include_request_attempt_count": True,
                "routes": [
                    {
                        "name": f"{name}/streaming" if name == "one-per-try-idle" else f"{name}/non-streaming",
                        "match": {"path": f"/{name}"},
                        "route": {
                            "cluster": name.split("-")[0],
                            "timeout": "0s",
                            "prefix_rewrite": "/v1/completions",
                            **action,
                        },
                    }
                    for name, action in actions.items()
                ],
            }
        ]
    }
    bootstrap["static_resources"]["listeners"] = [
        front,
        {
            "name": hop,
            "internal_listener": {},
            "filter_chains": [{"filters": [{"name": "hop", "typed_config": tcp}]}],
        },
    ]
    bootstrap["layered_runtime"] = {
        "layers": [
            {"name": "static", "static_layer": {"upstream.maintenance_mode.shut": 100}},
            {"name": "admin", "admin_layer": {}},
        ]
    }
    envoy = await start_envoy(bootstrap)
    port = await envoy.listener_port("port-0")

    async def stop_server() -> None:
        telemetry.stop()
        await server.stop(0)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S)) as client:
        yield Rig(
            engines=engines,
            telemetry=telemetry,
            book=book,
            client=client,
            url=f"http://127.0.0.1:{port}",
            admin_port=envoy.admin_port,
            stop_server=stop_server,
        )
    await stop_server()
    odd.close()
    gone.close()
    for engine in engines.values():
        await engine.stop()
