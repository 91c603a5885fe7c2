"""Engines, a real Envoy, and a control plane with verdicts and cuts set by the test."""

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from chaos.fake_engine import EngineConfig, EnginePacing, FakeEngine
from chaos.processes import free_ports
from policies.load import load
from policies.model import PolicySet
from tests.eventually import eventually as patiently
from xds_server.auth.node_view import view_of
from xds_server.decide.decisions import Ceiling, Decisions, EngineDecision, Health
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml
from xds_server.model.fleet import EngineId, declared
from xds_server.model.memo import Memo
from xds_server.model.snapshot import Snapshot
from xds_server.model.type_urls import SHORT_NAMES
from xds_server.model.view import View
from xds_server.publish import Nack, NullObserver, Publisher
from xds_server.publish.grpc_ads import GrpcAdsServer
from xds_server.reconcile.assembler import Assembler
from xds_server.translate.view_resources import translate

LIMIT_S = 60.0
POOL = "p"
FINE = EngineDecision(health=Health.HEALTHY, reason="", since_s=0)
WIDE = Ceiling(interactive=1000, batch=1000, retry_percent=100, retry_min_concurrency=100, reason="")
"""A wave of retries as large as what is cut must fit into the budget."""

HUNG = replace(FINE, health=Health.UNHEALTHY, cut=True)


eventually = functools.partial(patiently, limit_s=LIMIT_S)
"""Waits for a condition; the test fails when it does not come true."""


@dataclass
class PublishLog(NullObserver):
    nacks: list[Nack] = field(default_factory=list)
    pushes: list[str] = field(default_factory=list)

    def on_nack(self, nack: Nack) -> None:
        self.nacks.append(nack)

    def on_push(self, node: Any, type_url: str, size_bytes: int) -> None:  # noqa: ARG002
        self.pushes.append(SHORT_NAMES[type_url])


class Plane:
    """A control plane that serves what the test decided."""

    def __init__(self, policies: PolicySet, handlers: Iterable[Any] = ()) -> None:
        self.policies = policies
        self._handlers = tuple(handlers)
        self.fleet = declared(policies)
        self.judged: dict[EngineId, EngineDecision] = {
            engine.id: FINE for engines in self.fleet.pools.values() for engine in engines
        }
        self.leaving: dict[EngineId, float] = {}
        self.seen = PublishLog()
        # Below the ephemeral range: no outgoing connection may take it while the server is away.
        (self.port,) = free_ports(1)
        self._memo, self._assembler = Memo(), Assembler()

    def snapshot_of(self, view: Any) -> Snapshot:
        assert isinstance(view, View)
        decisions = Decisions(
            engines=dict(self.judged), zone_weights={}, ceilings={(POOL, "gateway"): WIDE}, leaving=self.leaving
        )
        return self._assembler.assemble(translate(self.policies, self.fleet, decisions, view, self._memo))

    async def start(self) -> None:
        self.publisher = Publisher(
            view_of=view_of,
            snapshot_for=self.snapshot_of,
            observer=self.seen,
            epoch=f"{time.monotonic_ns():x}-",
        )
        self._server = GrpcAdsServer(self.publisher, port=self.port, handlers=self._handlers)
        self.port = await self._server.start()
        self._ticking = asyncio.create_task(self._server.run())

    async def stop(self) -> None:
        self._ticking.cancel()
        await asyncio.wait([self._ticking])
        await self._server.stop()

    def judge(self, decision: EngineDecision, *engines: str) -> None:
        """Decide this of these engines, and publish."""
        self.judged |= {EngineId(POOL, engine): decision for engine in engines}
        self.publish()

    def edit(self, policies: PolicySet) -> None:
        """Serve other policies."""
        self.policies, self.fleet = policies, declared(policies)
        self.publish()

    def publish(self) -> None:
        self.publisher.publish({view: self.snapshot_of(view) for view in self.publisher.views}, time.monotonic())

    def synced(self) -> bool:
        states = {one.state.value for proxy in self.publisher.proxies() for one in proxy.types}
        return states == {"SYNCED"}

    async def settled(self) -> None:
        await eventually(self.synced, "every proxy in sync")


