"""A real vLLM engine as a child process, and its engine core.

vLLM has three processes: an API server (our child), an *engine core* below it that schedules, and a worker below
that computes. A hung kernel leaves the API server healthy; SIGSTOP of the engine core has the same effect without
a GPU.

A killed API server leaves its engine core running, with its memory. So each engine has a guard process that kills
the rest once the API server is gone.

The vLLM environment is found by its Python: ``make vllm`` creates one in ``.vllm-venv``;
``SWITCHGEAR_VLLM_PYTHON`` names another, and ``SWITCHGEAR_VLLM_FLAGS`` further flags of its engines, such as
``--dtype bfloat16 --kv-cache-memory-bytes 4G`` where two of them share a GPU.
"""

import asyncio
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from chaos.processes import ChildProcess, ProcessError
from chaos.real_vllm.tiny_model import CONTEXT_TOKENS

VARIABLE: Final = "SWITCHGEAR_VLLM_PYTHON"
FLAGS_VARIABLE: Final = "SWITCHGEAR_VLLM_FLAGS"
MODEL: Final = "tiny"
"""Model name that the engines serve."""
START_LIMIT_S: Final = 300.0
"""Two engines starting at once on two idle cores take 45 s, mostly Python imports."""

_ROOT: Final = Path(__file__).resolve().parents[2]
_ENGINE_CORE: Final = "VLLM::EngineCore"
# Forks twice, so that the guard is not a child of vLLM, then execs vLLM. The guard waits until that process is
# gone.
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
# `vllm serve`, whose console script needs package metadata that the CPU build has under another name.
_SERVE: Final = (
    "import sys\n"
    "from vllm.entrypoints.cli.serve import ServeSubcommand\n"
    "from vllm.entrypoints.serve.utils.api_utils import cli_env_setup\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "cli_env_setup()\n"
    "parser, command = FlexibleArgumentParser(), ServeSubcommand()\n"
    "command.subparser_init(parser.add_subparsers(dest='subparser'))\n"
    "args = parser.parse_args(sys.argv[1:])\n"
    "command.validate(args)\n"
    "command.cmd(args)\n"
)
ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # Otherwise its processes communicate over the machine's external address.
    "VLLM_HOST_IP": "127.0.0.1",
    # By default every engine binds its worker to the first core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    # Location of the first-token gate; the file imports nothing from this project.
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

    def engine_core(self, rank: int = 0) -> int:
        """Process id of the engine core of one data-parallel rank; raises ProcessError if there is none."""
        cores = {_title(pid): pid for pid in _descendants(self.child.pid)}
        found = [cores[title] for title in sorted(cores) if title.startswith(_ENGINE_CORE)]
        if rank < len(found):
            return found[rank]
        raise ProcessError(f"{self.name} has no engine core {rank}; end of its log:\n{self.child.tail()}")


def vllm_python() -> Path | None:
    """The Python of the vLLM environment; None if there is none."""
    named = os.environ.get(VARIABLE)
    python = Path(named) if named else _ROOT / ".vllm-venv" / "bin" / "python"
    # The stamp is written last, so a partial installation does not count.
    return python if python.exists() and (named or (_ROOT / ".vllm-venv" / ".ready").exists()) else None


def vllm_command(
    *,
    port: int,
    python: Path,
    model: Path,
    slots: int,
    context_tokens: int = CONTEXT_TOKENS,
    gate: bool = True,
    api_servers: int = 1,
    flags: Sequence[str] = (),
) -> list[str]:
    """Command line of an engine, with further flags; use it with ``ENVIRONMENT``.

    ``gate``: with the first-token gate. ``api_servers``: API processes, one by default.
    """
    several = ("-c", _SERVE, "serve", "--api-server-count", str(api_servers))
    entry = several if api_servers > 1 else ("-m", "vllm.entrypoints.openai.api_server")
    return [
        *guarded_command(),
        # On a CPU, unlike on a GPU, engines compete with the processes that observe them.
        *("nice", "-n", "5", str(python), *entry),
        *("--model", str(model), "--load-format", "dummy", "--served-model-name", MODEL),
        # A CPU without instructions for bfloat16 multiplies in it 60 times slower.
        *("--dtype", "float32"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(context_tokens), "--max-num-seqs", str(slots), "--enforce-eager"),
        *("--shutdown-timeout", "30"),
        "--enable-server-load-tracking",
        *(("--middleware", "first_token_gate.FirstTokenGate") if gate else ()),
        "--disable-uvicorn-access-log",
        *shlex.split(os.environ.get(FLAGS_VARIABLE, "")),
        *flags,
    ]


def guarded_command() -> tuple[str, ...]:
    """Command prefix that kills all descendants once the command has ended."""
    return (sys.executable, "-I", "-S", "-c", _GUARDED)


async def wait_until_up(replica: VllmReplica, limit_s: float = START_LIMIT_S) -> None:
    """Wait until ``/health`` answers 200; raises ProcessError if the engine exits or is late."""
    give_up_at = time.monotonic() + limit_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5.0)) as session:
        while not await _healthy(session, replica.url):
            if replica.child.returncode is not None:
                raise ProcessError(f"{replica.name} exited; end of its log:\n{replica.child.tail()}")
            if time.monotonic() > give_up_at:
                raise ProcessError(
                    f"{replica.name} not ready after {limit_s:g} s; end of its log:\n{replica.child.tail()}"
                )
            await asyncio.sleep(0.1)


async def _healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _descendants(pid: int) -> Iterator[int]:
    """Descendant processes of ``pid``, nearest first."""
    try:
        # One file per thread: children are listed by the thread that started them.
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except (FileNotFoundError, ProcessLookupError):
        return  # it has just ended, and its children were reparented
    below = [int(word) for text in lists for word in text.split()]
    yield from below
    for one in below:
        yield from _descendants(one)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
