"""A lab small enough for one fault: engines and agents by hand, and the lever that does a pull."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import aiohttp

from chaos.fake_engine import ControlServer, FakeEngine
from chaos.faults.actions import ChangeLoad, FaultAction, ProcessRole
from chaos.faults.fault import Fault
from chaos.lab.injectors.injector_registry import INJECTORS
from chaos.lab.lab_handles import EngineHandle, Injector, LabHandles
from chaos.lab.process_slot import ProcessSlot


class NoLoad:
    """The load of a lab without callers."""

    def pull(self, callers: ChangeLoad) -> None:
        raise AssertionError(f"no load here: {callers}")

    def release(self, callers: ChangeLoad) -> None:
        raise AssertionError(f"no load here: {callers}")


def engine_site(name: str, port: int, **more: object) -> EngineHandle:
    plain = {"zone": "a", "slots": 4, "slowness": 1.0, "pool": "pool", "seen_port": port}
    return EngineHandle(name=name, port=port, **{**plain, **more})  # type: ignore[arg-type] # a test's settings


def site(
    session: aiohttp.ClientSession,
    *engines: EngineHandle,
    posts: Mapping[tuple[ProcessRole, str], ProcessSlot] | None = None,
    **more: object,
) -> LabHandles:
    return LabHandles(
        engines={one.name: one for one in engines},
        proxies={},
        posts=posts or {},
        session=session,
        load=NoLoad(),
        **more,  # type: ignore[arg-type] # a test's settings
    )


@contextlib.asynccontextmanager
async def controlled(engine: FakeEngine) -> AsyncIterator[EngineHandle]:
    """An engine of the test's own loop as a lab knows it, with a control port."""
    server = ControlServer([engine])
    await server.start()
    try:
        yield engine_site(engine.config.name, engine.port, control=server.engine_url(engine.config.name))
    finally:
        await server.stop()


class InjectedFault:
    """What a lab does with a fault: every pull of one target, and every release, in order."""

    def __init__(self, site: LabHandles, fault: Fault, target: str) -> None:
        levers = [make(site) for make in INJECTORS]
        self._pulls: list[tuple[Injector, FaultAction]] = []
        for pull in fault.actions(target):
            (lever,) = [one for one in levers if isinstance(pull, one.handles)]
            assert lever.refusal(pull) == ""
            self._pulls.append((lever, pull))

    async def pull(self) -> None:
        for lever, pull in self._pulls:
            await lever.inject(pull)

    async def release(self) -> None:
        for lever, pull in reversed(self._pulls):
            await lever.revert(pull)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Return when it holds; a minute is the limit."""
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)
