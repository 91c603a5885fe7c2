"""The served state follows policies and reports, and stays as it is when they are invalid."""

import asyncio
import time
from itertools import pairwise

import pytest
import structlog

from engine.report import Verdict
from tests.xds_server.reconcile.fake_peers import (
    LIMIT_S,
    VIEW,
    Peers,
    accepted,
    in_zones,
    refused,
    report,
    running,
    settled,
    until,
)
from xds_server.model.type_urls import CLUSTER
from xds_server.model.view import View
from xds_server.reconcile.pipeline import Pipeline
from xds_server.reconcile.reconciler import Reconciler, ReconcilerOptions
from xds_server.reconcile.round_interval import GATHER_MOST_S


async def test_policies_become_snapshots_of_every_view_in_use() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q"))
        await reconciler.ready.wait()
        assert set(peers.published[-1]) == {View(), VIEW}
        assert peers.pools == ["p", "q"]
        assert reconciler.source_state.state == "accepted"


async def test_unchanged_snapshot_is_not_republished() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await settled(reconciler)
        await settled(reconciler)
        assert len(peers.published) == 1


async def test_verdict_changes_endpoints_and_a_repeated_report_starts_no_round() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        for at_s in (1.0, 2.0):
            reconciler.on_report(report("e0", Verdict.DEAD, at_s))
        await until(lambda: len(peers.published) == 2)
        assert peers.endpoints("p") != before
        reconciler.on_report(report("e0", Verdict.READY, 3.0))
        await until(lambda: len(peers.published) == 3)
        assert peers.endpoints("p") == before


async def test_rejected_files_keep_the_snapshot_and_are_logged_once() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        with structlog.testing.capture_logs() as logs:
            reconciler.offer(refused())
            await settled(reconciler)
            await settled(reconciler)
        assert [line["event"] for line in logs] == ["policies.refused"]
        assert "bad.yaml" in logs[0]["errors"][0]
        assert reconciler.source_state.state == "refused"
        assert peers.pools == ["p"]
        assert len(peers.published) == 1


async def test_shrinking_policies_are_held_until_release() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        assert reconciler.release_shrink() == "no policies are held back"
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.source_state.state == "held")
        await settled(reconciler)
        assert peers.pools == ["p", "q", "r", "s"]
        assert not reconciler.release_shrink()
        await until(lambda: peers.pools == ["p"])
        assert reconciler.source_state.state == "accepted"


async def test_held_policies_follow_the_release_on_another_replica() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.release_with_peers({"digest of p 2"})
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.source_state.state == "held")
        reconciler.release_with_peers({"digest of q 2"})
        assert (reconciler.source_state.state, reconciler.released) == ("held", "")
        reconciler.release_with_peers({"digest of p 2", "digest of q 2"})
        await until(lambda: peers.pools == ["p"])
        assert reconciler.released == "digest of p 2"
        reconciler.offer(accepted("p", "q"))
        await until(lambda: peers.pools == ["p", "q"])
        assert reconciler.released == "", "the release applies once"


async def test_proxy_leaving_during_an_edit_is_not_a_loss() -> None:
    """The view of a proxy that left is not a loss caused by the edit."""
    peers = Peers()
    peers.connected = {VIEW, View(zone="z2")}
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q"))
        await reconciler.ready.wait()
        peers.connected = {VIEW}
        reconciler.offer(accepted("p", "q", engines=3))
        await until(lambda: reconciler.source_state.digest == "digest of p q 3")
        assert (reconciler.source_state.state, reconciler.source_state.reason) == ("accepted", "")


async def test_failed_policies_replace_held_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.source_state.state == "held")
        build = Pipeline.build

        def broken(pipeline: Pipeline, inputs):
            if "bad" in inputs.policies.pools:
                raise RuntimeError("a bug")
            return build(pipeline, inputs)

        monkeypatch.setattr(Pipeline, "build", broken)
        with structlog.testing.capture_logs():
            reconciler.offer(accepted("p", "q", "r", "s", "bad"))
            await until(lambda: reconciler.source_state.state == "failed")
        assert reconciler.release_shrink() == "no policies are held back"
        assert peers.pools == ["p", "q", "r", "s"]


async def test_held_policies_are_dropped_when_files_recover() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.source_state.state == "held")
        reconciler.offer(accepted("p", "q", "r"))
        await until(lambda: peers.pools == ["p", "q", "r"])
        assert reconciler.release_shrink() == "no policies are held back"


async def test_allow_shrink_option_skips_the_guard() -> None:
    peers = Peers()
    async with running(peers, options=ReconcilerOptions(allow_shrink=True)) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: peers.pools == ["p"])


async def test_last_good_snapshot_is_served_only_if_the_files_are_rejected() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.restore(accepted("old"), {"gateway": 3})
        await asyncio.sleep(0)
        assert peers.published == []
        reconciler.offer(refused())
        await reconciler.ready.wait()
        assert peers.pools == ["old"]
        assert reconciler.serving is not None
        assert reconciler.serving.stale
        reconciler.offer(accepted("old", "new"))
        await until(lambda: peers.pools == ["new", "old"])
        assert not reconciler.serving.stale


async def test_zone_with_a_restarting_proxy_still_calls() -> None:
    peers = Peers()
    peers.connected = {VIEW, View(zone="z2")}
    async with running(peers) as reconciler:
        reconciler.offer(in_zones())
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        peers.connected = {VIEW}
        await settled(reconciler)
        assert peers.endpoints("p") == before


