"""Replaces host names of engines by IP addresses: EDS has IP addresses only.

Separate from ``resolver``, so that commands without look-ups do not import logging.
"""

import functools
import ipaddress
from collections.abc import Mapping
from dataclasses import replace

from policies.model import PolicySet
from xds_server.model.fleet import Engine, EngineId, Fleet, fleet_of, with_traffic
from xds_server.model.memo import reuse_mapping, reuse_tuple


@functools.lru_cache(maxsize=65_536)  # called for every engine in every round
def is_address(host: str) -> bool:
    """Whether ``host`` is an IP address."""
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
    """Replaces host names by IP addresses; leaves out engines whose name has no address yet.

    Unchanged engines and pools come back as the same objects, so that results computed from them stay valid.
    """

    def __init__(self) -> None:
        self._literal: dict[str, tuple[Engine, ...]] = {}
        self._pools: dict[str, tuple[tuple[Engine, ...], dict[EngineId, tuple[Engine, Engine]]]] = {}

    def fleet(self, fleet: Fleet, addresses: Mapping[str, str]) -> Fleet:
        """The fleet with these addresses; the same fleet if nothing is to be replaced."""
        pools = {name: self._pool(name, engines, addresses) for name, engines in fleet.pools.items()}
        for known in (self._literal, self._pools):
            for name in known.keys() - pools.keys():
                del known[name]
        if reuse_mapping(fleet.pools, pools) is fleet.pools:
            return fleet
        return with_traffic(fleet_of(pools), fleet.traffic)

    def _pool(self, name: str, engines: tuple[Engine, ...], addresses: Mapping[str, str]) -> tuple[Engine, ...]:
        if self._literal.get(name) is engines:
            return engines
        if all(is_address(engine.address) for engine in engines):
            self._literal[name] = engines
            return engines
        self._literal.pop(name, None)
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
    """The fleet with these addresses, without a cache."""
    return AddressSubstitution().fleet(fleet, addresses)
