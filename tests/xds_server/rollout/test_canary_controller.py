"""A canary next to the served version, and each way in which it ends."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from policies.load import load_contents
from policies.route import PriorityClass
from tests.xds_server.reconcile.fake_peers import Peers, accepted, text, until
from xds_server.admin_api.version_types import ApplyRequest
from xds_server.decide.decisions import Ceiling
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import declared
from xds_server.model.policy_state import AcceptedPolicies, ServingPolicies
from xds_server.model.type_urls import CLUSTER, ROUTE
from xds_server.model.view import View
from xds_server.reconcile.canary_build import CanaryBuild
from xds_server.reconcile.pipeline import BuildInputs, Pipeline
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.canary_controller import CanaryController, CanaryPlan, CanaryRun, CanaryStep
from xds_server.rollout.history.change_errors import RefusedChangeError
from xds_server.rollout.history.policy_version import Provenance, VersionSource
from xds_server.rollout.history.version_archive import VersionArchive
from xds_server.rollout.policy_versions import PolicyVersions
from xds_server.telemetry.attempt_outcome import AttemptOutcome
from xds_server.telemetry.pool_directory import build_directory
from xds_server.telemetry.traffic_store import Attempt, TrafficStore
from xds_server.xds.messages import Sync


def state(node: str, *, sync: Sync = Sync.SYNCED, refused: Mapping[str, str] | None = None) -> Any:
    kind = SimpleNamespace(type_url=ROUTE, state=sync, rejected=refused or {}, reason="bad regex")
    return SimpleNamespace(node=SimpleNamespace(id=node), types=(kind,))


class Site(Peers):
    """Proxies, each in a zone of its own, served by a reconciler; as a publisher, too."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.zones = {f"n{number}": f"z{number % 2}" for number in range(count)}
        self.refused: dict[str, dict[str, str]] = {}
        self.gone: set[str] = set()
        self.archive = VersionArchive(None)
        self.reconciler = Reconciler(self, Metrics(), on_adopted=self.adopted)
        self.book = TrafficStore()
        self.now_s = 1000.0
        self.canaries = CanaryController(self.reconciler, self, self.book, clock=lambda: self.now_s)  # type: ignore[arg-type]
        self.changing = PolicyVersions(self.reconciler, self.archive, canaries=self.canaries)

    def adopted(self, serving: ServingPolicies) -> None:
        self.changing.on_adopted(serving)

    def nodes(self) -> Mapping[str, View]:  # the reconciler asks
        return self._nodes

    @property
    def _nodes(self) -> Mapping[str, View]:
        return {
            node: View(zone=zone, canary=self.canaries.has(node))
            for node, zone in self.zones.items()
            if node not in self.gone
        }

    def views(self) -> frozenset[View]:
        return frozenset(self._nodes.values())

    def crowding(self) -> frozenset[str]:
        return frozenset()

    def proxies_by_role(self) -> Mapping[str, int]:
        return {"gateway": len(self._nodes)}

    def served(self) -> dict[bool, set[str]]:
        """The pools of canary views, and those of the others."""
        found: dict[bool, set[str]] = {}
        for view in self.views():
            found.setdefault(view.canary, set()).update(self.published[-1].get(view, NOTHING).of(CLUSTER))
        return found


class Publisher:
    """The state that ``CanaryController`` reads of one proxy."""

    def __init__(self, site: Site) -> None:
        self._site = site

    @property
    def nodes(self) -> Mapping[str, View]:
        return self._site.nodes()

    def proxies(self, nodes: Collection[str] | None = None) -> tuple[Any, ...]:
        found = self._site.nodes() if nodes is None else [node for node in self._site.nodes() if node in nodes]
        return tuple(state(node, refused=self._site.refused.get(node)) for node in found)

    def regroup(self) -> None:
        self._site.reconciler.proxies_changed()


NOTHING = SimpleNamespace(of=lambda _: {})


