"""What is served follows policies and reports, and stays as it is whenever something is wrong with them."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from engine.report import EngineReport, Verdict
from policies.findings import PolicyErrors
from policies.load import load_contents
from xds_server.fleet import EngineId
from xds_server.metrics import Metrics
from xds_server.orchestrator import OrchestratorWord, Standing
from xds_server.pipeline import Pipeline
from xds_server.reconcile.loop import Reconciler
from xds_server.snapshot import Resource, Snapshot
from xds_server.sources.files import Accepted, Refused
from xds_server.translate.view import View
from xds_server.type_urls import CLUSTER, ENDPOINT, RUNTIME
from xds_server.words import HELD_S

LIMIT_S = 30.0
VIEW = View(zone="z1")


def text(name: str, *, engines: int = 2, probe: bool = False) -> str:
    endpoints = ", ".join(f"{{address: 10.0.0.{n + 1}, port: 8000, name: e{n}}}" for n in range(engines))
    return (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\n"
        f"metadata: {{name: {name}}}\n"
        f"spec: {{model: m, endpoints: [{endpoints}], probe: {{enabled: {str(probe).lower()}}}}}\n"
    )


def accepted(*names: str, engines: int = 2, probe: bool = False) -> Accepted:
    texts = {f"{name}.yaml": text(name, engines=engines, probe=probe) for name in names}
    policies = load_contents({Path(name): content.encode() for name, content in texts.items()})
    return Accepted(policies=policies, texts=texts, digest=f"digest of {' '.join(names)} {engines}")


def in_zones() -> Accepted:
    """One pool with an engine in each of three zones."""
    endpoints = ", ".join(f"{{address: 10.0.0.{n}, port: 8000, zone: z{n}}}" for n in (1, 2, 3))
    content = (
        "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: p}\n"
        f"spec: {{model: m, endpoints: [{endpoints}], probe: {{enabled: false}}}}\n"
    )
    texts = {"zones.yaml": content}
    policies = load_contents({Path(name): text.encode() for name, text in texts.items()})
    return Accepted(policies=policies, texts=texts, digest="digest of zones")


def refused() -> Refused:
    try:
        load_contents({Path("bad.yaml"): b"kind: ["})
    except PolicyErrors as errors:
        return Refused(errors=tuple(errors.exceptions), digest="bad")
    raise AssertionError


class Peers:
    """Connected proxies, and what was published to them."""

    def __init__(self) -> None:
        self.connected: set[View] = {VIEW}
        self.roles = {"gateway": 1}
        self.published: list[Mapping[View, Snapshot]] = []

    def views(self) -> frozenset[View]:
        return frozenset(self.connected)

    def proxies_by_role(self) -> Mapping[str, int]:
        return self.roles

    def proxies_by_zone(self) -> Mapping[str, int]:
        return dict(Counter(view.zone for view in self.connected))

    def nodes(self) -> Mapping[str, View]:
        return {}

    def publish(self, snapshots: Mapping[View, Snapshot], own: Mapping[str, Resource]) -> None:
        self.published.append(snapshots)
        self.own = own

    @property
    def pools(self) -> list[str]:
        return sorted(self.published[-1][VIEW].of(CLUSTER)) if self.published else []

    def endpoints(self, pool: str) -> bytes:
        return self.published[-1][VIEW].of(ENDPOINT)[pool].value


async def until(condition) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def running(peers: Peers, **settings) -> AsyncIterator[Reconciler]:
    reconciler = Reconciler(peers, Metrics(), **settings)
    task = asyncio.create_task(reconciler.run())
    try:
        yield reconciler
    finally:
        task.cancel()
        await asyncio.wait([task])


def report(engine: str, verdict: Verdict, at_s: float = 1.0, pool: str = "p") -> EngineReport:
    return EngineReport(pool=pool, engine=engine, verdict=verdict, evidence="a test", observed_at_s=at_s)


async def settled(reconciler: Reconciler) -> None:
    """Return after a whole round that began after now."""
    built = reconciler.built
    reconciler.proxies_changed()
    await until(lambda: reconciler.built is not built)


async def test_policies_become_snapshots_of_every_view_in_use() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q"))
        await reconciler.ready.wait()
        assert set(peers.published[-1]) == {View(), VIEW}
        assert peers.pools == ["p", "q"]
        assert reconciler.files.state == "accepted"


async def test_nothing_is_published_again_unless_it_changed() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await settled(reconciler)
        await settled(reconciler)
        assert len(peers.published) == 1


async def test_a_verdict_changes_endpoints_and_a_confirmation_starts_no_round() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        for at_s in (1.0, 2.0):
            reconciler.hear(report("e0", Verdict.DEAD, at_s))
        await until(lambda: len(peers.published) == 2)
        assert peers.endpoints("p") != before
        reconciler.hear(report("e0", Verdict.READY, 3.0))
        await until(lambda: len(peers.published) == 3)
        assert peers.endpoints("p") == before


async def test_refused_files_change_nothing_and_are_told_once() -> None:
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
        assert reconciler.files.state == "refused"
        assert peers.pools == ["p"]
        assert len(peers.published) == 1


async def test_a_shrinking_set_is_held_until_it_is_released() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        assert reconciler.release_shrink() == "no policies are held back"
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.files.state == "held")
        await settled(reconciler)
        assert peers.pools == ["p", "q", "r", "s"]
        assert not reconciler.release_shrink()
        await until(lambda: peers.pools == ["p"])
        assert reconciler.files.state == "accepted"


async def test_a_held_set_is_forgotten_when_the_files_are_well_again() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: reconciler.files.state == "held")
        reconciler.offer(accepted("p", "q", "r"))
        await until(lambda: peers.pools == ["p", "q", "r"])
        assert reconciler.release_shrink() == "no policies are held back"


async def test_shrinking_may_be_allowed_from_the_start() -> None:
    peers = Peers()
    async with running(peers, allow_shrink=True) as reconciler:
        reconciler.offer(accepted("p", "q", "r", "s"))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p"))
        await until(lambda: peers.pools == ["p"])


async def test_the_last_run_is_served_only_if_the_files_are_refused() -> None:
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


def word(standing: Standing, *engines: str) -> dict[EngineId, OrchestratorWord]:
    said = OrchestratorWord(standing=standing, reason=f"a test says {standing}")
    return {EngineId("p", engine): said for engine in engines}


ALL_BUT_ONE = [f"e{number}" for number in range(1, 12)]


async def test_a_scale_down_passes_and_a_selector_that_finds_nobody_is_held() -> None:
    for words, state in ((word(Standing.LEAVING, *ALL_BUT_ONE), "accepted"), ({}, "held")):
        peers = Peers()
        async with running(peers) as reconciler:
            reconciler.offer(accepted("p", engines=12))
            await reconciler.ready.wait()
            reconciler.stand(words)
            # A source that no longer lists them no longer speaks of them, and says so first.
            reconciler.stand({})
            reconciler.offer(accepted("p", engines=1))
            await until(lambda r=reconciler: r.files.digest == "digest of p 1")
            assert reconciler.files.state == state
            assert reconciler.fleet is not None
            assert len(reconciler.fleet.pools["p"]) == (1 if state == "accepted" else 12)


async def test_what_is_held_passes_when_it_turns_out_that_the_engines_end() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", engines=12))
        await reconciler.ready.wait()
        reconciler.offer(accepted("p", engines=1))
        await until(lambda: reconciler.files.state == "held")
        reconciler.stand(word(Standing.LEAVING, "e1"))
        with structlog.testing.capture_logs() as logs:
            await settled(reconciler)
        assert reconciler.files.state == "held"
        reconciler.stand(word(Standing.GONE, *ALL_BUT_ONE))
        await until(lambda: reconciler.files.state == "accepted")
        assert [one["event"] for one in logs].count("policies.held") <= 1


async def test_an_end_holds_until_policies_no_longer_have_the_engine_at_that_address() -> None:
    peers, now_s = Peers(), [100.0]
    async with running(peers, clock=lambda: now_s[0]) as reconciler:
        reconciler.offer(accepted("p", engines=4))
        await reconciler.ready.wait()
        reconciler.stand(word(Standing.GONE, "e1") | word(Standing.UNFIT, "e2"))
        await settled(reconciler)
        reconciler.stand({})
        await settled(reconciler)
        assert standings(reconciler) == ["present", "gone", "present", "present"]
        now_s[0] += HELD_S
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4
        # Another pod of that name is another engine.
        reconciler.stand(word(Standing.GONE, "e1"))
        reconciler.stand({})
        await settled(reconciler)
        texts = {"p.yaml": text("p", engines=4).replace("10.0.0.2", "10.0.0.9")}
        moved = load_contents({Path(name): content.encode() for name, content in texts.items()})
        reconciler.offer(Accepted(policies=moved, texts=texts, digest="moved"))
        await until(lambda: reconciler.serving is not None and reconciler.serving.digest == "moved")
        await settled(reconciler)
        assert standings(reconciler) == ["present"] * 4


def standings(reconciler: Reconciler) -> list[str]:
    assert reconciler.built is not None
    return [engine.standing.value for engine in reconciler.built.inputs.fleet.pools["p"]]


async def test_an_engine_that_is_gone_is_no_endpoint() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        assert b"10.0.0.2" in before
        reconciler.stand(word(Standing.GONE, "e1"))
        await until(lambda: b"10.0.0.2" not in peers.endpoints("p"))
        assert b"10.0.0.1" in peers.endpoints("p")
        reconciler.stand(word(Standing.PRESENT, "e1"))
        await until(lambda: peers.endpoints("p") == before)


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


async def test_a_zone_whose_only_proxy_restarts_still_calls() -> None:
    peers = Peers()
    peers.connected = {VIEW, View(zone="z2")}
    async with running(peers) as reconciler:
        reconciler.offer(in_zones())
        await reconciler.ready.wait()
        before = peers.endpoints("p")
        peers.connected = {VIEW}
        await settled(reconciler)
        assert peers.endpoints("p") == before


async def test_who_is_the_first_of_a_view_is_worth_keeping() -> None:
    """Three gateways in three zones are three firsts; a restart must find all of them in the store."""
    peers = Peers()
    peers.connected, peers.roles = set(), {}
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p"))
        await reconciler.ready.wait()
        reconciler.worth_keeping.clear()
        reconciler.snapshot_for(VIEW)
        assert reconciler.worth_keeping.is_set()
        assert (reconciler.roll.roster.counts(), reconciler.roll.callers.counts()) == ({"gateway": 1}, {"z1": 1})


async def test_the_first_proxy_of_a_view_costs_no_more_because_there_are_other_views() -> None:
    """Of a thousand proxies with addresses of their own, each is a first."""
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
    """Peers whose rounds take long; ``asked`` is when each round began and ended to ask for them."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float]] = []

    def views(self) -> frozenset[View]:
        began_s = time.monotonic()
        time.sleep(0.1)
        self.asked.append((began_s, time.monotonic()))
        return super().views()


