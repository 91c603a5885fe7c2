"""Slot of one lab process, which can be killed, frozen and restarted on the same ports."""

import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.faults.actions import ProcessRole
from chaos.processes import ChildProcess, ChildProcesses

START_LIMIT_S = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class ProcessSlot:
    """A restartable process. ``argv`` contains every port, so that it restarts on the same ones.

    It is ready after its ready line, if it ``announces``, and after ``until_up``, if given. ``child`` is the
    current or last process. ``kept`` is its state on disk, which an ``empty`` start deletes. ``frozen_pids``
    limits SIGSTOP to these processes instead of the whole group, such as the engine core of a real vLLM.
    ``struck``: a fault has killed or stopped it, so its exit is expected.
    """

    part: ProcessRole
    target: str
    children: ChildProcesses
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    announces: bool = True
    until_up: Callable[[ChildProcess], Awaitable[None]] | None = None
    kept: Sequence[Path] = ()
    frozen_pids: Callable[[ChildProcess], Sequence[int]] | None = None
    child: ChildProcess | None = None
    struck: bool = False

    @property
    def running(self) -> bool:
        """Whether the process runs."""
        return self.child is not None and self.child.returncode is None

    async def start(self) -> ChildProcess:
        """Start it for the first time; return it once ready."""
        limit_s = START_LIMIT_S if self.announces else None
        self.child = await self.children.start(self.name, self.argv, env=self.env, ready_within_s=limit_s)
        if self.until_up is not None:
            await self.until_up(self.child)
        return self.child

    async def kill(self) -> None:
        """SIGKILL it and its descendants; dead on return."""
        if self.child is not None:
            self.struck = True
            self.child.signal_group(signal.SIGKILL)
            await self.children.stop(self.child)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open but silent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, empty: bool = False) -> ChildProcess:
        """Restart it on the same ports once it is dead; ``empty``: without its state on disk."""
        if self.child is not None and self.running:
            return self.child
        if empty:
            for path in self.kept:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        child = await self.start()
        self.struck = False
        return child

    @property
    def name(self) -> str:
        """Name of the process and its log."""
        return self.target if self.part is ProcessRole.CONTROL_PLANE else f"{self.part}-{self.target}"

    @property
    def log_path(self) -> Path:
        """Its stderr, over all restarts."""
        return self.children.log_dir / f"{self.name}.log"

    def _signal(self, number: signal.Signals) -> None:
        if self.child is None or not self.running:
            return
        if self.frozen_pids is None:
            self.child.signal_group(number)
        else:
            for pid in self.frozen_pids(self.child):
                os.kill(pid, number)