@contextlib.asynccontextmanager
async def running(count: int = 4) -> AsyncIterator[Site]:
    site = Site(count)
    site.canaries._publisher = Publisher(site)  # type: ignore[assignment]
    tasks = [asyncio.create_task(site.reconciler.run()), asyncio.create_task(site.changing.run())]
    try:
        site.changing.offer(accepted("p"))
        await site.reconciler.ready.wait()
        yield site
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not [task for task in tasks if not task.cancelled() and task.exception()]


def asked(*names: str, percent: float = 25, **rest: Any) -> ApplyRequest:
    return ApplyRequest(
        texts={f"{name}.yaml": text(name) for name in names}, canary_percent=percent, for_s=60.0, **rest
    )


async def begun(site: Site, **rest: Any) -> None:
    done = await site.changing.apply(asked("p", "q", by="ann", **rest))
    assert done.state == "canary", done
    await until(lambda: site.served() == {True: {"p", "q"}, False: {"p"}})


async def ended(site: Site, state: str, said: str) -> None:
    await until(lambda: site.changing.canary().state == state)
    assert said in "; ".join(site.changing.canary().reasons)
    assert site.book.listener is None
    await until(lambda: site.served() == {False: {"p", "q"} if state == "served" else {"p"}})
    assert site.changing.history().versions[-1].source == ("applied" if state == "served" else "files")


def calls(site: Site, mine: int = 100, failed: int = 0, others: int = 100) -> None:
    run = site.canaries.running
    assert run is not None
    other = next(node for node in site.zones if node not in run.nodes)
    for number in range(mine):
        run.on_call_ended(next(iter(run.nodes)), failed=number < failed, time_s=None, streaming=False, weight=1.0)
    for _ in range(others):
        run.on_call_ended(other, failed=False, time_s=None, streaming=False, weight=1.0)


async def test_canary_is_promoted_after_its_time() -> None:
    async with running() as site:
        await begun(site)
        assert len(site.changing.canary().proxies) == 1
        calls(site)
        site.now_s += 61
        await ended(site, "served", "0 % fail")


def refuses(site: Site) -> None:
    (node,) = site.changing.canary().proxies
    site.refused[node] = {"port-1": "v2"}


def fails(site: Site) -> None:
    calls(site, failed=30)


def is_ended(site: Site) -> None:
    assert site.changing.end_canary("bob")


def edits_files(site: Site) -> None:
    site.changing.offer(accepted("p", engines=3))


def breaks(site: Site) -> None:
    trial = site.reconciler.canary_build
    assert trial is not None
    trial._policies = None  # type: ignore[assignment]  # a bug, as a round would meet it
    site.reconciler.proxies_changed()


def sees_little(site: Site) -> None:
    calls(site, mine=3)
    site.now_s += 61


def loses_its_proxies(site: Site) -> None:
    calls(site)
    site.gone |= set(site.changing.canary().proxies)
    site.now_s += 61


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (refuses, "refuses RDS port-1: bad regex"),
        (fails, "30 % of 100 requests fail"),
        (is_ended, "ended by bob"),
        (edits_files, "the files changed meanwhile"),
        (breaks, "building them failed"),
        (sees_little, "--yes-if-unknown"),
        (loses_its_proxies, "none of the canary's proxies is connected"),
    ],
)
async def test_canary_rollback(happens: Callable[[Site], None], said: str) -> None:
    with structlog.testing.capture_logs():  # a bug is logged with its traceback
        async with running() as site:
            await begun(site)
            happens(site)
            await ended(site, "rolled-back", said)


async def test_ended_canary_reports_its_age() -> None:
    async with running() as site:
        assert site.changing.canary().ended_s is None
        await begun(site)
        assert site.changing.canary().ended_s is None
        site.changing.end_canary("ann")
        site.now_s += 90
        assert (site.changing.canary().state, site.changing.canary().ended_s) == ("rolled-back", 90.0)
        await begun(site)
        assert site.changing.canary().ended_s is None, "the running one has not ended"


async def test_canary_with_too_little_traffic_may_be_promoted() -> None:
    async with running() as site:
        await begun(site, yes_if_unknown=True)
        site.now_s += 61
        await ended(site, "served", "50 are needed")


