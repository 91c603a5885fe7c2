"""A whole site with real engines: two vLLM replicas on the CPU with an agent each, the control plane, an Envoy.

It takes a minute to start, so the tests of a module share one, and leave it as they found it. A module that needs
another site parametrizes ``site`` indirectly with ``SiteSettings``. Measurements are printed after all tests.
"""

import functools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from chaos.processes import ChildProcess, ChildProcesses, envoy_command, free_ports
from chaos.real_vllm.tiny_model import TINY, ModelShape, write_model
from chaos.real_vllm.vllm_replica import ENVIRONMENT, MODEL, VllmReplica, vllm_command, vllm_python
from tests.eventually import eventually as patiently
from tests.with_vllm.change_recorder import Watch
from tests.with_vllm.traffic import Stream

LIMIT_S = 90.0
"""Longest wait for anything but the start of an engine; what is waited for takes seconds."""
FIRST_TOKEN_S = 10.0
"""When a stream without a token is tried elsewhere. A full queue took up to 4 s on two cores that were busy
besides: whatever waits longer counts as failed, and Envoy ejects the engine."""
SLOTS = 8
CROWDED: Mapping[str, Any] = {
    # More than the engines hold at once, or they would never be full.
    "limits": {"maxConcurrent": 200},
    "timeouts": {"streaming": {"firstToken": f"{FIRST_TOKEN_S:g}s", "betweenTokens": "60s"}},
    # Streams that time out on a hung engine make Envoy eject it too, and that outlasts the hang.
    "breaker": {"cooldown": "2s"},
}

_measured: list[str] = []
_BIN = Path(sys.executable).parent


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _measured:
        terminalreporter.section("real vLLM: what was seen")
        for line in _measured:
            terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if vllm_python() is None:
        missing = pytest.mark.skip(reason="no environment with vLLM: `make vllm` makes one")
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports of one engine and its agent."""

    engine: int
    agent_http: int
    agent_grpc: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """What differs between sites: the engines' model, gate and environment, flags of the agents, policies."""

    shape: ModelShape = TINY
    gate: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    # Each engine on one core: a prefill of one must not keep the other from answering a canary in its second.
    own_core: bool = False
    # Without agents the control plane probes the engines itself.
    agents: bool = True
    # Two full engines and their clients leave an API server waiting for one of two cores.
    agent_flags: tuple[str, ...] = ("--timeout", "5s")
    engine_flags: tuple[str, ...] = ()
    # Both agents send it as the engines' API key.
    api_key: str = ""
    pool: Mapping[str, Any] = field(default_factory=lambda: {"serviceTime": "1s"})
    resilience: Mapping[str, Any] = field(default_factory=lambda: CROWDED)


