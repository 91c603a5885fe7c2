"""State of the last run is served and counted until newer state is known."""

import asyncio

from tests.xds_server.reconcile.fake_peers import VIEW, Peers, accepted, in_zones, running, until
from xds_server.model.type_urls import RUNTIME
from xds_server.model.view import View


async def test_last_good_snapshot_is_served_while_the_api_server_is_unreachable() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.restore(accepted("p"), {})
        await asyncio.sleep(0)
        assert not reconciler.ready.is_set()
        reconciler.on_source_unreachable("no answer")
        await reconciler.ready.wait()
        assert (reconciler.source_state.state, peers.pools) == ("unreached", ["p"])
        assert reconciler.serving is not None
        assert reconciler.serving.stale
        reconciler.offer(accepted("p", "q"))
        await until(lambda: peers.pools == ["p", "q"])
        reconciler.on_source_unreachable("no answer")
        assert reconciler.source_state.state == "accepted"


async def test_shrink_guard_holds_files_against_the_last_run() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.restore(accepted("p", "q", "r", "s"), {})
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        assert reconciler.source_state.state == "held"
        assert peers.pools == ["p", "q", "r", "s"]


async def test_max_requests_are_divided_by_last_run_proxy_counts() -> None:
    alone, restarted = Peers(), Peers()
    async with running(alone) as first, running(restarted) as second:
        second.restore(accepted("p"), {"gateway": 4})
        for reconciler in (first, second):
            reconciler.offer(accepted("p"))
            await reconciler.ready.wait()
    ours, theirs = (peers.published[-1][VIEW].of(RUNTIME)["switchgear"].value for peers in (alone, restarted))
    assert ours != theirs


async def test_zone_weights_use_calling_zones_of_the_last_run() -> None:
    """Otherwise a restart moves traffic: all demand would seem to come from the first zone to reconnect."""
    before, unaware, restarted = Peers(), Peers(), Peers()
    before.connected = {View(zone=zone) for zone in ("z1", "z2", "z3")}
    async with running(before) as first, running(unaware) as second, running(restarted) as third:
        first.offer(in_zones())
        await first.ready.wait()
        third.restore(in_zones(), {}, first.proxy_counts.by_zone.counts())
        for reconciler in (second, third):
            reconciler.offer(in_zones())
            await reconciler.ready.wait()
    assert restarted.endpoints("p") == before.endpoints("p")
    assert unaware.endpoints("p") != before.endpoints("p")
