"""Where vLLM's Python is looked for; that engines start, hang and die is shown in tests/with_vllm."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from chaos.processes import ChildProcesses, ProcessError
from chaos.real_vllm.vllm_replica import VARIABLE, VllmReplica, guarded_command, vllm_python, wait_until_up


def test_environment_variable_selects_the_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert vllm_python() == Path(sys.executable)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nothing"))
    assert vllm_python() is None


async def test_exited_engine_fails_the_wait_at_once() -> None:
    async with ChildProcesses() as children:
        child = await children.start("vllm-x", [sys.executable, "-c", "raise SystemExit('no such model')"])
        replica = VllmReplica(name="x", port=1, child=child)
        with pytest.raises(ProcessError, match="no such model"):
            await wait_until_up(replica)


async def test_engine_core_is_found_among_descendants() -> None:
    # Two levels down, under the title that vLLM gives it.
    inner = "exec -a VLLM::EngineCore sleep 600"
    async with ChildProcesses() as children:
        child = await children.start("vllm-x", ["bash", "-c", f"bash -c '{inner}' & wait"])
        replica = VllmReplica(name="x", port=1, child=child)
        with pytest.raises(ProcessError, match="no engine core"):
            VllmReplica(name="y", port=1, child=await children.start("y", ["sleep", "600"])).engine_core()
        core = await found(replica)
        assert core != child.pid
        os.kill(core, signal.SIGKILL)
        assert await child.wait() == 0
        with pytest.raises(ProcessError):
            replica.engine_core()
        with pytest.raises(ProcessLookupError):
            os.kill(core, 0)


async def test_engine_core_ends_with_its_server() -> None:
    inner = "exec -a VLLM::EngineCore sleep 600"
    async with ChildProcesses() as children:
        child = await children.start("vllm-x", [*guarded_command(), "bash", "-c", f"bash -c '{inner}' & wait"])
        core = await found(VllmReplica(name="x", port=1, child=child))
        # Stopped, it could not even notice.
        os.kill(core, signal.SIGSTOP)
        os.kill(child.pid, signal.SIGKILL)
        async with asyncio.timeout(55):
            while runs(core):
                await asyncio.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        # Empty for a zombie.
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


async def found(replica: VllmReplica) -> int:
    async with asyncio.timeout(55):
        while True:
            try:
                return replica.engine_core()
            except ProcessError:
                await asyncio.sleep(0.02)
