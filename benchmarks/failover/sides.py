"""What stands between load and engines: Switchgear with its agents and Envoys, or Envoys alone."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from benchmarks.failover.contestants import Contestant
from benchmarks.failover.fleet import MODEL, START_LIMIT_S, Fleet
from benchmarks.failover.setting import Setting
from chaos.lab.static_envoy import POOL, bootstrap
from chaos.processes import Child, Processes, envoy_command, free_ports
from chaos.sender import Target
from policies.document import API_VERSION
from policies.quantity import format_duration
from xds_server.bootstrap import Bootstrap, bootstrap_yaml

ENVOY_DRAIN_TIME_S: Final = 0
"""Of every Envoy here, as our README says to start them."""

POLL_S: Final = 0.02


class SideError(RuntimeError):
    """Something was not ready in time; the message says what."""


@dataclass(slots=True, kw_only=True)
class Side:
    """Running. ``targets`` and ``admins`` are by proxy, ``agents`` by engine number. ``control_plane`` is its
    admin address, empty where there is none.
    """

    targets: tuple[Target, ...]
    admins: tuple[str, ...]
    children: Processes
    envoys: tuple[Child, ...]
    control_plane: str = ""
    server: Child | None = None
    relay: Child | None = None
    agents: dict[int, Child] = field(default_factory=dict)

    def kill_control_plane(self) -> None:
        """SIGKILL, as an OOM killer would."""
        if self.server is not None:
            self.server.signal_group(signal.SIGKILL)

    def lose_telemetry(self) -> None:
        """Access logs and load reports reach nobody from here on."""
        if self.relay is not None:
            self.relay.signal_group(signal.SIGUSR1)

    async def lose_agent(self, engine: int) -> None:
        """What stands beside an engine dies with its host: without a word, where SIGTERM would make it drain."""
        if engine in self.agents:
            self.agents[engine].signal_group(signal.SIGKILL)
            await self.children.stop(self.agents[engine])

    async def restore_agent(self, engine: int) -> None:
        """It comes back where it was."""
        if engine in self.agents:
            before = self.agents[engine]
            self.agents[engine] = await self.children.start(before.name, before.argv, ready_within_s=START_LIMIT_S)


async def static_side(
    children: Processes, folder: Path, contestant: Contestant, setting: Setting, fleet: Fleet
) -> Side:
    """Envoys with a configuration that never changes."""
    assert contestant.static is not None
    targets, admins, envoys = [], [], []
    proxies = len(setting.demand)
    for proxy, weight in enumerate(setting.demand):
        port, admin = free_ports(2)
        text = bootstrap(
            contestant.static,
            engine_ports=fleet.ports,
            slots=setting.slots,
            proxies=proxies,
            deadline_s=setting.deadline_s,
            listener_port=port,
            admin_port=admin,
        )
        envoys.append(await _envoy(children, folder, proxy, text))
        targets.append(Target(url=f"http://127.0.0.1:{port}", name=f"proxy-{proxy}", weight=weight))
        admins.append(f"http://127.0.0.1:{admin}")
    return Side(targets=tuple(targets), admins=tuple(admins), children=children, envoys=tuple(envoys))


async def switchgear_side(
    children: Processes,
    folder: Path,
    contestant: Contestant,
    setting: Setting,
    fleet: Fleet,
    *,
    relayed: bool,
) -> Side:
    """The real control plane and the Envoys it steers; ``relayed`` where their telemetry will be lost."""
    agents: dict[int, Child] = {}
    if contestant.agents:
        started = await asyncio.gather(
            *(_agent(children, engine, setting, fleet) for engine in range(setting.engines))
        )
        agents = dict(enumerate(started))
    (listener,) = free_ports(1)
    text = policies(
        contestant, setting, fleet, {one: int(agents[one].ready["grpc_port"]) for one in agents}, listener
    )
    (folder / "policies").mkdir()
    (folder / "policies" / "bench.yaml").write_text(text)
    server = await children.start(
        "control-plane",
        [
            *(sys.executable, "-m", "xds_server", "serve", "--policies", str(folder / "policies")),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        ],
        ready_within_s=START_LIMIT_S,
    )
    xds, relay = str(server.ready["xds"]), None
    if relayed:
        relay = await children.start(
            "relay", [sys.executable, "-m", "benchmarks.failover.relay", xds], ready_within_s=START_LIMIT_S
        )
        xds = f"127.0.0.1:{relay.ready['port']}"
    host, _, port = xds.rpartition(":")
    targets, admins, envoys = [], [], []
    for proxy, weight in enumerate(setting.demand):
        (admin,) = free_ports(1)
        # Real gateways stand on hosts of their own; here each has a loopback address of its own.
        address = f"127.0.0.{proxy + 2}"
        text = bootstrap_yaml(
            Bootstrap(
                node=f"proxy-{proxy}",
                zone=setting.proxy_zone(proxy),
                servers=[(host, int(port))],
                admin_port=admin,
                listen_address=address,
            )
        )
        envoys.append(await _envoy(children, folder, proxy, text))
        targets.append(Target(url=f"http://{address}:{listener}", name=f"proxy-{proxy}", weight=weight))
        admins.append(f"http://127.0.0.1:{admin}")
    return Side(
        targets=tuple(targets),
        admins=tuple(admins),
        children=children,
        envoys=tuple(envoys),
        control_plane=f"http://{server.ready['admin']}",
        server=server,
        relay=relay,
        agents=agents,
    )


async def ready(session: aiohttp.ClientSession, side: Side, setting: Setting) -> None:
    """Wait until every proxy serves through every engine, as far as it can say; SideError when it does not."""
    for target in side.targets:
        await _until(session, f"{target.url}/v1/models", lambda _: True, f"the Envoy at {target.url}")
    for admin in side.admins:
        await _until(
            session,
            f"{admin}/clusters?format=json",
            lambda page: _healthy_hosts(page) >= setting.engines,
            f"all engines in the Envoy at {admin}",
        )


def policies(
    contestant: Contestant, setting: Setting, fleet: Fleet, agent_ports: dict[int, int], listener_port: int
) -> str:
    """What an operator would write: one pool, one route, and the few things the bench is about."""
    endpoints = [
        {
            "name": fleet.names[engine],
            "address": "127.0.0.1",
            "port": fleet.ports[engine],
            "zone": setting.zone(engine),
            "slots": setting.kind(engine).slots,
            **({"agentPort": agent_ports[engine]} if engine in agent_ports else {}),
        }
        for engine in range(setting.engines)
    ]
    pool: dict[str, Any] = {"model": MODEL, "endpoints": endpoints, "firstTokenGate": setting.gate}
    if contestant.service_time_told:
        pool["serviceTime"] = format_duration(setting.mean_service_s)
        pool["longestServiceTime"] = format_duration(setting.longest_service_s)
    resilience: dict[str, Any] = {"pools": [POOL], "limits": {"maxWait": format_duration(setting.max_wait_s)}}
    documents = [
        {"kind": "EnginePool", "metadata": {"name": POOL}, "spec": pool},
        {
            "kind": "ModelRoute",
            "metadata": {"name": POOL},
            "spec": {"listener": {"port": listener_port, "address": "127.0.0.1"}, "pools": [{"pool": POOL}]},
        },
        {"kind": "ResiliencePolicy", "metadata": {"name": POOL}, "spec": resilience},
    ]
    return yaml.safe_dump_all([{"apiVersion": API_VERSION, **one} for one in documents], sort_keys=False)


def _healthy_hosts(page: Any) -> int:
    for cluster in page.get("cluster_statuses", []):
        if cluster["name"] == POOL:
            return sum(not _unhealthy(host["health_status"]) for host in cluster.get("host_statuses", []))
    return 0


def _unhealthy(status: Any) -> bool:
    return bool(
        status.get("failed_active_health_check") or status.get("eds_health_status", "HEALTHY") != "HEALTHY"
    )


async def _agent(children: Processes, engine: int, setting: Setting, fleet: Fleet) -> Child:
    # Fixed, so that an agent that comes back is found where it was.
    http, grpc = free_ports(2)
    return await children.start(
        f"agent-{fleet.names[engine]}",
        [
            *(sys.executable, "-m", "engine.agent", "run"),
            *("--engine", f"http://127.0.0.1:{fleet.ports[engine]}", "--slots", str(setting.kind(engine).slots)),
            *("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}", "--gpu", "off"),
        ],
        ready_within_s=START_LIMIT_S,
    )


async def _envoy(children: Processes, folder: Path, proxy: int, text: str) -> Child:
    path = folder / f"envoy-{proxy}.yaml"
    path.write_text(text)
    return await children.start(f"envoy-{proxy}", envoy_command(path, drain_time_s=ENVOY_DRAIN_TIME_S))


async def _until(session: aiohttp.ClientSession, url: str, good: Callable[[Any], bool], what: str) -> None:
    """Wait until ``url`` answers 200 with a page that is ``good``."""
    limit_s = time.monotonic() + START_LIMIT_S
    seen = "nothing"
    while time.monotonic() < limit_s:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(url, timeout=aiohttp.ClientTimeout(total=2.0)) as answer:
                text = await answer.read()
                seen = f"status {answer.status}: {text[:200].decode(errors='replace')}"
                if answer.status == 200 and good(json.loads(text)):
                    return
        await asyncio.sleep(POLL_S)
    raise SideError(f"{what} was not ready after {START_LIMIT_S:g} s; last seen: {seen}")
