"""Ejection latency, hop by hop, and never underestimated."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from tests.xds_server.hung_engine import KEY, fleet
from xds_server.decide.decisions import Decisions, Ejector, EngineDecision, Health, PoolDecisions
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.type_urls import CLUSTER, ENDPOINT
from xds_server.model.view import View
from xds_server.observe.eject_latency import FOLLOWED_S, MOST_FOLLOWED, EjectLatency

NODES = {"n1": View(), "n2": View(pools=frozenset({"chat"})), "other": View(pools=frozenset({"small"}))}


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Site:
    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = Metrics()
        self.began_s: float | None = None
        self.departures = EjectLatency(self.metrics, lambda _, __: self.began_s, clock=self.clock)
        self.round(Health.HEALTHY)

    def round(self, health: Health, ejector: Ejector | None = None, news_s: float | None = None) -> None:
        self.departures.on_round(decided(health, ejector), fleet(self.clock.now_s - 0.5), NODES, news_s)

    def hop(self, name: str) -> tuple[float, float]:
        """Count and sum of a hop."""
        found = {
            sample.name.rpartition("_")[2]: sample.value
            for metric in self.metrics.departure_hop_seconds.collect()
            for sample in metric.samples
            if sample.labels.get("hop") == name and "le" not in sample.labels
        }
        return found.get("count", 0.0), round(found.get("sum", 0.0), 6)

    def out(self, ejector: Ejector = Ejector.VERDICT) -> None:
        self.round(Health.UNHEALTHY, ejector, news_s=self.clock.now_s - 0.25)


def decided(health: Health, ejector: Ejector | None) -> Decisions:
    one = EngineDecision(health=health, reason="a test", since_s=0.0, ejector=ejector)
    engines = MappingProxyType({KEY: one})
    pool = PoolDecisions(engines=engines, zones={}, ceilings={}, declared=())
    return Decisions(engines=engines, zone_weights={}, ceilings={}, pools={"chat": pool})


@pytest.fixture
def site() -> Site:
    return Site()


def test_each_stage_of_an_ejection_is_measured(site: Site) -> None:
    site.out()
    assert site.hop("detect") == (1, 2.5)
    assert site.hop("decide") == (1, 0.25)
    site.clock.now_s += 0.1
    for node in NODES:
        site.departures.on_push(node, ENDPOINT)
    assert site.hop("push") == (2, 0.2), "a proxy that is not served the pool has nothing to hear"
    site.clock.now_s += 0.2
    site.departures.on_ack("n1", ENDPOINT, 0.2)
    assert site.hop("ack") == (1, 0.2)
    assert site.hop("news_to_ack") == (1, 0.55)


def test_ack_of_an_earlier_version_does_not_count(site: Site) -> None:
    site.out()
    site.departures.on_ack("n1", ENDPOINT, 0.3)
    site.clock.now_s += 0.1
    site.departures.on_push("n1", CLUSTER)
    assert site.hop("push")[0] == 0
    site.departures.on_push("n1", ENDPOINT)
    site.clock.now_s += 0.1
    site.departures.on_ack("n1", ENDPOINT, 0.4)
    assert site.hop("ack")[0] == 0
    site.departures.on_ack("n1", ENDPOINT, 0.1)
    assert site.hop("ack") == (1, 0.1)
    site.departures.on_ack("n1", ENDPOINT, 0.1)
    assert site.hop("ack")[0] == 1


def test_proxy_without_ack_counts_until_the_timeout(site: Site) -> None:
    site.out()
    site.departures.on_push("n1", ENDPOINT)
    site.clock.now_s += FOLLOWED_S
    site.round(Health.UNHEALTHY, Ejector.VERDICT)
    assert site.hop("ack") == (1, FOLLOWED_S), "n1 was written to and never answered"
    assert site.hop("push") == (2, FOLLOWED_S), "n2 was never written to"
    assert site.hop("news_to_ack")[0] == 2


def test_disconnected_proxy_ends_the_eject_latency_wait(site: Site) -> None:
    site.out()
    for node in NODES:
        site.departures.on_disconnect(node)
    site.clock.now_s += FOLLOWED_S
    site.round(Health.UNHEALTHY, Ejector.VERDICT)
    assert site.hop("push")[0] == site.hop("news_to_ack")[0] == 0


@pytest.mark.parametrize(("began_s", "expected"), [(90.0, 0.0), (103.0, 3.0)])
def test_last_request_after_ejection_is_measured(site: Site, began_s: float, expected: float) -> None:
    site.out()
    site.began_s = began_s
    site.clock.now_s += 5
    site.round(Health.UNHEALTHY, Ejector.VERDICT)
    assert site.hop("last_request")[0] == 0, "a later one may still be reported"
    site.round(Health.HEALTHY)
    assert site.hop("last_request") == (1, expected)
    site.clock.now_s += FOLLOWED_S
    site.round(Health.HEALTHY)
    assert site.hop("last_request")[0] == 1


def test_last_request_is_unknown_without_call_reports(site: Site) -> None:
    site.out()
    site.clock.now_s += FOLLOWED_S
    site.round(Health.UNHEALTHY)
    assert site.hop("last_request") == (0, 0)


def test_detect_hop_requires_a_verdict(site: Site) -> None:
    site.out(Ejector.ERRORS)
    assert site.hop("detect") == (0, 0)
    assert site.hop("decide")[0] == 1


def test_tracked_ejections_are_bounded(site: Site) -> None:
    for _ in range(MOST_FOLLOWED + 5):
        site.out()
        site.round(Health.HEALTHY)
    (family,) = site.departures.families()
    (sample,) = family.samples
    assert (sample.labels, sample.value) == ({"pool": "chat", "engine": "e1"}, MOST_FOLLOWED + 5)
    site.departures.on_push("n1", ENDPOINT)
    assert site.hop("push")[0] == MOST_FOLLOWED


def test_removed_engines_are_forgotten(site: Site) -> None:
    site.out()
    nothing = replace(decided(Health.HEALTHY, None), engines={}, pools={})
    site.departures.on_round(nothing, fleet(-0.5), NODES, None)
    (family,) = site.departures.families()
    assert family.samples == []
