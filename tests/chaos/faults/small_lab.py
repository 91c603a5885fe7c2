"""A lab small enough for one fault: engines and agents by hand, and the lever that does a pull."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import aiohttp

from chaos.fake_engine import ControlServer, FakeEngine
from chaos.faults.fault import Fault
from chaos.faults.pulls import Callers, Part, Pull
from chaos.lab.levers.library import LEVERS
from chaos.lab.post import Post
from chaos.lab.site import EngineSite, Lever, Site


class NobodyAsks:
    """The load of a lab without callers."""

    def pull(self, callers: Callers) -> None:
        raise AssertionError(f"nobody asks: {callers}")

    def release(self, callers: Callers) -> None:
        raise AssertionError(f"nobody asks: {callers}")


def engine_site(name: str, port: int, **more: object) -> EngineSite:
    plain = {"zone": "a", "slots": 4, "slowness": 1.0, "pool": "pool", "seen_port": port}
    return EngineSite(name=name, port=port, **{**plain, **more})  # type: ignore[arg-type] # a test's settings


def site(
    session: aiohttp.ClientSession,
    *engines: EngineSite,
    posts: Mapping[tuple[Part, str], Post] | None = None,
    **more: object,
) -> Site:
    return Site(
        engines={one.name: one for one in engines},
        proxies={},
        posts=posts or {},
        session=session,
        load=NobodyAsks(),
        **more,  # type: ignore[arg-type] # a test's settings
    )


@contextlib.asynccontextmanager
async def controlled(engine: FakeEngine) -> AsyncIterator[EngineSite]:
    """An engine of the test's own loop as a lab knows it, with a control port."""
    server = ControlServer([engine])
    await server.start()
    try:
        yield engine_site(engine.config.name, engine.port, control=server.engine_url(engine.config.name))
    finally:
        await server.stop()


class Struck:
    """What a lab does with a fault: every pull of one target, and every release, in order."""

    def __init__(self, site: Site, fault: Fault, target: str) -> None:
        levers = [make(site) for make in LEVERS]
        self._pulls: list[tuple[Lever, Pull]] = []
        for pull in fault.pulls(target):
            (lever,) = [one for one in levers if isinstance(pull, one.handles)]
            assert lever.refusal(pull) == ""
            self._pulls.append((lever, pull))

    async def pull(self) -> None:
        for lever, pull in self._pulls:
            await lever.pull(pull)

    async def release(self) -> None:
        for lever, pull in reversed(self._pulls):
            await lever.release(pull)


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    """Return when it holds; a minute is the limit."""
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)
