"""Prefill and decode pools: what is refused, where, and what draws a warning."""

from pathlib import Path

import pytest

from policies.findings import PolicyError, PolicyErrors
from policies.lints.lint import lint
from policies.load import load_contents
from policies.model import PolicySet
from policies.remote_prefill import RemotePrefill

HEAD = "---\napiVersion: switchgear.dev/v1alpha1\nkind:"
PREFILL = f"""{HEAD} EnginePool
metadata: {{name: first}}
spec:
  model: m
  stage: prefill
  endpoints: [{{address: 10.0.0.1, port: 80, zone: a}}]
"""
DECODE = f"""{HEAD} EnginePool
metadata: {{name: chat}}
spec:
  model: m
  stage: decode
  endpoints: [{{address: 10.0.0.2, port: 80, zone: a}}]
"""
ROUTE = f"""{HEAD} ModelRoute
metadata: {{name: chat}}
spec:
  listener: {{port: 8080}}
  pools: [{{pool: chat}}]
  prefill: {{pool: first}}
"""


def loaded(*documents: str) -> PolicySet:
    return load_contents({Path("p.yaml"): "".join(documents).encode()})


def refusals(*documents: str) -> list[tuple[str, str, str]]:
    with pytest.raises(PolicyErrors) as caught:
        loaded(*documents)
    found = [one for one in caught.value.exceptions if isinstance(one, PolicyError)]
    return [(one.code, one.path, one.message) for one in found]


def warnings(*documents: str) -> set[tuple[str, str]]:
    stages = ("SG130", "SG152", "SG153", "SG154", "SG155", "SG176")
    return {(one.code, one.path) for one in lint(loaded(*documents)) if one.code in stages}


def test_three_lines_turn_it_on() -> None:
    policies = loaded(PREFILL, DECODE, ROUTE)
    assert policies.routes["chat"].spec.prefill == RemotePrefill(pool="first")
    assert warnings(PREFILL, DECODE, ROUTE) == set()
    plain = [one.replace("  stage: prefill\n", "").replace("  stage: decode\n", "") for one in (PREFILL, DECODE)]
    assert loaded(*plain, ROUTE.replace("  prefill: {pool: first}\n", "")).routes["chat"].spec.prefill is None


@pytest.mark.parametrize("where", ["pools: [{pool: first}]", "pools: [{pool: chat}]\n  fallbacks: [first]"])
def test_no_route_leads_to_prefill_engines(where: str) -> None:
    route = ROUTE.replace("pools: [{pool: chat}]", where).replace("  prefill: {pool: first}\n", "")
    [(code, path, said)] = refusals(PREFILL, DECODE, route)
    assert (code, path) == ("SG047", "spec.fallbacks[0]" if "fallbacks" in where else "spec.pools[0].pool")
    assert "pool first has stage prefill, at p.yaml:7:10" in said


@pytest.mark.parametrize("stage", ["", "  stage: decode\n"])
def test_the_pool_that_prefills_has_the_stage(stage: str) -> None:
    [(code, path, said)] = refusals(PREFILL.replace("  stage: prefill\n", stage), DECODE, ROUTE)
    assert (code, path) == ("SG047", "spec.prefill.pool")
    assert "has no stage: prefill" in said


def test_targets_of_a_route_with_prefill_read_the_header() -> None:
    [(code, path, said)] = refusals(PREFILL, DECODE.replace("  stage: decode\n", ""), ROUTE)
    assert (code, path) == ("SG047", "spec.pools[0].pool")
    assert "has no stage: decode" in said


def test_both_stages_have_one_model() -> None:
    [(code, path, said)] = refusals(PREFILL.replace("model: m", "model: other"), DECODE, ROUTE)
    assert (code, path) == ("SG047", "spec.prefill.pool")
    assert "prefills for model other, and pool chat decodes m" in said


def test_unknown_prefill_pool_is_named() -> None:
    [(code, path, said)] = refusals(DECODE, ROUTE)
    assert (code, path, said) == ("SG031", "spec.prefill.pool", "unknown EnginePool first")


