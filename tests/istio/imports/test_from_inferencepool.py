"""InferencePools, related objects and HTTPRoutes as policies."""

from collections.abc import Callable
from typing import Any

import pytest

Import = Callable[..., Any]

POOL = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: qwen, namespace: llm}
spec:
  targetPorts: [{number: 8000}]
  selector: {matchLabels: {app: qwen}}
  endpointPickerRef: {name: qwen-epp, port: {number: 9002}, failureMode: FailOpen}
"""
OLD_POOL = """\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: qwen, namespace: llm}
spec:
  targetPortNumber: 8000
  selector: {app: qwen}
  extensionRef: {name: qwen-epp}
"""
ROUTE = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: front, namespace: llm}
spec:
  rules:
"""
TO_POOL = "      backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: qwen}]\n"


def model(criticality: str, targets: str = "[]") -> str:
    return f"""\
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {{name: chat, namespace: llm}}
spec: {{modelName: Qwen/Qwen3, criticality: {criticality}, poolRef: {{name: qwen}}, targetModels: {targets}}}
"""


@pytest.mark.parametrize("text", [POOL, OLD_POOL])
def test_a_pool_is_its_pods(run_import: Import, text: str) -> None:
    found = run_import("inferencepool", text, "--model", "qwen=Qwen/Qwen3")
    pool = found.policies.pools["qwen"]
    assert pool.metadata.namespace == "llm"
    assert pool.spec.kubernetes.selector == {"app": "qwen"}
    assert pool.spec.kubernetes.port == 8000
    assert found.policies.routes["qwen"].spec.match.model == "Qwen/Qwen3"
    assert "Switchgear chooses engines" in found.listing


@pytest.mark.parametrize(("criticality", "priority"), [("Critical", "interactive"), ("Sheddable", "batch")])
def test_a_model_is_a_route_of_a_class(run_import: Import, criticality: str, priority: str) -> None:
    found = run_import("inferencepool", POOL + model(criticality))
    assert found.policies.pools["qwen"].spec.model == "Qwen/Qwen3"
    route = found.policies.routes["chat"].spec
    assert (route.match.model, route.priority) == ("Qwen/Qwen3", priority)


def test_a_model_under_another_name_has_no_route(run_import: Import) -> None:
    found = run_import("inferencepool", POOL + model("Critical", "[{name: Qwen/Qwen3-lora, weight: 1}]"))
    assert not found.policies.routes
    assert found.said_of("spec.targetModels[0]")


def test_an_objective_below_zero_is_batch(run_import: Import) -> None:
    objective = """\
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: nightly, namespace: llm}
spec: {priority: -10, poolRef: {name: qwen}}
"""
    route = run_import("inferencepool", POOL + objective).policies.routes["nightly"].spec
    assert route.priority == "batch"
    assert [(one.name, one.exact) for one in route.match.headers] == [("x-gateway-inference-objective", "nightly")]


def test_an_http_route_is_routes_and_times_and_retries_of_its_pools(run_import: Import) -> None:
    rule = (
        "    - matches: [{path: {type: Exact, value: /v1/models}, method: GET},"
        " {headers: [{name: X-Gateway-Model-Name, value: m}]}]\n"
        + TO_POOL
        + "      timeouts: {request: 30s, backendRequest: 10s}\n"
        "      retry: {attempts: 4, codes: [500, 503], backoff: 100ms}\n"
    )
    found = run_import("inferencepool", POOL + ROUTE + rule)
    first, second = (found.policies.routes[name].spec.match for name in ("front", "front-2"))
    assert [(one.name, one.exact or one.regex) for one in first.headers] == [
        (":path", r"/v1/models(\?.*)?"),
        (":method", "GET"),
    ]
    assert (second.model, second.headers) == ("m", ())
    policy = found.policies.effective["qwen"]
    assert (policy.timeouts.non_streaming.total, policy.timeouts.non_streaming.per_try) == (30.0, 10.0)
    assert (policy.retries.attempts, policy.retries.statuses, policy.retries.backoff.base) == (4, (500, 503), 0.1)


def test_weights_and_services(run_import: Import) -> None:
    rule = (
        "    - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: qwen, weight: 9},"
        " {name: svc, port: 80}]\n"
    )
    found = run_import("inferencepool", POOL + ROUTE + rule)
    assert {one.pool: one.weight for one in found.policies.routes["front"].spec.pools} == {"qwen": 9, "svc": 1}
    assert found.policies.pools["svc"].spec.kubernetes.service == "svc"


@pytest.mark.parametrize(
    "rule",
    [
        "    - matches: [{queryParams: [{name: a, value: b}]}]\n" + TO_POOL,
        "    - matches: [{headers: [{name: a, value: b, type: Odd}]}]\n" + TO_POOL,
        "    - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: nosuch}]\n",
        "    - filters: [{type: RequestRedirect}]\n",
    ],
)
def test_unsupported_rule_is_omitted(run_import: Import, rule: str) -> None:
    found = run_import("inferencepool", POOL + ROUTE + rule)
    assert not found.policies.routes
    assert "omitted" in found.listing or "no backendRefs" in found.listing


def test_the_port_of_a_parent_is_where_envoys_listen(run_import: Import) -> None:
    parent = ROUTE.replace("  rules:", "  parentRefs: [{name: gw, port: 8080}]\n  rules:")
    found = run_import(
        "inferencepool", POOL + parent + "    - matches: []\n" + TO_POOL + "    - matches: [{}]\n" + TO_POOL
    )
    assert {one.spec.listener.port for one in found.policies.routes.values()} == {8080}
