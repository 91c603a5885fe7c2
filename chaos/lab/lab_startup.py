"""Start a lab, each part once its dependencies run."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import aiohttp

from chaos.faults.actions import ProcessRole
from chaos.gpu_double import nvml_double
from chaos.lab.agent_process import AgentProcess, agent_process
from chaos.lab.control_plane_process import ControlPlaneProcess, start_control_plane, start_tap
from chaos.lab.engine_processes import RunningEngines, start_fake_engines, start_real_engines
from chaos.lab.envoy_processes import (
    bind_to_address,
    proxy_address,
    start_envoy,
    wait_for_healthy,
    wait_for_page,
    xds_bootstrap,
)
from chaos.lab.lab_handles import EngineHandle, LabHandles, LoadControl, ProxyHandle
from chaos.lab.lab_requirements import LabRequirements
from chaos.lab.process_slot import ProcessSlot
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from chaos.scenario.experiment_plan import ProxyPlacement
from chaos.testbed.blueprint import LabBlueprint
from chaos.testbed.policy_documents import LabEngineAddress, policy_documents
from chaos.testbed.static_envoy import POOL, PREFILL_POOL, static_bootstrap
from chaos.testbed.subjects import StaticSubject
from policies.remote_prefill import Stage

NETEM: Final = "chaos.netem"
AGENT_TAP: Final = "chaos.agent_tap"
XDS_TAP: Final = "chaos.xds_tap"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedLab:
    """A serving lab.

    ``shared`` are processes of several engines, not hit by process faults; ``policies`` is the policy text,
    ``ledger`` the control plane's ledger file.
    """

    site: LabHandles
    shared: Mapping[str, ChildProcess]
    policies: str = ""
    ledger: Path | None = None


async def start_lab(
    children: ChildProcesses,
    session: aiohttp.ClientSession,
    folder: Path,
    *,
    plan: LabBlueprint,
    needs: LabRequirements,
    load: LoadControl,
) -> StartedLab:
    """Start everything; on return every Envoy serves from every engine.

    Raises ProcessError, NotReadyError, EngineStartError or CompilerError; started processes end with ``children``.
    """
    building = _Building(children=children, folder=folder, plan=plan, needs=needs)
    await building.engines()
    await building.agents()
    await building.between()
    text, control_plane = "", None
    if plan.fitting is None:
        proxies = await building.static_proxies()
    else:
        listeners = dict(zip(plan.fitting.ports, free_ports(len(plan.fitting.ports)), strict=True))
        text = policy_documents(plan.fitting, building.addresses(), listeners)
        control_plane = await building.control_plane(text)
        proxies = await building.steered_proxies(listeners[plan.fitting.port])
    site = LabHandles(
        engines=building.engine_sites(),
        proxies={one.name: one for one in proxies},
        posts=MappingProxyType(building.posts),
        session=session,
        load=load,
        control_plane="" if control_plane is None else control_plane.admin,
        policies=None if control_plane is None else control_plane.policies,
        wiretap=building.controls.get("wiretap", ""),
        wires=building.controls.get("wires", ""),
        reports=building.controls.get("reports", ""),
        link_ports=MappingProxyType(building.ports),
    )
    await _until_serving(site, plan)
    return StartedLab(
        site=site,
        shared=building.shared,
        policies=text,
        ledger=None if control_plane is None else control_plane.ledger,
    )


@dataclass(slots=True, kw_only=True)
class _Building:
    """Parts started so far; each step needs the previous ones."""

    children: ChildProcesses
    folder: Path
    plan: LabBlueprint
    needs: LabRequirements
    posts: dict[tuple[ProcessRole, str], ProcessSlot] = field(default_factory=dict)
    shared: dict[str, ChildProcess] = field(default_factory=dict)
    controls: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    running: RunningEngines = field(default_factory=RunningEngines)
    beside: dict[str, AgentProcess] = field(default_factory=dict)
    gpu_files: dict[str, Path] = field(default_factory=dict)

    async def engines(self) -> None:
        """Start all engines of all pools."""
        if self.plan.experiment.spec.topology.engine == "vllm":
            self.running = await start_real_engines(self.children, self.folder, self.plan.pools)
        else:
            self.running = await start_fake_engines(
                self.children,
                self.folder,
                self.plan.experiment,
                self.plan.pools,
                alone=lambda name: name in self.needs.alone,
            )
        self.posts |= {(ProcessRole.ENGINE, name): post for name, post in self.running.posts.items()}
        self.shared |= {child.name: child for child in self.running.shared}

    async def agents(self) -> None:
        """Start an agent per engine, if the scenario has agents and a control plane."""
        if self.plan.fitting is None or not self.plan.experiment.spec.topology.agents:
            return
        library = self.folder / "gpu"
        if self.needs.gpus:
            library.mkdir()
            nvml_double.build_library(library)
        for one in self.plan.engines:
            gpu = None
            if self.needs.gpus:
                file = self.gpu_files[one.name] = library / f"{one.name}.nvml"
                nvml_double.write_control(file)
                gpu = nvml_double.environment(library, file)
            port = self.running.ports[one.name]
            self.beside[one.name] = agent_process(self.children, one.name, port, one.slots, gpu=gpu)
        await asyncio.gather(*(one.post.start() for one in self.beside.values()))
        self.posts |= {(ProcessRole.AGENT, name): one.post for name, one in self.beside.items()}

    async def between(self) -> None:
        """Start the relays: the agent tap next to the agents, then the netem links."""
        if self.needs.reports and self.beside:
            await self._between(
                "reports", AGENT_TAP, {f"agent:{name}": one.grpc for name, one in self.beside.items()}
            )
        ports = {f"engine:{name}": port for name, port in self.running.ports.items()}
        ports |= {f"agent:{name}": self._reached(f"agent:{name}", one.grpc) for name, one in self.beside.items()}
        laid = {link: port for link, port in ports.items() if link in self.needs.links}
        if laid:
            await self._between("wires", NETEM, laid)

    async def control_plane(self, text: str) -> ControlPlaneProcess:
        """Start the control plane with these policies, and the xDS tap in front of it."""
        started = await start_control_plane(self.children, self.folder, text)
        self.posts[started.post.part, started.post.target] = started.post
        links = {f"xds:{one.name}": started.xds_port for one in self.plan.experiment.proxies}
        await self._between("wiretap", XDS_TAP, links)
        return started

    async def steered_proxies(self, listener: int) -> Sequence[ProxyHandle]:
        """Start Envoys with a control plane, all listening on this port."""
        made = []
        for place, spot in enumerate(self.plan.experiment.proxies):
            address, xds = proxy_address(place), self.ports[f"xds:{spot.name}"]
            text, admin = xds_bootstrap(spot, address, xds, own_source=bool(self.needs.links))
            made.append(await self._proxy(spot, address, text, listener, admin))
        return made

    async def static_proxies(self) -> Sequence[ProxyHandle]:
        """Start Envoys with a static configuration."""
        assert isinstance(self.plan.subject, StaticSubject)  # noqa: S101 -- it has no policies
        experiment, made = self.plan.experiment, []
        sites = self.engine_sites().values()
        prefill_ports = tuple(one.seen_port for one in sites if one.pool == PREFILL_POOL)
        static = replace(self.plan.subject.static, prefill_ports=prefill_ports)
        for place, spot in enumerate(experiment.proxies):
            listener, admin = free_ports(2)
            address = proxy_address(place)
            text = static_bootstrap(
                static,
                engine_ports=[one.seen_port for one in sites if one.pool == POOL],
                slots=experiment.slots,
                proxies=len(experiment.proxies),
                deadline_s=self.plan.asking.deadline_s,
                listener_port=listener,
                admin_port=admin,
                listen_address=address,
            )
            text = bind_to_address(text, address) if self.needs.links else text
            made.append(await self._proxy(spot, address, text, listener, admin))
        return made

    def addresses(self) -> Mapping[str, LabEngineAddress]:
        """Addresses of each engine and its agent, for the control plane and the Envoys."""
        sites = self.engine_sites().values()
        return {
            one.name: LabEngineAddress(
                port=one.seen_port,
                agent_port=None if one.agent_port is None else self._reached(f"agent:{one.name}", one.agent_port),
            )
            for one in sites
        }

    def engine_sites(self) -> Mapping[str, EngineHandle]:
        """Engine handles for the injectors."""
        found = {}
        for name, pool in self.plan.named_pools.items():
            for one in pool.engines:
                beside, port = self.beside.get(one.name), self.running.ports[one.name]
                found[one.name] = EngineHandle(
                    name=one.name,
                    zone=one.zone,
                    slots=one.slots,
                    slowness=one.slowness,
                    pool=name,
                    port=port,
                    seen_port=self._reached(f"engine:{one.name}", port),
                    control=self.running.controls.get(one.name, ""),
                    agent_port=None if beside is None else beside.grpc,
                    agent_http=None if beside is None else beside.http,
                    gpu_file=self.gpu_files.get(one.name),
                )
        return found

    async def _between(self, name: str, module: str, links: Mapping[str, int]) -> None:
        started = await start_tap(self.children, name, module, links)
        self.shared[name], self.controls[name] = started.child, started.control
        self.ports |= started.ports

    async def _proxy(
        self, spot: ProxyPlacement, address: str, text: str, listener: int, admin: int
    ) -> ProxyHandle:
        self.posts[ProcessRole.PROXY, spot.name] = await start_envoy(self.children, self.folder, spot.name, text)
        return ProxyHandle(
            name=spot.name,
            zone=spot.zone,
            demand=spot.demand,
            url=f"http://{address}:{listener}",
            admin=f"http://127.0.0.1:{admin}",
            address=address,
        )

    def _reached(self, link: str, port: int) -> int:
        """Port of a link: that of its relay, if any, else the target's own."""
        return self.ports.get(link, port)


