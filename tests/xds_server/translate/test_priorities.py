"""Regions as priorities: ordered, without gaps, and without excluded regions."""

import pytest

from engine.report import EngineReport, Verdict
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared, with_report
from xds_server.model.memo import Memo
from xds_server.model.type_urls import ENDPOINT, RUNTIME
from xds_server.model.view import View
from xds_server.translate.view_resources import translate


def pool(name, *engines, model="m"):
    """A pool of engines written as ``name region zone revision``."""
    endpoints = ", ".join(
        "{{name: {}, region: {}, zone: {}, revision: '{}', address: 10.0.0.{}, port: 1}}".format(
            *one.split(), number
        )
        for number, one in enumerate(engines)
    )
    return f"kind: EnginePool\nmetadata: {{name: {name}}}\nspec: {{model: {model}, endpoints: [{endpoints}]}}"


def route(more=""):
    return (
        f"kind: ModelRoute\nmetadata: {{name: r}}\nspec: {{listener: {{port: 8080}}, pools: [{{pool: p}}]{more}}}"
    )


def default(spec):
    return f"kind: ResiliencePolicy\nmetadata: {{name: default}}\nspec: {spec}"


THREE = ("e1 eu eu-a 2", "e2 eu eu-b 2", "u1 us us-a 2", "u2 us us-a 3", "a1 ap ap-a 2")


@pytest.fixture
def served(policies):
    """Pool ``p`` for Envoys of a view: priority -> engine -> healthy, and the runtime layer."""

    def made(*documents, view, out=()):
        policy_set = policies(*documents)
        fleet = declared(policy_set)
        for name in out:
            for sequence in (1, 2):
                engine_report = EngineReport(
                    pool="p", engine=name, verdict=Verdict.HUNG, evidence="", observed_at_s=9, sequence=sequence
                )
                fleet = with_report(fleet, engine_report, 9.0)
        proxies = ConnectedProxies(calling_zones=frozenset((view.zone,)))
        decisions, _ = decide(policy_set, fleet, NO_MEMORY, proxies=proxies, now_s=10.0)
        items = translate(policy_set, fleet, decisions, view, Memo())
        assignment = next(one.message for one in items if (one.type_url, one.name) == (ENDPOINT, "p"))
        found: dict[int, dict[str, bool]] = {}
        for locality in assignment.localities:
            for endpoint in locality.endpoints:
                found.setdefault(locality.priority, {})[dict(endpoint.labels)["engine"]] = endpoint.health == 1
        layer = next((one.message.layer.fields for one in items if one.type_url == RUNTIME), {})
        return found, {key: value.number_value for key, value in layer.items() if key.startswith("switchgear.")}

    return made


@pytest.mark.parametrize("view", [View(region="eu", zone="eu-a"), View(zone="eu-a"), View(region="eu", zone="x")])
def test_priority_zero_is_the_own_region(served, view):
    tiers, _ = served(pool("p", *THREE), route(), view=view)
    assert tiers == {0: {"e1": True, "e2": True}, 1: {"u1": True, "a1": True}, 2: {"u2": False}}


def test_ejected_engines_have_the_last_priority_without_gaps(served):
    tiers, _ = served(
        pool("p", *THREE),
        route(),
        default("{regions: {order: [ap]}}"),
        view=View(region="eu"),
        out=("e1", "e2", "a1"),
    )
    assert tiers == {0: {"u1": True}, 1: {"e1": False, "e2": False, "u2": False, "a1": False}}


def test_region_excluded_by_policy_is_unreachable(served):
    standby = default("{regions: {serving: active-standby, order: [us, eu], acrossRevisions: any}}")
    tiers, _ = served(pool("p", *THREE), route(), standby, view=View(region="ap", zone="ap-a"))
    assert tiers == {0: {"u1": True, "u2": True}, 1: {"e1": True, "e2": True}, 2: {"a1": False}}


def test_region_shadow_mode_uses_all_regions(served):
    tiers, _ = served(pool("p", *THREE), route(), default("{regions: {mode: shadow}}"), view=View(region="eu"))
    assert tiers == {0: dict.fromkeys(("e1", "e2", "u1", "u2", "a1"), True)}


@pytest.mark.parametrize(
    ("revision", "model", "across", "takes"),
    [
        ("2.9", "m", "same-major", 200_000_000),
        ("3.0", "m", "same-major", 0),
        ("3.0", "m", "any", 200_000_000),
        ("3.0", "n", "exact", 100),
    ],
)
def test_fallback_of_the_same_model_has_the_same_revision(served, revision, model, across, takes):
    _, layer = served(
        pool("p", "e1 eu eu-a 2.1"),
        pool("q", f"q1 eu eu-a {revision}", model=model),
        route(", fallbacks: [q]"),
        default(f"{{regions: {{acrossRevisions: {across}}}, breaker: {{capacityFloorPercent: 0}}}}"),
        view=View(),
        out=("e1",),
    )
    assert layer["switchgear.route.r.q"] == takes


def test_without_admitted_engines_all_share_one_priority(served):
    everybody = ("e1", "e2", "u1", "u2", "a1")
    tiers, _ = served(pool("p", *THREE), route(), view=View(region="eu"), out=everybody)
    assert tiers == {0: dict.fromkeys(everybody, False)}
