"""An engine has left a proxy exactly when the proxy accepted endpoints without it."""

from types import MappingProxyType

from engine.report import DrainRequest, EngineReport, ReportSource, Verdict
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.model.drain_progress import DrainProgress
from xds_server.model.fleet import EngineId
from xds_server.model.snapshot import Resource, Snapshot, snapshot
from xds_server.model.type_urls import ENDPOINT
from xds_server.model.view import View
from xds_server.publish.drain_tracker import MAX_VERSIONS, DrainTracker
from xds_server.xds.acked_resources import GONE, UNKNOWN

KEY = EngineId("chat", "e1")
NEAR, FAR = View(zone="near"), View(zone="far")


def report(*, drain: bool) -> EngineReport:
    return EngineReport(
        pool="chat",
        engine="e1",
        verdict=Verdict.DRAINING if drain else Verdict.READY,
        evidence="a test",
        observed_at_s=0.0,
        source=ReportSource.AGENT,
        drain=DrainRequest() if drain else None,
    )


def decided(health: Health | None) -> Decisions:
    engines = {}
    if health is not None:
        engines[KEY] = EngineDecision(health=health, reason="a test", since_s=0.0, verdict=None)
    nothing: MappingProxyType[object, object] = MappingProxyType({})
    return Decisions(engines=engines, zone_weights=nothing, ceilings=nothing, pools=nothing)  # type: ignore[arg-type]


def served(version: str) -> Snapshot:
    return snapshot([Resource(type_url=ENDPOINT, name="chat", value=b"", version=version)])


def test_drain_progress_counts_proxies_that_acked_without_the_engine() -> None:
    draining = DrainTracker()
    assert draining.on_report(report(drain=True))
    draining.on_published(decided(Health.HEALTHY), {NEAR: served("with")})
    assert draining.progress(KEY, [(NEAR, "with")]) is None, "no proxy can have accepted an unsent version"
    draining.on_published(decided(Health.DRAINING), {NEAR: served("n1"), FAR: served("f1")})
    held = [(NEAR, "with"), (NEAR, "n1"), (NEAR, UNKNOWN), (NEAR, GONE), (FAR, "n1"), (FAR, "f1")]
    assert draining.progress(KEY, held) == DrainProgress(proxies_total=6, proxies_acknowledged=3)
    draining.on_published(decided(Health.DRAINING), {NEAR: served("n2"), FAR: served("f2")})
    assert draining.progress(KEY, [(NEAR, "n1"), (NEAR, "n2")]) == DrainProgress(
        proxies_total=2, proxies_acknowledged=2
    )


def test_drain_progress_without_proxies() -> None:
    draining = DrainTracker()
    draining.on_report(report(drain=True))
    draining.on_published(decided(Health.DRAINING), {NEAR: served("n1")})
    assert draining.progress(KEY, []) == DrainProgress(proxies_total=0, proxies_acknowledged=0)


def test_readmitted_engine_restarts_its_drain() -> None:
    draining = DrainTracker()
    draining.on_report(report(drain=True))
    draining.on_published(decided(Health.DRAINING), {NEAR: served("n1")})
    assert not draining.on_report(report(drain=False))
    assert not draining.engines
    draining.on_report(report(drain=True))
    assert draining.progress(KEY, [(NEAR, "n1")]) is None
    draining.on_published(decided(None), {NEAR: served("n1")})
    assert not draining.engines, "an engine that the policies no longer name"


def test_drain_tracking_memory_is_bounded() -> None:
    draining = DrainTracker()
    draining.on_report(report(drain=True))
    for version in range(MAX_VERSIONS + 10):
        draining.on_published(decided(Health.DRAINING), {NEAR: served(f"{version}")})
    old, new = [(NEAR, "1")], [(NEAR, f"{MAX_VERSIONS}")]
    assert draining.progress(KEY, old) == DrainProgress(proxies_total=1, proxies_acknowledged=0)
    assert draining.progress(KEY, new) == DrainProgress(proxies_total=1, proxies_acknowledged=1)


def test_kept_engine_has_no_drain_progress() -> None:
    draining = DrainTracker()
    draining.on_report(report(drain=True))
    draining.on_published(decided(Health.DRAINING), {NEAR: served("n1")})
    draining.on_published(decided(Health.HEALTHY), {NEAR: served("n2")})
    assert draining.progress(KEY, [(NEAR, "n1")]) is None