async def test_long_rounds_leave_as_long_again_to_the_streams() -> None:
    peers = Slow()
    async with running(peers, on_round=lambda _, __: reconciler.proxies_changed()) as reconciler:
        reconciler.offer(accepted("p"))
        await until(lambda: len(peers.asked) >= 5)
    # The first round asks twice: it also considers the policies.
    for (_, ended_s), (began_s, _) in pairwise(peers.asked[1:]):
        assert began_s - ended_s >= 0.09


async def test_the_first_proxy_of_a_view_is_served_at_once_and_counts() -> None:
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


async def test_the_port_waits_for_a_verdict_on_every_engine() -> None:
    peers = Peers()
    async with running(peers, first_reports_s=3600.0) as reconciler:
        reconciler.offer(accepted("p", probe=True))
        await until(lambda: reconciler.built is not None)
        reconciler.hear(report("e0", Verdict.READY))
        reconciler.hear(report("e1", Verdict.DEAD, 1.0))
        await settled(reconciler)
        assert not reconciler.ready.is_set()
        reconciler.hear(report("e1", Verdict.DEAD, 2.0))
        await asyncio.wait_for(reconciler.ready.wait(), LIMIT_S)
        assert len(peers.published) == 1


async def test_the_port_does_not_wait_for_ever() -> None:
    peers = Peers()
    async with running(peers, first_reports_s=0.2) as reconciler:
        reconciler.offer(accepted("p", probe=True))
        await asyncio.wait_for(reconciler.ready.wait(), LIMIT_S)


async def test_a_bug_keeps_the_last_good_snapshot_and_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
            await until(lambda: reconciler.files.state == "failed")
            reconciler.proxies_changed()
            await until(lambda: reconciler._metrics.reconcile_failures._value.get() >= 2)
            assert peers.pools == ["p"]
            monkeypatch.setattr(Pipeline, "build", build)
            await settled(reconciler)
        assert [line["event"] for line in logs] == ["reconcile.failed", "reconcile.recovered"]
        reconciler.offer(accepted("p", "q"))
        await until(lambda: peers.pools == ["p", "q"])


async def test_a_storm_of_reports_is_a_handful_of_pushes() -> None:
    peers = Peers()
    async with running(peers) as reconciler:
        reconciler.offer(accepted("p", engines=200))
        await reconciler.ready.wait()
        for number in range(200):
            for at_s in (1.0, 2.0):
                reconciler.hear(report(f"e{number}", Verdict.DEAD, at_s))
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
