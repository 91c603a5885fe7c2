"""Policies in front of fake engines, compiled to a static bootstrap and run by a real Envoy."""

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from chaos.fake_engine import EngineConfig, FakeEngine
from deploy.compatibility import newest_envoy
from policies.load import load
from policies.model import PolicySet
from tests.with_envoy.conftest import ENVOY_VERSION
from xds_server.auth.node_view import view_of
from xds_server.decide.decisions import Ceiling, Decisions, PoolDecisions, UsedUpQuota
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml
from xds_server.model.fleet import Fleet, declared
from xds_server.model.type_urls import ENDPOINT, ROUTE
from xds_server.model.view import View
from xds_server.translate.envoy_json import as_json, static_bootstrap
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.view_resources import translate
from xds_server.xds import NodeInfo

_UNKNOWN_FIELDS = () if newest_envoy() == ENVOY_VERSION else ("--allow-unknown-static-fields",)
"""An older Envoy ignores new fields of what a server pushes; here they are in its bootstrap, where it ends."""


@dataclass(frozen=True, kw_only=True)
class Rig:
    """A running Envoy, a client, and what its configuration was made of."""

    envoy: Any
    client: aiohttp.ClientSession
    url: str
    fleet: Fleet
    endpoints_folder: Path
    policies: PolicySet
    routes_path: Path

    async def complete(self, *, headers: Mapping[str, str] | None = None, **body: Any) -> aiohttp.ClientResponse:
        """The answer, already read, to a completion request with these fields in its body."""
        request = {"model": "fake-model", "prompt": "x", "max_tokens": 1, **body}
        async with self.client.post(
            f"{self.url}/v1/completions",
            data=io.BytesIO(json.dumps(request).encode()),
            headers={"content-type": "application/json", **(headers or {})},
        ) as answer:
            await answer.read()
            return answer

    async def set_runtime(self, values: Mapping[str, int]) -> None:
        """Overrides values of the runtime layer, live."""
        async with self.client.post(
            f"http://127.0.0.1:{self.envoy.admin_port}/runtime_modify", params=values
        ) as done:
            assert done.status == 200

    def push_endpoints(self, endpoints: Mapping[str, Any]) -> None:
        """Replaces the endpoints of these clusters, which Envoy reads from files."""
        write_endpoints(self.endpoints_folder, endpoints)

    async def decide(self, **decided: Any) -> None:
        """Replaces the routes that Envoy reads from a file by those of these decisions for pool ``p``."""
        taken = "http.port-8080.rds.port-8080.config_reload"
        before = (await self.envoy.stats(taken))[taken]
        items = translate(self.policies, self.fleet, with_pools({"p": decided}), view())
        write_routes(self.routes_path, items)

        async def reloaded() -> bool:
            return bool((await self.envoy.stats(taken))[taken] > before)

        await self.envoy.wait_for(reloaded, "serving the new routes")


def view(*, cuts: bool = False) -> View:
    """View of the Envoy under test, as the server derives it from its node."""
    node = NodeInfo(
        id="n", user_agent_name="envoy", user_agent_version=ENVOY_VERSION, metadata={"cuts": cuts} if cuts else {}
    )
    return view_of(node)


def with_pools(pools: Mapping[str, Mapping[str, Any]], **more: Any) -> Decisions:
    """Decisions by pool, each with only these fields of ``PoolDecisions``."""
    nothing: dict[str, Any] = {"engines": {}, "zones": {}, "ceilings": {}}
    return Decisions(
        **{"engines": {}, "zone_weights": {}, "ceilings": {}, **more},
        pools={pool: PoolDecisions(**nothing, **fields) for pool, fields in pools.items()},
    )


def write_routes(path: Path, items: tuple[TranslatedResource, ...]) -> None:
    fresh = path.with_suffix(".new")
    resources = [{"@type": ROUTE, **as_json(one)} for one in items if one.type_url == ROUTE]
    fresh.write_text(json.dumps({"resources": resources}))
    fresh.replace(path)


def read_routes_from(path: Path, bootstrap: Mapping[str, Any]) -> None:
    source = {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}
    for listener in bootstrap["static_resources"]["listeners"]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        if "route_config" in manager:  # not in those of engines
            manager["rds"] = {"route_config_name": manager.pop("route_config")["name"], "config_source": source}


def write_endpoints(folder: Path, endpoints: Mapping[str, Any]) -> None:
    for name, one in endpoints.items():
        # A file for each cluster: Envoy takes no file for one that has those of others in it.
        path = folder / f"endpoints-{name}.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({"resources": [{"@type": ENDPOINT, **one}]}))
        fresh.replace(path)  # Envoy watches for renames


