"""Policies are confirmed once every proxy accepted them; refusals are reported while they last."""

import pytest

from xds_server.k8s.replica_status import NackSummary, ReplicaProxyGroup, ReplicaStatus
from xds_server.k8s.status.programmed import ProgrammedTracker, programming_of_replicas
from xds_server.model.snapshot import Snapshot, resource, snapshot
from xds_server.model.type_urls import CLUSTER, ENDPOINT, ROUTE, RUNTIME
from xds_server.model.view import View
from xds_server.publish import ProxySync
from xds_server.xds import NodeInfo, TypeSync
from xds_server.xds.messages import Sync

VIEW = View(zone="z1")


def proxy(node: str, **states: Sync) -> ProxySync:
    urls = {"cds": CLUSTER, "eds": ENDPOINT, "rds": ROUTE, "rtds": RUNTIME}
    types = tuple(
        TypeSync(
            urls[kind],
            state,
            {"r": "v2"} if state is Sync.NACK else {},
            "bad regex" if state is Sync.NACK else "",
        )
        for kind, state in states.items()
    )
    return ProxySync(NodeInfo(id=node, cluster="", metadata={}), VIEW, types)


def desired(_: View) -> Snapshot:
    return snapshot([resource(ROUTE, "r", b"1", ("a.yaml:3",))])


def test_policies_are_programmed_once_every_proxy_acked() -> None:
    confirming = ProgrammedTracker()
    confirming.observe([proxy("a", cds=Sync.SYNCED), proxy("b", cds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == ""
    confirming.observe([proxy("a", cds=Sync.STALE), proxy("b", cds=Sync.SYNCED)], "one", desired)
    assert confirming.confirmed == "one"
    confirming.observe([proxy("a", cds=Sync.STALE), proxy("b", cds=Sync.SYNCED)], "two", desired)
    assert confirming.confirmed == "one"
    # Disconnected proxies are not waited for.
    confirming.observe([proxy("b", cds=Sync.SYNCED)], "two", desired)
    assert confirming.confirmed == "two"


def test_programmed_needs_a_proxy_and_ignores_rtds() -> None:
    confirming = ProgrammedTracker()
    confirming.observe([], "one", desired)
    assert confirming.confirmed == ""
    confirming.observe([proxy("a", rtds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == ""
    confirming.observe([proxy("a", cds=Sync.SYNCED, rtds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == "one"


def test_nacks_name_the_policy_line_until_cleared() -> None:
    confirming = ProgrammedTracker()
    (refusal,) = confirming.observe([proxy("a", rds=Sync.NACK), proxy("b", rds=Sync.NACK)], "one", desired)
    assert refusal == NackSummary(resource="RDS r", reason="bad regex", origins=("a.yaml:3",))
    assert confirming.confirmed == ""
    assert confirming.observe([proxy("a", rds=Sync.SYNCED), proxy("b", rds=Sync.SYNCED)], "one", desired) == ()


def peer_status(proxies: int, digest: str, confirmed: str, *refusals: NackSummary) -> ReplicaStatus:
    groups = (ReplicaProxyGroup(role="gateway", zone="z", more=proxies),) if proxies else ()
    return ReplicaStatus(groups=groups, digest=digest, confirmed=confirmed, refusals=refusals)


@pytest.mark.parametrize(
    ("others", "waiting", "proxies"),
    [
        ({}, (), 2),
        ({"b": peer_status(3, "new", "new")}, (), 5),
        ({"b": peer_status(3, "old", "old")}, ("b",), 5),
        ({"b": peer_status(3, "new", "old")}, ("b",), 5),
        # A replica without proxies delays nothing.
        ({"b": peer_status(0, "old", "old")}, (), 2),
    ],
)
def test_programmed_waits_for_acks_of_other_replicas(
    others: dict[str, ReplicaStatus], waiting: tuple[str, ...], proxies: int
) -> None:
    found = programming_of_replicas("a", peer_status(2, "new", "new"), others)
    assert (found.digest, found.waiting, found.proxies) == ("new", waiting, proxies)


def test_nacks_of_all_replicas_are_deduplicated() -> None:
    refusal = NackSummary(resource="RDS r", reason="bad regex")
    found = programming_of_replicas(
        "a", peer_status(1, "new", "", refusal), {"b": peer_status(1, "new", "", refusal)}
    )
    assert (found.refusals, found.waiting) == ((refusal,), ("a", "b"))