async def test_first_proxy_of_a_view_marks_state_for_saving() -> None:
    """Three gateways in three zones are three first proxies; a restart must find all of them in the store."""
    peers = Peers()
    peers.connected, peers.roles = set(), {}
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        reconciler.worth_keeping.clear()
        reconciler.snapshot_for(VIEW)
        assert reconciler.worth_keeping.is_set()
        assert (reconciler.proxy_counts.by_role.counts(), reconciler.proxy_counts.by_zone.counts()) == (
            {"gateway": 1},
            {"z1": 1},
        )


async def test_first_proxy_of_a_view_builds_only_its_view() -> None:
    """Each of a thousand proxies with its own address is the first of its view."""
    peers = Peers()
    peers.connected = {VIEW, View(zone="z2")}
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        assert reconciler.built is not None
        before = reconciler.built.snapshots
        reconciler.snapshot_for(View(zone="z3"))
        assert reconciler.built.inputs.views == {View(zone="z3")}
        assert reconciler.peek(VIEW) is before[VIEW]  # until the round that follows


class Slow(Peers):
    """Peers whose rounds take long; ``asked`` has the start and end of each query."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float]] = []

    def views(self) -> frozenset[View]:
        began_s = time.monotonic()
        time.sleep(0.1)
        self.asked.append((began_s, time.monotonic()))
        return super().views()


async def test_long_round_leaves_equal_time_to_streams() -> None:
    peers = Slow()
    async with running(peers, on_round=lambda _, __: reconciler.proxies_changed()) as reconciler:
        reconciler.offer(accepted("p"))
        await until(lambda: len(peers.asked) >= 5)
    # The first round queries twice: it also validates the policies.
    for (_, ended_s), (began_s, _) in pairwise(peers.asked[1:]):
        assert began_s - ended_s >= 0.09


async def test_arrivals_during_a_long_round_are_gathered_into_the_next() -> None:
    peers, done = Slow(), asyncio.Event()

    async def arrive(reconciler: Reconciler) -> None:
        while not done.is_set():
            reconciler.proxies_changed()
            await asyncio.sleep(0.005)

    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        first = len(peers.asked)
        arriving = asyncio.create_task(arrive(reconciler))
        await until(lambda: len(peers.asked) >= first + 4)
        done.set()
        await arriving
    # One more round follows the accepted policies.
    for (_, ended_s), (began_s, _) in pairwise(peers.asked[first + 1 :]):
        assert began_s - ended_s >= 0.9 * GATHER_MOST_S


async def test_report_does_not_wait_for_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_MOST_S", "GATHER_REST", "TICK_S"):
        monkeypatch.setattr(f"xds_server.reconcile.reconciler.{name}", 1e6)
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        built = reconciler.built
        reconciler.proxies_changed()
        reconciler.on_report(report("e0", Verdict.DEAD))
        await until(lambda: reconciler.built is not built)


async def test_first_proxy_of_a_view_is_served_at_once() -> None:
    peers = Peers()
    peers.connected, peers.roles = set(), {}
    async with running(peers) as reconciler:
        assert reconciler.snapshot_for(VIEW).count == 0
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        served = reconciler.snapshot_for(VIEW)
        peers.connected, peers.roles = {VIEW}, {"gateway": 1}
        await settled(reconciler)
        assert sorted(served.of(CLUSTER)) == ["p"]
        assert all(published.get(VIEW, served) is served for published in peers.published)


async def test_startup_gate_waits_for_a_verdict_on_every_engine() -> None:
    peers = Peers()
    async with running(peers, options=ReconcilerOptions(first_reports_s=3600.0)) as reconciler:
        reconciler.offer(accepted("p", probe=True))
        await until(lambda: reconciler.built is not None)
        reconciler.on_report(report("e0", Verdict.READY))
        reconciler.on_report(report("e1", Verdict.DEAD, 1.0))
        await settled(reconciler)
        assert not reconciler.ready.is_set()
        reconciler.on_report(report("e1", Verdict.DEAD, 2.0))
        await asyncio.wait_for(reconciler.ready.wait(), LIMIT_S)
        assert len(peers.published) == 1


async def test_startup_gate_times_out() -> None:
    peers = Peers()
    async with running(peers, options=ReconcilerOptions(first_reports_s=0.2)) as reconciler:
        reconciler.offer(accepted("p", probe=True))
        await asyncio.wait_for(reconciler.ready.wait(), LIMIT_S)


async def test_exception_keeps_the_last_good_snapshot_and_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    peers = Peers()
    build = Pipeline.build
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()

        def broken(*_: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(Pipeline, "build", broken)
        with structlog.testing.capture_logs() as logs:
            reconciler.offer(accepted("p", "q"))
            await until(lambda: reconciler.source_state.state == "failed")
            reconciler.proxies_changed()
            await until(lambda: reconciler._metrics.reconcile_failures._value.get() >= 2)
            assert peers.pools == ["p"]
            monkeypatch.setattr(Pipeline, "build", build)
            await settled(reconciler)
        assert [line["event"] for line in logs] == ["reconcile.failed", "reconcile.recovered"]
        reconciler.offer(accepted("p", "q"))
        await until(lambda: peers.pools == ["p", "q"])


async def test_report_storm_is_debounced_into_few_pushes() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", engines=200))
        await reconciler.ready.wait()
        for number in range(200):
            for at_s in (1.0, 2.0):
                reconciler.on_report(report(f"e{number}", Verdict.DEAD, at_s))
            if number % 20 == 0:
                await asyncio.sleep(0)
        built = reconciler.built
        await until(
            lambda: (
                reconciler.built is not built
                and all(one.health == "UNHEALTHY" for one in reconciler.built.decisions.engines.values())
            )
        )
        assert len(peers.published) <= 6
