"""Addresses of engines that policies name by host name: EDS carries IP addresses only.

Names are looked up in threads, all of them again every ``refresh_s`` and new ones at once. A look-up that
fails keeps the last good answer, also that of the last run: a resolver that is down says nothing about engines.
Of several answers the one in use is kept while it is still among them, so that round-robin DNS does not move
engines about.
"""

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import structlog

from policies.model import PolicySet
from xds_server.model.fleet import Engine, EngineId, Fleet, fleet_of, with_traffic
from xds_server.model.memo import reuse_mapping, reuse_tuple

LOOKUP_LIMIT_S: Final = 5.0
"""How long one round of look-ups is waited for; resolv.conf's own default for one try."""

_LOOKUPS_AT_ONCE: Final = 8
_log = structlog.get_logger()

Lookup = Callable[[str], Iterable[str]]


@functools.lru_cache(maxsize=65_536)  # asked of every engine in every round, and always answered the same
def is_address(host: str) -> bool:
    """Whether ``host`` is an IP address already."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_names(policies: PolicySet) -> frozenset[str]:
    """The host names among the addresses of the engines."""
    return frozenset(
        endpoint.address
        for pool in policies.pools.values()
        for endpoint in pool.spec.endpoints
        if not is_address(endpoint.address)
    )


class AddressSubstitution:
    """Puts IP addresses in the place of host names; engines whose name has no address yet are left out.

    What is the same object as last time comes out as the same object: what was computed for it stays valid.
    """

    def __init__(self) -> None:
        self._pools: dict[str, tuple[tuple[Engine, ...], dict[EngineId, tuple[Engine, Engine]]]] = {}

    def fleet(self, fleet: Fleet, addresses: Mapping[str, str]) -> Fleet:
        """The fleet with these addresses; the same fleet where all engines have theirs."""
        pools = {name: self._pool(name, engines, addresses) for name, engines in fleet.pools.items()}
        for name in self._pools.keys() - pools.keys():
            del self._pools[name]
        if reuse_mapping(fleet.pools, pools) is fleet.pools:
            return fleet
        return with_traffic(fleet_of(pools), fleet.traffic)

    def _pool(self, name: str, engines: tuple[Engine, ...], addresses: Mapping[str, str]) -> tuple[Engine, ...]:
        if all(is_address(engine.address) for engine in engines):
            return engines
        before, known = self._pools.get(name, ((), {}))
        made: dict[EngineId, tuple[Engine, Engine]] = {}
        for engine in engines:
            address = engine.address if is_address(engine.address) else addresses.get(engine.address)
            if address is None:
                continue
            named, found = known.get(engine.id, (None, engine))
            if named is not engine or found.address != address:
                found = replace(engine, address=address)
            made[engine.id] = (engine, found)
        pool = reuse_tuple(before, tuple(found for _, found in made.values()))
        self._pools[name] = (pool, made)
        return pool


def resolved_fleet(fleet: Fleet, addresses: Mapping[str, str]) -> Fleet:
    """The fleet with these addresses, for callers with nothing to remember."""
    return AddressSubstitution().fleet(fleet, addresses)


def system_lookup(host: str) -> list[str]:
    """Every IP address the system knows for ``host``; ``OSError`` when there is none."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return sorted({str(answer[4][0]) for answer in answers})


class Resolver:
    """Keeps the address of each wanted name; ``addresses`` is replaced, never changed."""

    def __init__(self, changed: Callable[[], None], *, refresh_s: float, lookup: Lookup = system_lookup) -> None:
        """``changed`` is called when an address is new or different."""
        self._changed = changed
        self._refresh_s = refresh_s
        self._lookup = lookup
        self._wanted: frozenset[str] = frozenset()
        self._woken = asyncio.Event()
        self._failing: set[str] = set()
        # Of its own: a name server that is silent holds a thread for as long as it pleases, and policy files are
        # read in the threads that all others share.
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "resolver")
        self.addresses: Mapping[str, str] = MappingProxyType({})
        self.remembered: Mapping[str, str] = MappingProxyType({})  # what the last run knew

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
        """Look up new names at once and all of them every ``refresh_s``; runs for ever."""
        while True:
            try:
                async with asyncio.timeout(self._refresh_s):
                    await self._woken.wait()
            except TimeoutError:
                if not self._wanted:
                    continue
            self._woken.clear()
            await self.refresh()
