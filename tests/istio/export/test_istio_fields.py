"""Every field has a fate, and the fates are true of what is exported."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from istio.export.istio_export import export_to_istio
from istio.export.istio_fields import JUDGES
from istio.export.istio_objects import IstioTarget
from istio.fidelity import ExportResult, FieldFidelity
from istio.loss_report import BUILT_IN
from policies.fidelity import Fidelity
from policies.load import load
from policies.model import KINDS
from policies.schema import leaf_targets, leaves
from tests.istio import istiod

EXAMPLES = sorted((Path(__file__).parents[3] / "policies" / "examples").glob("*.yaml"))
POOL = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec:
  model: llama
  endpoints:
    - {address: 10.0.0.1, port: 8000}
    - {address: 10.0.0.2, port: 8000}
"""
ROUTE = """
---
apiVersion: switchgear.dev/v1alpha1
kind: ModelRoute
metadata: {name: front}
spec:
  listener: {port: 8080}
  pools: [{pool: chat}]
"""


def policy(spec: str) -> str:
    return f"""
---
apiVersion: switchgear.dev/v1alpha1
kind: ResiliencePolicy
metadata: {{name: default}}
spec: {spec}
"""


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., ExportResult]:
    def made(text: str, place: IstioTarget | None = None) -> ExportResult:
        (tmp_path / "policy.yaml").write_text(text)
        return export_to_istio(load([tmp_path / "policy.yaml"]), place or IstioTarget())

    return made


def fate_of(result: ExportResult, path: str, kind: str = "") -> FieldFidelity:
    (found,) = (one for one in result.fields if one.path == path and one.document.startswith(kind))
    return found


def one_of(result: ExportResult, kind: str, name: str = "") -> Any:
    (found,) = (one for one in result.objects if one["kind"] == kind and named(one).startswith(name))
    return found


def named(one: Mapping[str, Any]) -> str:
    return str(one["metadata"]["name"])


BY_NAME = "  tls: {secret: engines, serverName: engine.example.com}\n"
HOSTS = POOL.replace("10.0.0.1", "e1.example.com").replace("10.0.0.2", "e2.example.com")
INGRESS = IstioTarget(gateway="ingress/public")


@pytest.mark.parametrize(
    ("text", "place", "tls"),
    [
        (POOL, None, None),
        (
            POOL + BY_NAME,
            None,
            {
                "mode": "SIMPLE",
                "caCertificates": "/etc/switchgear/secrets/engines/ca.crt",
                "sni": "engine.example.com",
                "subjectAltNames": ["engine.example.com"],
            },
        ),
        (
            POOL + "  tls: {secret: engines, serverName: a.example.com, subjectAltNames: [b, spiffe://x/y]}\n",
            INGRESS,
            {
                "mode": "SIMPLE",
                "credentialName": "engines",
                "sni": "a.example.com",
                "subjectAltNames": ["b", "spiffe://x/y"],
            },
        ),
        (
            HOSTS + "  tls: {secret: engines}\n",
            INGRESS,
            {
                "mode": "SIMPLE",
                "credentialName": "engines",
                "subjectAltNames": ["e1.example.com", "e2.example.com"],
            },
        ),
        (
            HOSTS.replace("e2", "e1")
            .replace("8000}\n    - {", "8000}\n    - {name: other, ", 1)
            .replace("e1.example.com, port: 8000}\n    -", "e1.example.com, port: 8001}\n    -", 1)
            + "  tls: {secret: engines}\n",
            INGRESS,
            {
                "mode": "SIMPLE",
                "credentialName": "engines",
                "sni": "e1.example.com",
                "subjectAltNames": ["e1.example.com"],
            },
        ),
    ],
    ids=["plain", "sidecars", "gateway", "names-of-their-own", "one-name"],
)
def test_tls_always_says_whose_name_an_engine_has_to_prove(
    export: Callable[..., ExportResult], text: str, place: IstioTarget | None, tls: object
) -> None:
    rule = one_of(export(text + ROUTE, place), "DestinationRule")
    assert rule["spec"]["trafficPolicy"].get("tls") == tls


