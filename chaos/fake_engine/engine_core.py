"""A child process that stands for the engine core of a simulated vLLM; Linux only.

It has the name of vLLM's, ``VLLM::EngineCore``, and computes nothing. What happens to it happens to the simulated
engine: while it is stopped (SIGSTOP, as a hung kernel has the same effect), the engine hangs; when it is gone, so
is the engine.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from chaos.fake_engine.engine_faults import EngineHang
from chaos.fake_engine.fake_engine import FakeEngine

NAME: Final = "VLLM::EngineCore"
_LOOK_INTERVAL_S: Final = 0.02
_PR_SET_NAME: Final = 15  # prctl(2); the kernel keeps 15 bytes
# Ends with its parent, which holds the other end of stdin.
_CORE: Final = (
    f"import ctypes, sys; ctypes.CDLL(None).prctl({_PR_SET_NAME}, {NAME.encode()!r}); "
    "print(flush=True); sys.stdin.read()"
)


@asynccontextmanager
async def engine_core(engine: FakeEngine) -> AsyncIterator[asyncio.Task[int]]:
    """The core of a started engine while the block runs. The task ends with the core; its result is -signal."""
    core = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-c", _CORE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        # A Ctrl-C in the terminal is for the engine.
        start_new_session=True,
    )
    assert core.stdin is not None and core.stdout is not None  # noqa: PT018, S101 -- both are pipes
    await core.stdout.readline()
    following = asyncio.create_task(_follow(engine, core))
    try:
        yield following
    finally:
        following.cancel()
        await asyncio.wait([following])
        if core.returncode is None:
            core.kill()
        await core.wait()


async def _follow(engine: FakeEngine, core: asyncio.subprocess.Process) -> int:
    """Hang the engine while its core is stopped; return the core's exit code."""
    hangs = False
    while core.returncode is None:
        if _stopped(core.pid) != hangs:
            hangs = not hangs
            await engine.set_fault(EngineHang() if hangs else None)
        await asyncio.sleep(_LOOK_INTERVAL_S)
    return core.returncode


def _stopped(pid: int) -> bool:
    """Whether a process is stopped: field 3 of stat, behind the name in parentheses (proc(5))."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:
        return False