async def test_canary_with_slo_needs_no_baseline() -> None:
    async with running() as site:
        await begun(site, slo_percent=99.0)
        calls(site, others=0)
        site.now_s += 61
        await ended(site, "served", "100 % of 100 requests succeeded")
    async with running() as site:
        await begun(site, slo_percent=99.0)
        calls(site, failed=30, others=0)
        await ended(site, "rolled-back", "70 % of 100 requests succeeded (required: 99 %)")
    async with running() as site:
        for wrong in (0.0, -1.0, 101.0, float("nan")):
            with pytest.raises(RefusedChangeError, match="--slo"):
                await site.changing.apply(asked("p", "q", slo_percent=wrong))


async def test_earlier_nacks_do_not_count_against_a_canary() -> None:
    async with running() as site:
        for node in site.zones:
            site.refused[node] = {"port-1": "v1"}
        await begun(site)
        calls(site)
        site.now_s += 61
        await ended(site, "served", "0 % fail")


async def test_second_canary_or_missing_proxies_are_refused() -> None:
    async with running() as site:
        await begun(site)
        for change in (asked("r"), asked("r", percent=0)):
            with pytest.raises(RefusedChangeError, match="a canary by ann is running"):
                await site.changing.apply(change)
        assert site.changing.end_canary("ann")
        assert not site.changing.end_canary("ann")
        for wrong in (-1.0, 101.0, float("nan")):
            with pytest.raises(RefusedChangeError, match="--canary"):
                await site.changing.apply(asked("r", percent=wrong))
        site.gone |= site.zones.keys()
        done = await site.changing.apply(asked("p", "q"))
        assert (done.state, "no proxy is connected" in done.reason) == ("failed", True)


async def test_shrinking_policies_start_no_canary() -> None:
    async with running() as site:
        site.changing.offer(accepted("p", "q", "r"))
        await until(lambda: site.served() == {False: {"p", "q", "r"}})
        done = await site.changing.apply(asked("p"))
        assert (done.state, "would remove" in done.reason) == ("failed", True)
        assert site.changing.canary().state == "none"


async def test_held_policies_are_not_released_during_a_canary() -> None:
    async with running() as site:
        site.changing.offer(accepted("p", "q", "r"))
        await until(lambda: site.served() == {False: {"p", "q", "r"}})
        site.changing.offer(accepted("p"))
        await until(lambda: site.reconciler.source_state.state == "held")
        done = await site.changing.apply(asked("p", "q", "r", "s"))
        assert done.state == "canary"
        await until(lambda: site.served() == {True: {"p", "q", "r", "s"}, False: {"p", "q", "r"}})
        assert "a canary is running" in site.reconciler.release_shrink()
        assert site.changing.end_canary("ann")
        assert not site.reconciler.release_shrink()
        await until(lambda: site.served() == {False: {"p"}})


async def test_canary_ends_when_its_baseline_is_replaced() -> None:
    async with running() as site:
        await begun(site)
        site.reconciler.offer(accepted("p", engines=3))  # from any source
        await ended(site, "rolled-back", "another version is served meanwhile")
        assert {len(pools["p"]) for pools in [site.reconciler.fleet.pools]} == {3}  # type: ignore[union-attr]


async def test_canary_survives_comment_edits() -> None:
    async with running() as site:
        await begun(site)
        told = site.reconciler.source_state
        site.changing.offer(replace(accepted("p"), former="other bytes"))
        await until(lambda: site.reconciler.source_state is not told)
        calls(site)
        site.now_s += 61
        await ended(site, "served", "0 % fail")


async def test_canary_held_at_promotion_leaves_nothing_held() -> None:
    async with running() as site:
        await begun(site)
        calls(site)
        site.now_s += 61
        # The served version grew meanwhile, so that the same policies now remove more than half of it.
        grown = accepted(*"pqrstuvwxyz")
        trial, site.reconciler.canary_build = site.reconciler.canary_build, None
        site.reconciler._adopt(grown, stale=False)
        site.reconciler.canary_build = trial
        await until(lambda: site.changing.canary().state == "rolled-back")
        assert "would remove" in "; ".join(site.changing.canary().reasons)
        # Now the files are held, as long as they have less than the served version.
        await until(lambda: site.reconciler.source_state.digest == accepted("p").digest)
        assert site.reconciler.source_state.state == "held"