@pytest.mark.parametrize(
    ("text", "path", "fate"),
    [
        (POOL + BY_NAME, "spec.tls.secret", Fidelity.APPROXIMATED),
        (POOL + BY_NAME, "spec.tls.serverName", Fidelity.EXACT),
        (HOSTS + "  tls: {secret: engines}\n", "spec.tls.serverName", Fidelity.APPROXIMATED),
        (POOL + "  tls: {secret: engines, subjectAltNames: [a]}\n", "spec.tls.subjectAltNames", Fidelity.EXACT),
        (POOL + '  tls: {secret: engines, subjectAltNames: ["*.a"]}\n', "spec.tls.subjectAltNames", Fidelity.LOST),
    ],
)
def test_tls_outcome_depends_on_its_fields(
    export: Callable[..., ExportResult], text: str, path: str, fate: Fidelity
) -> None:
    assert fate_of(export(text + ROUTE), path).fate is fate


def test_pool_without_tls_loses_no_tls_field(export: Callable[..., ExportResult]) -> None:
    assert not [one for one in export(POOL + ROUTE).fields if one.path.startswith("spec.tls")]


@pytest.mark.parametrize("kind", KINDS)
def test_only_fields_that_exist_have_judges(kind: str) -> None:
    assert set(JUDGES[kind]) <= leaf_targets(kind).keys()


def test_each_field_of_a_document_is_listed_once(export: Callable[..., ExportResult]) -> None:
    result = export(POOL + ROUTE + policy("{retries: {attempts: 2}}"))
    seen = [(one.document, one.path) for one in result.fields]
    assert len(set(seen)) == len(seen)
    told = {one.path for one in result.fields if one.document == "ResiliencePolicy/default for chat"}
    of_documents = {"apiVersion", "kind", "spec.pools"}
    wanted = {doc.path for doc in leaves("ResiliencePolicy") if not doc.path.startswith("metadata.")}
    assert told == wanted - of_documents


def test_origin_of_a_field_is_its_file_and_line(export: Callable[..., ExportResult]) -> None:
    result = export(POOL + ROUTE + policy("{retries: {attempts: 2}}"))
    assert fate_of(result, "spec.retries.attempts").set_by.endswith("policy.yaml:23")
    assert fate_of(result, "spec.retries.attempts").value == "2"
    assert fate_of(result, "spec.timeouts.connect").set_by == BUILT_IN
    assert fate_of(result, "spec.timeouts.connect").value == "250ms"
    assert fate_of(result, "spec.endpoints[].address").value == "10.0.0.1, 10.0.0.2"


@pytest.mark.parametrize(
    ("spec", "path", "fate"),
    [
        ("{straggler: {slowerThan: 4}}", "spec.straggler.slowerThan", Fidelity.LOST),
        ("{straggler: {enabled: false, slowerThan: 4}}", "spec.straggler.slowerThan", Fidelity.EXACT),
        ("{hedging: {enabled: true}}", "spec.hedging.enabled", Fidelity.LOST),
        ("{hedging: {enabled: true, delay: 1s}}", "spec.hedging.enabled", Fidelity.EXACT),
        ("{limits: {maxConnections: 4000000000}}", "spec.limits.maxConnections", Fidelity.APPROXIMATED),
        ("{limits: {maxConnections: 10}}", "spec.limits.maxConnections", Fidelity.EXACT),
        ("{zones: {spill: false}}", "spec.zones.spill", Fidelity.LOST),
        ("{timeouts: {connect: 0.1ms}}", "spec.timeouts.connect", Fidelity.APPROXIMATED),
        ("{degradation: {maintenance: {enabled: true}}}", "spec.degradation.maintenance.enabled", Fidelity.LOST),
        ("{timeouts: {adaptive: false}}", "spec.timeouts.adaptive", Fidelity.EXACT),
    ],
)
def test_outcome_depends_on_the_value(
    export: Callable[..., ExportResult], spec: str, path: str, fate: Fidelity
) -> None:
    assert fate_of(export(POOL + ROUTE + policy(spec)), path).fate is fate


