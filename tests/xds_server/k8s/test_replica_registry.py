"""Replicas learn each other's proxies from Leases, and their shares add up to the total."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies.route import PriorityClass
from tests.eventually import eventually
from tests.xds_server.k8s.fake_leases import FakeLeases
from xds_server.k8s.lease import LeaderElectionRecord
from xds_server.k8s.replica_peers import LIVE_S, ReplicaPeer, remote_proxies, updated_peers
from xds_server.k8s.replica_registry import LABEL, ReplicaIdentity, ReplicaRegistry
from xds_server.k8s.replica_status import (
    NO_STATUS,
    POLICIES,
    PROXIES,
    NackSummary,
    ProxyDemand,
    ReplicaProxyGroup,
    ReplicaStatus,
    key_of,
    proxy_demands,
    proxy_groups,
    replica_status,
    status_annotations,
)
from xds_server.model.pool_traffic import LatencyTail, PoolTraffic, ProxyTraffic
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, TrafficMerger
from xds_server.model.view import View

PATIENT_S = 20.0
GATEWAYS = View(zone="a", role="gateway")
SIDECARS = View(zone="b", role="sidecar", pools=frozenset({"p"}))


def record(version: str = "1", renewed: str = "") -> LeaderElectionRecord:
    return LeaderElectionRecord(
        holder="x", duration_s=10, acquired="", renewed=renewed, transitions=0, version=version
    )


def serving(**views: View) -> ReplicaStatus:
    counts: dict[View, int] = {}
    for view in views.values():
        counts[view] = counts.get(view, 0) + 1
    return ReplicaStatus(groups=proxy_groups(views, counts))


def lease(status: Mapping[str, str]) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(status)}}


def test_replica_status_round_trips_through_its_lease() -> None:
    status = ReplicaStatus(
        groups=(
            ReplicaProxyGroup(role="gateway", zone="a", region="r", keys=(key_of("g1"), key_of("g2"))),
            ReplicaProxyGroup(role="sidecar", zone="", pools=("p", "q"), keys=(key_of("s"),), more=4),
        ),
        asks={"p": {key_of("g1"): ProxyDemand(interactive_per_s=1.5, batch_per_s=0.0, sheds_batch=True)}},
        digest="d",
        confirmed="c",
        released="d",
        refusals=(NackSummary(resource="cluster p", reason="no", origins=("ns/EnginePool/p:1",)),),
    )
    assert replica_status(lease(status_annotations(status))) == status
    assert status.proxies == 7


def test_remote_proxy_keeps_its_region() -> None:
    status = serving(
        g1=View(zone="a", region="r"), g2=View(zone="a", region="s"), side=View(role="sidecar", zone="a")
    )
    assert replica_status(lease(status_annotations(status))) == status
    found = remote_proxies({"one": ReplicaPeer(record=record("1"), presence=status, observed_s=0.0)}, {}, 1.0)
    assert sorted((proxy.role, proxy.region) for proxy in found.proxies.values()) == [
        ("gateway", "r"),
        ("gateway", "s"),
        ("sidecar", ""),
    ]
    assert found.proxies_by_zone == {"a": 3}


def test_malformed_replica_status_is_ignored() -> None:
    for bad in ('{"groups":[{"role":"gateway"}]}', "[]", "{", '{"groups":[{"role":"g","zone":"","more":-1}]}'):
        assert replica_status(lease({PROXIES: bad})) is None
    assert replica_status(lease({PROXIES: '{"asks":{"p":{"k":[NaN,0,0,0]}}}'})) is None
    assert replica_status(lease({PROXIES: "x" * 500_000})) is None
    assert replica_status(
        lease({POLICIES: json.dumps({"digest": "d", "of a later version": 1})})
    ) == ReplicaStatus(digest="d")
    assert replica_status({}) == NO_STATUS


def test_excess_proxies_are_counted_without_names() -> None:
    many = {f"sidecar-{number}": SIDECARS for number in range(30_000)}
    found = proxy_groups({**many, "g": GATEWAYS}, {SIDECARS: 30_000, GATEWAYS: 1})
    assert [group.role for group in found] == ["gateway", "sidecar"]
    assert found[0].keys == (key_of("g"),)
    assert found[1].count == 30_000
    assert found[1].more > 0
    text = status_annotations(ReplicaStatus(groups=found))
    assert sum(map(len, text.values())) < 256 * 1024
    read = replica_status(lease(text))
    assert read is not None
    assert read.proxies == 30_001


def test_proxies_sharing_a_node_id_are_counted() -> None:
    (group,) = proxy_groups({"same": GATEWAYS}, {GATEWAYS: 3})
    assert (group.count, group.keys, group.more) == (3, (key_of("same"),), 2)


def test_gateway_demand_is_separate_and_sidecar_demand_shared() -> None:
    def told(rate: float, at_s: float, shed: float = 0.0) -> ProxyTraffic:
        return ProxyTraffic(
            arrivals_per_s={PriorityClass.INTERACTIVE: rate},
            shed_per_s={PriorityClass.INTERACTIVE: shed},
            heard_at_s=at_s,
        )

    nodes = {"g": GATEWAYS, "s1": SIDECARS, "s2": SIDECARS, "old": GATEWAYS}
    traffic = {
        "p": PoolTraffic(
            proxies={
                "g": told(12.345, 99.0),
                "s1": told(1.0, 99.0),
                "s2": told(2.0, 99.0, shed=0.5),
                "old": told(50.0, 90.0),
                "stranger": told(50.0, 99.0),
            }
        )
    }
    (group,) = (one for one in proxy_groups(nodes, {}) if one.role == "sidecar")
    assert proxy_demands(nodes, traffic, 100.0) == {
        "p": {
            key_of("g"): ProxyDemand(interactive_per_s=12.0, batch_per_s=0.0),
            group.key: ProxyDemand(interactive_per_s=3.0, batch_per_s=0.0, sheds_interactive=True),
        }
    }


def test_moving_proxy_is_counted_once() -> None:
    peers = updated_peers({}, {"two": (record(), serving(g1=GATEWAYS, g2=GATEWAYS))}, 0.0)
    assert remote_proxies(peers, {}, 1.0).proxies_by_role == {"gateway": 2}
    # Already here, but the other replica does not know yet.
    there = remote_proxies(peers, {"g1": GATEWAYS}, 1.0)
    assert there.proxies_by_role == {"gateway": 1}
    assert [one.zone for one in there.proxies.values()] == ["a"]
    # It moved between two other replicas: the latest report counts.
    peers = updated_peers(
        peers, {"two": (record(), peers["two"].presence), "three": (record(), serving(g1=GATEWAYS))}, 2.0
    )
    assert remote_proxies(peers, {}, 2.0).proxies_by_role == {"gateway": 2}
    assert sorted(name.partition("/")[0] for name in remote_proxies(peers, {}, 2.0).proxies) == ["three", "two"]


def test_silent_replica_lease_expires() -> None:
    status = serving(g=GATEWAYS)
    peers = updated_peers({}, {"two": (record("1"), status)}, 0.0)
    assert updated_peers(peers, {"two": (record("1"), status)}, 5.0) is peers
    assert remote_proxies(peers, {}, LIVE_S - 0.1) != NO_REMOTE_PROXIES
    assert remote_proxies(peers, {}, LIVE_S) is NO_REMOTE_PROXIES
    peers = updated_peers(peers, {"two": (record("2"), status)}, 9.0)
    assert remote_proxies(peers, {}, LIVE_S + 8) != NO_REMOTE_PROXIES
    assert updated_peers(peers, {}, 10.0) == {}


def test_old_lease_is_not_a_live_peer() -> None:
    old, new = "2026-01-01T00:00:00.000000Z", "2026-01-01T01:00:00.000000Z"
    unix_s = 1_767_229_200.0  # the second of the two
    left = updated_peers({}, {"two": (record("1", old), serving(g=GATEWAYS))}, 0.0, unix_s)
    assert remote_proxies(left, {}, 0.0) is NO_REMOTE_PROXIES
    # Clocks of machines differ; a replica that renews is alive whatever its clock.
    assert (
        remote_proxies(
            updated_peers({}, {"two": (record("1", new), serving(g=GATEWAYS))}, 0.0, unix_s + 30), {}, 0.0
        )
        != NO_REMOTE_PROXIES
    )
    renewed = updated_peers(left, {"two": (record("2", old), serving(g=GATEWAYS))}, 2.0, unix_s)
    assert remote_proxies(renewed, {}, 2.0) != NO_REMOTE_PROXIES


TAIL = LatencyTail(p50_s=0.5, p95_s=1.0, p99_s=2.0, calls=9)


def test_remote_demand_is_stable_while_unchanged() -> None:
    asked = {"p": {key_of("g"): ProxyDemand(interactive_per_s=5.0, batch_per_s=1.0, sheds_batch=True)}}
    status = ReplicaStatus(groups=proxy_groups({"g": GATEWAYS}, {}), asks=asked)
    there = remote_proxies(updated_peers({}, {"two": (record(), status)}, 7.0), {}, 8.0)
    local = PoolTraffic(proxies={"h": ProxyTraffic()}, first_byte=TAIL)
    joining = TrafficMerger()
    joined = joining.traffic({"p": local}, there)
    (node,) = there.proxies
    assert set(joined["p"].proxies) == {"h", node}
    assert joined["p"].first_byte is TAIL
    assert joined["p"].proxies[node].arrivals_per_s == {PriorityClass.INTERACTIVE: 5.0, PriorityClass.BATCH: 1.0}
    assert joined["p"].proxies[node].shed_per_s == {PriorityClass.BATCH: 1.0}
    assert joined["p"].proxies[node].heard_at_s == 7.0
    assert joining.traffic({"p": local}, there)["p"] is joined["p"]
    assert set(joining.traffic({}, there)) == {"p"}
    here = {"p": local}
    assert joining.traffic(here, NO_REMOTE_PROXIES) is here


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["a", "b", "c"])), max_size=30),
)
def test_replicas_count_each_proxy_once(moves: list[tuple[int, str]]) -> None:
    """After any moves between replicas with current data, each counts all proxies."""
    place = {f"g{number}": "a" for number in range(10)}
    place.update({f"g{number}": to for number, to in moves})
    status = {
        name: (record(), serving(**{node: GATEWAYS for node, at in place.items() if at == name})) for name in "abc"
    }
    for name in "abc":
        here = {node: GATEWAYS for node, at in place.items() if at == name}
        there = remote_proxies(
            updated_peers({}, {other: one for other, one in status.items() if other != name}, 0.0), here, 0.0
        )
        assert len(here) + there.proxies_by_role.get("gateway", 0) == 10
        assert len(there.proxies) == 10 - len(here)


def replica(identity: str, group: str = "switchgear") -> ReplicaIdentity:
    return ReplicaIdentity(namespace="ns", group=group, identity=identity)


def made(api: FakeLeases, identity: str, status: ReplicaStatus, group: str = "switchgear") -> ReplicaRegistry:
    return ReplicaRegistry(api, replica(identity, group), own_status=lambda: status, renew_s=0.02)


def test_replica_lease_is_withdrawn_at_shutdown() -> None:
    async def play() -> None:
        api = FakeLeases()
        one, two = made(api, "Pod_1", serving(g1=GATEWAYS)), made(api, "pod-2", serving(g2=GATEWAYS, s=SIDECARS))
        others = made(api, "pod-3", serving(g3=GATEWAYS), group="another")
        tasks = [asyncio.create_task(each.run()) for each in (one, two, others)]
        await eventually(
            lambda: one.peer_statuses() and two.peer_statuses(), "both to hear of the other", PATIENT_S
        )
        assert one.name == "switchgear-replica-pod-1"
        assert one.remote_proxies({}).proxies_by_role == {"gateway": 1, "sidecar": 1}
        assert two.remote_proxies({}).proxies_by_role == {"gateway": 1}
        assert api.objects[one.name]["metadata"]["labels"] == {LABEL: "switchgear"}
        here: dict[str, View] = {}
        there, version = one.remote_proxies(here), api.version
        await eventually(lambda: api.version > version + 6, "some renewals", PATIENT_S)
        assert one.remote_proxies(here) is there
        tasks[1].cancel()
        await eventually(lambda: not one.peer_statuses(), "the one that ended to be gone", PATIENT_S)
        assert two.name not in api.objects
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not api.objects

    asyncio.run(play())


def test_unreachable_server_expires_no_peer() -> None:
    async def play() -> None:
        api, now = FakeLeases(), [0.0]
        two, three = made(api, "two", serving(g2=GATEWAYS)), made(api, "three", serving(g3=GATEWAYS))
        one = ReplicaRegistry(api, replica("one"), own_status=lambda: NO_STATUS, clock=lambda: now[0])
        for each in (two, three, one):
            await each._exchange()
        assert one.remote_proxies({}).proxies_by_role == {"gateway": 2}
        api.down = True
        for now[0] in (LIVE_S - 1, LIVE_S + 1, 3600.0):
            await one._exchange()
            assert one.remote_proxies({}).proxies_by_role == {"gateway": 2}
        # Proxies that moved here meanwhile are known by name.
        assert one.remote_proxies({"g2": GATEWAYS}).proxies_by_role == {"gateway": 1}
        api.down = False
        await one._exchange()
        await two._exchange()
        now[0] += LIVE_S - 1
        await one._exchange()
        assert len(one.peer_statuses()) == 2
        now[0] += 2
        await one._exchange()
        # One of them did not return with the server.
        assert list(one.peer_statuses()) == [two.name]

    asyncio.run(play())


def test_invalid_lease_keeps_the_last_status() -> None:
    async def play() -> None:
        api = FakeLeases()
        one, two = made(api, "one", NO_STATUS), made(api, "two", serving(g2=GATEWAYS))
        await two._exchange()
        await one._exchange()
        api.objects[two.name]["metadata"]["annotations"] = {PROXIES: "{"}
        api._put(two.name, api.objects[two.name])
        await one._exchange()
        assert one.remote_proxies({}).proxies_by_role == {"gateway": 1}

    asyncio.run(play())


def test_dead_replica_lease_is_garbage_collected() -> None:
    async def play() -> None:
        api, now = FakeLeases(), [0.0]
        wall_s = 4_000_000_000.0

        def at(identity: str) -> ReplicaRegistry:
            return ReplicaRegistry(
                api,
                replica(identity),
                own_status=lambda: NO_STATUS,
                clock=lambda: now[0],
                wall=lambda: wall_s + now[0],
            )

        await at("dead")._exchange()
        one, twin = at("one"), at("one")
        await one._exchange()
        now[0] = 599.0
        await one._exchange()
        assert "switchgear-replica-dead" in api.objects
        assert one.remote_proxies({}) is NO_REMOTE_PROXIES
        now[0] = 601.0
        await one._exchange()
        assert "switchgear-replica-dead" not in api.objects
        assert not one._shared
        publish, one._publish = one._publish, twin._publish  # type: ignore[method-assign]  # the other one writes in between
        await one._exchange()
        assert one._shared
        one._publish = publish  # type: ignore[method-assign]  # and no longer
        await one._exchange()
        assert not one._shared

    asyncio.run(play())