class Site:
    """Engines ``a`` and ``b`` and all that stands before them."""

    def __init__(
        self,
        folder: Path,
        children: ChildProcesses,
        session: aiohttp.ClientSession,
        python: Path,
        settings: SiteSettings,
    ) -> None:
        self.settings = settings
        self.signalled: set[str] = set()
        self._folder = folder
        self._children = children
        self._python = python
        self.session = session
        self.replicas: dict[str, VllmReplica] = {}
        ports = free_ports(10)
        self.xds, self.admin, self.envoy_admin, self.port = ports[:4]
        self.ports = {
            name: Ports(engine=ports[at], agent_http=ports[at + 1], agent_grpc=ports[at + 2])
            for name, at in (("a", 4), ("b", 7))
        }
        self.watch = Watch(session, self.admin, self.envoy_admin, {self.ports[one].engine: one for one in "ab"})
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def key_file(self) -> Path:
        """The file with the API key of the agents' probes."""
        return self._folder / "api-key"

    # -- parts ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everything at once, and return when the Envoy is live: long before the engines are."""
        write_model(self._folder / "model", self.settings.shape)
        self.key_file.write_text(self.settings.api_key)
        for name in self.ports:
            await self.start_replica(name)
            if self.settings.agents:
                await self._start_agent(name)
        policies = self._folder / "policies"
        policies.mkdir()
        (policies / "chat.yaml").write_text(yaml.safe_dump_all(self._policies(), sort_keys=False))
        await self._children.start(
            "control-plane",
            [
                *(str(_BIN / "switchgear"), "serve", "-f", str(policies)),
                *("--listen", f"127.0.0.1:{self.xds}", "--admin", f"127.0.0.1:{self.admin}"),
            ],
            ready_within_s=LIMIT_S,
        )
        bootstrap = self._folder / "envoy.yaml"
        await self.succeeds(
            *("switchgear", "bootstrap", "--node", "gateway", "--zone", "z1"),
            *("--server", f"127.0.0.1:{self.xds}", "--admin-port", str(self.envoy_admin)),
            stdout=bootstrap,
        )
        await self._children.start("envoy", envoy_command(bootstrap))

        async def live() -> bool:
            return await self.status(f"http://127.0.0.1:{self.envoy_admin}/ready") == 200

        await eventually(live, "the Envoy is live")

    async def start_replica(self, name: str, *flags: str) -> None:
        """Start an engine, with ``flags`` in addition."""
        port = self.ports[name].engine
        argv = vllm_command(
            port=port,
            python=self._python,
            model=self._folder / "model",
            slots=SLOTS,
            context_tokens=self.settings.shape.context_tokens,
            gate=self.settings.gate,
            flags=(*self.settings.engine_flags, *flags),
        )
        environment = {**ENVIRONMENT, **self.settings.environment}
        child = await self._children.start(f"vllm-{name}", argv, env=environment)
        if self.settings.own_core:
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(child.pid, {cores[sorted(self.ports).index(name) % len(cores)]})
        self.replicas[name] = VllmReplica(name=name, port=port, child=child)

    def signal_core(self, name: str, number: signal.Signals) -> None:
        """Send a signal to the engine core of an engine: SIGSTOP hangs it as a deadlocked kernel would."""
        self.signalled.add(name)
        os.kill(self.replicas[name].engine_core(), number)

    async def end_replica(self, name: str, number: signal.Signals = signal.SIGTERM) -> float:
        """Ask an engine to end, and return the seconds that took."""
        began_s = time.monotonic()
        os.kill(self.replicas[name].child.pid, number)
        await self.replicas[name].child.wait()
        await self._children.stop(self.replicas[name].child)
        return time.monotonic() - began_s

    async def succeeds(self, *argv: str, stdout: Path | None = None, exit_code: int = 0) -> None:
        """Run one of our commands to its end, with its answer in a file where one is named."""
        path = stdout or self._folder / "answer"
        child = await self._children.start(
            "command", ["sh", "-c", f'exec "$@" > {path}', "sh", str(_BIN / argv[0]), *argv[1:]]
        )
        assert await child.wait() == exit_code, f"{argv}: {child.tail()}"
        await self._children.stop(child)

    async def _start_agent(self, name: str) -> ChildProcess:
        ports = self.ports[name]
        return await self._children.start(
            f"agent-{name}",
            [
                *(str(_BIN / "switchgear-agent"), "run"),
                *("--engine", f"http://127.0.0.1:{ports.engine}", "--slots", str(SLOTS)),
                *("--http", f"127.0.0.1:{ports.agent_http}", "--grpc", f"127.0.0.1:{ports.agent_grpc}"),
                *self.settings.agent_flags,
                *(("--engine-api-key-file", str(self.key_file)) if self.settings.api_key else ()),
            ],
            ready_within_s=LIMIT_S,
        )

    def _policies(self) -> list[dict[str, Any]]:
        endpoints = [
            {"name": name, "address": "127.0.0.1", "port": one.engine, "zone": "z1"}
            | ({"agentPort": one.agent_grpc} if self.settings.agents else {})
            for name, one in self.ports.items()
        ]
        pool = {
            "model": MODEL,
            "slotsPerEngine": SLOTS,
            **self.settings.pool,
            "firstTokenGate": self.settings.gate,
            "endpoints": endpoints,
        }
        listener = {"port": self.port, "address": "127.0.0.1"}
        return [
            _document("EnginePool", MODEL, pool),
            _document("ModelRoute", "chat", {"listener": listener, "pools": [{"pool": MODEL}]}),
            _document("ResiliencePolicy", "site", {"pools": [MODEL], **self.settings.resilience}),
        ]

    async def call_worker(self, name: str, method: str, *arguments: float) -> None:
        """Call a method of an engine's worker by vLLM's developer API (``VLLM_SERVER_DEV_MODE=1``)."""
        body = {"method": method, "args": list(arguments)}
        async with self.session.post(f"{self.replicas[name].url}/collective_rpc", json=body) as answer:
            assert answer.status == 200, await answer.text()

    # -- questions -----------------------------------------------------------------------------------------

    def stream(self, max_tokens: int, **prompt: str) -> Stream:
        """A streaming request through the Envoy, which runs from now on; ``prompt=`` replaces the short one."""
        return Stream(self.session, self.url, model=MODEL, max_tokens=max_tokens, **prompt)

    async def begun(self, count: int, max_tokens: int) -> list[Stream]:
        """Streams that have each got their first token."""
        streams = [self.stream(max_tokens) for _ in range(count)]
        await eventually(lambda: all(one.tokens_seen for one in streams), f"{count} streams begun")
        return streams

    async def status(self, url: str) -> int:
        """The HTTP status of a URL; 0 without an answer."""
        try:
            async with self.session.get(url) as answer:
                return answer.status
        except aiohttp.ClientConnectionError:
            return 0

    async def in_flight(self, name: str) -> int:
        """Requests in one engine, by the count of its gate."""
        async with self.session.get(f"{self.replicas[name].url}/switchgear/in_flight") as answer:
            return int(json.loads(await answer.text())["in_flight"])

    async def active(self, name: str) -> int:
        """Requests of callers on one engine, by Envoy's count; no canary is among them."""
        url = f"http://127.0.0.1:{self.envoy_admin}/clusters?format=json"
        async with self.session.get(url) as answer:
            clusters = (await answer.json())["cluster_statuses"]
        hosts = [host for cluster in clusters for host in cluster.get("host_statuses", [])]
        (stats,) = (
            host["stats"]
            for host in hosts
            # An engine is a listener inside the Envoy, which is named after it.
            if host["address"]
            .get("envoy_internal_address", {})
            .get("server_listener_name", "")
            .endswith(f"/{name}")
        )
        return next(int(one.get("value", 0)) for one in stats if one["name"] == "rq_active")

    async def report(self, name: str) -> dict[str, Any]:
        """The last report of an engine's agent; empty before the first."""
        async with self.session.get(f"http://127.0.0.1:{self.ports[name].agent_http}/report") as answer:
            return json.loads(await answer.text()) if answer.status == 200 else {}

    async def tokens(self, name: str) -> int:
        """Tokens that one engine has written since it started."""
        async with self.session.get(f"{self.replicas[name].url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        found = [line for line in lines if line.startswith("vllm:generation_tokens_total")]
        return int(float(found[0].rpartition(" ")[2]))

    async def moved(self) -> int:
        """Requests that the Envoy has tried again so far."""
        stats = f"http://127.0.0.1:{self.envoy_admin}/stats?filter=^cluster.{MODEL}.upstream_rq_retry$"
        async with self.session.get(stats) as answer:
            return int((await answer.text()).rpartition(" ")[2] or 0)

    def answer(self) -> str:
        """Output of the last command."""
        return (self._folder / "answer").read_text()

    def note(self, what: str, value: float, unit: str = "s") -> None:
        """Something measured, printed at the end of the run."""
        _measured.append(f"{what:72} {value:7.2f} {unit}".rstrip())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """The site, whose engines may still be starting."""
    python = vllm_python()
    assert python is not None, "tests marked vllm are skipped without one"
    folder = tmp_path_factory.mktemp("site")
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        # Engines stop slowly; their last output is not needed.
        ChildProcesses(log_dir=folder / "logs", stop_limit_s=2.0) as children,
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session,
    ):
        made = Site(folder, children, session, python, getattr(request, "param", SiteSettings()))
        await made.start()
        async with made.watch.running():
            yield made


eventually = functools.partial(patiently, limit_s=LIMIT_S)
"""Waits for a condition; the test fails when it does not come true."""


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
