"""Resolves engine host names: EDS has IP addresses only.

Names are looked up in threads, all of them every ``refresh_s`` and new ones at once. A failed look-up keeps the
last good address, also that of the last run: a failed resolver says nothing about engines. Among several addresses
the one in use is kept, so that round-robin DNS does not move engines.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import structlog

LOOKUP_LIMIT_S: Final = 5.0
"""Time limit of a round of look-ups; resolv.conf's default for one try."""

_LOOKUPS_AT_ONCE: Final = 8
_log = structlog.get_logger()

Lookup = Callable[[str], Iterable[str]]


def system_lookup(host: str) -> list[str]:
    """Every IP address that the system resolves for ``host``; ``OSError`` without any."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(answer[4][0]) for answer in answers})


class Resolver:
    """Keeps the address of each wanted name; ``addresses`` is replaced, never mutated."""

    def __init__(self, changed: Callable[[], None], *, refresh_s: float, lookup: Lookup = system_lookup) -> None:
        """``changed`` is called when an address is new or different."""
        self._changed = changed
        self._refresh_s = refresh_s
        self._lookup = lookup
        self._wanted: frozenset[str] = frozenset()
        self._woken = asyncio.Event()
        self._failing: set[str] = set()
        # Separate threads: a silent name server blocks them for long, and policy files are read in the shared
        # threads.
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "resolver")
        self.addresses: Mapping[str, str] = MappingProxyType({})
        self.remembered: Mapping[str, str] = MappingProxyType({})  # addresses of the last run

    def want(self, names: frozenset[str]) -> None:
        """Keep addresses for exactly these names; new ones are looked up at once by ``run``."""
        if names != self._wanted:
            self._wanted = names
            self._woken.set()

    async def refresh(self) -> None:
        """Look up every wanted name once."""
        names = sorted(self._wanted)
        answers = await asyncio.gather(*(self._answer(name) for name in names))
        fresh = {name: address for name, address in zip(names, answers, strict=True) if address is not None}
        if fresh != self.addresses:
            self.addresses = MappingProxyType(fresh)
            self._changed()

    async def _answer(self, name: str) -> str | None:
        known = self.addresses.get(name) or self.remembered.get(name)
        try:
            async with asyncio.timeout(LOOKUP_LIMIT_S):
                loop = asyncio.get_running_loop()
                answers = list(await loop.run_in_executor(self._threads, self._lookup, name))
        except (OSError, TimeoutError) as error:
            if name not in self._failing:
                self._failing.add(name)
                _log.warning("resolver.failed", name=name, kept=known, reason=str(error) or "no answer in time")
            return known
        if name in self._failing:
            self._failing.discard(name)
            _log.info("resolver.recovered", name=name)
        if known in answers:
            return known
        return answers[0] if answers else known

    async def run(self) -> None:
        """Look up new names at once and all of them every ``refresh_s``, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._woken.wait()
            except TimeoutError:
                if not self._wanted:
                    continue
            self._woken.clear()
            await self.refresh()
