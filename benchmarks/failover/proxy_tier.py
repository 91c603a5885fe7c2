"""What stands between load and engines: Switchgear with its agents and Envoys, Envoys alone, or a peer."""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.failover.contestants import Contestant
from benchmarks.failover.endpoint_picker import LOAD_SCORERS, start_api_server, start_picker
from benchmarks.failover.engine_fleet import MODEL, EngineFleet, call_records
from benchmarks.failover.engine_pods import LABELS, EnginePods
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.picker_bootstrap import picker_bootstrap
from benchmarks.peers import start_peer
from chaos.lab.agent_process import agent_process
from chaos.lab.envoy_processes import POLL_S, NotReadyError, start_envoy, wait_for_healthy, wait_for_page
from chaos.lab.process_slot import START_LIMIT_S, ProcessSlot
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from chaos.testbed.static_envoy import POOL, static_bootstrap
from policies.document import API_VERSION
from policies.quantity import format_duration
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml


@dataclass(slots=True, kw_only=True)
class ProxyTier:
    """Running. ``targets`` and ``admins`` are by proxy, ``agents`` by engine number. ``control_plane`` is its
    admin address, empty where there is none.
    """

    targets: tuple[LoadTarget, ...]
    admins: tuple[str, ...]
    children: ChildProcesses
    envoys: tuple[ChildProcess, ...]
    control_plane: str = ""
    server: ChildProcess | None = None
    relay: ChildProcess | None = None
    picker: ChildProcess | None = None
    cluster: tuple[ChildProcess, ...] = ()
    kubelet: "asyncio.Task[None] | None" = None
    routers: tuple[ChildProcess, ...] = ()
    agents: dict[int, ProcessSlot] = field(default_factory=dict)

    def kill_control_plane(self) -> None:
        """SIGKILL, as an OOM killer would."""
        if self.server is not None:
            self.server.signal_group(signal.SIGKILL)

    async def end(self) -> None:
        """Stop the probes of pods; raise what ended them before."""
        if self.kubelet is not None and not self.kubelet.cancel():
            await self.kubelet

    async def lose_telemetry(self, session: aiohttp.ClientSession) -> None:
        """Drop access logs and load reports from now on."""
        if self.relay is None:
            return
        for target in self.targets:
            url = f"{self.relay.ready['control']}/orders/{target.name}"
            async with session.put(url, json={"proxy": target.name, "lost": True}) as answer:
                answer.raise_for_status()

    async def lose_agent(self, engine: int) -> None:
        """Kill an engine's agent with SIGKILL, as a host failure does; SIGTERM would make it drain."""
        if engine in self.agents:
            await self.agents[engine].kill()

    async def restore_agent(self, engine: int) -> None:
        """It comes back where it was."""
        if engine in self.agents:
            await self.agents[engine].restart()


async def static_tier(
    children: ChildProcesses, folder: Path, contestant: Contestant, setting: ExperimentSetting, fleet: EngineFleet
) -> ProxyTier:
    """Envoys with a configuration that never changes."""
    assert contestant.static is not None
    targets, admins, envoys = [], [], []
    proxies = len(setting.demand)
    for proxy, weight in enumerate(setting.demand):
        port, admin = free_ports(2)
        text = static_bootstrap(
            contestant.static,
            engine_ports=fleet.ports,
            slots=setting.slots,
            proxies=proxies,
            deadline_s=setting.deadline_s,
            listener_port=port,
            admin_port=admin,
        )
        envoys.append(await _envoy(children, folder, proxy, text))
        targets.append(LoadTarget(url=f"http://127.0.0.1:{port}", name=f"proxy-{proxy}", weight=weight))
        admins.append(f"http://127.0.0.1:{admin}")
    return ProxyTier(targets=tuple(targets), admins=tuple(admins), children=children, envoys=tuple(envoys))


async def picker_tier(
    children: ChildProcesses,
    folder: Path,
    setting: ExperimentSetting,
    fleet: EngineFleet,
    session: aiohttp.ClientSession,
) -> ProxyTier:
    """Envoys that ask one endpoint picker about each request. It reads the pods of an API server of its own."""
    server = await start_api_server(children, folder / "api-server")
    pods = EnginePods(kubeconfig=server.kubeconfig, addresses=fleet.hosts, port=fleet.ports[0])
    kubelet = asyncio.create_task(pods.run(session))
    while not pods.made.is_set():
        if kubelet.done():
            await kubelet
        await asyncio.sleep(POLL_S)
    labels = [f"{key}={text}" for key, text in LABELS.items()]
    picker, picker_port = await start_picker(children, server.kubeconfig, labels, fleet.ports[0], LOAD_SCORERS)
    targets, admins, envoys = [], [], []
    for proxy, weight in enumerate(setting.demand):
        port, admin = free_ports(2)
        text = picker_bootstrap(
            picker_port,
            engine_ports=fleet.ports,
            slots=setting.slots,
            proxies=len(setting.demand),
            deadline_s=setting.deadline_s,
            listener_port=port,
            admin_port=admin,
        )
        envoys.append(await _envoy(children, folder, proxy, text))
        targets.append(LoadTarget(url=f"http://127.0.0.1:{port}", name=f"proxy-{proxy}", weight=weight))
        admins.append(f"http://127.0.0.1:{admin}")
    return ProxyTier(
        targets=tuple(targets),
        admins=tuple(admins),
        children=children,
        envoys=tuple(envoys),
        picker=picker,
        cluster=server.programs,
        kubelet=kubelet,
    )


