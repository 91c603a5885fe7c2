"""An engine has left a proxy when the proxy confirmed endpoints without it: no earlier, and no later."""

from types import MappingProxyType

from engine.report import DrainRequest, EngineReport, Source, Verdict
from xds_server.decide.decisions import Decisions, EngineDecision, Health
from xds_server.fleet import EngineId
from xds_server.leaving.draining import MAX_VERSIONS, Draining, Progress
from xds_server.snapshot import Resource, Snapshot, snapshot
from xds_server.streams.watch import GONE, UNKNOWN
from xds_server.translate.view import View
from xds_server.type_urls import ENDPOINT

KEY = EngineId("chat", "e1")
NEAR, FAR = View(zone="near"), View(zone="far")


def report(*, drain: bool) -> EngineReport:
    return EngineReport(
        pool="chat",
        engine="e1",
        verdict=Verdict.DRAINING if drain else Verdict.READY,
        evidence="a test",
        observed_at_s=0.0,
        source=Source.AGENT,
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


def test_proxies_count_once_they_confirmed_a_version_without_the_engine() -> None:
    draining = Draining()
    assert draining.hear(report(drain=True))
    draining.published(decided(Health.HEALTHY), {NEAR: served("with")})
    assert draining.progress(KEY, [(NEAR, "with")]) is None, "nobody can have confirmed what was not said"
    draining.published(decided(Health.DRAINING), {NEAR: served("n1"), FAR: served("f1")})
    held = [(NEAR, "with"), (NEAR, "n1"), (NEAR, UNKNOWN), (NEAR, GONE), (FAR, "n1"), (FAR, "f1")]
    assert draining.progress(KEY, held) == Progress(proxies_total=6, proxies_acknowledged=3)
    draining.published(decided(Health.DRAINING), {NEAR: served("n2"), FAR: served("f2")})
    assert draining.progress(KEY, [(NEAR, "n1"), (NEAR, "n2")]) == Progress(
        proxies_total=2, proxies_acknowledged=2
    )


def test_no_proxy_is_progress_too() -> None:
    draining = Draining()
    draining.hear(report(drain=True))
    draining.published(decided(Health.DRAINING), {NEAR: served("n1")})
    assert draining.progress(KEY, []) == Progress(proxies_total=0, proxies_acknowledged=0)


def test_an_engine_that_came_back_begins_anew() -> None:
    draining = Draining()
    draining.hear(report(drain=True))
    draining.published(decided(Health.DRAINING), {NEAR: served("n1")})
    assert not draining.hear(report(drain=False))
    assert not draining.engines
    draining.hear(report(drain=True))
    assert draining.progress(KEY, [(NEAR, "n1")]) is None
    draining.published(decided(None), {NEAR: served("n1")})
    assert not draining.engines, "an engine that the policies no longer name"


def test_a_pool_that_changes_all_the_time_costs_bounded_memory() -> None:
    draining = Draining()
    draining.hear(report(drain=True))
    for version in range(MAX_VERSIONS + 10):
        draining.published(decided(Health.DRAINING), {NEAR: served(f"{version}")})
    old, new = [(NEAR, "1")], [(NEAR, f"{MAX_VERSIONS}")]
    assert draining.progress(KEY, old) == Progress(proxies_total=1, proxies_acknowledged=0)
    assert draining.progress(KEY, new) == Progress(proxies_total=1, proxies_acknowledged=1)


def test_an_engine_that_is_kept_after_all_has_left_nobody() -> None:
    draining = Draining()
    draining.hear(report(drain=True))
    draining.published(decided(Health.DRAINING), {NEAR: served("n1")})
    draining.published(decided(Health.HEALTHY), {NEAR: served("n2")})
    assert draining.progress(KEY, [(NEAR, "n1")]) is None
