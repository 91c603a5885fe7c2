"""A whole site in one test: fake engines, ``switchgear serve`` as a process, and real Envoys in front.

``site`` is started piece by piece by the test and gone when it ends.
"""

import asyncio
import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from chaos.fake_engine import EngineConfig, FakeEngine
from chaos.history.request_outcomes import OutcomeReason, RequestOutcome
from chaos.load.open_loop import LoadProfile, run_load
from chaos.load.request_sender import LoadTarget
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from tests.eventually import eventually as patiently

LIMIT_S = 60.0
SLOTS: Final = 512
"""Of an engine: room for what piles up while a busy machine has no turn for the test, and then comes at once."""

PATIENT: Final = {"interval": "200ms", "timeout": "30s", "stallAfter": "60s"}
"""How engines are looked at where none hangs. They live in the test's process, and wait for turns with it."""

STEADY: Final = {"timeouts": {"adaptive": False}}
"""A policy by which no route follows what is learned of traffic, which a busy machine makes slower."""

SWITCHGEAR = str(Path(sys.executable).with_name("switchgear"))


eventually = functools.partial(patiently, limit_s=LIMIT_S)
"""Waits for a condition; the test fails when it does not come true."""


class Load:
    """Requests sent on a schedule during the test; ``outcomes`` grows as they end."""

    def __init__(self, profile: LoadProfile) -> None:
        self.outcomes: list[RequestOutcome] = []
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(run_load(profile, self.outcomes.append, stop=self._stop))

    @property
    def failed(self) -> list[RequestOutcome]:
        return [one for one in self.outcomes if one.reason is not OutcomeReason.OK]

    async def more(self, count: int) -> None:
        """Return when ``count`` more requests have ended."""
        wanted = len(self.outcomes) + count
        await eventually(lambda: len(self.outcomes) >= wanted, f"{count} more answers")

    async def end(self) -> list[RequestOutcome]:
        self._stop.set()
        await self._task
        return self.outcomes


