"""Policies are confirmed once each proxy took all of them over, and refusals are said as long as they last."""

import pytest

from xds_server.kube.presence import Group, Presence, Refusal
from xds_server.offers.confirming import Confirming, programming
from xds_server.publish import ProxyStanding
from xds_server.snapshot import Snapshot, resource, snapshot
from xds_server.streams import KindStanding, NodeInfo
from xds_server.streams.values import Sync
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, ROUTE, RUNTIME

VIEW = View(zone="z1")


def proxy(node: str, **states: Sync) -> ProxyStanding:
    urls = {"cds": CLUSTER, "eds": ENDPOINT, "rds": ROUTE, "rtds": RUNTIME}
    types = tuple(
        KindStanding(
            urls[kind],
            state,
            {"r": "v2"} if state is Sync.NACK else {},
            "bad regex" if state is Sync.NACK else "",
        )
        for kind, state in states.items()
    )
    return ProxyStanding(NodeInfo(id=node, cluster="", metadata={}), VIEW, types)


def desired(_: View) -> Snapshot:
    return snapshot([resource(ROUTE, "r", b"1", ("a.yaml:3",))])


def test_what_each_proxy_confirmed_once_is_confirmed_though_it_moves_on() -> None:
    confirming = Confirming()
    confirming.look([proxy("a", cds=Sync.SYNCED), proxy("b", cds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == ""
    confirming.look([proxy("a", cds=Sync.STALE), proxy("b", cds=Sync.SYNCED)], "one", desired)
    assert confirming.confirmed == "one"
    confirming.look([proxy("a", cds=Sync.STALE), proxy("b", cds=Sync.SYNCED)], "two", desired)
    assert confirming.confirmed == "one"
    # Who left is not waited for.
    confirming.look([proxy("b", cds=Sync.SYNCED)], "two", desired)
    assert confirming.confirmed == "two"


def test_no_proxy_confirms_nothing_and_live_limits_keep_nobody_waiting() -> None:
    confirming = Confirming()
    confirming.look([], "one", desired)
    assert confirming.confirmed == ""
    confirming.look([proxy("a", rtds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == ""
    confirming.look([proxy("a", cds=Sync.SYNCED, rtds=Sync.STALE)], "one", desired)
    assert confirming.confirmed == "one"


def test_refusals_name_the_line_and_end_with_the_refusal() -> None:
    confirming = Confirming()
    (refusal,) = confirming.look([proxy("a", rds=Sync.NACK), proxy("b", rds=Sync.NACK)], "one", desired)
    assert refusal == Refusal(resource="RDS r", reason="bad regex", origins=("a.yaml:3",))
    assert confirming.confirmed == ""
    assert confirming.look([proxy("a", rds=Sync.SYNCED), proxy("b", rds=Sync.SYNCED)], "one", desired) == ()


def said(proxies: int, digest: str, confirmed: str, *refusals: Refusal) -> Presence:
    groups = (Group(role="gateway", zone="z", more=proxies),) if proxies else ()
    return Presence(groups=groups, digest=digest, confirmed=confirmed, refusals=refusals)


@pytest.mark.parametrize(
    ("others", "waiting", "proxies"),
    [
        ({}, (), 2),
        ({"b": said(3, "new", "new")}, (), 5),
        ({"b": said(3, "old", "old")}, ("b",), 5),
        ({"b": said(3, "new", "old")}, ("b",), 5),
        # Who serves nobody keeps nobody waiting.
        ({"b": said(0, "old", "old")}, (), 2),
    ],
)
def test_replicas_are_waited_for_while_they_have_proxies_that_have_not_confirmed(
    others: dict[str, Presence], waiting: tuple[str, ...], proxies: int
) -> None:
    found = programming("a", said(2, "new", "new"), others)
    assert (found.digest, found.waiting, found.proxies) == ("new", waiting, proxies)


def test_what_any_replica_tells_of_refusals_is_told_once() -> None:
    refusal = Refusal(resource="RDS r", reason="bad regex")
    found = programming("a", said(1, "new", "", refusal), {"b": said(1, "new", "", refusal)})
    assert (found.refusals, found.waiting) == ((refusal,), ("a", "b"))
