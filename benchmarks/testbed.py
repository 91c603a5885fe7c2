"""A small site to break: fake engines, the real control plane, real Envoys and a steady load, all on loopback."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.history.request_outcomes import RequestOutcome
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcesses, envoy_command, free_ports
from xds_server.envoy_bootstrap import Bootstrap, bootstrap_yaml

POLL_S: Final = 0.01
LIMIT_S: Final = 90.0


class Testbed:
    """``async with``: engines, control plane, Envoys, all running; ``load`` goes through the first Envoy.

    With ``agents`` a real agent stands beside each engine; without, the control plane's prober asks them. All of
    it is left to its defaults.
    """

    def __init__(
        self, folder: Path, processes: ChildProcesses, *, engines: int, envoys: int = 1, agents: bool = False
    ) -> None:
        self.folder = folder
        self.engines: list[FakeEngine] = []
        self.outcomes: list[RequestOutcome] = []
        self.envoys = [f"http://127.0.0.1:{free_ports(1)[0]}" for _ in range(envoys)]
        self.agents: dict[str, str] = {}
        """URL of each engine's agent, by the engine's name."""
        self._agent_ports: dict[str, int] = {}
        self._count = engines
        self._with_agents = agents
        self._processes = processes
        self._listener = free_ports(1)[0]
        self._admin = ""
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self.http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
            )
            for number in range(self._count):
                engine = FakeEngine(EngineConfig(name=f"e{number}"))
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
        command = [str(Path(sys.executable).with_name("switchgear-agent")), "run"]
        command += [
            "--engine",
            f"http://127.0.0.1:{engine.port}",
            "--http",
            "127.0.0.1:0",
            "--grpc",
            "127.0.0.1:0",
        ]
        agent = await self._processes.start(f"agent-{name}", command, ready_within_s=LIMIT_S)
        self.agents[name] = agent.ready["http"]
        self._agent_ports[name] = agent.ready["grpc_port"]

    async def _start_server(self) -> str:
        await self.fill()
        command = [str(Path(sys.executable).with_name("switchgear")), "serve", *self.serve_from()]
        command += ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        server = await self._processes.start("serve", command, ready_within_s=LIMIT_S)
        self._admin = server.ready["admin"]
        return str(server.ready["xds"])

    async def fill(self) -> None:
        """Write the policies, once the engines are known."""
        (self.folder / "policies").mkdir()
        (self.folder / "policies" / "chat.yaml").write_text(self._policies())

    def name_of(self, engine: FakeEngine) -> str:
        """What an engine is called in the pool."""
        return engine.config.name

    def serve_from(self) -> list[str]:
        """The flags that say where policies come from."""
        return ["--policies", str(self.folder / "policies")]

    async def _start_envoy(self, number: int, admin: str, xds: str) -> None:
        host, port = xds.rsplit(":", 1)
        one = Bootstrap(
            node=f"bench-{number}",
            servers=[(host, int(port))],
            admin_port=int(admin.rpartition(":")[2]),
            # Each Envoy has an address of its own for the port that all of them listen on.
            listen_address=f"127.0.0.{number + 1}",
        )
        bootstrap = self.folder / f"bootstrap-{number}.yaml"
        bootstrap.write_text(bootstrap_yaml(one))
        await self._processes.start(f"envoy-{number}", envoy_command(bootstrap))

        async def live() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                return bool((await self.json(f"{admin}/server_info"))["state"] == "LIVE")
            return False

        await until(live, "Envoy is live")

    def _policies(self) -> str:
        endpoints = [
            {
                "address": "127.0.0.1",
                "port": one.port,
                "name": one.config.name,
                **({"agentPort": self._agent_ports[one.config.name]} if self._with_agents else {}),
            }
            for one in self.engines
        ]
        # JSON is YAML.
        documents = [
            {
                "kind": "EnginePool",
                "metadata": {"name": "chat"},
                "spec": {"model": self.engines[0].config.model, "endpoints": endpoints},
            },
            {
                "kind": "ModelRoute",
                "metadata": {"name": "chat"},
                "spec": {
                    "listener": {"port": self._listener, "address": "127.0.0.1"},
                    "pools": [{"pool": "chat"}],
                },
            },
        ]
        return "\n---\n".join(
            json.dumps({"apiVersion": "switchgear.dev/v1alpha1", **document}) for document in documents
        )

    async def load(self, rate_per_s: float, stop: asyncio.Event) -> None:
        """Make requests until told to stop."""
        target = LoadTarget(url=f"http://127.0.0.1:{self._listener}")
        profile = LoadProfile(targets=(target,), rate_per_s=rate_per_s, max_tokens={4: 1.0})
        await run_load(profile, self.outcomes.append, stop=stop)

    async def answers(self, count: int) -> None:
        """Wait for so many more answers."""
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
