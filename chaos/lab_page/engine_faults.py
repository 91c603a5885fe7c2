"""Faults that the page's buttons hold: at most one per engine."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

import aiohttp

from chaos.faults.crash import CrashFault
from chaos.faults.engine_error import EngineErrorFault
from chaos.faults.fault_registry import AnyFault
from chaos.faults.hang import HangFault
from chaos.faults.slow import SlowFault
from chaos.lab.lab_handles import InjectionError
from chaos.lab.lab_session import BlastRadiusError, Lab

DRAIN: Final = "drain"
DRAIN_DEADLINE_S: Final = 60.0
FAULTS: Final[Mapping[str, AnyFault]] = {
    "hang": HangFault(),
    "crash": CrashFault(),
    "slow": SlowFault(factor=10),
    "errors": EngineErrorFault(),
}
"""Faults of the simulated engine by button."""


class EngineFaults:
    """Injects and heals. ``close`` heals all."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._held: dict[str, asyncio.Task[None]] = {}
        self._drained: set[str] = set()
        self._one_at_a_time = asyncio.Lock()

    def active(self) -> Mapping[str, str]:
        """What is broken, by engine: the name of a button, or a kind that `inject` has set."""
        names = {fault.kind: name for name, fault in FAULTS.items()}
        found = dict.fromkeys(self._drained, DRAIN)
        for outage in self._lab.active.values():
            kind = str(getattr(outage.fault, "kind", ""))
            found |= dict.fromkeys(outage.targets, names.get(kind, kind))
        return found

    def buttons(self, engine: str) -> list[str]:
        """Buttons of an engine: a drain needs an agent, a fault a simulated engine."""
        one = self._lab.site.engines[engine]
        drain = [] if one.agent_http is None else [DRAIN]
        return [*FAULTS, *drain] if one.control else drain

    async def inject(self, engine: str, button: str) -> None:
        """Break the engine as the button says, in effect on return; raises InjectionError or BlastRadiusError."""
        async with self._one_at_a_time:
            await self._heal(engine)
            holding: AbstractAsyncContextManager[object] = (
                self._drain(engine) if button == DRAIN else self._lab.strike_named(FAULTS[button], [engine])
            )
            bites = asyncio.get_running_loop().create_future()
            self._held[engine] = asyncio.create_task(_hold(holding, bites))
            await bites

    async def heal(self, engine: str) -> None:
        """Heal what a button has broken; healed on return."""
        async with self._one_at_a_time:
            await self._heal(engine)

    async def close(self) -> None:
        """Heal everything."""
        async with self._one_at_a_time:
            for engine in tuple(self._held):
                await self._heal(engine)

    async def _heal(self, engine: str) -> None:
        task = self._held.pop(engine, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @asynccontextmanager
    async def _drain(self, engine: str) -> AsyncIterator[None]:
        """Let the agent drain its engine, as `switchgear-agent drain` does."""
        agent = f"http://127.0.0.1:{self._lab.site.engines[engine].agent_http}"
        draining = asyncio.create_task(self._order(f"{agent}/drain", {"deadline": f"{DRAIN_DEADLINE_S:g}s"}))
        self._drained.add(engine)
        try:
            yield
        finally:
            self._drained.discard(engine)
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await self._order(f"{agent}/undrain", {})

    async def _order(self, url: str, query: Mapping[str, str]) -> None:
        try:
            async with self._lab.site.session.post(url, params=query) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise InjectionError(f"POST {url} failed: {problem!r}") from problem


async def _hold(holding: AbstractAsyncContextManager[object], bites: "asyncio.Future[None]") -> None:
    """Stay inside the block until cancelled; ``bites`` gets the result of entering it."""
    try:
        async with holding:
            bites.set_result(None)
            await asyncio.Event().wait()
    except (InjectionError, BlastRadiusError) as problem:
        if bites.done():
            raise
        bites.set_exception(problem)
