"""Export to the Gateway API, and the reported outcome of each field."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from istio.fidelity import FieldFidelity
from istio.gateway_api.gateway_export import export_to_gateway_api
from istio.gateway_api.gateway_fields import JUDGES
from istio.gateway_api.gateway_objects import GatewayTarget
from policies.fidelity import Fidelity
from policies.load import load, load_contents
from policies.model import PolicySet
from policies.schema import leaf_targets, leaves
from xds_server.cli import main

EXAMPLES = Path(__file__).parents[3] / "policies" / "examples"
POOL = """\
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
"""
ROUTE = """\
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: front}
spec:
  listener: {port: 8080}
  pools: [{pool: chat}]
"""
ENGINES = "  endpoints: [{address: 10.0.0.1, port: 8000}, {address: 10.0.0.2, port: 8000}]\n"


def policies(*parts: str) -> PolicySet:
    return load_contents({Path("policy.yaml"): "".join(parts).encode()})


def policy(spec: str) -> str:
    heading = "---\napiVersion: switchgear.dev/v1alpha1\nkind: ResiliencePolicy\nmetadata: {name: default}\n"
    return f"{heading}spec: {spec}\n"


def objects(said: PolicySet, site: GatewayTarget | None = None) -> dict[str, Any]:
    """The last object of each kind."""
    return {str(one["kind"]): one for one in export_to_gateway_api(said, site or GatewayTarget()).objects}


def fates(said: PolicySet, site: GatewayTarget | None = None) -> dict[str, FieldFidelity]:
    return {
        f"{one.document.partition('/')[0]} {one.path}": one
        for one in export_to_gateway_api(said, site or GatewayTarget()).fields
    }


NAMED = "  endpoints: [{address: E1.example.com, port: 8000}, {address: e2.example.com, port: 8000}]\n"
SPIFFE = ", ".join(f"spiffe://x/{number}" for number in range(6))


@pytest.mark.parametrize(
    ("pool", "target", "hostname", "alternatives"),
    [
        (
            ENGINES + "  tls: {secret: engines, serverName: Engine.example.com}\n",
            "chat-ip",
            "engine.example.com",
            None,
        ),
        (
            NAMED + "  tls: {secret: engines}\n",
            "chat-fqdn",
            "chat-fqdn.default.svc",
            [
                {"type": "Hostname", "hostname": "e1.example.com"},
                {"type": "Hostname", "hostname": "e2.example.com"},
            ],
        ),
        (
            "  kubernetes: {service: vllm, port: 8000}\n"
            f"  tls: {{secret: engines, subjectAltNames: [{SPIFFE}]}}\n",
            "vllm",
            "vllm.default.svc",
            [{"type": "URI", "uri": f"spiffe://x/{number}"} for number in range(5)],
        ),
    ],
    ids=["one-name", "names-of-their-own", "too-many-names"],
)
def test_backend_of_tls_engines_never_gets_plain_text(
    pool: str, target: str, hostname: str, alternatives: object
) -> None:
    found = export_to_gateway_api(policies(POOL, pool, ROUTE), GatewayTarget()).objects
    kinds = [str(one["kind"]) for one in found]
    said: Any = found[kinds.index("BackendTLSPolicy")]["spec"]
    assert kinds.index("BackendTLSPolicy") < kinds.index("HTTPRoute")
    assert [one["name"] for one in said["targetRefs"]] == [target]
    assert said["validation"]["hostname"] == hostname
    assert said["validation"].get("subjectAltNames") == alternatives
    assert said["validation"]["caCertificateRefs"] == [{"group": "", "kind": "ConfigMap", "name": "engines"}]


@pytest.mark.parametrize(
    ("tls", "path", "fate"),
    [
        ("{secret: engines, serverName: e.example.com}", "secret", Fidelity.APPROXIMATED),
        ("{secret: engines, serverName: e.example.com}", "serverName", Fidelity.EXACT),
        ("{secret: engines, subjectAltNames: [e.example.com]}", "serverName", Fidelity.LOST),
        ("{secret: engines, subjectAltNames: [e.example.com]}", "subjectAltNames", Fidelity.EXACT),
        (f"{{secret: engines, subjectAltNames: [{SPIFFE}]}}", "subjectAltNames", Fidelity.LOST),
        ("{secret: engines, subjectAltNames: [spiffe://x/*]}", "subjectAltNames", Fidelity.LOST),
    ],
)
def test_tls_outcome_depends_on_its_fields(tls: str, path: str, fate: Fidelity) -> None:
    assert fates(policies(POOL, ENGINES, f"  tls: {tls}\n", ROUTE))[f"EnginePool spec.tls.{path}"].fate is fate


@pytest.mark.parametrize("kind", ["EnginePool", "ModelRoute", "ResiliencePolicy"])
def test_only_fields_that_exist_have_judges(kind: str) -> None:
    assert set(JUDGES[kind]) <= leaf_targets(kind).keys()


def test_every_field_of_every_document_is_listed() -> None:
    said = load([EXAMPLES / "flagship-with-fallback.yaml"])
    found = {(one.document, one.path) for one in export_to_gateway_api(said, GatewayTarget()).fields}
    for doc in leaves("ModelRoute"):
        if not doc.path.startswith(
            (
                "spec.match.headers",
                "spec.listener.tls",
                "spec.listener.accessLogCollector",
                "spec.listener.deadline",
                "spec.listener.jwt",
                "spec.listener.extAuth",
                "spec.listener.tenants",
            )
        ):
            assert ("ModelRoute/flagship", doc.path) in found
    assert len(found) == len(export_to_gateway_api(said, GatewayTarget()).fields)


def test_pods_with_labels_are_an_inference_pool() -> None:
    said = policies(POOL, "  kubernetes: {selector: {app: vllm}, port: 8100}\n", ROUTE)
    found = objects(said, GatewayTarget(picker="epp-of-{pool}", picker_port=9009))
    assert found["InferencePool"]["spec"] == {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8100}],
        "endpointPickerRef": {
            "kind": "Service",
            "name": "epp-of-chat",
            "port": {"number": 9009},
            "failureMode": "FailOpen",
        },
    }
    (ref,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (ref["group"], ref["kind"], ref["name"]) == ("inference.networking.k8s.io", "InferencePool", "chat")


def test_a_service_is_a_backend_as_it_is() -> None:
    said = policies(POOL, "  kubernetes: {service: engines, port: 8000}\n", ROUTE)
    found = objects(said)
    assert "InferencePool" not in found
    (ref,) = found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert (ref["kind"], ref["name"], ref["port"]) == ("Service", "engines", 8000)


def test_engines_by_hand_are_a_backend_or_slices() -> None:
    few = objects(policies(POOL, ENGINES, ROUTE))
    assert few["Backend"]["spec"]["endpoints"][0] == {"ip": {"address": "10.0.0.1", "port": 8000}}
    plain = objects(policies(POOL, ENGINES, ROUTE), GatewayTarget(plain=True))
    assert "Backend" not in plain
    assert [one["addresses"] for one in plain["EndpointSlice"]["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    zoned = objects(policies(POOL, ENGINES.replace("port: 8000}]", "port: 8000, zone: a}]"), ROUTE))
    assert [one.get("zone") for one in zoned["EndpointSlice"]["endpoints"]] == [None, "a"]


def test_parts_of_a_pool_have_shares_by_their_slots() -> None:
    by_name = "{address: gpu.example.com, port: 8000, slots: 10}"
    mixed = f"  endpoints: [{{address: 10.0.0.1, port: 8000, slots: 30}}, {by_name}]\n"
    refs = objects(policies(POOL, mixed, ROUTE))["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert [(one["name"], one["weight"]) for one in refs] == [("chat-ip", 75), ("chat-fqdn", 25)]


def test_unsupported_route_is_omitted_and_reported() -> None:
    said = policies(POOL, ENGINES, ROUTE, "  match: {headers: [{name: x-a, present: false}]}\n")
    assert "HTTPRoute" not in objects(said)
    found = fates(said)["ModelRoute spec.pools[].pool"]
    assert (found.fate, found.set_by) == (Fidelity.LOST, "policy.yaml:13")
    assert "cannot match the absence of x-a" in found.how


def test_route_for_large_requests_is_left_out() -> None:
    said = policies(POOL, ENGINES, ROUTE, "  match: {tokensAbove: 4000}\n")
    assert "HTTPRoute" not in objects(said)
    assert fates(said)["ModelRoute spec.match.tokensAbove"].fate is Fidelity.LOST
    assert fates(policies(POOL, ENGINES, ROUTE))["ModelRoute spec.match.tokensAbove"].fate is Fidelity.EXACT


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("{timeouts: {nonStreaming: {byTokens: {enabled: true}}}}", "timeouts.nonStreaming.byTokens.enabled"),
        ("{retries: {large: {tokensAbove: 4000}}}", "retries.large.attempts"),
        ("{hedging: {enabled: true, delay: 1s, maxTokens: 4000}}", "hedging.maxTokens"),
    ],
)
def test_limits_by_size_are_lost_where_they_are_set(spec: str, path: str) -> None:
    said = fates(policies(POOL, ENGINES, ROUTE, policy(spec)))
    assert said[f"ResiliencePolicy spec.{path}"].fate is Fidelity.LOST
    unset = fates(policies(POOL, ENGINES, ROUTE, policy("{}")))
    assert unset[f"ResiliencePolicy spec.{path}"].fate is Fidelity.EXACT


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ("{pathPrefix: /v1}", {"path": {"type": "PathPrefix", "value": "/v1"}}),
        ("{pathPrefix: //x}", {"path": {"type": "RegularExpression", "value": "//x.*"}}),
        (
            "{headers: [{name: X-A, exact: b}, {name: ':method', exact: POST}]}",
            {"method": "POST", "headers": [{"name": "X-A", "type": "Exact", "value": "b"}]},
        ),
        (
            "{headers: [{name: a, prefix: b.}, {name: c, present: true}]}",
            {
                "headers": [
                    {"name": "a", "type": "RegularExpression", "value": r"b\..*"},
                    {"name": "c", "type": "RegularExpression", "value": ".*"},
                ]
            },
        ),
        ("{model: m}", {"headers": [{"name": "x-gateway-model-name", "type": "Exact", "value": "m"}]}),
    ],
)
def test_matches(match: str, expected: dict[str, Any]) -> None:
    found = objects(policies(POOL, ENGINES, ROUTE, f"  match: {match}\n"))["HTTPRoute"]["spec"]["rules"][0][
        "matches"
    ]
    assert found == [{"path": {"type": "PathPrefix", "value": "/"}, **expected}]


def test_a_body_is_lost_and_any_model_is_not() -> None:
    assert fates(policies(POOL, ENGINES, ROUTE))["ModelRoute spec.match.model"].fate is Fidelity.EXACT
    asked = policies(POOL, ENGINES, ROUTE, "  match: {model: m}\n")
    assert fates(asked)["ModelRoute spec.match.model"].fate is Fidelity.LOST


def test_stated_fields_are_conditions_on_their_headers() -> None:
    stated = ROUTE.replace("listener: {", "listener: {requestFields: headers, ")
    asked = policies(POOL, ENGINES, stated, "  match: {model: m, stream: true}\n")
    [found] = objects(asked)["HTTPRoute"]["spec"]["rules"][0]["matches"]
    assert found["headers"] == [
        {"name": "x-switchgear-model", "type": "Exact", "value": "m"},
        {"name": "x-switchgear-stream", "type": "Exact", "value": "true"},
    ]
    fields = ("listener.requestFields", "match.model", "match.stream")
    assert [fates(asked)[f"ModelRoute spec.{field}"].fate for field in fields] == [
        Fidelity.APPROXIMATED,
        Fidelity.EXACT,
        Fidelity.APPROXIMATED,
    ]


def test_time_limits_are_those_of_the_requests_that_match() -> None:
    said = policy("{timeouts: {streaming: {total: 20m}, nonStreaming: {total: 2m, perTry: 3m}}}")
    for match, expected in (
        ("{}", {"request": "20m"}),
        ("{stream: true}", {"request": "20m"}),
        ("{stream: false}", {"request": "2m", "backendRequest": "2m"}),
    ):
        found = objects(policies(POOL, ENGINES, ROUTE, f"  match: {match}\n", said), GatewayTarget(plain=True))
        assert found["HTTPRoute"]["spec"]["rules"][0]["timeouts"] == expected


def test_retries_are_exported_where_supported() -> None:
    said = policy("{retries: {attempts: 2, statuses: [500], backoff: {base: 10ms, max: 1s}}}")
    with_policy = objects(policies(POOL, ENGINES, ROUTE, said))
    assert "retry" not in with_policy["HTTPRoute"]["spec"]["rules"][0]
    assert with_policy["BackendTrafficPolicy"]["spec"]["retry"] == {
        "numRetries": 2,
        "retryOn": {
            "triggers": ["connect-failure", "refused-stream", "reset", "retriable-status-codes"],
            "httpStatusCodes": [500],
        },
        "perRetry": {"backOff": {"baseInterval": "10ms", "maxInterval": "1s"}},
    }
    plain = objects(policies(POOL, ENGINES, ROUTE, said), GatewayTarget(plain=True))
    assert "retry" not in plain["HTTPRoute"]["spec"]["rules"][0]
    assert "BackendTrafficPolicy" not in plain
    channel = GatewayTarget(plain=True, experimental=True)
    retry = objects(policies(POOL, ENGINES, ROUTE, said), channel)["HTTPRoute"]["spec"]["rules"][0]["retry"]
    assert retry == {"attempts": 2, "codes": [500], "backoff": "10ms"}
    never = policies(POOL, ENGINES, ROUTE, policy("{retries: {attempts: 0}}"))
    assert "retry" not in objects(never, channel)["HTTPRoute"]["spec"]["rules"][0]


@pytest.mark.parametrize("path", ["spec.retries.attempts", "spec.retries.statuses"])
def test_retries_are_reported_lost_without_the_experimental_channel(path: str) -> None:
    said = policies(POOL, ENGINES, ROUTE, policy("{retries: {attempts: 2, statuses: [500]}}"))
    for experimental, fate in ((False, Fidelity.LOST), (True, Fidelity.APPROXIMATED)):
        site = GatewayTarget(plain=True, experimental=experimental)
        assert fates(said, site)[f"ResiliencePolicy {path}"].fate is fate


def test_non_idempotent_requests_are_retried_only_before_sending() -> None:
    found = objects(policies(POOL, ENGINES, ROUTE, "  sideEffects: true\n"))["BackendTrafficPolicy"]["spec"][
        "retry"
    ]
    assert found["retryOn"] == {"triggers": ["connect-failure", "refused-stream"]}


def test_empty_retry_conditions_disable_envoy_gateway_retries() -> None:
    said = policy("{retries: {conditions: [], statuses: []}}")
    found = objects(policies(POOL, ENGINES, ROUTE, said))["BackendTrafficPolicy"]["spec"]["retry"]
    assert found == {"numRetries": 0}


def test_envoy_gateway_gets_the_limit_of_a_try_once_and_the_whole_limit_stays() -> None:
    # Of a rule without `retry` it takes backendRequest as the limit of the whole request.
    limits = "timeouts: {nonStreaming: {perTry: 3s, total: 20s}}"
    plain = ROUTE + "  match: {stream: false}\n"
    retried = objects(policies(POOL, ENGINES, plain, policy(f"{{{limits}}}")))
    assert retried["HTTPRoute"]["spec"]["rules"][0]["timeouts"] == {"request": "20s"}
    assert retried["BackendTrafficPolicy"]["spec"]["retry"]["perRetry"]["timeout"] == "3s"
    once = objects(policies(POOL, ENGINES, plain, policy(f"{{{limits}, retries: {{attempts: 0}}}}")))
    assert once["HTTPRoute"]["spec"]["rules"][0]["timeouts"] == {"request": "20s", "backendRequest": "3s"}
    others = objects(policies(POOL, ENGINES, plain, policy(f"{{{limits}}}")), GatewayTarget(plain=True))
    assert others["HTTPRoute"]["spec"]["rules"][0]["timeouts"] == {"request": "20s", "backendRequest": "3s"}


@pytest.mark.parametrize(("percent", "most"), [(50, 50), (99, 1), (99.5, None), (100, None)])
def test_a_whole_capacity_floor_exports_no_outlier_detection(percent: float, most: int | None) -> None:
    # Envoy Gateway drops a maxEjectionPercent of 0; Envoy would eject a tenth of the engines.
    said = policies(POOL, ENGINES, ROUTE, policy(f"{{breaker: {{capacityFloorPercent: {percent}}}}}"))
    found = objects(said)["BackendTrafficPolicy"]["spec"]["healthCheck"]
    assert found.get("passive", {}).get("maxEjectionPercent") == most
    assert found["panicThreshold"] == 0


def test_circuit_breaker_max_requests_is_divided_among_proxies() -> None:
    said = policies(POOL, "  slotsPerEngine: 10\n", ENGINES, ROUTE, policy("{limits: {concurrentPerSlot: 2}}"))
    most = [
        objects(said, GatewayTarget(proxies=count))["BackendTrafficPolicy"]["spec"]["circuitBreaker"][
            "maxParallelRequests"
        ]
        for count in (1, 4)
    ]
    assert most == [40, 10]


def test_cross_namespace_backend_gets_a_reference_grant() -> None:
    said = policies(POOL.replace("{name: chat}", "{name: chat, namespace: gpu}"), ENGINES, ROUTE)
    found = objects(said)
    assert found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]["namespace"] == "gpu"
    grant = found["ReferenceGrant"]
    assert grant["metadata"]["namespace"] == "gpu"
    assert grant["spec"]["from"][0]["namespace"] == "default"


def test_objects_say_what_they_are_of() -> None:
    said = load([EXAMPLES / "three-zones.yaml"])
    for one in export_to_gateway_api(said, GatewayTarget()).objects:
        metadata: Any = one["metadata"]
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "switchgear"
        assert metadata["annotations"]["switchgear.dev/digest"] == said.digest
        assert metadata["annotations"]["switchgear.dev/policy"]


def test_without_envoy_gateway_its_fields_are_lost() -> None:
    said = policies(POOL, ENGINES, ROUTE, policy("{timeouts: {connect: 1s}, breaker: {consecutiveErrors: 3}}"))
    for path in ("spec.timeouts.connect", "spec.breaker.consecutiveErrors"):
        assert fates(said)[f"ResiliencePolicy {path}"].fate is not Fidelity.LOST
        assert fates(said, GatewayTarget(plain=True))[f"ResiliencePolicy {path}"].fate is Fidelity.LOST


def test_the_command_writes_objects_and_the_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POOL + ENGINES + ROUTE + "  match: {model: m}\n")
    order = ["export", "gateway-api", "-f", str(path), "--report", "json"]
    assert main(order) == 0
    out, err = capsys.readouterr()
    assert [one["kind"] for one in yaml.safe_load_all(out)] == [
        "Backend",
        "HTTPRoute",
        "BackendTrafficPolicy",
        "ClientTrafficPolicy",
    ]
    assert json.loads(err)["summary"]["worst"] == "lost"
    assert main([*order, "--fail-on", "lost"]) == 1
    assert main([*order, "--gateway", "a/b/c"]) == 2
    assert main([*order, "--endpoint-picker", "x:0"]) == 2


def test_addresses_are_in_the_form_that_backends_take() -> None:
    said = policies(POOL, "  endpoints: [{address: 'fd00:1::2:3:4', port: 8000}]\n", ROUTE)
    (one,) = objects(said)["Backend"]["spec"]["endpoints"]
    assert one["ip"]["address"] == "fd00:0001:0000:0000:0000:0002:0003:0004"


def test_route_that_cannot_be_exported_is_exit_status_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(POOL + "  endpoints: [{address: gpu.example.com, port: 8000}]\n" + ROUTE)
    assert main(["export", "gateway-api", "-f", str(path)]) == 0
    capsys.readouterr()
    assert main(["export", "gateway-api", "-f", str(path), "--plain"]) == 1
    assert "Error: ModelRoute/front was not exported: pool chat has no backend" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("affinity", "balancing"),
    [
        ("{header: x-s}", {"type": "Header", "header": {"name": "x-s"}}),
        ("{cookie: {name: s, ttl: 1h}}", {"type": "Cookie", "cookie": {"name": "s", "ttl": "1h"}}),
        ("{cookie: {name: s}}", {"type": "Cookie", "cookie": {"name": "s"}}),
    ],
)
def test_affinity_is_a_consistent_hash_without_slow_start(affinity: str, balancing: dict[str, Any]) -> None:
    said = policies(POOL, ENGINES, ROUTE, f"  affinity: {affinity}\n", policy("{slowStart: {window: 5s}}"))
    found = objects(said)["BackendTrafficPolicy"]["spec"]["loadBalancer"]
    assert found == {"type": "ConsistentHash", "consistentHash": balancing}
    assert fates(said)["ResiliencePolicy spec.slowStart.window"].fate is Fidelity.LOST
    assert fates(said)["ResiliencePolicy spec.zones.preferLocal"].fate is Fidelity.LOST
    name = "header" if "header" in affinity else "cookie.name"
    assert fates(said)[f"ModelRoute spec.affinity.{name}"].fate is Fidelity.EXACT
    plain = GatewayTarget(plain=True)
    assert fates(said, plain)[f"ModelRoute spec.affinity.{name}"].fate is Fidelity.LOST


@pytest.mark.parametrize(
    ("affinity", "field", "fate"),
    [
        ("{tenant: true}", "tenant", Fidelity.LOST),
        ("{header: x-s}", "tenant", Fidelity.EXACT),
        ("{header: x-s, returnAfter: 1m}", "returnAfter", Fidelity.LOST),
        ("{header: x-s}", "returnAfter", Fidelity.EXACT),
    ],
)
def test_tenant_and_later_return_are_lost_where_they_are_set(affinity: str, field: str, fate: Fidelity) -> None:
    tenants = "listener: {tenants: {header: x-tenant, trustHeader: true, others: {requests: 9}}, "
    route = ROUTE.replace("listener: {", tenants)
    assert route != ROUTE
    said = policies(POOL, ENGINES, route, f"  affinity: {affinity}\n")
    kind = "ConsistentHash" if "header" in affinity else "LeastRequest"
    assert objects(said)["BackendTrafficPolicy"]["spec"]["loadBalancer"]["type"] == kind
    assert fates(said)[f"ModelRoute spec.affinity.{field}"].fate is fate


def test_affinity_by_prompt_keeps_least_request() -> None:
    said = policies(POOL, ENGINES, ROUTE, "  affinity: {prefix: {}}\n")
    assert objects(said)["BackendTrafficPolicy"]["spec"]["loadBalancer"]["type"] == "LeastRequest"
    assert fates(said)["ModelRoute spec.affinity.prefix.characters"].fate is Fidelity.LOST


def test_adapters_are_lost() -> None:
    canary = "  adapterCanary: {name: v2, percent: 5}\n"
    said = policies(POOL, ENGINES, ROUTE, f"  match: {{model: sql}}\n  adapter: true\n{canary}")
    assert fates(said)["ModelRoute spec.adapter"].fate is Fidelity.LOST
    assert fates(said)["ModelRoute spec.adapterCanary.percent"].fate is Fidelity.LOST
