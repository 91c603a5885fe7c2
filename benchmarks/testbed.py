"""Sites to break: engines, the real control plane, real agents and Envoys, and a steady load, all on loopback."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from benchmarks.harness import Trial
from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.history.request_outcomes import RequestOutcome
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcess, ChildProcesses, envoy_command, free_ports
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml

POLL_S: Final = 0.01
EJECTION_POLL_S: Final = 0.003
LIMIT_S: Final = 90.0
POOL: Final = "chat"
DEFAULT_ENGINE: Final = EngineConfig(first_token_gate=True)


def policy_text(specs: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """A policy file with one document of each kind, all of one name. JSON is YAML."""
    return "\n---\n".join(
        json.dumps(
            {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        )
        for kind, spec in specs.items()
    )


class ProcessLauncher:
    """Starts the parts of a site: agents, the control plane, Envoys; each at its defaults."""

    def __init__(self, folder: Path, processes: ChildProcesses) -> None:
        self.folder = folder
        self.processes = processes

    async def start_agent(self, name: str, engine_port: int, ports: tuple[int, int] = (0, 0)) -> ChildProcess:
        """The agent of an engine; ``ports``: its HTTP and its gRPC port, 0 for any."""
        http, grpc = ports
        command = [_program("switchgear-agent"), "run", "--engine", f"http://127.0.0.1:{engine_port}"]
        command += ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
        return await self.processes.start(name, command, ready_within_s=LIMIT_S)

    async def start_server(
        self, name: str, flags: Sequence[str], ports: tuple[int, int] = (0, 0), program: Sequence[str] = ()
    ) -> ChildProcess:
        """The control plane; ``ports``: its xDS and its admin port, 0 for any. ``program``: what runs it."""
        xds, admin = ports
        command = [*(program or [_program("switchgear")]), "serve", *flags]
        command += ["--listen", f"127.0.0.1:{xds}", "--admin", f"127.0.0.1:{admin}"]
        return await self.processes.start(name, command, ready_within_s=LIMIT_S)

    async def start_envoy(
        self, number: int, node: str, xds_ports: Sequence[int], admin_port: int, flags: Sequence[str] = ()
    ) -> ChildProcess:
        """An Envoy that one of the control planes configures. All listen on one port, each at its own address.

        Its base id, for hot restarts, is in the file ``base_id_path``.
        """
        bootstrap = Bootstrap(
            node=node,
            servers=[("127.0.0.1", port) for port in xds_ports],
            admin_port=admin_port,
            listen_address=f"127.0.0.{number + 1}",
        )
        path = self.folder / f"bootstrap-{number}.yaml"
        path.write_text(bootstrap_yaml(bootstrap))
        base_id = ["--base-id-path", str(self.base_id_path(number))]
        return await self.processes.start(f"envoy-{number}", [*envoy_command(path), *base_id, *flags])

    def base_id_path(self, number: int) -> Path:
        """File with the base id of this Envoy."""
        return self.folder / f"base-id-{number}"

    async def restart_envoy_hot(
        self, number: int, epoch: int, parent_ends_after_s: int, flags: Sequence[str] = ()
    ) -> ChildProcess:
        """A further Envoy that takes over from the one of the epoch before, which then ends by itself."""
        command = envoy_command(self.folder / f"bootstrap-{number}.yaml")
        command.remove("--use-dynamic-base-id")
        command[command.index("--parent-shutdown-time-s") + 1] = str(parent_ends_after_s)
        command += ["--base-id", self.base_id_path(number).read_text().strip(), "--restart-epoch", str(epoch)]
        return await self.processes.start(f"envoy-{number}", [*command, *flags])


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


class Testbed:
    """``async with``: engines, control plane, Envoys, all running; ``load`` goes through the first Envoy.

    With ``agents`` each engine has a real agent; otherwise the control plane probes. All settings are defaults.
    """

    def __init__(
        self,
        folder: Path,
        processes: ChildProcesses,
        *,
        engines: int,
        envoys: int = 1,
        agents: bool = False,
        engine: EngineConfig = DEFAULT_ENGINE,
    ) -> None:
        self.folder = folder
        self.engines: list[FakeEngine] = []
        self.outcomes: list[RequestOutcome] = []
        self.envoys = [f"http://127.0.0.1:{free_ports(1)[0]}" for _ in range(envoys)]
        self.agents: dict[str, str] = {}
        """URL of each engine's agent, by the engine's name."""
        self._agent_ports: dict[str, int] = {}
        self._count = engines
        self._engine = engine
        self._with_agents = agents
        self._launcher = ProcessLauncher(folder, processes)
        self._listener = free_ports(1)[0]
        self._admin = ""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
            )
            for number in range(self._count):
                engine = FakeEngine(replace(self._engine, name=f"e{number}"))
                await engine.start()
                stack.push_async_callback(engine.stop)
                self.engines.append(engine)
                if self._with_agents:
                    await self._start_agent(engine)
            xds = await self._start_server()
            for number, admin in enumerate(self.envoys):
                await self._start_envoy(number, admin, xds)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start_agent(self, engine: FakeEngine) -> None:
        name = engine.config.name
        agent = await self._launcher.start_agent(f"agent-{name}", engine.port)
        self.agents[name] = agent.ready["http"]
        self._agent_ports[name] = agent.ready["grpc_port"]

    async def _start_server(self) -> int:
        await self.fill()
        server = await self._launcher.start_server("serve", self.serve_from())
        self._admin = server.ready["admin"]
        return int(server.ready["xds"].rpartition(":")[2])

    async def fill(self) -> None:
        """Write the policies, once the engines are known."""
        (self.folder / "policies").mkdir()
        (self.folder / "policies" / "chat.yaml").write_text(policy_text(self.policy_specs(), POOL))

    def name_of(self, engine: FakeEngine) -> str:
        """What an engine is called in the pool."""
        return engine.config.name

    def serve_from(self) -> list[str]:
        """The flags that say where policies come from."""
        return ["-f", str(self.folder / "policies")]

    async def _start_envoy(self, number: int, admin: str, xds_port: int) -> None:
        await self._launcher.start_envoy(number, f"bench-{number}", [xds_port], int(admin.rpartition(":")[2]))

        async def live() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return bool((await self.json(f"{admin}/server_info"))["state"] == "LIVE")
            return False

        await until(live, "Envoy is live")

    def policy_specs(self) -> Mapping[str, Mapping[str, Any]]:
        """The policies of the site, by kind."""
        endpoints = [
            {
                "address": "127.0.0.1",
                "port": one.port,
                "name": one.config.name,
                **({"agentPort": self._agent_ports[one.config.name]} if self._with_agents else {}),
            }
            for one in self.engines
        ]
        return {
            "EnginePool": {"model": self.engines[0].config.model, "endpoints": endpoints},
            "ModelRoute": {
                "listener": {"port": self._listener, "address": "127.0.0.1"},
                "pools": [{"pool": POOL}],
            },
        }

    @contextlib.asynccontextmanager
    async def under_load(self, rate_per_s: float) -> AsyncIterator[None]:
        """Requests arrive at this rate meanwhile."""
        stop = asyncio.Event()
        load = asyncio.create_task(self.load(rate_per_s, stop))
        try:
            yield
        finally:
            stop.set()
            await load

    async def load(self, rate_per_s: float, stop: asyncio.Event) -> None:
        """Send requests until ``stop`` is set."""
        target = LoadTarget(url=f"http://127.0.0.1:{self._listener}")
        profile = LoadProfile(targets=(target,), rate_per_s=rate_per_s, max_tokens={4: 1.0})
        await run_load(profile, self.outcomes.append, stop=stop)

    async def answers(self, count: int) -> None:
        """Wait for ``count`` more answers."""
        wanted = len(self.outcomes) + count

        async def answered() -> bool:
            return len(self.outcomes) >= wanted

        await until(answered, "the load is served")

    async def host(self, envoy: str, engine: FakeEngine) -> dict[str, Any] | None:
        """What this Envoy knows of an engine, as its admin page says it; None when it does not know it."""
        page = await self.json(f"{envoy}/clusters?format=json")
        for cluster in page.get("cluster_statuses", []):
            for host in cluster.get("host_statuses", []):
                # An engine is a listener inside the Envoy, which is named after it.
                listener = host["address"].get("envoy_internal_address", {}).get("server_listener_name", "")
                if listener.rpartition("/")[2] == self.name_of(engine):
                    found: dict[str, Any] = host
                    return found
        return None

    async def takes_requests(self, envoy: str, engine: FakeEngine) -> bool:
        """Whether this Envoy gives the engine new requests, as far as the control plane has a say."""
        host = await self.host(envoy, engine)
        return host is not None and host["health_status"]["eds_health_status"] == "HEALTHY"

    async def health(self, engine: FakeEngine) -> str:
        """What the control plane has decided of an engine."""
        page = await self.json(f"http://{self._admin}/v1/engines")
        return next(str(one["health"]) for one in page["engines"] if one["engine"] == engine.config.name)

    async def json(self, url: str) -> Any:
        """The page, parsed."""
        async with self.http.get(url) as answer:
            return json.loads(await answer.read())


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait for a condition; TimeoutError says what did not come true."""
    give_up_at = time.monotonic() + LIMIT_S
    while not await condition():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"not within {LIMIT_S:g} s: {what}")
        await asyncio.sleep(POLL_S)


async def ejection_trial(
    site: Testbed,
    labels: Mapping[str, str],
    engine: FakeEngine,
    cause: Callable[[], Coroutine[Any, Any, None]],
) -> Trial:
    """Seconds from ``cause`` until the engine takes no requests of the first Envoy, and of the last."""
    await site.answers(20)
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        outs = [group.create_task(_ejected_at_s(site, envoy, engine)) for envoy in site.envoys]
        group.create_task(cause())
    at_s = sorted(out.result() for out in outs)
    return Trial(labels=labels, values={"first_s": at_s[0] - began_s, "last_s": at_s[-1] - began_s})


async def _ejected_at_s(site: Testbed, envoy: str, engine: FakeEngine) -> float:
    async with asyncio.timeout(LIMIT_S):
        while await site.takes_requests(envoy, engine):
            await asyncio.sleep(EJECTION_POLL_S)
    return time.monotonic()
