"""SIGKILL and SIGSTOP, for any process of the lab that has a place of its own."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import ClassVar

from chaos.faults.pulls import Freeze, Kill, Part, Pull
from chaos.lab.post import Post
from chaos.lab.site import LeverError, Site
from chaos.processes import ProcessError

# Labs without them are nothing unusual: what is not there can neither die nor stand still.
_OPTIONAL = (Part.AGENT, Part.CONTROL_PLANE)


class ProcessLever:
    """What several pulls hold is alive, or goes on, when the last of them is released."""

    handles: ClassVar[tuple[type, ...]] = (Kill, Freeze)

    def __init__(self, site: Site) -> None:
        self._site = site
        self._held: dict[tuple[Part, str], list[Kill | Freeze]] = defaultdict(list)
        self._turns: dict[tuple[Part, str], asyncio.Task[None]] = {}
        self._locks: dict[tuple[Part, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    def refusal(self, pull: Pull) -> str:
        assert isinstance(pull, Kill | Freeze)  # noqa: S101 -- what it handles
        if pull.part in _OPTIONAL or self._post(pull) is not None:
            return ""
        return f"{pull.part} {pull.target} has no process of its own"

    async def pull(self, pull: Pull) -> None:
        assert isinstance(pull, Kill | Freeze)  # noqa: S101 -- what it handles
        post, place = self._post(pull), (pull.part, pull.target)
        if post is None:
            return
        async with self._orders(place):
            self._held[place].append(pull)
            if isinstance(pull, Kill):
                await post.kill()
            else:
                self._freeze(place, post)

    async def release(self, pull: Pull) -> None:
        assert isinstance(pull, Kill | Freeze)  # noqa: S101 -- what it handles
        post, place = self._post(pull), (pull.part, pull.target)
        if post is None:
            return
        async with self._orders(place):
            held = self._held[place]
            if pull in held:
                held.remove(pull)
            await self._end_turns(place)
            if not any(isinstance(one, Freeze) for one in held):
                post.thaw()
            if isinstance(pull, Kill) and not pull.stays_dead and not any(isinstance(one, Kill) for one in held):
                await post.start_again(empty=pull.empty)
            self._freeze(place, post)

    @contextlib.asynccontextmanager
    async def _orders(self, place: tuple[Part, str]) -> AsyncIterator[None]:
        """One order at a time for each process; what cannot be done is a LeverError."""
        async with self._locks[place]:
            try:
                yield
            except ProcessError as problem:
                raise LeverError(f"{place[1]}: {problem}") from problem

    def _freeze(self, place: tuple[Part, str], post: Post) -> None:
        """Stop the process as far as the freezes that hold say; nothing where none does."""
        freezes = [one for one in self._held[place] if isinstance(one, Freeze)]
        if any(one.on_share >= 1 for one in freezes):
            post.freeze()
        elif freezes and place not in self._turns:
            self._turns[place] = asyncio.create_task(_in_turns(post, freezes[-1]))

    async def _end_turns(self, place: tuple[Part, str]) -> None:
        turns = self._turns.pop(place, None)
        if turns is not None:
            turns.cancel()
            await asyncio.wait([turns])

    def _post(self, pull: Kill | Freeze) -> Post | None:
        return self._site.posts.get((pull.part, pull.target))


async def _in_turns(post: Post, freeze: Freeze) -> None:
    """Stop and go until cancelled; it goes on then."""
    try:
        while True:
            post.freeze()
            await asyncio.sleep(freeze.period_s * freeze.on_share)
            post.thaw()
            await asyncio.sleep(freeze.period_s * (1 - freeze.on_share))
    finally:
        post.thaw()