@pytest.mark.parametrize(
    ("rest", "path", "fate"),
    [
        ("  match: {model: llama}", "spec.match.model", Fidelity.LOST),
        ("  match: {stream: true}", "spec.match.stream", Fidelity.LOST),
        ("  fallbacks: [chat]", "spec.fallbacks", Fidelity.LOST),
        ("  match: {headers: [{name: x, exact: a}]}", "spec.match.headers[].exact", Fidelity.EXACT),
        ("  allowedRegions: [eu]", "spec.allowedRegions", Fidelity.EXACT),
        ("  match: {model: sql}\n  adapter: true", "spec.adapter", Fidelity.LOST),
        (
            "  match: {model: sql}\n  adapter: true\n  adapterCanary: {name: v2, percent: 5}",
            "spec.adapterCanary.percent",
            Fidelity.LOST,
        ),
    ],
)
def test_route_conditions_are_exported(
    export: Callable[..., ExportResult], rest: str, path: str, fate: Fidelity
) -> None:
    other = POOL.replace("chat", "other").replace("10.0.0", "10.0.1")
    rest = rest.replace("fallbacks: [chat]", "fallbacks: [other]")
    result = export(f"{POOL}---{other}{ROUTE}{rest}\n")
    assert fate_of(result, path, "ModelRoute").fate is fate


NAMED_PORT = """
apiVersion: switchgear.dev/v1alpha1
kind: EnginePool
metadata: {name: chat}
spec: {model: llama, kubernetes: {service: chat, port: http}}
"""


@pytest.mark.parametrize(
    ("place", "fate"),
    [(IstioTarget(), Fidelity.LOST), (IstioTarget(gateway="ingress/public"), Fidelity.APPROXIMATED)],
)
def test_name_of_a_service_port_is_lost_on_sidecars(
    export: Callable[..., ExportResult], place: IstioTarget, fate: Fidelity
) -> None:
    result = export(NAMED_PORT + ROUTE, place)
    assert fate_of(result, "spec.kubernetes.port").fate is fate
    if not place.gateway:
        (host,) = istiod.virtual_hosts(result.objects)
        assert host["routes"][0]["route"]["cluster"] == "outbound|8080||chat.default.svc.cluster.local"


def test_route_for_large_requests_is_left_out(export: Callable[..., ExportResult]) -> None:
    large = ROUTE.replace("front", "large") + "  match: {tokensAbove: 4000}\n"
    result = export(f"{POOL}{ROUTE}{large}")
    fates = {one.document: one.fate for one in result.fields if one.path == "spec.match.tokensAbove"}
    assert fates == {"ModelRoute/front": Fidelity.EXACT, "ModelRoute/large": Fidelity.LOST}
    rules = one_of(result, "VirtualService")["spec"]["http"]
    assert {rule["name"].partition("/")[0] for rule in rules} == {"front"}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("{timeouts: {nonStreaming: {byTokens: {enabled: true}}}}", "timeouts.nonStreaming.byTokens.min"),
        ("{retries: {large: {tokensAbove: 4000}}}", "retries.large.tokensAbove"),
        ("{hedging: {enabled: true, delay: 1s, maxTokens: 4000}}", "hedging.maxTokens"),
    ],
)
def test_limits_by_size_are_lost_where_they_are_set(
    export: Callable[..., ExportResult], spec: str, path: str
) -> None:
    said = fate_of(export(f"{POOL}{ROUTE}---{policy(spec)}"), f"spec.{path}", "ResiliencePolicy")
    assert (said.fate, "estimates tokens" in said.how) == (Fidelity.LOST, True)
    unset = fate_of(export(f"{POOL}{ROUTE}---{policy('{}')}"), f"spec.{path}", "ResiliencePolicy")
    assert unset.fate is Fidelity.EXACT