StartRig = Callable[..., Awaitable[Rig]]


@pytest.fixture
async def engine() -> AsyncIterator[Callable[..., Awaitable[FakeEngine]]]:
    """Starts fake engines that end with the test; fast by default."""
    running: list[FakeEngine] = []

    async def start(**settings: Any) -> FakeEngine:
        fast = {"name": f"engine-{len(running)}", "prefill_s": 0.005, "token_s": 0.001}
        one = FakeEngine(replace(EngineConfig(), **{**fast, **settings}))
        running.append(one)
        await one.start()
        return one

    yield start
    for one in running:
        await one.stop()


@pytest.fixture
async def rig(start_envoy: Any, tmp_path: Path) -> AsyncIterator[StartRig]:
    """Starts an Envoy with what ``policy`` (YAML text) compiles to: ``await rig(policy, ceiling=...)``.

    ``weights`` are zone weights for callers without a zone, ``ceilings`` (interactive, batch) by pool, which
    also allow twenty retries at once: a wave of timeouts is larger than three. ``pools`` are fields of the
    decisions on a pool (``hedge``, ``ladder``) by pool. ``cuts``: engines are listeners inside the proxy.
    ``overload``: fields of ``Bootstrap`` whose overload manager this Envoy has. ``files``: paths in place of those
    that begin so. ``used_up``: quotas of calendar periods without anything left.
    """
    sessions: list[aiohttp.ClientSession] = []

    async def start(
        policy: str,
        *,
        weights: Mapping[str, int] | None = None,
        ceilings: Mapping[str, tuple[int, int]] | None = None,
        dynamic_endpoints: bool = False,
        dynamic_routes: bool = False,
        pools: Mapping[str, Mapping[str, Any]] | None = None,
        cuts: bool = False,
        overload: Mapping[str, Any] | None = None,
        files: Mapping[str, Path] | None = None,
        used_up: Mapping[int, Mapping[str, UsedUpQuota]] | None = None,
    ) -> Rig:
        (tmp_path / "policy.yaml").write_text(policy)
        policies = load([tmp_path / "policy.yaml"])
        fleet = declared(policies)
        decisions = with_pools(
            pools or {},
            used_up=used_up or {},
            zone_weights={} if weights is None else {(pool, ""): weights for pool in policies.pools},
            ceilings={
                (pool, "gateway"): Ceiling(
                    interactive=interactive, batch=batch, retry_percent=100, retry_min_concurrency=20, reason=""
                )
                for pool, (interactive, batch) in (ceilings or {}).items()
            },
        )
        items = translate(policies, fleet, decisions, view(cuts=cuts))
        bootstrap = static_bootstrap(items)
        bootstrap["layered_runtime"]["layers"].append({"name": "admin", "admin_layer": {}})
        for listener in bootstrap["static_resources"]["listeners"]:
            if "address" in listener:  # those of engines have none
                listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
        if dynamic_endpoints:
            write_endpoints(tmp_path, {item.name: as_json(item) for item in items if item.type_url == ENDPOINT})
            for cluster in bootstrap["static_resources"]["clusters"]:
                if cluster.pop("load_assignment", None) is None:
                    continue
                path = tmp_path / f"endpoints-{cluster['name']}.json"
                cluster["type"] = "EDS"
                cluster["eds_cluster_config"] = {
                    "eds_config": {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}
                }
        routes_path = tmp_path / "routes.json"
        if dynamic_routes:
            write_routes(routes_path, items)
            read_routes_from(routes_path, bootstrap)
        if overload is not None:
            whole = bootstrap_yaml(Bootstrap(node="test", zone="a", **overload))
            bootstrap["overload_manager"] = yaml.safe_load(whole)["overload_manager"]
        # Envoy wants a node before it reads anything dynamic.
        bootstrap["node"] = {"id": "test", "cluster": "test"}
        text = json.dumps(bootstrap)
        for prefix, path in (files or {}).items():
            text = text.replace(f'"{prefix}', f'"{path}')
        envoy = await start_envoy(json.loads(text), flags=_UNKNOWN_FIELDS)
        client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
        )
        sessions.append(client)
        port = await envoy.listener_port("port-8080")
        return Rig(
            envoy=envoy,
            client=client,
            url=f"http://127.0.0.1:{port}",
            fleet=fleet,
            endpoints_folder=tmp_path,
            policies=policies,
            routes_path=routes_path,
        )

    yield start
    for session in sessions:
        await session.close()
