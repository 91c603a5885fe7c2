"""A real vLLM engine as a child process, and the process inside it that does the work.

vLLM is three processes: an API server, which is the child we start, an *engine core* below it, which schedules,
and a worker below that, which computes. A hung kernel leaves the API server alive and well; stopping the engine
core with SIGSTOP is the same thing without a GPU.

An engine core outlives an API server that is killed, and keeps its memory. So a guard stands beside each engine,
which ends what is left of it when its API server has gone, however that came about.

The environment that has vLLM is named by its Python. ``make vllm`` makes one in ``.vllm-venv``;
``SWITCHGEAR_VLLM_PYTHON`` names another.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from chaos.processes import ChildProcess, ProcessError
from chaos.real_vllm.tiny_model import CONTEXT_TOKENS

VARIABLE: Final = "SWITCHGEAR_VLLM_PYTHON"
MODEL: Final = "tiny"
"""The name that the engines answer to."""
START_LIMIT_S: Final = 300.0
"""Two engines that start side by side on two idle cores take 45 s; nearly all of it is importing Python."""

_ROOT: Final = Path(__file__).resolve().parents[2]
_ENGINE_CORE: Final = "VLLM::EngineCore"
# Forks twice, so that vLLM never meets its guard, and becomes vLLM. The guard sleeps until that process is gone.
_GUARDED: Final = (
    "import contextlib, os, select, signal, sys\n"
    "engine = os.getpid()\n"
    "between = os.fork()\n"
    "if between == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        select.select([os.pidfd_open(engine)], [], [])\n"
    "        with contextlib.suppress(ProcessLookupError):\n"
    "            os.killpg(engine, signal.SIGKILL)\n"
    "    os._exit(0)\n"
    "os.waitpid(between, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Else its processes talk to each other over the address that leads out of the machine.
    "VLLM_HOST_IP": "127.0.0.1",
    # By itself each engine would bind its worker to the first core: all of them to the same one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Where the first-token gate is; the file imports nothing of ours.
    "PYTHONPATH": str(_ROOT / "engine"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmReplica:
    """One running engine; ``child`` is its API server."""

    name: str
    port: int
    child: ChildProcess

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def engine_core(self) -> int:
        """Process id of its engine core; ProcessError when there is none."""
        for pid in _descendants(self.child.pid):
            if _title(pid).startswith(_ENGINE_CORE):
                return pid
        raise ProcessError(f"{self.name} has no engine core; its log ends with:\n{self.child.tail()}")


def vllm_python() -> Path | None:
    """The Python that has vLLM; None where no environment has been set up."""
    named = os.environ.get(VARIABLE)
    python = Path(named) if named else _ROOT / ".vllm-venv" / "bin" / "python"
    # The stamp is made last: an environment that is half installed is none.
    return python if python.exists() and (named or (_ROOT / ".vllm-venv" / ".ready").exists()) else None


def vllm_command(*, port: int, python: Path, model: Path, slots: int) -> list[str]:
    """The command line of an engine; ``ENVIRONMENT`` goes with it."""
    return [
        *guarded_command(),
        # On a CPU engines compete with all that watches them, which they do not on a GPU.
        *("nice", "-n", "5", str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--load-format", "dummy", "--served-model-name", MODEL),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(CONTEXT_TOKENS), "--max-num-seqs", str(slots), "--enforce-eager"),
        *("--shutdown-timeout", "30"),
        "--enable-server-load-tracking",
        *("--middleware", "first_token_gate.FirstTokenGate"),
        "--disable-uvicorn-access-log",
    ]


def guarded_command() -> tuple[str, ...]:
    """What to put before a command, so that nothing it started outlives it."""
    return (sys.executable, "-I", "-S", "-c", _GUARDED)


async def wait_until_up(replica: VllmReplica, limit_s: float = START_LIMIT_S) -> None:
    """Return when ``/health`` answers 200; ProcessError when the engine ends or is late."""
    give_up_at = time.monotonic() + limit_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        while not await _healthy(session, replica.url):
            if replica.child.returncode is not None:
                raise ProcessError(f"{replica.name} ended; its log ends with:\n{replica.child.tail()}")
            if time.monotonic() > give_up_at:
                raise ProcessError(
                    f"{replica.name} is not up after {limit_s:g} s; its log ends with:\n{replica.child.tail()}"
                )
            await asyncio.sleep(0.1)


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _descendants(pid: int) -> Iterator[int]:
    """The processes below ``pid``, nearest first."""
    try:
        # One file per thread: a process belongs to the thread that started it.
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return  # it ended just now, and so have its children found another parent
    below = [int(word) for text in lists for word in text.split()]
    yield from below
    for one in below:
        yield from _descendants(one)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