def test_stages_are_lost(export: Callable[..., ExportResult]) -> None:
    first = (
        POOL.replace("chat", "first").replace("10.0.0", "10.0.1").replace("spec:", "spec:\n  stage: prefill", 1)
    )
    decode = POOL.replace("spec:", "spec:\n  stage: decode", 1)
    result = export(f"{decode}---{first}{ROUTE}  prefill: {{pool: first}}\n")
    assert fate_of(result, "spec.prefill.pool", "ModelRoute").fate is Fidelity.LOST
    assert [one.fate for one in result.fields if one.path == "spec.stage"] == [Fidelity.LOST] * 2


@pytest.mark.parametrize(
    ("affinity", "path", "fate", "balancing"),
    [
        (
            "{header: x-s}",
            "spec.affinity.header",
            Fidelity.EXACT,
            {"consistentHash": {"httpHeaderName": "x-s", "maglev": {}}},
        ),
        (
            "{cookie: {name: s, ttl: 0s, path: /a}}",
            "spec.affinity.cookie.ttl",
            Fidelity.EXACT,
            {"consistentHash": {"httpCookie": {"name": "s", "path": "/a", "ttl": "0s"}, "maglev": {}}},
        ),
        ("{prefix: {}}", "spec.affinity.prefix.characters", Fidelity.LOST, {"simple": "LEAST_REQUEST"}),
        (
            "{header: x-s}",
            "spec.affinity.slackPercent",
            Fidelity.LOST,
            {"consistentHash": {"httpHeaderName": "x-s", "maglev": {}}},
        ),
    ],
)
def test_affinity_is_exported_as_a_consistent_hash(
    export: Callable[..., ExportResult], affinity: str, path: str, fate: Fidelity, balancing: dict[str, Any]
) -> None:
    result = export(POOL + ROUTE + f"  affinity: {affinity}\n" + policy("{slowStart: {window: 5s}}"))
    rule = one_of(result, "DestinationRule")["spec"]["trafficPolicy"]["loadBalancer"]
    assert {key: value for key, value in rule.items() if key not in ("localityLbSetting", "warmup")} == balancing
    assert fate_of(result, path).fate is fate
    lost = "consistentHash" in balancing
    assert ("warmup" in rule) is not lost
    assert fate_of(result, "spec.slowStart.window").fate is (Fidelity.LOST if lost else Fidelity.EXACT)


@pytest.mark.parametrize(
    ("affinity", "path", "fate"),
    [
        ("{tenant: true}", "spec.affinity.tenant", Fidelity.LOST),
        ("{header: x-s}", "spec.affinity.tenant", Fidelity.EXACT),
        ("{header: x-s, returnAfter: 1m}", "spec.affinity.returnAfter", Fidelity.LOST),
        ("{header: x-s}", "spec.affinity.returnAfter", Fidelity.EXACT),
    ],
)
def test_tenant_and_later_return_are_lost_where_they_are_set(
    export: Callable[..., ExportResult], affinity: str, path: str, fate: Fidelity
) -> None:
    tenants = "listener: {tenants: {header: x-tenant, trustHeader: true, others: {requests: 9}}, "
    result = export(POOL + ROUTE.replace("listener: {", tenants) + f"  affinity: {affinity}\n")
    rule = one_of(result, "DestinationRule")["spec"]["trafficPolicy"]["loadBalancer"]
    assert ("consistentHash" in rule) is ("header" in affinity)
    assert fate_of(result, path).fate is fate


def test_two_keys_of_one_pool_are_lost_in_istio(export: Callable[..., ExportResult]) -> None:
    other = ROUTE.replace("front", "other") + "  match: {pathPrefix: /other}\n"
    result = export(POOL + ROUTE + "  affinity: {header: x-s}\n" + other)
    assert fate_of(result, "spec.affinity.header", "ModelRoute/front").fate is Fidelity.LOST
    rule = one_of(result, "DestinationRule")["spec"]["trafficPolicy"]["loadBalancer"]
    assert rule["simple"] == "LEAST_REQUEST"


