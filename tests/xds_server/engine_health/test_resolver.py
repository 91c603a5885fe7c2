"""Host names resolve to addresses, a failed resolver changes nothing, and engines do not move."""

import asyncio
import threading
from dataclasses import replace

import pytest

from xds_server.engine_health import resolver as resolver_module
from xds_server.engine_health.engine_addresses import AddressSubstitution, resolved_fleet
from xds_server.engine_health.resolver import Resolver, system_lookup
from xds_server.model.fleet import Engine, EngineId, fleet_of, with_traffic
from xds_server.model.pool_traffic import PoolTraffic


class Names:
    """A resolver's answers, set by the test."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host not in self.answers:
            raise OSError(f"{host} is unknown")
        return self.answers[host]


def engine(name: str, address: str) -> Engine:
    return Engine(
        id=EngineId("p", name),
        address=address,
        port=1,
        zone="",
        region="",
        slots=1,
        weight=1,
        tensor_parallel_group="",
        labels={},
    )


async def test_failed_dns_lookup_keeps_the_last_good_address() -> None:
    names, changes = Names(a=["10.0.0.1"]), []
    resolver = Resolver(lambda: changes.append(1), refresh_s=60, lookup=names)
    resolver.want(frozenset({"a"}))
    await resolver.refresh()
    assert resolver.addresses == {"a": "10.0.0.1"}
    names.answers.clear()
    await resolver.refresh()
    assert resolver.addresses == {"a": "10.0.0.1"}
    assert len(changes) == 1


async def test_silent_dns_server_blocks_no_other_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver_module, "LOOKUP_LIMIT_S", 0.01)
    silent = threading.Event()
    resolver = Resolver(lambda: None, refresh_s=60, lookup=lambda _: [str(silent.wait())])
    resolver.want(frozenset(f"engine-{number}" for number in range(100)))
    try:
        await resolver.refresh()
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "a policy file"), 30.0) == "a policy file"
    finally:
        silent.set()


async def test_address_in_use_is_kept_while_it_resolves() -> None:
    names = Names(a=["10.0.0.1", "10.0.0.2"])
    resolver = Resolver(lambda: None, refresh_s=60, lookup=names)
    resolver.want(frozenset({"a"}))
    await resolver.refresh()
    names.answers["a"] = ["10.0.0.0", "10.0.0.1"]
    await resolver.refresh()
    assert resolver.addresses == {"a": "10.0.0.1"}
    names.answers["a"] = ["10.0.0.9"]
    await resolver.refresh()
    assert resolver.addresses == {"a": "10.0.0.9"}


async def test_new_names_resolve_at_once_and_unwanted_ones_are_dropped() -> None:
    told = asyncio.Event()
    resolver = Resolver(told.set, refresh_s=3600, lookup=Names(a=["10.0.0.1"], b=["10.0.0.2"]))
    task = asyncio.create_task(resolver.run())
    try:
        for names, addresses in (({"a"}, {"a": "10.0.0.1"}), ({"b"}, {"b": "10.0.0.2"})):
            told.clear()
            resolver.want(frozenset(names))
            await asyncio.wait_for(told.wait(), 30)
            assert resolver.addresses == addresses
    finally:
        task.cancel()


def test_system_lookup_resolves_localhost() -> None:
    assert set(system_lookup("localhost")) & {"127.0.0.1", "::1"}


def test_resolved_fleet_drops_engines_without_address() -> None:
    plain = (engine("1", "10.0.0.1"), engine("2", "::1"))
    named = (engine("3", "known"), engine("4", "unknown"), engine("5", "10.0.0.5"))
    fleet = resolved_fleet(fleet_of({"p": plain, "q": named}), {"known": "10.9.9.9"})
    assert fleet.pools["p"] is plain
    assert [(one.id.engine, one.address) for one in fleet.pools["q"]] == [("3", "10.9.9.9"), ("5", "10.0.0.5")]


def test_resolved_fleet_keeps_its_traffic() -> None:
    traffic = {"p": PoolTraffic(heard_at_s=1.0)}
    fleet = with_traffic(fleet_of({"p": (engine("1", "known"),)}), traffic)
    assert resolved_fleet(fleet, {"known": "10.9.9.9"}).traffic is traffic


def test_resolved_fleet_keeps_unchanged_objects() -> None:
    addressing, addresses = AddressSubstitution(), {"known": "10.9.9.9"}
    fleet = fleet_of({"p": (engine("1", "known"), engine("2", "known"))})
    before = addressing.fleet(fleet, addresses).pools["p"]
    assert addressing.fleet(fleet, dict(addresses)).pools["p"] is before
    first, second = fleet.pools["p"]
    heard = addressing.fleet(fleet_of({"p": (replace(first, good_looks=1), second)}), addresses).pools["p"]
    assert heard[0].good_looks == 1
    assert heard[1] is before[1]
    moved = addressing.fleet(fleet, {"known": "10.9.9.8"}).pools["p"]
    assert [one.address for one in moved] == ["10.9.9.8"] * 2
    assert addressing.fleet(fleet_of({}), addresses).pools == {}