def test_canary_waits_for_acks_and_then_rolls_back() -> None:
    plan = CanaryPlan(
        accepted=accepted("p"),
        provenance=Provenance(source=VersionSource.APPLIED),
        percent=50,
        for_s=5.0,
        yes_if_unknown=True,
    )
    run = CanaryRun(plan, frozenset({"n1"}), (), 0.0)
    late = (state("n1", sync=Sync.STALE), state("n2"))
    assert run.step(late, "", 4.0)[0] is CanaryStep.WAIT
    assert run.step(late, "", 6.0)[0] is CanaryStep.WAIT
    assert run.step(late, "", 60.0) == (CanaryStep.BACK, ("not acknowledged by n1",))
    assert run.step((state("n1"), state("n2", sync=Sync.STALE)), "", 6.0)[0] is CanaryStep.ON


def limited(wait: str) -> AcceptedPolicies:
    texts = {
        "p.yaml": text("p", engines=8),
        "d.yaml": "apiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {name: default}\n"
        f"spec: {{limits: {{maxWait: {wait}}}}}\n",
    }
    policies = load_contents({Path(name): said.encode() for name, said in texts.items()})
    return AcceptedPolicies(policies=policies, texts=texts, digest=wait)


def test_canary_and_baseline_max_requests_never_exceed_the_larger() -> None:
    old, new = limited("1s"), limited("30s")
    nodes = {f"n{number}": View(zone="z1", canary=number == 0) for number in range(4)}
    fleet = declared(old.policies)
    rest = Pipeline().build(
        BuildInputs(
            policies=old.policies,
            fleet=fleet,
            views=frozenset(nodes.values()),
            proxies_by_role={"gateway": 4},
            nodes=nodes,
            now_s=0.0,
        )
    )
    trial = CanaryBuild(new, old.policies, lambda one: one)
    made = trial.build(rest, fleet, frozenset({nodes["n0"]}))

    def part(built: Any) -> Ceiling:
        ceiling: Ceiling = built.decisions.ceilings["p", "gateway"]
        return ceiling

    whole = made.decisions.pools["p"].admission
    assert whole is not None
    assert part(made).interactive > part(rest).interactive
    assert part(made).interactive + 3 * part(rest).interactive <= whole.total + len(nodes)
    both = trial.with_canary(rest, fleet, frozenset(nodes.values()))
    assert both.decisions is rest.decisions
    assert both.snapshots[nodes["n1"]] is rest.snapshots[nodes["n1"]]
    assert both.snapshots[nodes["n0"]] is not rest.snapshots[nodes["n0"]]


async def test_calls_to_a_moved_engine_do_not_count_for_its_name() -> None:
    async with running() as site:
        moved = {"p.yaml": text("p").replace("8000", "8999")}
        assert moved["p.yaml"] != text("p")
        done = await site.changing.apply(ApplyRequest(texts=moved, canary_percent=25, for_s=60.0))
        assert done.state == "canary", done
        run = site.canaries.running
        assert run is not None
        (mine,) = run.nodes
        other = next(node for node in site.zones if node not in run.nodes)
        pool = accepted("p").policies.pools["p"]
        engine = pool.spec.endpoints[0].name
        site.book.set_directory(build_directory(accepted("p").policies, {}))
        facts = site.book.directory.pools["p"]

        def fails(node: str) -> float:
            attempt = Attempt(
                engine=engine, outcome=AttemptOutcome.FAILURE, first=True, priority=PriorityClass.INTERACTIVE,
                streaming=False, duration_s=0.1, first_byte_s=0.0,
            )  # fmt: skip
            site.book.record_attempt(node, facts, attempt, weight=1.0, now_s=1.0)
            site.book.record_failure(facts, engine, node=node, weight=1.0, now_s=1.0)
            told = site.book.traffic(1.0)["p"].engines.get(engine)
            return 0.0 if told is None else told.failed

        assert fails(mine) == 0.0
        assert run.mine.failed == 1
        assert fails(other) == 2.0
