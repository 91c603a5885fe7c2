"""Values of production-stack as policies."""

from collections.abc import Callable
from typing import Any

import pytest

Import = Callable[..., Any]

VALUES = """\
servingEngineSpec:
  containerPort: 8100
  modelSpec:
    - name: llama3
      repository: vllm/vllm-openai
      tag: latest
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      replicaCount: 2
      requestCPU: 10
      requestMemory: 16Gi
      requestGPU: 1
      vllmConfig: {maxModelLen: 16384, maxNumSeqs: 32, tensorParallelSize: 1}
"""


def kind(run_import: Import, text: str, *options: str) -> Any:
    return run_import("production-stack", text, *options)


def test_a_model_is_a_pool_behind_its_service_and_a_route(run_import: Import) -> None:
    found = kind(run_import, VALUES, "--namespace", "llm", "--release", "prod", "--strict")
    assert found.status == 0, found.listing
    pool = found.policies.pools["llama3"]
    assert pool.metadata.namespace == "llm"
    assert pool.spec.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert pool.spec.slots_per_engine == 32
    assert pool.spec.kubernetes is not None
    assert (pool.spec.kubernetes.service, pool.spec.kubernetes.port) == ("prod-llama3-engine-service", 8100)
    route = found.policies.routes["llama3"].spec
    assert route.match.model == pool.spec.model
    assert [one.pool for one in route.pools] == ["llama3"]
    assert found.policies.policies["default"].spec.mode == "shadow"


@pytest.mark.parametrize(
    "arguments", ['["--max-num-seqs", "64"]', '["--max-num-seqs=64"]', '["--max_num_seqs 64"]']
)
def test_arguments_of_vllm_win(run_import: Import, arguments: str) -> None:
    text = VALUES.replace("maxNumSeqs: 32", f"extraArgs: {arguments}")
    assert kind(run_import, text).policies.pools["llama3"].spec.slots_per_engine == 64


@pytest.mark.parametrize("slots", ["many", "9" * 5_000, "--seed"])
def test_invalid_slots_are_listed(run_import: Import, slots: str) -> None:
    found = kind(run_import, VALUES.replace("maxNumSeqs: 32", f"extraArgs: [--max-num-seqs, {slots!r}]"))
    assert found.status == 0
    assert "not an integer" in found.listing


def test_the_served_name_is_the_model_and_the_gate_is_known(run_import: Import) -> None:
    arguments = "[--served-model-name, llama, --middleware, first_token_gate.FirstTokenGate]"
    pool = kind(run_import, VALUES.replace("maxNumSeqs: 32", f"extraArgs: {arguments}")).policies.pools["llama3"]
    assert pool.spec.model == "llama"
    assert pool.spec.first_token_gate


def test_pools_of_one_model_share_a_route_by_their_replicas(run_import: Import) -> None:
    second = (
        VALUES.split("modelSpec:\n")[1]
        .replace("llama3", "llama3-big")
        .replace("replicaCount: 2", "replicaCount: 6")
    )
    found = kind(run_import, VALUES + second)
    (route,) = found.policies.routes.values()
    assert {one.pool: one.weight for one in route.spec.pools} == {"llama3": 2, "llama3-big": 6}


def test_static_backends_are_engines(run_import: Import) -> None:
    router = """\
routerSpec:
  serviceDiscovery: static
  staticBackends: http://10.0.0.1:8000,http://10.0.0.2,https://x:1
  staticModels: a/m1,a/m1,a/m1
"""
    found = kind(run_import, router)
    endpoints = found.policies.pools["m1"].spec.endpoints
    assert [(one.address, one.port) for one in endpoints] == [("10.0.0.1", 8000), ("10.0.0.2", 80)]
    assert "https://x:1 omitted" in found.listing


@pytest.mark.parametrize(
    ("added", "path"),
    [
        ("routerSpec: {routingLogic: session}", "routerSpec.routingLogic"),
        ("routerSpec: {sessionKey: x-user}", "routerSpec.sessionKey"),
        ("routerSpec: {serviceDiscovery: static, staticBackends: 'http://a', staticModels: 'a,b'}",
         "routerSpec.staticBackends"),
        ("newThing: {a: 1}", "newThing"),
        ("      enableLoRA: true", "servingEngineSpec.modelSpec[0].enableLoRA"),
        ("      raySpec: {enabled: true}", "servingEngineSpec.modelSpec[0].raySpec"),
        ("  vllmApiKey: secret", "servingEngineSpec.vllmApiKey"),
    ],
)  # fmt: skip
def test_routing_settings_are_imported_or_listed(run_import: Import, added: str, path: str) -> None:
    found = kind(run_import, f"{VALUES}{added}\n", "--strict")
    assert found.said_of(path)
    assert found.status == 1