class Site:
    def __init__(self, folder: Path, processes: ChildProcesses, start_envoy: Any) -> None:
        self.folder = folder
        self.policies = folder / "policies"
        self.policies.mkdir()
        self.state_dir = folder / "state"
        self.engines: list[FakeEngine] = []
        self.port = free_ports(1)[0]
        self.xds = f"127.0.0.1:{free_ports(1)[0]}"
        self.admin = f"127.0.0.1:{free_ports(1)[0]}"
        self.loads: list[Load] = []
        self.processes = processes
        self._start_envoy = start_envoy
        self._serves = 0

    # -- policies ------------------------------------------------------------------------------------------

    def write(self, name: str, *documents: dict[str, Any]) -> Path:
        """Write a policy file in one step."""
        path = self.policies / name
        path.with_suffix(".tmp").write_text(yaml.safe_dump_all(documents, sort_keys=False))
        path.with_suffix(".tmp").replace(path)
        return path

    def pool(self, name: str = "chat", engines: list[FakeEngine] | None = None, **spec: Any) -> dict[str, Any]:
        endpoints = [
            {"address": "127.0.0.1", "port": engine.port, "name": engine.config.name}
            for engine in (self.engines if engines is None else engines)
        ]
        probe = {"interval": "200ms"}
        common = {"model": "fake-model", "slotsPerEngine": SLOTS, "endpoints": endpoints, "probe": probe}
        return document("EnginePool", name, {**common, **spec})

    def route(self, name: str = "chat", pool: str = "chat", **spec: Any) -> dict[str, Any]:
        listener = {"port": self.port, "address": "127.0.0.1"}
        return document("ModelRoute", name, {"listener": listener, "pools": [{"pool": pool}], **spec})

    # -- parts ---------------------------------------------------------------------------------------------

    async def start_engines(self, count: int, **config: Any) -> list[FakeEngine]:
        for number in range(count):
            engine = FakeEngine(EngineConfig(**{"name": f"e{number}", "slots": SLOTS, **config}))
            await engine.start()
            self.engines.append(engine)
        return self.engines

    async def serve(self, *flags: str, source: tuple[str, ...] = ()) -> ChildProcess:
        """Start the control plane and return when its xDS port is open; from ``source``, or from the files."""
        self._serves += 1
        return await self.processes.start(
            f"serve-{self._serves}",
            [
                SWITCHGEAR,
                "serve",
                *(source or ("-f", str(self.policies))),
                *("--listen", self.xds),
                *("--admin", self.admin),
                *("--state-dir", str(self.state_dir)),
                *("--log-format", "json"),
                *flags,
            ],
            ready_within_s=LIMIT_S,
        )

    async def kill(self, child: ChildProcess) -> None:
        """End a process the hard way."""
        child.signal_group(signal.SIGKILL)
        await child.wait()

    async def stop(self, child: ChildProcess) -> int:
        return await self.processes.stop(child, limit_s=LIMIT_S)

    async def switchgear(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        process = await asyncio.create_subprocess_exec(
            *(SWITCHGEAR, *arguments),
            # A server that has no turn on a busy machine answers later than commands wait by themselves.
            env={**os.environ, "SWITCHGEAR_TIMEOUT": f"{LIMIT_S:g}s"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, error = await asyncio.wait_for(process.communicate(), 2 * LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
        return process.returncode or 0, out.decode(), error.decode()

    async def python(self, script: str, env: dict[str, str]) -> str:
        """What a script prints; it runs in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script),
            env={**os.environ, **env},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, error.decode()
        return out.decode()

    async def envoy(
        self, node: str = "n1", *flags: str, wait_ready: bool = True, strict_regex: bool = False
    ) -> Any:
        """Start an Envoy with the bootstrap that Switchgear prints.

        ``strict_regex``: it refuses regular expressions of more than 50 RE2 instructions, which policies may have.
        """
        code, printed, error = await self.switchgear(
            *("bootstrap", "--node", node, "--zone", "z1", "--server", self.xds, "--admin-port", "0", *flags)
        )
        assert code == 0, error
        bootstrap = yaml.safe_load(printed)
        if strict_regex:
            bootstrap["layered_runtime"]["layers"].append(
                {"name": "strict", "static_layer": {"re2.max_program_size.error_level": 50}}
            )
        return await self._start_envoy(bootstrap, wait_ready=wait_ready)

    def load(self, rate_per_s: float = 15.0, hosts: Sequence[str] = ("127.0.0.1",), **profile: Any) -> Load:
        """Requests to the listener of the policies from now on, at the Envoys of these hosts."""
        load = Load(
            LoadProfile(
                targets=tuple(LoadTarget(url=f"http://{host}:{self.port}") for host in hosts),
                rate_per_s=rate_per_s,
                **{"streaming_share": 0.0, "max_tokens": {4: 1.0}, "deadline_s": LIMIT_S, **profile},
            )
        )
        self.loads.append(load)
        return load

    # -- questions -----------------------------------------------------------------------------------------

    async def get(self, path: str) -> Any:
        """The JSON at ``path`` of the admin port."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.admin}{path}") as answer:
            return await answer.json()

    async def post(self, path: str) -> int:
        """The status of a POST to the admin port."""
        async with aiohttp.ClientSession() as session, session.post(f"http://{self.admin}{path}") as answer:
            return answer.status

    async def metric(self, name: str, *, of: str = "", without: str = "") -> float:
        """The sum of a metric over its labels, those ``of`` names, except those ``without`` does."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.admin}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.partition("{")[0].split(" ")[0] == name and of in line and not (without and without in line)
        )

    async def ask(self, **headers: str) -> tuple[int, str]:
        """Status of one request, and the engine that answered."""
        body = json.dumps({"model": "fake-model", "prompt": "hello", "max_tokens": 1})
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.post(url, data=body, headers={"content-type": "application/json", **headers}) as answer,
            ):
                await answer.read()
                return answer.status, answer.headers.get("x-fake-engine", "")
        except aiohttp.ClientConnectionError:
            return 0, ""

    async def answered(self, status: int = 200, **headers: str) -> None:
        """Return once requests are answered with ``status``."""

        async def once() -> bool:
            return (await self.ask(**headers))[0] == status

        await eventually(once, f"an answer with status {status}")

    async def health(self, engine: FakeEngine) -> str | None:
        for one in (await self.get("/v1/engines"))["engines"]:
            if one["engine"] == engine.config.name:
                return str(one["health"])
        return None

    async def becomes(self, engine: FakeEngine, health: str) -> None:
        """Return once the control plane holds ``engine`` to be ``health``."""

        async def so() -> bool:
            return await self.health(engine) == health

        await eventually(so, f"{engine.config.name} {health}")

    def logged(self, child: ChildProcess, event: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        lines = child.log_path.read_text().splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry.get("event") == event]


def document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def site(tmp_path: Path, start_envoy: Any) -> AsyncIterator[Site]:
    async with ChildProcesses(log_dir=tmp_path / "logs") as processes:
        made = Site(tmp_path, processes, start_envoy)
        try:
            yield made
        finally:
            for load in made.loads:
                await load.end()
            for engine in made.engines:
                with contextlib.suppress(OSError):
                    await engine.stop()
