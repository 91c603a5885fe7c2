"""A limited route reaches no endpoint outside its regions, for any policies, fleet and decisions."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from policies.load import load_contents
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import NO_DECISIONS, Decisions, DegradationState, Health
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import Fleet, declared
from xds_server.model.memo import Memo
from xds_server.model.type_urls import CLUSTER, ENDPOINT, ROUTE
from xds_server.model.view import View
from xds_server.translate.envoy_json import as_json
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.translate.view_resources import translate

REGIONS = ("", "eu", "us", "ap")
ZONES = ("", "a", "b")
NAMED = ("eu", "us", "ap")
POOLS = ("one", "two")
# Also labels by which an operator, or anyone allowed to label pods, could let an engine in.
LABELS = some.dictionaries(some.sampled_from(("allowed/eu", "allowed/eu+us", "rack", "engine")), some.just("yes"))

ENGINES = some.lists(
    some.fixed_dictionaries(
        {
            "region": some.sampled_from(REGIONS),
            "zone": some.sampled_from(ZONES),
            "revision": some.sampled_from(("", "1.0", "2.0")),
            "labels": LABELS,
        }
    ),
    max_size=5,
)
ROUTES = some.lists(
    some.fixed_dictionaries(
        {
            "pools": some.sampled_from(([{"pool": "one"}], [{"pool": "two"}], [{"pool": "one"}, {"pool": "two"}])),
            "fallbacks": some.lists(some.sampled_from(POOLS), unique=True),
            "modelChange": some.sampled_from(("disclosed", "opt-in", "never")),
            "sideEffects": some.booleans(),
            "allowedRegions": some.lists(some.sampled_from(NAMED), max_size=3),
        }
    ),
    min_size=1,
    max_size=3,
)
REGIONAL = some.fixed_dictionaries(
    {
        "mode": some.sampled_from(("enforce", "shadow")),
        "serving": some.sampled_from(("active-active", "active-standby")),
        "order": some.lists(some.sampled_from(NAMED), min_size=1, unique=True),
        "acrossRevisions": some.sampled_from(("exact", "same-major", "any")),
    }
)
VIEWS = some.builds(View, zone=some.sampled_from(ZONES), region=some.sampled_from(REGIONS), cuts=some.booleans())


def _without_repeats(spec: dict[str, Any]) -> dict[str, Any]:
    """The route without fallbacks that are also targets."""
    targets = {share["pool"] for share in spec["pools"]}
    return {**spec, "fallbacks": [pool for pool in spec.get("fallbacks", ()) if pool not in targets]}


def policies(engines: Mapping[str, list[dict[str, Any]]], routes: list[dict[str, Any]], regions: Any) -> PolicySet:
    def document(kind: str, name: str, spec: Any) -> str:
        head = {"apiVersion": "switchgear.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}
        return json.dumps({**head, "spec": spec})

    documents = [
        document(
            "EnginePool",
            pool,
            {
                "model": "m",
                "endpoints": [
                    {"name": f"e{number}", "address": f"10.0.{number}.1", "port": 8000, **one}
                    for number, one in enumerate(engines[pool])
                ],
            },
        )
        for pool in POOLS
    ]
    documents += [
        document("ModelRoute", f"r{number}", {"listener": {"port": 8000 + number}, **_without_repeats(one)})
        for number, one in enumerate(routes)
    ]
    documents.append(document("ResiliencePolicy", "default", {"regions": regions}))
    return load_contents({Path("policies.yaml"): "\n---\n".join(documents).encode()})


@some.composite
def decided(draw: Any, policy_set: PolicySet, fleet: Fleet, view: View) -> Decisions:
    """Realistic decisions, then arbitrary ones for single engines, degradation levels and weights."""
    proxies = ConnectedProxies(by_role={"gateway": 1}, calling_zones=frozenset((view.zone, "a")))
    made, _ = decide(policy_set, fleet, NO_MEMORY, proxies=proxies, now_s=10.0)
    engines = {
        key: replace(
            one,
            health=draw(some.sampled_from(Health)),
            traffic_percent=draw(some.sampled_from((10.0, 100.0))),
        )
        for key, one in made.engines.items()
    }
    ladder = DegradationState(
        level=2, reason="", since_s=0.0, fallback_percent=draw(some.sampled_from((0.0, 40.0, 100.0)))
    )
    pools = {
        pool: replace(
            one,
            degradation=ladder,
            engines={key: engines[key] for key in one.engines},
            # Region decisions may be from another round than engine decisions.
            regions=one.regions if draw(some.booleans()) else {},
        )
        for pool, one in made.pools.items()
    }
    return replace(made, engines=engines, pools=pools)


def reached(action: Mapping[str, Any], clusters: Any, endpoints: Any) -> Iterator[Mapping[str, Any]]:
    """Labels of all endpoints that Envoy could choose for this action, in any health.

    An endpoint is reachable if the cluster has no subsets for the route's selection. (Of weights only the largest
    possible set counts: a cluster without traffic may get all of it in the next round.)
    """
    asked = action.get("metadata_match", {}).get("filter_metadata", {}).get("envoy.lb", {})
    names = [one["name"] for one in action.get("weighted_clusters", {}).get("clusters", ())] or [action["cluster"]]
    for name in names:
        if name not in clusters:
            continue
        subsets = clusters[name].get("lb_subset_config", {})
        refuses = any(
            set(one["keys"]) == set(asked) and one["fallback_policy"] == "NO_FALLBACK"
            for one in subsets.get("subset_selectors", ())
        )
        for locality in endpoints[name].get("endpoints", ()):
            for endpoint in locality["lb_endpoints"]:
                labels = endpoint["metadata"]["filter_metadata"]["envoy.lb"]
                any_of = subsets.get("list_as_any", False)
                if not (asked and refuses) or all(
                    value in listed(labels.get(key), any_of) for key, value in asked.items()
                ):
                    yield {**labels, "region": locality["locality"].get("region", "")}


def listed(values: Any, any_of: bool) -> list[Any]:
    """Values under which Envoy finds a label: each of a list, if the cluster declares so."""
    return values if any_of and isinstance(values, list) else [values]


@settings(max_examples=40)
@given(data=some.data())
def test_data_residency_bound_route_reaches_no_outside_endpoint(data: Any) -> None:
    engines = {pool: data.draw(ENGINES, label=pool) for pool in POOLS}
    policy_set = policies(engines, data.draw(ROUTES, label="routes"), data.draw(REGIONAL, label="regions"))
    fleet, memo = declared(policy_set), Memo()
    for view in data.draw(some.lists(VIEWS, min_size=1, max_size=3), label="views"):
        decisions = data.draw(decided(policy_set, fleet, view))
        items = translate(policy_set, fleet, decisions, view, memo)
        found = {
            url: {one.name: as_json(one) for one in items if one.type_url == url} for url in (CLUSTER, ENDPOINT)
        }
        for item in items:
            if item.type_url != ROUTE:
                continue
            for envoy_route in as_json(item)["virtual_hosts"][0]["routes"]:
                route = policy_set.routes.get(envoy_route["name"].split("/")[0])
                inside = set() if route is None else set(route.spec.allowed_regions)
                here = reached(envoy_route["route"], found[CLUSTER], found[ENDPOINT])
                assert not inside or {one["region"] for one in here} <= inside


@settings(max_examples=12)
@given(data=some.data())
def test_newly_bound_route_is_safe_with_old_clusters(data: Any) -> None:
    """A proxy with the new routes, and old clusters and endpoints, refused or not yet updated."""
    engines = {pool: data.draw(ENGINES, label=pool) for pool in POOLS}
    regions = data.draw(REGIONAL, label="regions")
    before, after = (policies(engines, data.draw(ROUTES, label=when), regions) for when in ("before", "after"))
    view = data.draw(VIEWS, label="view")
    had, has = (
        translate(one, fleet, data.draw(decided(one, fleet, view)), view)
        for one in (before, after)
        for fleet in (declared(one),)
    )
    late = {url: data.draw(some.sampled_from((had, has)), label=url) for url in (CLUSTER, ENDPOINT, ROUTE)}
    stays_inside(after if late[ROUTE] is has else before, late)


def stays_inside(bound: PolicySet, known: Mapping[str, Iterable[TranslatedResource]]) -> None:
    """Assert that no limited route leaves its regions, with these clusters, endpoints and routes."""
    found = {url: {one.name: as_json(one) for one in items if one.type_url == url} for url, items in known.items()}
    for configuration in found[ROUTE].values():
        for envoy_route in configuration["virtual_hosts"][0]["routes"]:
            route = bound.routes.get(envoy_route["name"].split("/")[0])
            inside = set() if route is None else set(route.spec.allowed_regions)
            if inside and "route" in envoy_route:
                here = reached(envoy_route["route"], found[CLUSTER], found[ENDPOINT])
                assert {one["region"] for one in here} <= inside


@pytest.mark.parametrize("first", [[], ["us"], ["eu", "us"]])
@pytest.mark.parametrize("late", [(CLUSTER,), (ENDPOINT,), (CLUSTER, ENDPOINT)])
def test_newly_bound_route_needs_no_other_update(late: tuple[str, ...], first: list[str]) -> None:
    engines = {pool: [{"region": region} for region in ("eu", "us", "")] for pool in POOLS}
    before, after = (
        policies(engines, [{"pools": [{"pool": "one"}], "allowedRegions": allowed}], {})
        for allowed in (first, ["eu"])
    )
    had, has = (translate(one, declared(one), NO_DECISIONS, View()) for one in (before, after))
    stays_inside(after, {url: had if url in late else has for url in (CLUSTER, ENDPOINT, ROUTE)})