@dataclass
class Site:
    plane: Plane
    engines: dict[str, FakeEngine]
    envoy: Any
    url: str
    http: aiohttp.ClientSession
    write: Callable[..., PolicySet]

    async def ask(self, *, tokens: int = 1, stream: bool = False, **headers: str) -> tuple[int, str]:
        """Status of one request, and the engine that answered; the whole answer is read."""
        body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "stream": stream}
        async with self.http.post(
            f"{self.url}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", **headers},
        ) as answer:
            await answer.read()
            return answer.status, answer.headers.get(
                "x-fake-engine", answer.headers.get("x-switchgear-reason", "")
            )

    async def streams(self, count: int) -> "Streams":
        """``count`` open streams, which last until ended."""
        for engine in self.engines.values():
            await engine.set_fault(EnginePacing(factor=1000.0))
        asked = [asyncio.create_task(self.ask(tokens=300, stream=True)) for _ in range(count)]
        await eventually(lambda: sum(map(self.held, self.engines)) >= count, "all streams are open")
        return Streams(site=self, asked=asked)

    async def many(self, count: int, **how: Any) -> list[tuple[int, str]]:
        """The answers to ``count`` concurrent requests."""
        return await asyncio.gather(*(self.ask(**how) for _ in range(count)))

    def held(self, engine: str) -> int:
        return self.engines[engine].calls_in_flight

    async def hosts(self) -> dict[str, dict[str, Any]]:
        """Envoy's own view of the pool: engine name -> its host status."""
        page = await self.envoy.json("/clusters?format=json")
        found = {}
        (cluster,) = [one for one in page["cluster_statuses"] if one["name"] == POOL]
        for host in cluster.get("host_statuses", []):
            address = host["address"]
            if "envoy_internal_address" in address:
                name = address["envoy_internal_address"]["server_listener_name"].rpartition("/")[2]
            else:
                port = address["socket_address"]["port_value"]
                (name,) = [name for name, engine in self.engines.items() if engine.port == port]
            found[name] = host
        return found

    async def ejected(self, engine: str) -> bool:
        host = (await self.hosts()).get(engine, {})
        return bool(host.get("health_status", {}).get("failed_outlier_check"))


@dataclass
class Streams:
    """Streams that engines answer so slowly that they outlast whatever is done meanwhile."""

    site: Site
    asked: list[asyncio.Task[tuple[int, str]]]

    async def end(self) -> set[int]:
        """The statuses of all, which are open still, and get the rest of their answers now."""
        assert not any(one.done() for one in self.asked)
        for engine in self.site.engines.values():
            await engine.heal()
        return {status for status, _ in await asyncio.gather(*self.asked)}


def policy_text(port: int, engines: Mapping[str, FakeEngine], resilience: str, **endpoint: Any) -> str:
    endpoints = [
        {"address": "127.0.0.1", "port": engine.port, "name": name, "zone": "a", **endpoint}
        for name, engine in engines.items()
    ]
    documents = [
        ("EnginePool", POOL, {"model": "fake-model", "endpoints": endpoints}),
        ("ModelRoute", "r", {"listener": {"port": port, "address": "127.0.0.1"}, "pools": [{"pool": POOL}]}),
        ("ResiliencePolicy", "default", yaml.safe_load(resilience) or {}),
    ]
    return yaml.safe_dump_all(
        {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        for kind, name, spec in documents
    )


StartSite = Callable[..., Awaitable[Site]]


@pytest.fixture
async def site(tmp_path: Path, start_envoy: Any) -> AsyncIterator[StartSite]:
    """``await site(engines=3, resilience="...", protocol="delta", cuts=True)``."""
    closing: list[Callable[[], Awaitable[None]]] = []

    async def start(
        *,
        engines: int = 3,
        resilience: str = "{}",
        protocol: Any = "delta",
        cuts: bool = True,
        handlers: Iterable[Any] = (),
        **config: Any,
    ) -> Site:
        port, fakes = free_ports(1)[0], {}
        for number in range(engines):
            name = f"e{number}"
            fakes[name] = FakeEngine(EngineConfig(name=name, prefill_s=0.005, token_s=0.002, **config))
            await fakes[name].start()
            closing.append(fakes[name].stop)

        def write(resilience: str = resilience, names: Any = None, **endpoint: Any) -> PolicySet:
            some = {name: fakes[name] for name in names or fakes}
            path = tmp_path / "policy.yaml"
            path.write_text(policy_text(port, some, resilience, **endpoint))
            return load([path])

        plane = Plane(write(), handlers)
        await plane.start()
        closing.append(plane.stop)
        bootstrap = yaml.safe_load(
            bootstrap_yaml(
                Bootstrap(
                    node="n1",
                    zone="a",
                    servers=[("127.0.0.1", plane.port)],
                    protocol=protocol,
                    cuts=cuts,
                    admin_port=0,
                )
            )
        )
        envoy = await start_envoy(bootstrap)
        http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=60), connector=aiohttp.TCPConnector(limit=0)
        )
        closing.append(http.close)
        made = Site(
            plane=plane, engines=fakes, envoy=envoy, url=f"http://127.0.0.1:{port}", http=http, write=write
        )
        await plane.settled()
        return made

    yield start
    for close in reversed(closing):
        await close()