def test_a_model_in_the_body_becomes_a_header(export: Callable[..., ExportResult]) -> None:
    result = export(POOL + ROUTE + "  match: {model: llama}\n")
    matches = [rule["match"][0] for rule in one_of(result, "VirtualService")["spec"]["http"]]
    assert all(match["headers"]["x-switchgear-model"] == {"exact": "llama"} for match in matches)
    assert "x-switchgear-model" in fate_of(result, "spec.match.model").how


def test_stated_fields_are_exported_as_their_headers(export: Callable[..., ExportResult]) -> None:
    match = "  match: {model: llama, stream: false}\n"
    read = export(POOL + ROUTE + match)
    stated = export(POOL + ROUTE.replace("listener: {", "listener: {requestFields: headers, ") + match)
    rules = [one_of(result, "VirtualService")["spec"]["http"] for result in (read, stated)]
    assert rules[0] == rules[1]
    assert fate_of(stated, "spec.listener.requestFields").fate is Fidelity.APPROXIMATED
    for path in ("spec.match.model", "spec.match.stream"):
        assert fate_of(stated, path).fate is Fidelity.EXACT


def test_conditions_that_istio_cannot_hold_are_patched_in(export: Callable[..., ExportResult]) -> None:
    headers = (
        "[{name: x-tier, exact: gold}, {name: X-Tier, prefix: go}, {name: ':method', exact: POST}, "
        "{name: ':path', regex: '.*x'}]"
    )
    result = export(POOL + ROUTE + f"  match: {{headers: {headers}}}\n")
    rule = one_of(result, "VirtualService")["spec"]["http"][-1]
    assert rule["match"][0]["headers"] == {"x-tier": {"exact": "gold"}}
    assert rule["match"][0]["method"] == {"exact": "POST"}
    patches = one_of(result, "EnvoyFilter", "models")["spec"]["configPatches"]
    added = patches[-1]["patch"]["value"]["match"]["headers"]
    assert [one["name"] for one in added] == ["X-Tier", ":path"]


def test_no_route_hides_those_that_follow_it(export: Callable[..., ExportResult]) -> None:
    odd = ROUTE.replace("front", "odd") + "  match: {headers: [{name: ':path', regex: '.*x'}]}\n"
    result = export(POOL + odd + ROUTE)
    names = [rule["name"] for rule in one_of(result, "VirtualService")["spec"]["http"]]
    (host,) = istiod.virtual_hosts(result.objects)
    assert [route["name"] for route in host["routes"]] == names
    assert {name.partition("/")[0] for name in names} == {"odd", "front"}


def test_allowed_regions_are_a_subset_that_holds_no_other_engine(export: Callable[..., ExportResult]) -> None:
    pool = POOL.replace("port: 8000}", "port: 8000, region: eu, zone: a}", 1)
    result = export(pool + ROUTE + "  allowedRegions: [eu, us]\n")
    rule = one_of(result, "DestinationRule")["spec"]
    (subset,) = rule["subsets"]
    entries = [one for one in result.objects if one["kind"] == "WorkloadEntry"]
    inside = [
        one
        for one in entries
        if subset["labels"].items() <= one["spec"]["labels"].items()  # type: ignore[index]  # a mapping
    ]
    assert [one["spec"]["address"] for one in inside] == ["10.0.0.1"]  # type: ignore[index]  # a mapping
    destinations = [
        to["destination"] for rule in one_of(result, "VirtualService")["spec"]["http"] for to in rule["route"]
    ]
    assert {one["subset"] for one in destinations} == {subset["name"]}


def test_pods_are_restricted_to_one_region_rather_than_unrestricted(export: Callable[..., ExportResult]) -> None:
    pool = POOL[: POOL.index("  endpoints")] + "  kubernetes: {service: engines, port: 8000}\n"
    result = export(pool + ROUTE + "  allowedRegions: [eu, us]\n")
    (subset,) = one_of(result, "DestinationRule")["spec"]["subsets"]
    assert subset["labels"] == {"topology.kubernetes.io/region": "eu"}
    assert fate_of(result, "spec.allowedRegions").fate is Fidelity.APPROXIMATED


