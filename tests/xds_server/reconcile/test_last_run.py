"""What the last run kept: served, and counted with, until this one knows better."""

import asyncio

from tests.xds_server.reconcile.peers import (
    VIEW,
    Peers,
    accepted,
    in_zones,
    running,
    until,
)
from xds_server.translate.view import View
from xds_server.type_urls import RUNTIME


async def test_what_the_last_run_served_has_to_do_while_nobody_answers() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.restore(accepted("p"), {})
        await asyncio.sleep(0)
        assert not reconciler.ready.is_set()
        reconciler.unreached("nobody answered")
        await reconciler.ready.wait()
        assert (reconciler.files.state, peers.pools) == ("unreached", ["p"])
        assert reconciler.serving is not None
        assert reconciler.serving.stale
        reconciler.offer(accepted("p", "q"))
        await until(lambda: peers.pools == ["p", "q"])
        reconciler.unreached("nobody answered")
        assert reconciler.files.state == "accepted"


async def test_files_that_lost_most_of_what_the_last_run_served_are_held_at_start() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.restore(accepted("p", "q", "r", "s"), {})
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        assert reconciler.files.state == "held"
        assert peers.pools == ["p", "q", "r", "s"]


async def test_limits_are_divided_by_the_proxies_of_the_last_run_from_the_start() -> None:
    alone, restarted = Peers(), Peers()
    async with running(alone) as first, running(restarted) as second:
        second.restore(accepted("p"), {"gateway": 4})
        for reconciler in (first, second):
            reconciler.offer(accepted("p"))
            await reconciler.ready.wait()
    ours, theirs = (peers.published[-1][VIEW].of(RUNTIME)["switchgear"].value for peers in (alone, restarted))
    assert ours != theirs


async def test_zones_share_by_where_the_callers_of_the_last_run_were_from_the_start() -> None:
    """Else a restart moves traffic about: to the zone whose gateway is back first, everybody asks from there."""
    before, unaware, restarted = Peers(), Peers(), Peers()
    before.connected = {View(zone=zone) for zone in ("z1", "z2", "z3")}
    async with running(before) as first, running(unaware) as second, running(restarted) as third:
        first.offer(in_zones())
        await first.ready.wait()
        third.restore(in_zones(), {}, first.roll.callers.counts())
        for reconciler in (second, third):
            reconciler.offer(in_zones())
            await reconciler.ready.wait()
    assert restarted.endpoints("p") == before.endpoints("p")
    assert unaware.endpoints("p") != before.endpoints("p")
