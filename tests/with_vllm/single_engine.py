"""One real vLLM with an agent, for tests of a feature that needs its own flags."""

import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import pytest

from chaos.processes import ChildProcesses, free_ports
from chaos.real_vllm.tiny_model import write_model
from chaos.real_vllm.vllm_replica import ENVIRONMENT, VllmReplica, vllm_command, vllm_python, wait_until_up
from tests.with_vllm.conftest import LIMIT_S, SLOTS, eventually

_AGENT = Path(sys.executable).parent / "switchgear-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleEngine:
    """A running engine with its agent; ``argv`` starts the engine."""

    replica: VllmReplica
    session: aiohttp.ClientSession
    agent_port: int
    children: ChildProcesses
    argv: list[str]
    environment: Mapping[str, str]

    async def restarted(self) -> "SingleEngine":
        """The engine after a kill and a new start, with the same agent."""
        await self.children.stop(self.replica.child)
        child = await self.children.start("vllm", self.argv, env=self.environment)
        return replace(self, replica=replace(self.replica, child=child))

    async def report(self) -> dict[str, Any]:
        """The agent's report; empty before the first."""
        async with self.session.get(f"http://127.0.0.1:{self.agent_port}/report") as answer:
            return json.loads(await answer.text()) if answer.status == 200 else {}

    async def until(self, holds: Callable[[dict[str, Any]], object], what: str) -> tuple[float, dict[str, Any]]:
        """Seconds until a report fulfils the condition, and the report."""
        began_s, kept = time.monotonic(), dict[str, Any]()

        async def fulfilled() -> bool:
            kept.update(await self.report())
            return bool(kept) and bool(holds(kept))

        try:
            await eventually(fulfilled, what)
        except pytest.fail.Exception as failure:
            raise AssertionError(f"{failure}; last report: {kept}") from failure
        return time.monotonic() - began_s, kept


@contextlib.asynccontextmanager
async def single_engine(
    folder: Path,
    *flags: str,
    agent_flags: tuple[str, ...] = (),
    api_servers: int = 1,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[SingleEngine]:
    """An engine with further flags and variables, up, and its agent."""
    variables = {**ENVIRONMENT, **environment}
    python = vllm_python()
    assert python is not None, "tests marked vllm are skipped without one"
    write_model(folder / "model")
    port, http, grpc = free_ports(3)
    connector = aiohttp.TCPConnector(limit=0)
    async with (
        ChildProcesses(log_dir=folder / "logs", stop_limit_s=2.0) as children,
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session,
    ):
        argv = vllm_command(
            port=port,
            python=python,
            model=folder / "model",
            slots=SLOTS,
            api_servers=api_servers,
            flags=flags,
        )
        replica = VllmReplica(name="e", port=port, child=await children.start("vllm", argv, env=variables))
        agent = [str(_AGENT), "run", "--engine", replica.url, "--slots", str(SLOTS), "--gpu", "off"]
        ports = ("--http", f"127.0.0.1:{http}", "--grpc", f"127.0.0.1:{grpc}")
        await children.start("agent", [*agent, *ports, *agent_flags], ready_within_s=LIMIT_S)
        await wait_until_up(replica)
        yield SingleEngine(
            replica=replica,
            session=session,
            agent_port=http,
            children=children,
            argv=argv,
            environment=variables,
        )
