"""The place of one process of a lab: it can be killed, frozen, and started again where it was."""

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
    """A process at its place. ``argv`` has every port it listens on, so that it comes back where it was.

    It is up when it has announced so, where it ``announces``, and when ``until_up`` returns, where that is given.
    ``child`` is the process that stands there now, or stood there last. ``kept`` is what it keeps on disk, which
    starting it ``empty`` takes away. ``frozen_pids`` are what SIGSTOP is for where that is not the whole process
    group: the engine core of a real vLLM. ``struck`` is whether a fault has ended or stopped it, so that its end
    is no accident.
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
        """Whether a process stands here."""
        return self.child is not None and self.child.returncode is None

    async def start(self) -> ChildProcess:
        """Start it for the first time; return it when it is up."""
        limit_s = START_LIMIT_S if self.announces else None
        self.child = await self.children.start(self.name, self.argv, env=self.env, ready_within_s=limit_s)
        if self.until_up is not None:
            await self.until_up(self.child)
        return self.child

    async def kill(self) -> None:
        """SIGKILL to it and all it started; on return it is gone."""
        if self.child is not None:
            self.struck = True
            self.child.signal_group(signal.SIGKILL)
            await self.children.stop(self.child)

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing comes of them."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    async def restart(self, *, empty: bool = False) -> ChildProcess:
        """Start it where it was, when nothing stands there any more; ``empty``: without what it kept on disk."""
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
        """Of the process and its log."""
        return self.target if self.part is ProcessRole.CONTROL_PLANE else f"{self.part}-{self.target}"

    @property
    def log_path(self) -> Path:
        """What it writes to stderr, in all its lives."""
        return self.children.log_dir / f"{self.name}.log"

    def _signal(self, number: signal.Signals) -> None:
        if self.child is None or not self.running:
            return
        if self.frozen_pids is None:
            self.child.signal_group(number)
        else:
            for pid in self.frozen_pids(self.child):
                os.kill(pid, number)
