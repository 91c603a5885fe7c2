"""Routes to adapters select engines that have them, and the rest of the configuration does not see it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.report import EngineReport, Verdict
from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decisions import NO_DECISIONS, Decisions, EngineDecision, Health
from xds_server.model.fleet import EngineId, Fleet, declared, with_report
from xds_server.model.memo import Memo
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE, RUNTIME
from xds_server.model.view import View
from xds_server.translate.envoy_json import as_json
from xds_server.translate.view_resources import translate

V1 = "apiVersion: switchgear.dev/v1alpha1\nkind:"
POLICY = f"""
{V1} EnginePool
metadata: {{name: p}}
spec:
  model: base
  endpoints:
    - {{name: e0, address: 10.0.0.1, port: 80, region: eu}}
    - {{name: e1, address: 10.0.0.2, port: 80, region: us}}
---
{V1} EnginePool
metadata: {{name: same}}
spec: {{model: base, endpoints: [{{name: s, address: 10.0.0.3, port: 80}}]}}
---
{V1} EnginePool
metadata: {{name: small}}
spec: {{model: small, endpoints: [{{name: t, address: 10.0.0.4, port: 80}}]}}
---
{V1} ModelRoute
metadata: {{name: r}}
spec:
  listener: {{port: 80}}
  match: {{model: sql}}
  pools: [{{pool: p}}]