@pytest.mark.parametrize(
    ("block", "host", "port", "selects"),
    [
        ("{service: engines, port: 9000}", "engines.default.svc.test", {"number": 9000}, None),
        ("{service: engines, port: api}", "engines.default.svc.test", None, None),
        ("{selector: {app: vllm}, port: 9000}", "chat.default.svc.test", {"number": 9000}, {"app": "vllm"}),
    ],
)
def test_engines_of_the_cluster_are_a_service(
    export: Callable[..., ExportResult], block: str, host: str, port: Any, selects: Any
) -> None:
    pool = POOL[: POOL.index("  endpoints")] + f"  kubernetes: {block}\n"
    result = export(pool + ROUTE, IstioTarget(host_suffix="svc.test"))
    to = one_of(result, "VirtualService")["spec"]["http"][0]["route"][0]["destination"]
    assert (to["host"], to.get("port")) == (host, port)
    assert one_of(result, "DestinationRule")["spec"]["host"] == host
    entries = [one for one in result.objects if one["kind"] == "ServiceEntry" and named(one) == "chat"]
    assert [one["spec"]["workloadSelector"]["labels"] for one in entries] == ([selects] if selects else [])  # type: ignore[index]  # a mapping
    # The number of engines is unknown, so there is no ceiling, and the field is listed as lost.
    assert (
        "http2MaxRequests"
        not in one_of(result, "DestinationRule")["spec"]["trafficPolicy"]["connectionPool"]["http"]
    )
    assert fate_of(result, "spec.limits.maxWait").fate is Fidelity.LOST


@pytest.mark.parametrize(
    "place", [IstioTarget(), IstioTarget(host="models.test"), IstioTarget(gateway="edge/public")]
)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_target_object_of_each_field_is_exported(path: Path, place: IstioTarget) -> None:
    result = export_to_istio(load([path]), place)
    names = {f"{one['kind']}/{named(one)}" for one in result.objects}
    kinds = {one["kind"] for one in result.objects}
    for one in result.fields:
        assert one.target in names | kinds | {""}, one
        assert (one.fate is Fidelity.LOST) <= (one.target == ""), one


def test_equal_policies_give_equal_objects(export: Callable[..., ExportResult]) -> None:
    text = POOL + ROUTE + policy("{retries: {attempts: 2}}")
    assert export(text) == export(text)
    digests = {one["metadata"]["annotations"]["switchgear.dev/digest"] for one in export(text).objects}  # type: ignore[index]  # a mapping
    changed = {one["metadata"]["annotations"]["switchgear.dev/digest"] for one in export(POOL + ROUTE).objects}  # type: ignore[index]  # a mapping
    assert len(digests | changed) == 2


def test_a_pool_of_batch_requests_alone_has_their_ceiling_and_no_patched_one(
    export: Callable[..., ExportResult],
) -> None:
    result = export(POOL + ROUTE + "  priority: batch\n" + policy("{limits: {maxConcurrent: 40}}"))
    http = one_of(result, "DestinationRule")["spec"]["trafficPolicy"]["connectionPool"]["http"]
    assert http["http2MaxRequests"] == 40
    (patch,) = one_of(result, "EnvoyFilter", "pool")["spec"]["configPatches"]
    assert "circuit_breakers" not in patch["patch"]["value"]
    assert fate_of(result, "spec.priority").fate is Fidelity.EXACT


def test_ports_of_one_host_are_one_virtual_service_for_sidecars(export: Callable[..., ExportResult]) -> None:
    two = POOL + ROUTE + ROUTE.replace("front", "back").replace("8080", "9090")
    one = one_of(export(two, IstioTarget(host="models.test")), "VirtualService")
    assert one["spec"]["hosts"] == ["models.test"]
    ports = [rule["match"][0]["port"] for rule in one["spec"]["http"]]
    assert sorted(set(ports)) == [8080, 9090]
    apart = [one for one in export(two).objects if one["kind"] == "VirtualService"]
    assert [named(one) for one in apart] == ["models-8080", "models-9090"]
    assert fate_of(export(two), "spec.listener.port", "ModelRoute/back").target == "VirtualService/models-9090"
