"""Fake engines, some with agents, Envoys, and the control plane, which is killed and comes back at its ports."""

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from benchmarks.site import LIMIT_S, until
from benchmarks.soak.growth import Sample
from benchmarks.soak.plan import Trouble, What
from chaos.fake_engine import Crash, EngineConfig, ErrorAfterWork, FakeEngine, Hang
from chaos.history.outcomes import Outcome
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.sender import Target
from chaos.processes import Child, Processes, envoy_command, free_ports
from xds_server.bootstrap import Bootstrap, bootstrap_yaml

POOL: Final = "chat"


class Site:
    """``async with``: everything stands and serves. ``suffer`` does one trouble, ``load`` makes requests."""

    def __init__(self, folder: Path, processes: Processes, *, engines: int, agents: int, envoys: int) -> None:
        self.folder = folder
        self.engines = [FakeEngine(EngineConfig(name=f"e{number}")) for number in range(engines)]
        self.outcomes: list[Outcome] = []
        self.kills = 0
        self.envoys = envoys
        self._agents: list[Child | None] = [None] * agents
        self._processes = processes
        self._edits = 0
        self._starts = 0
        self._listener, self._xds, self._admin, *rest = free_ports(3 + 2 * agents + envoys)
        self._agent_ports, self._envoy_admins = rest[: 2 * agents], rest[2 * agents :]
        self._server: Child | None = None
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            self._http = await stack.enter_async_context(
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
            )
            for engine in self.engines:
                await engine.start()
                stack.push_async_callback(engine.stop)
            for number in range(len(self._agents)):
                await self._start_agent(number)
            (self.folder / "policies").mkdir()
            self._edit()
            await self._start_server()
            for number in range(self.envoys):
                await self._start_envoy(number)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    # -- parts ---------------------------------------------------------------------------------------------

    async def _start_agent(self, number: int) -> None:
        self._starts += 1
        http, grpc = self._agent_ports[2 * number : 2 * number + 2]
        command = [_beside("switchgear-agent"), "run", "--engine", f"http://127.0.0.1:{self.engines[number].port}"]
        command += ["--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}"]
        self._agents[number] = await self._processes.start(
            f"agent-{number}-{self._starts}", command, ready_within_s=LIMIT_S
        )

    async def _start_server(self) -> None:
        self._starts += 1
        command = [_beside("switchgear"), "serve", "--policies", str(self.folder / "policies")]
        command += ["--listen", f"127.0.0.1:{self._xds}", "--admin", f"127.0.0.1:{self._admin}"]
        command += ["--state-dir", str(self.folder / "state"), "--ledger", str(self.folder / "ledger.jsonl")]
        self._server = await self._processes.start(f"serve-{self._starts}", command, ready_within_s=LIMIT_S)

    async def _start_envoy(self, number: int) -> None:
        one = Bootstrap(
            node=f"soak-{number}",
            servers=[("127.0.0.1", self._xds)],
            admin_port=self._envoy_admins[number],
            listen_address=f"127.0.0.{number + 1}",
        )
        path = self.folder / f"bootstrap-{number}.yaml"
        path.write_text(bootstrap_yaml(one))
        await self._processes.start(f"envoy-{number}", envoy_command(path))

        async def live() -> bool:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._http.get(f"http://127.0.0.1:{self._envoy_admins[number]}/server_info") as answer:
                    return bool((await answer.json(content_type=None))["state"] == "LIVE")
            return False

        await until(live, "Envoy is live")

    def _edit(self) -> None:
        """Other policies: what an operator may turn at any time, and what every proxy is told of."""
        self._edits += 1
        endpoints: list[dict[str, Any]] = [
            {"address": "127.0.0.1", "port": engine.port, "name": engine.config.name} for engine in self.engines
        ]
        for number in range(len(self._agents)):
            endpoints[number]["agentPort"] = self._agent_ports[2 * number + 1]
        specs: dict[str, dict[str, Any]] = {
            "EnginePool": {"model": self.engines[0].config.model, "endpoints": endpoints},
            "ModelRoute": {
                "listener": {"port": self._listener, "address": "127.0.0.1"},
                "pools": [{"pool": POOL}],
            },
            "ResiliencePolicy": {"pools": [POOL], "breaker": {"errorRatePercent": 20 + self._edits % 10}},
        }
        text = "\n---\n".join(
            json.dumps(
                {
                    "apiVersion": "switchgear.dev/v1alpha1",
                    "kind": kind,
                    "metadata": {"name": POOL},
                    "spec": spec,
                }
            )
            for kind, spec in specs.items()
        )
        path = self.folder / "policies" / "chat.yaml"
        path.with_suffix(".tmp").write_text(text)
        path.with_suffix(".tmp").replace(path)

    # -- what is done to it --------------------------------------------------------------------------------

    async def suffer(self, trouble: Trouble) -> None:
        """Do one trouble, and undo it when its time is over."""
        engine = self.engines[trouble.engine]
        match trouble.what:
            case What.HANG:
                await engine.set_fault(Hang(health="ok"))
            case What.CRASH:
                await engine.set_fault(Crash())
            case What.ERRORS:
                await engine.set_fault(ErrorAfterWork())
            case What.EDIT:
                self._edit()
                return
            case What.AGENT_KILLED:
                if (agent := self._agents[trouble.engine]) is not None:
                    self._agents[trouble.engine] = None  # nobody else starts it meanwhile
                    await _kill(agent)
                    await self._start_agent(trouble.engine)
                return
            case What.CONTROL_PLANE_KILLED:
                if (server := self._server) is not None:
                    self._server = None
                    await _kill(server)
                    self.kills += 1
                    await self._start_server()
                return
        await asyncio.sleep(trouble.lasts_s)
        await engine.heal()

    async def load(self, rate_per_s: float, seed: int, stop: asyncio.Event) -> None:
        """Requests to all Envoys in turn."""
        targets = tuple(
            Target(url=f"http://127.0.0.{number + 1}:{self._listener}") for number in range(self.envoys)
        )
        profile = LoadProfile(
            targets=targets, rate_per_s=rate_per_s, max_tokens={4: 1.0}, streaming_share=0.0, seed=seed
        )
        await run_load(profile, self.outcomes.append, stop=stop)

    # -- what is seen of it --------------------------------------------------------------------------------

    async def ask(self, path: str) -> Any:
        """What the control plane answers; None while it is away."""
        with contextlib.suppress(aiohttp.ClientError):
            async with self._http.get(f"http://127.0.0.1:{self._admin}{path}") as answer:
                return await answer.json()
        return None

    def sample(self, at_s: float) -> tuple[int, Sample] | None:
        """The control plane's process and what it holds now; None while it is away."""
        if self._server is None:
            return None
        home = Path("/proc") / str(self._server.pid)
        with contextlib.suppress(OSError):
            pages = int((home / "statm").read_text().split()[1])
            descriptors = sum(1 for _ in (home / "fd").iterdir())
            return self._server.pid, Sample(at_s=at_s, memory_bytes=pages * 4_096, descriptors=descriptors)
        return None


def _beside(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


async def _kill(child: Child) -> None:
    child.signal_group(signal.SIGKILL)
    await child.wait()