async def peer_tier(
    children: ChildProcesses, folder: Path, contestant: Contestant, setting: ExperimentSetting, fleet: EngineFleet
) -> ProxyTier:
    """Another product, once for each proxy."""
    assert contestant.peer is not None
    targets, routers = [], []
    for proxy, weight in enumerate(setting.demand):
        router, url = await start_peer(children, folder, contestant.peer, fleet.ports, MODEL)
        routers.append(router)
        targets.append(LoadTarget(url=url, name=f"proxy-{proxy}", weight=weight))
    return ProxyTier(targets=tuple(targets), admins=(), children=children, envoys=(), routers=tuple(routers))


async def switchgear_tier(
    children: ChildProcesses,
    folder: Path,
    contestant: Contestant,
    setting: ExperimentSetting,
    fleet: EngineFleet,
    *,
    relayed: bool,
) -> ProxyTier:
    """The real control plane and the Envoys it steers; ``relayed`` where their telemetry will be lost."""
    agents: dict[int, ProcessSlot] = {}
    ports: dict[int, int] = {}
    if contestant.agents:
        for engine in range(setting.engines):
            slots = setting.kind(engine).slots
            one = agent_process(children, fleet.names[engine], fleet.ports[engine], slots)
            agents[engine], ports[engine] = one.post, one.grpc
        await asyncio.gather(*(post.start() for post in agents.values()))
    (listener,) = free_ports(1)
    text = policies(contestant, setting, fleet, ports, listener)
    (folder / "policies").mkdir()
    (folder / "policies" / "bench.yaml").write_text(text)
    server = await children.start(
        "control-plane",
        [
            *(sys.executable, "-m", "xds_server", "serve", "-f", str(folder / "policies")),
            *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        ],
        ready_within_s=START_LIMIT_S,
    )
    names = [f"proxy-{proxy}" for proxy in range(len(setting.demand))]
    servers, relay = dict.fromkeys(names, str(server.ready["xds"])), None
    if relayed:
        links = [argument for name, xds in servers.items() for argument in ("--link", f"xds:{name}={xds}")]
        command = [sys.executable, "-m", "chaos.xds_tap", *links]
        relay = await children.start("relay", command, ready_within_s=START_LIMIT_S)
        servers = {name: f"127.0.0.1:{relay.ready['ports'][f'xds:{name}']}" for name in names}
    targets, admins, envoys = [], [], []
    for proxy, (name, weight) in enumerate(zip(names, setting.demand, strict=True)):
        (admin,) = free_ports(1)
        host, _, port = servers[name].rpartition(":")
        # Real gateways stand on hosts of their own; here each has a loopback address of its own.
        address = f"127.0.0.{proxy + 2}"
        text = bootstrap_yaml(
            Bootstrap(
                node=name,
                zone=setting.proxy_zone(proxy),
                servers=[(host, int(port))],
                admin_port=admin,
                listen_address=address,
            )
        )
        envoys.append(await _envoy(children, folder, proxy, text))
        targets.append(LoadTarget(url=f"http://{address}:{listener}", name=name, weight=weight))
        admins.append(f"http://127.0.0.1:{admin}")
    return ProxyTier(
        targets=tuple(targets),
        admins=tuple(admins),
        children=children,
        envoys=tuple(envoys),
        control_plane=f"http://{server.ready['admin']}",
        server=server,
        relay=relay,
        agents=agents,
    )


async def ready(
    session: aiohttp.ClientSession, side: ProxyTier, setting: ExperimentSetting, fleet: EngineFleet
) -> None:
    """Wait until every proxy serves through every engine, as far as it can say; NotReadyError when it does not."""
    if side.routers:
        await asyncio.gather(*(_every_engine_asked(session, side, target, fleet) for target in side.targets))
        return
    for target in side.targets:
        await wait_for_page(session, f"{target.url}/v1/models", lambda _: True, f"the Envoy at {target.url}")
    # An Envoy behind a picker knows an engine only after the first request to it.
    for admin in () if side.picker is not None else side.admins:
        await wait_for_healthy(session, admin, POOL, setting.engines)


async def _every_engine_asked(
    session: aiohttp.ClientSession, side: ProxyTier, target: LoadTarget, fleet: EngineFleet
) -> None:
    """Ask until every engine has answered through this proxy: the pages of other products show other things."""
    give_up_s = time.monotonic() + START_LIMIT_S
    body = {"model": MODEL, "prompt": "word", "max_tokens": 1}
    before = [len(book["calls"]) for book in await call_records(session, fleet)]
    while time.monotonic() < give_up_s:
        ended = [router.tail() for router in side.routers if router.returncode is not None]
        if ended:
            raise NotReadyError(f"{target.name} ended: {ended[0]}")
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            await asyncio.gather(*(_asked(session, target, body) for _ in fleet.ports))
        books = await call_records(session, fleet)
        if all(len(book["calls"]) > seen for book, seen in zip(books, before, strict=True)):
            return
        await asyncio.sleep(POLL_S)
    raise NotReadyError(f"{target.name} did not ask every engine within {START_LIMIT_S:g} s")


async def _asked(session: aiohttp.ClientSession, target: LoadTarget, body: Mapping[str, Any]) -> None:
    async with session.post(f"{target.url}/v1/completions", json=body) as answer:
        await answer.read()


def policies(
    contestant: Contestant,
    setting: ExperimentSetting,
    fleet: EngineFleet,
    agent_ports: dict[int, int],
    listener_port: int,
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
    if contestant.service_time_set:
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


async def _envoy(children: ChildProcesses, folder: Path, proxy: int, text: str) -> ChildProcess:
    post = await start_envoy(children, folder, str(proxy), text)
    assert post.child is not None
    return post.child