STAGES = """servingEngineSpec:
  modelSpec:
    - {name: llama-p, modelURL: m, %s}
    - {name: llama-d, modelURL: m, %s}
"""


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("lmcacheConfig: {kvRole: kv_producer}", "lmcacheConfig: {kvRole: kv_consumer}"),
        (
            "lmcacheConfig: {enablePD: true, nixlRole: sender}",
            "lmcacheConfig: {enablePD: true, nixlRole: receiver}",
        ),
        (
            'vllmConfig: {extraArgs: [--kv-transfer-config, \'{"kv_role": "kv_producer"}\']}',
            'vllmConfig: {extraArgs: [\'--kv-transfer-config={"kv_role": "kv_consumer"}\']}',
        ),
    ],
)
def test_prefill_and_decode_become_two_stages(run_import: Import, prefill: str, decode: str) -> None:
    found = kind(run_import, STAGES % (prefill, decode) + "routerSpec: {routingLogic: disaggregated_prefill}\n")
    pools = found.policies.pools
    assert {name: pool.spec.stage for name, pool in pools.items()} == {"llama-p": "prefill", "llama-d": "decode"}
    [route] = found.policies.routes.values()
    assert [share.pool for share in route.spec.pools] == ["llama-d"]
    assert route.spec.prefill is not None
    assert route.spec.prefill.pool == "llama-p"
    assert "routing side-car" in found.said_of("routerSpec.routingLogic")[0]
    assert [one for one in found.listing.splitlines() if "modelSpec[1]" in one and "routing side-car" in one]


def test_engines_that_run_both_stages_have_none(run_import: Import) -> None:
    found = kind(run_import, f"{VALUES}      lmcacheConfig: {{kvRole: kv_both}}\n")
    assert found.policies.pools["llama3"].spec.stage is None


@pytest.mark.parametrize("stated", ["{enablePD: true}", "{kvRole: kv_producer, nixlRole: receiver}"])
def test_engines_of_an_unclear_stage_get_no_requests(run_import: Import, stated: str) -> None:
    found = kind(run_import, f"{VALUES}    - {{name: half, modelURL: m, lmcacheConfig: {stated}}}\n")
    assert list(found.policies.pools) == list(found.policies.routes) == ["llama3"]
    assert "pool omitted" in found.said_of("servingEngineSpec.modelSpec[1]")[0]


def test_prefill_engines_alone_get_no_route(run_import: Import) -> None:
    found = kind(
        run_import, f"{VALUES}    - {{name: half, modelURL: m, lmcacheConfig: {{kvRole: kv_producer}}}}\n"
    )
    assert list(found.policies.routes) == ["llama3"]
    assert "no engines decode" in found.said_of("servingEngineSpec.modelSpec[1]")[0]


def test_engines_of_one_model_with_and_without_stages_stay_apart(run_import: Import) -> None:
    roles = "lmcacheConfig: {kvRole: kv_producer}", "lmcacheConfig: {kvRole: kv_both}"
    found = kind(run_import, STAGES % roles)
    [route] = found.policies.routes.values()
    assert ([share.pool for share in route.spec.pools], route.spec.prefill) == (["llama-d"], None)
    assert "both stages" in found.said_of("servingEngineSpec.modelSpec[0]")[0]


def test_settings_of_pods_are_listed_by_name_and_pass_strict(run_import: Import) -> None:
    found = kind(run_import, VALUES, "--strict")
    assert found.status == 0
    (line,) = [one for one in found.said_of("servingEngineSpec.modelSpec[0]") if "left as is" in one]
    assert line.endswith("stays with the chart: repository, tag, requestCPU, requestMemory, replicaCount")


def test_confidential_values_are_not_shown(run_import: Import) -> None:
    found = kind(run_import, VALUES + "      hf_token: sesame1\n  vllmApiKey: sesame2\n")
    assert "hf_token" in found.listing
    assert "vllmApiKey = (hidden)" in found.listing
    assert "sesame" not in found.listing


def test_engines_that_make_no_completions_are_not_asked_for_one(run_import: Import) -> None:
    found = kind(run_import, VALUES.replace("maxNumSeqs: 32", "runner: pooling"))
    assert not found.policies.pools["llama3"].spec.probe.enabled


def test_disabled_model_is_ignored(run_import: Import) -> None:
    found = kind(run_import, VALUES + "    - {name: mistral, enabled: false, anything: 1}\n", "--strict")
    assert found.status == 0
    assert list(found.policies.pools) == ["llama3"]


def test_values_of_another_chart_are_refused(run_import: Import) -> None:
    found = kind(run_import, "image: {tag: 1}\n")
    assert found.status == 2
    assert not found.text
    assert "neither servingEngineSpec nor routerSpec" in found.listing