async def _until_serving(site: LabHandles, plan: LabBlueprint) -> None:
    """Wait until every Envoy has all engines and has answered a request for the pool under test."""
    # No proxy has a connection to prefill engines.
    pools = {name for name, pool in plan.named_pools.items() if pool.stage is not Stage.PREFILL}
    counts = {pool: sum(one.pool == pool for one in site.engines.values()) for pool in pools}
    for proxy in site.proxies.values():
        for pool, count in counts.items():
            await wait_for_healthy(site.session, proxy.admin, pool, count)
        # No shorter than the load's answers: the shortest one decides which deadlines are refused.
        tokens = plan.experiment.spec.load.output_tokens.shortest
        body = {"model": plan.asking.model, "max_tokens": tokens, **_prompt(plan.asking.path)}
        headers = {**plan.asking.headers, "x-request-id": f"ready-{proxy.name}"}
        await wait_for_page(
            site.session,
            f"{proxy.url}{plan.asking.path}",
            lambda page: bool(page.get("choices")),
            f"answer of {plan.pool} through {proxy.name}",
            body=body,
            headers=headers,
        )


def _prompt(path: str) -> Mapping[str, object]:
    if path.endswith("/chat/completions"):
        return {"messages": [{"role": "user", "content": "ready?"}]}
    return {"prompt": "ready?"}