"""


def policies(more: str = "  adapter: true\n") -> PolicySet:
    return load_contents({Path("p.yaml"): (POLICY + more).encode()})


def having(read: PolicySet, adapters: Mapping[str, tuple[str, ...] | None]) -> Fleet:
    fleet = declared(read)
    for key, names in adapters.items():
        pool, engine = key.split("/")
        report = EngineReport(
            pool=pool,
            engine=engine,
            verdict=Verdict.READY,
            evidence="",
            observed_at_s=0.0,
            sequence=1,
            adapters=names,
        )
        fleet = with_report(fleet, report, 0.0)
    return fleet


def resources(
    read: PolicySet, fleet: Fleet, url: str, decisions: Decisions = NO_DECISIONS, memo: Memo | None = None
) -> dict[str, Any]:
    items = translate(read, fleet, decisions, View(), memo)
    return {one.name: as_json(one) for one in items if one.type_url == url}


def labels(read: PolicySet, fleet: Fleet, memo: Memo | None = None) -> dict[str, list[str]]:
    """The sets that each engine of pool p is in."""
    places = resources(read, fleet, ENDPOINT, memo=memo)["p"]["endpoints"]
    found = [one["metadata"]["filter_metadata"]["envoy.lb"] for place in places for one in place["lb_endpoints"]]
    return {one["engine"]: one.get("allowed/*", []) for one in found}


def live(read: PolicySet, fleet: Fleet, decisions: Decisions = NO_DECISIONS) -> dict[str, int]:
    [layer] = resources(read, fleet, RUNTIME, decisions).values()
    return {key.rpartition(".")[2]: value for key, value in layer["layer"].items() if ".route.r." in key}


def replies(read: PolicySet, fleet: Fleet, decisions: Decisions = NO_DECISIONS) -> str:
    return str(resources(read, fleet, ROUTE, decisions))


def out(*engines: str) -> Decisions:
    gone = EngineDecision(health=Health.UNHEALTHY, reason="", since_s=0.0)
    return replace(NO_DECISIONS, engines={EngineId(*one.split("/")): gone for one in engines})


def test_engines_that_list_the_adapter_are_selected() -> None:
    read = policies()
    assert labels(read, having(read, {"p/e0": ("other", "sql"), "p/e1": ("other",)})) == {
        "e0": ["adapter=sql"],
        "e1": [],
    }


@pytest.mark.parametrize("adapters", [{}, {"p/e0": None, "p/e1": None}])
def test_unknown_engines_may_have_each_adapter(adapters: dict[str, None]) -> None:
    read = policies()
    fleet = having(read, adapters)
    assert labels(read, fleet) == {"e0": ["adapter=sql"], "e1": ["adapter=sql"]}
    assert "no-engine-with-adapter" not in replies(read, fleet)


def test_adapter_in_regions_needs_both() -> None:
    read = policies("  adapter: true\n  allowedRegions: [eu]\n")
    fleet = having(read, {"p/e0": ("sql",), "p/e1": ("sql",)})
    assert labels(read, fleet) == {"e0": ["eu", "eu adapter=sql"], "e1": []}
    assert "'allowed/*': 'eu adapter=sql'" in replies(read, fleet)
    away = having(read, {"p/e0": (), "p/e1": ("sql",)})
    assert labels(read, away) == {"e0": ["eu"], "e1": []}
    assert "no-engine-with-adapter" in replies(read, away)


def test_lost_adapter_changes_endpoints_alone_while_an_engine_has_it() -> None:
    read, memo = policies(), Memo()
    both, one = having(read, {"p/e0": ("sql",), "p/e1": ("sql",)}), having(read, {"p/e0": (), "p/e1": ("sql",)})
    assert labels(read, both, memo) == {"e0": ["adapter=sql"], "e1": ["adapter=sql"]}
    assert labels(read, one, memo) == {"e0": [], "e1": ["adapter=sql"]}
    for url in (CLUSTER, ROUTE, RUNTIME, LISTENER):
        assert resources(read, both, url) == resources(read, one, url)


def test_clusters_are_those_of_a_route_to_a_model() -> None:
    with_adapter, without = policies(), policies("")
    for url in (CLUSTER, LISTENER):
        assert resources(with_adapter, declared(with_adapter), url) == resources(without, declared(without), url)
    fleet = having(without, {"p/e0": ("sql",), "p/e1": ()})
    for url in (ENDPOINT, ROUTE, RUNTIME):
        assert resources(without, fleet, url) == resources(without, declared(without), url), "adapters are ignored"


def test_without_an_engine_in_rotation_that_has_it_callers_get_a_reason() -> None:
    read = policies()
    fleet = having(read, {"p/e0": ("sql",), "p/e1": ()})
    assert "no-engine-with-adapter" not in replies(read, fleet)
    said = replies(read, fleet, out("p/e0"))
    assert "no-engine-with-adapter" in said
    assert "no engine that has the adapter sql is available now" in said
    assert "no-engine-with-adapter" not in replies(read, fleet, out("p/e1"))


def test_fallback_with_the_adapter_serves_when_no_target_has_it() -> None:
    read = policies("  adapter: true\n  fallbacks: [same]\n")
    here = having(read, {"p/e0": ("sql",), "p/e1": (), "same/s": ("sql",)})
    assert live(read, here)["p"] > live(read, here)["same"]
    gone = having(read, {"p/e0": (), "p/e1": (), "same/s": ("sql",)})
    assert live(read, gone)["same"] > live(read, gone)["p"]
    nowhere = having(read, {"p/e0": (), "p/e1": (), "same/s": ()})
    assert "no-engine-with-adapter" in replies(read, nowhere)


def test_fallback_with_another_model_needs_no_adapter() -> None:
    read = policies("  adapter: true\n  fallbacks: [small]\n  modelChange: disclosed\n")
    gone = having(read, {"p/e0": (), "p/e1": (), "small/t": ()})
    assert live(read, gone) == {"p": 0, "small": 100}
    [routes] = resources(read, gone, ROUTE).values()
    [route] = [one for one in routes["virtual_hosts"][0]["routes"] if one["name"] == "r/non-streaming"]
    assert "metadata_match" not in route["route"]
    shares = {one["name"]: one for one in route["route"]["weighted_clusters"]["clusters"]}
    assert shares["p"]["metadata_match"]["filter_metadata"]["envoy.lb"] == {"allowed/*": "adapter=sql"}
    assert "metadata_match" not in shares["small"]