def test_a_decode_pool_has_one_prefill_pool() -> None:
    second = PREFILL.replace("name: first", "name: second").replace("10.0.0.1", "10.0.0.9")
    other = ROUTE.replace("name: chat", "name: other").replace("pool: first", "pool: second")
    other = other.replace("  pools", "  match: {pathPrefix: /b}\n  pools")
    [(code, path, said)] = refusals(PREFILL, second, DECODE, ROUTE, other)
    assert (code, path) == ("SG047", "spec.prefill.pool")
    assert "and first in route chat, at p.yaml:" in said
    # A route without prefill names none.
    assert loaded(PREFILL, DECODE, ROUTE, other.replace("  prefill: {pool: second}\n", ""))


def test_adapters_are_not_prefilled_elsewhere() -> None:
    adapter = ROUTE.replace("  prefill", "  match: {model: sql}\n  adapter: true\n  prefill")
    [(code, path, _)] = refusals(PREFILL, DECODE, adapter)
    assert (code, path) == ("SG040", "spec.prefill")


@pytest.mark.parametrize("percent", ["-1", "101"])
def test_percent_is_a_share(percent: str) -> None:
    [(code, path, _)] = refusals(PREFILL, DECODE, ROUTE.replace("pool: first", f"pool: first, percent: {percent}"))
    assert (code, path) == ("SG026", "spec.prefill.percent")


def test_stages_without_partner_draw_a_warning() -> None:
    alone = ROUTE.replace("  prefill: {pool: first}\n", "")
    assert warnings(PREFILL, DECODE, alone) == {("SG152", "spec.stage")}
    assert len([one for one in lint(loaded(PREFILL, DECODE, alone)) if one.code == "SG152"]) == 2


def test_a_zone_without_prefill_engines_draws_a_warning() -> None:
    far = PREFILL.replace("zone: a", "zone: b")
    assert warnings(far, DECODE, ROUTE) == {("SG153", "spec.endpoints")}
    found = PREFILL.replace(
        "endpoints: [{address: 10.0.0.1, port: 80, zone: a}]", "kubernetes: {service: p, port: 80}"
    )
    assert warnings(found, DECODE, ROUTE) == set()


def test_hedges_draw_a_warning() -> None:
    hedging = "{pools: [chat], hedging: {enabled: true, delay: 2s}}"
    hedged = f"{HEAD} ResiliencePolicy\nmetadata: {{name: chat}}\nspec: {hedging}\n"
    assert warnings(PREFILL, DECODE, ROUTE, hedged) == {("SG154", "spec.prefill")}


@pytest.mark.parametrize(("agent", "expected"), [("", {("SG155", "spec.stage")}), (", agentPort: 9000", set())])
def test_unread_prefill_engines_draw_a_warning(agent: str, expected: set[tuple[str, str]]) -> None:
    unread = PREFILL.replace("spec:\n", "spec:\n  probe: {enabled: false}\n").replace(
        "port: 80", f"port: 80{agent}"
    )
    assert warnings(unread, DECODE, ROUTE) == expected


@pytest.mark.parametrize(("gate", "expected"), [("", {("SG176", "spec.prefill.whileFaster")}), ("true", set())])
def test_comparison_without_first_tokens_draws_a_warning(gate: str, expected: set[tuple[str, str]]) -> None:
    decode = DECODE.replace("spec:\n", "spec:\n  firstTokenGate: true\n") if gate else DECODE
    route = ROUTE.replace("{pool: first}", "{pool: first, whileFaster: true}")
    assert warnings(PREFILL, decode, route) == expected


def test_first_token_gate_is_asked_for_where_proxies_connect() -> None:
    timeouts = "{timeouts: {streaming: {firstToken: 30s}}}"
    limited = f"{HEAD} ResiliencePolicy\nmetadata: {{name: default}}\nspec: {timeouts}\n"
    found = [one.message for one in lint(loaded(PREFILL, DECODE, ROUTE, limited)) if one.code == "SG108"]
    assert len(found) == 1
    assert found[0].startswith("pool chat:")
