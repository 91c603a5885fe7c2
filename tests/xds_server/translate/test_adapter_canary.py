"""The canary of an adapter: copies of its routes that go first, only while engines can serve them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from policies.findings import PolicyErrors
from policies.load import load_contents
from policies.model import PolicySet
from tests.xds_server.translate.test_engine_selection import POLICY, having, resources
from xds_server.model.type_urls import CLUSTER, ENDPOINT, LISTENER, ROUTE

ADAPTER = "  adapter: true\n"
CANARY = "  adapterCanary: {name: v2, percent: 0.5}\n"
BOTH: Mapping[str, tuple[str, ...] | None] = {"p/e0": ("sql", "v2"), "p/e1": ("sql",)}


def loaded(more: str) -> PolicySet:
    return load_contents({Path("p.yaml"): (POLICY + more).encode()})


def of_port(read: PolicySet, having_: Mapping[str, tuple[str, ...] | None] = BOTH) -> list[dict[str, Any]]:
    [found] = resources(read, having(read, having_), ROUTE).values()
    routes: list[dict[str, Any]] = found["virtual_hosts"][0]["routes"]
    return routes


def test_copies_precede_their_routes_and_differ_in_share_engines_and_model() -> None:
    routes = of_port(loaded(ADAPTER + CANARY))
    named = {one.get("name", ""): one for one in routes}
    pairs = [(at, f"{name}/canary") for at, name in enumerate(named) if f"{name}/canary" in named]
    assert len(pairs) == 4, "streams and others, each of them with requests that must not run twice"
    for at, name in pairs:
        usual, canary = routes[at], named[name]
        assert routes[at - 1] is canary
        share = canary["match"].pop("runtime_fraction")["default_value"]
        assert share == {"numerator": 5000, "denominator": "MILLION"}
        assert canary["match"] == usual["match"]
        labels = [one["route"]["metadata_match"]["filter_metadata"]["envoy.lb"] for one in (usual, canary)]
        assert labels == [{"allowed/*": "adapter=sql"}, {"allowed/*": "adapter=v2"}]
        assert "v2" in str(canary["typed_per_filter_config"])
        assert "v2" not in str(usual)


def test_endpoints_carry_both_entries_and_clusters_none() -> None:
    plain, read = loaded(ADAPTER), loaded(ADAPTER + CANARY)
    for url in (CLUSTER, LISTENER):
        assert resources(read, having(read, BOTH), url) == resources(plain, having(plain, BOTH), url)
    endpoints = str(resources(read, having(read, BOTH), ENDPOINT)["p"])
    assert endpoints.count("adapter=sql") == 2
    assert endpoints.count("adapter=v2") == 1


@pytest.mark.parametrize(
    ("adapters", "more", "served"),
    [
        (BOTH, "", True),
        ({"p/e0": ("sql",), "p/e1": ("sql",)}, "", False),
        ({"p/e0": ("sql",), "p/e1": None}, "", True),
        ({**BOTH, "same/s": ("sql",)}, "  fallbacks: [same]\n", False),
        ({**BOTH, "same/s": ("v2",)}, "  fallbacks: [same]\n", True),
        (BOTH, "  fallbacks: [small]\n  modelChange: disclosed\n", True),
    ],
    ids=["one engine", "none", "unknown", "fallback without it", "fallback with it", "fallback of another model"],
)
def test_canary_needs_an_engine_in_each_pool_of_the_model(
    adapters: Mapping[str, tuple[str, ...] | None], more: str, served: bool
) -> None:
    names = [one.get("name", "") for one in of_port(loaded(ADAPTER + CANARY + more), adapters)]
    assert any(name.endswith("/canary") for name in names) is served


def test_without_a_canary_no_byte_differs() -> None:
    plain, read = loaded(ADAPTER), loaded(ADAPTER + CANARY)
    nowhere: Mapping[str, tuple[str, ...] | None] = {"p/e0": ("sql",), "p/e1": ("sql",)}
    for url in (CLUSTER, ENDPOINT, LISTENER, ROUTE):
        assert resources(read, having(read, nowhere), url) == resources(plain, having(plain, nowhere), url)


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        (CANARY, "adapter: true"),
        (ADAPTER + CANARY.replace("v2", "sql"), "new adapter"),
        (ADAPTER + CANARY + "  affinity: {header: x-s, mode: strict}\n", "soft"),
    ],
)
def test_senseless_canaries_are_refused(more: str, hint: str) -> None:
    with pytest.raises(PolicyErrors) as caught:
        loaded(more)
    [found] = caught.value.exceptions
    assert (found.code, found.path) == ("SG040", "spec.adapterCanary")
    assert hint in found.hint


def test_canary_is_not_for_fields_in_headers() -> None:
    text = POLICY.replace("listener: {port: 80}", "listener: {port: 80, requestFields: headers}")
    with pytest.raises(PolicyErrors) as caught:
        load_contents({Path("p.yaml"): (text + ADAPTER + CANARY).encode()})
    assert [(one.code, one.path) for one in caught.value.exceptions] == [("SG040", "spec.adapterCanary")]
