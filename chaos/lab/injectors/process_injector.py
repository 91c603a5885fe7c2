"""SIGKILL and SIGSTOP for lab processes with their own slot."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import ClassVar

from chaos.faults.actions import FaultAction, FreezeProcess, KillProcess, ProcessRole
from chaos.lab.lab_handles import InjectionError, LabHandles
from chaos.lab.process_slot import ProcessSlot
from chaos.processes import ProcessError

# Optional parts: a lab without them has nothing to kill or freeze.
_OPTIONAL = (ProcessRole.AGENT, ProcessRole.CONTROL_PLANE)


class ProcessInjector:
    """A process restarts or resumes once the last action on it is reverted."""

    handles: ClassVar[tuple[type, ...]] = (KillProcess, FreezeProcess)

    def __init__(self, site: LabHandles) -> None:
        self._site = site
        self._held: dict[tuple[ProcessRole, str], list[KillProcess | FreezeProcess]] = defaultdict(list)
        self._turns: dict[tuple[ProcessRole, str], asyncio.Task[None]] = {}
        self._locks: dict[tuple[ProcessRole, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def refusal(self, pull: FaultAction) -> str:
        assert isinstance(pull, KillProcess | FreezeProcess)  # noqa: S101 -- what it handles
        if pull.part in _OPTIONAL or self._post(pull) is not None:
            return ""
        return f"{pull.part} {pull.target} has no process of its own"

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, KillProcess | FreezeProcess)  # noqa: S101 -- what it handles
        post, place = self._post(pull), (pull.part, pull.target)
        if post is None:
            return
        async with self._orders(place):
            self._held[place].append(pull)
            if isinstance(pull, KillProcess):
                await post.kill()
            else:
                self._freeze(place, post)

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, KillProcess | FreezeProcess)  # noqa: S101 -- what it handles
        post, place = self._post(pull), (pull.part, pull.target)
        if post is None:
            return
        async with self._orders(place):
            held = self._held[place]
            if pull in held:
                held.remove(pull)
            await self._end_turns(place)
            if not any(isinstance(one, FreezeProcess) for one in held):
                post.thaw()
            if (
                isinstance(pull, KillProcess)
                and not pull.stays_dead
                and not any(isinstance(one, KillProcess) for one in held)
            ):
                await post.restart(empty=pull.empty)
            self._freeze(place, post)

    @contextlib.asynccontextmanager
    async def _orders(self, place: tuple[ProcessRole, str]) -> AsyncIterator[None]:
        """One operation at a time per process; raises InjectionError if it fails."""
        async with self._locks[place]:
            try:
                yield
            except ProcessError as problem:
                raise InjectionError(f"{place[1]}: {problem}") from problem

    def _freeze(self, place: tuple[ProcessRole, str], post: ProcessSlot) -> None:
        """Freeze the process as the active actions require."""
        freezes = [one for one in self._held[place] if isinstance(one, FreezeProcess)]
        if any(one.on_share >= 1 for one in freezes):
            post.freeze()
        elif freezes and place not in self._turns:
            self._turns[place] = asyncio.create_task(_in_turns(post, freezes[-1]))

    async def _end_turns(self, place: tuple[ProcessRole, str]) -> None:
        turns = self._turns.pop(place, None)
        if turns is not None:
            turns.cancel()
            await asyncio.wait([turns])

    def _post(self, pull: KillProcess | FreezeProcess) -> ProcessSlot | None:
        return self._site.posts.get((pull.part, pull.target))


async def _in_turns(post: ProcessSlot, freeze: FreezeProcess) -> None:
    """Freeze and thaw in turn until cancelled; then thaw."""
    try:
        while True:
            post.freeze()
            await asyncio.sleep(freeze.period_s * freeze.on_share)
            post.thaw()
            await asyncio.sleep(freeze.period_s * (1 - freeze.on_share))
    finally:
        post.thaw()
