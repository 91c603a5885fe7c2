"""Istio's objects as policies: what each field comes to, and that nothing is dropped without a word."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from policies.resilience import RetryCondition

Import = Callable[..., Any]

RULE = """\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: chat, namespace: ml}
spec:
  host: chat
  trafficPolicy:
"""
VIRTUAL = """\
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: chat, namespace: ml}
spec:
  hosts: [chat]
  http:
"""
TO_CHAT = "    - route: [{destination: {host: chat}}]\n"
ENTRY = """\
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: gpu, namespace: ml}
spec:
  hosts: [gpu.example.com]
  resolution: STATIC
  ports: [{number: 80, targetPort: 8000, name: http, protocol: HTTP}]
"""


def effective(run_import: Import, traffic_policy: str) -> Any:
    found = run_import("istio", RULE + f"    {traffic_policy}\n")
    assert found.status == 0, found.listing
    return found.policies.effective["chat"], found


@pytest.mark.parametrize(
    ("said", "path", "value"),
    [
        ("outlierDetection: {consecutive5xxErrors: 7}", "breaker.consecutive_errors", 7),
        ("outlierDetection: {consecutiveGatewayErrors: 4}", "breaker.consecutive_errors", 4),
        ("outlierDetection: {consecutiveGatewayErrors: 4}", "breaker.count_statuses", (502, 503, 504)),
        ("outlierDetection: {outlierDetectionHttpErrorCodes: [500, 520]}", "breaker.count_statuses", (500, 520)),
        ("outlierDetection: {interval: 1m30s}", "breaker.interval", 90.0),
        ("outlierDetection: {baseEjectionTime: 45s}", "breaker.local_ejection", 45.0),
        (
            "outlierDetection: {consecutive5xxErrors: 0, consecutiveGatewayErrors: 3}",
            "breaker.consecutive_errors",
            3,
        ),
        ("outlierDetection: {maxEjectionPercent: 30}", "breaker.capacity_floor_percent", 70),
        (
            "outlierDetection: {splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 9}",
            "breaker.consecutive_local_errors",
            9,
        ),
        ("connectionPool: {tcp: {maxConnections: 500}}", "limits.max_connections", 500),
        ("connectionPool: {tcp: {connectTimeout: 1.5s}}", "timeouts.connect", 1.5),
        ("connectionPool: {http: {http2MaxRequests: 200}}", "limits.max_concurrent", 200),
        ("connectionPool: {http: {maxRetries: 3}}", "retry_budget.min_concurrency", 3),
        ("connectionPool: {http: {maxRetries: 3}}", "retry_budget.percent", 0),
        ("retryBudget: {percent: 25.5, minRetryConcurrency: 4}", "retry_budget.percent", 25.5),
        ("retryBudget: {percent: 25.5, minRetryConcurrency: 4}", "retry_budget.min_concurrency", 4),
        ("loadBalancer: {warmup: {duration: 30s, minimumPercent: 5}}", "slow_start.window", 30.0),
        ("loadBalancer: {warmup: {duration: 30s, minimumPercent: 5}}", "slow_start.min_weight_percent", 5),
        ("loadBalancer: {warmupDurationSecs: 20s}", "slow_start.window", 20.0),
        ("loadBalancer: {localityLbSetting: {enabled: false}}", "zones.prefer_local", False),
        (
            "loadBalancer: {localityLbSetting: {distribute: [{from: r/a/*, to: {r/a/*: 70, r/b/*: 30}}]}}",
            "zones.max_cross_zone_percent",
            30,
        ),
    ],
)
def test_a_traffic_policy_says_it_of_the_pool(run_import: Import, said: str, path: str, value: object) -> None:
    found, _ = effective(run_import, said)
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("tls", "secret", "asked", "names"),
    [
        ("{mode: SIMPLE, credentialName: engines, sni: a.example.com}", "engines", "a.example.com", ()),
        (
            "{mode: MUTUAL, credentialName: engines, sni: a.example.com, subjectAltNames: [a.example.com]}",
            "engines",
            "a.example.com",
            (),
        ),
        (
            "{mode: SIMPLE, caCertificates: /etc/switchgear/secrets/mine/ca.crt, subjectAltNames: [b, spiffe://x/y]}",
            "mine",
            None,
            ("b", "spiffe://x/y"),
        ),
    ],
)
def test_tls_to_engines_becomes_that_of_the_pool(
    run_import: Import, tls: str, secret: str, asked: str | None, names: tuple[str, ...]
) -> None:
    found = run_import("istio", RULE + f"    tls: {tls}\n")
    said = found.policies.pools["chat"].spec.tls
    assert (said.secret, said.server_name, said.subject_alt_names) == (secret, asked, names)
    assert "not understood" not in found.listing


@pytest.mark.parametrize(
    "said",
    [
        "tls: {mode: SIMPLE}",
        "tls: {mode: SIMPLE, credentialName: x}",
        "tls: {mode: SIMPLE, credentialName: x, sni: 10.0.0.1}",
        "tls: {mode: SIMPLE, credentialName: x, insecureSkipVerify: true}",
        "tls: {mode: SIMPLE, credentialName: no_name, sni: a.example.com}",
        "tls: {mode: SIMPLE, caCertificates: /etc/ssl/ca.pem, sni: a.example.com}",
        "tls: {mode: SIMPL, sni: a.example.com}",
        "portLevelSettings: [{port: {number: 80}}, {port: {number: 443}, tls: {mode: SIMPLE, sni: a.b}}]",
    ],
)
def test_pool_with_unsupported_tls_is_omitted(run_import: Import, said: str) -> None:
    rule = RULE + f"    {said}\n    outlierDetection: {{consecutive5xxErrors: 3}}\n"
    found = run_import("istio", rule)
    assert (found.status, found.text) == (2, "")
    assert "EnginePool chat omitted" in found.listing
    split = TO_CHAT.replace("chat", "other") + TO_CHAT
    with_route = run_import(
        "istio", f"{rule}---\n{rule.replace(said, '').replace('chat', 'other')}---\n{VIRTUAL}{split}"
    )
    assert list(with_route.policies.pools) == ["other"]
    assert [share.pool for route in with_route.policies.routes.values() for share in route.spec.pools] == ["other"]


@pytest.mark.parametrize(
    ("said", "path"),
    [
        ("outlierDetection: {minHealthPercent: 20}", "outlierDetection.minHealthPercent"),
        ("outlierDetection: {consecutiveErrors: 3}", "outlierDetection.consecutiveErrors"),
        (
            "outlierDetection: {consecutiveLocalOriginFailures: 3}",
            "outlierDetection.consecutiveLocalOriginFailures",
        ),
        ("outlierDetection: {interval: soon}", "outlierDetection.interval"),
        ("outlierDetection: {interval: 1ms}", "outlierDetection.interval"),
        ("outlierDetection: {interval: {a: 1}}", "outlierDetection.interval"),
        ("connectionPool: {http: {idleTimeout: 5s}}", "connectionPool.http.idleTimeout"),
        (
            "connectionPool: {tcp: {connectTimeout: 1s, tcpKeepalive: {time: 5s}}}",
            "connectionPool.tcp.tcpKeepalive",
        ),
        ("loadBalancer: {simple: RANDOM}", "loadBalancer.simple"),
        ("loadBalancer: {simple: [RANDOM]}", "loadBalancer.simple"),
        ("loadBalancer: {consistentHash: {useSourceIp: true}}", "loadBalancer.consistentHash"),
        ("loadBalancer: {consistentHash: {httpHeaderName: x-s}}", "loadBalancer.consistentHash"),
        ("loadBalancer: {consistentHash: {httpCookie: {name: s}}}", "loadBalancer.consistentHash"),
        ("loadBalancer: {consistentHash: {httpCookie: [s]}}", "loadBalancer.consistentHash"),
        ("loadBalancer: {warmup: {aggression: 2}}", "loadBalancer.warmup.aggression"),
        ("tls: {mode: ISTIO_MUTUAL}", "tls"),
        ("tls: {mode: SIMPLE, credentialName: x, sni: a.example.com, caCrl: /crl}", "tls.caCrl"),
        ("portLevelSettings: [{port: {number: 80}}]", "portLevelSettings"),
        ("neverHeardOf: {a: 1}", "neverHeardOf"),
    ],
)
def test_unsupported_field_is_listed_with_its_line(run_import: Import, said: str, path: str) -> None:
    found = run_import("istio", RULE + f"    {said}\n", "--strict")
    (line,) = found.said_of(f"spec.trafficPolicy.{path}")
    assert "in.yaml:7:" in line
    assert "not understood" in line
    assert found.status == 1
    assert found.policies.pools


def test_unsupported_block_is_listed_once(run_import: Import) -> None:
    found = run_import("istio", RULE + "    outlierDetection: [1, 2]\n    tunnel: {a: 1}\n")
    assert found.said_of("spec.trafficPolicy.outlierDetection")
    assert found.said_of("spec.trafficPolicy.tunnel")
    assert not found.said_of("spec.trafficPolicy.tunnel.a")


def test_every_value_has_the_line_it_is_from(run_import: Import) -> None:
    found = run_import("istio", RULE + "    outlierDetection:\n      interval: 7s\n")
    (line,) = [one for one in found.text.splitlines() if "interval:" in one]
    assert line.strip().startswith("interval: 7s #")
    assert line.endswith("in.yaml:8")


def test_a_host_in_the_cluster_is_found_by_its_service(run_import: Import) -> None:
    found = run_import("istio", RULE.replace("  trafficPolicy:\n", ""), "--model", "chat=llama")
    pool = found.policies.pools["chat"]
    assert pool.metadata.namespace == "ml"
    assert pool.spec.model == "llama"
    assert pool.spec.kubernetes is not None
    assert pool.spec.kubernetes.service == "chat"


def test_a_service_entry_gives_the_engines(run_import: Import) -> None:
    endpoints = """\
  endpoints:
    - {address: 10.0.0.1, locality: eu/eu-a/rack, weight: 3, labels: {gpu: h100}}
    - {address: 10.0.0.2, ports: {http: 9000}, locality: eu/eu-b}
    - {address: "unix:///run/x"}
"""
    found = run_import("istio", ENTRY + endpoints)
    one, two = found.policies.pools["gpu-example-com"].spec.endpoints
    assert (one.address, one.port, one.region, one.zone, one.weight) == ("10.0.0.1", 8000, "eu", "eu-a", 3)
    assert one.labels == {"gpu": "h100"}
    assert (two.port, two.zone) == (9000, "eu-b")
    assert found.said_of("spec.endpoints[2]")


def test_workload_entries_are_the_engines_that_an_entry_selects(run_import: Import) -> None:
    workloads = "".join(
        f"""\
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {{name: {name}, namespace: ml}}
spec: {{address: 10.0.0.{number}, labels: {{app: {app}}}}}
"""
        for number, (name, app) in enumerate((("g1", "gpu"), ("g2", "gpu"), ("other", "web")), 1)
    )
    found = run_import("istio", ENTRY + "  workloadSelector: {labels: {app: gpu}}\n" + workloads)
    names = [one.name for one in found.policies.pools["gpu-example-com"].spec.endpoints]
    assert names == ["g1", "g2"]
    assert "WorkloadEntry/other spec" in found.listing


def test_a_virtual_service_is_routes_and_what_it_says_of_time_is_its_pools(run_import: Import) -> None:
    http = """\
    - name: premium
      match: [{uri: {prefix: /v1}, headers: {x-tier: {exact: premium}, x-any: {}}}]
      route: [{destination: {host: chat}}]
      timeout: 60s
      retries: {attempts: 2, perTryTimeout: 20s, retryOn: "connect-failure,reset,503", backoff: 50ms}
"""
    found = run_import("istio", VIRTUAL + http)
    route = found.policies.routes["chat-premium"].spec
    assert route.match.path_prefix == "/v1"
    assert [(one.name, one.exact, one.present) for one in route.match.headers] == [
        ("x-tier", "premium", None),
        ("x-any", None, True),
    ]
    policy = found.policies.effective["chat"]
    assert (policy.timeouts.streaming.total, policy.timeouts.non_streaming.total) == (60.0, 60.0)
    assert policy.timeouts.non_streaming.per_try == 20.0
    assert policy.retries.attempts == 2
    assert policy.retries.conditions == (RetryCondition.CONNECT_FAILURE, RetryCondition.RESET)
    assert policy.retries.statuses == (503,)
    assert (policy.retries.backoff.base, policy.retries.backoff.max) == (0.05, 0.5)


@pytest.mark.parametrize(
    "condition",
    [
        "sourceLabels: {app: x}",
        "queryParams: {a: {exact: b}}",
        "uri: {fuzzy: /x}",
        "headers: {a: {like: b}}",
        "uri: {prefix: /x}, ignoreUriCase: true",
    ],
)
def test_route_with_unsupported_match_is_omitted(run_import: Import, condition: str) -> None:
    found = run_import(
        "istio", VIRTUAL + f"    - match: [{{{condition}}}]\n      route: [{{destination: {{host: chat}}}}]\n"
    )
    assert not found.policies.routes
    assert "route omitted" in found.listing


def test_a_route_is_left_out_where_the_loader_refuses_a_condition(run_import: Import) -> None:
    match = "[{headers: {a: {exact: b}, c: {regex: '(?=x)y'}}}]"
    found = run_import(
        "istio", VIRTUAL + f"    - match: {match}\n      route: [{{destination: {{host: chat}}}}]\n"
    )
    assert not found.policies.routes
    assert "RE2, which Envoy uses" in found.listing


def test_a_host_named_default_has_a_policy_for_itself_alone(run_import: Import) -> None:
    rule = RULE.replace("host: chat", "host: default") + "    outlierDetection: {interval: 7s}\n"
    policies = run_import("istio", rule).policies
    assert policies.effective["default"].breaker.interval == 7.0
    assert "default" not in policies.policies


def test_a_route_is_left_out_where_a_target_is_not_known(run_import: Import) -> None:
    found = run_import(
        "istio",
        VIRTUAL
        + "    - route: [{destination: {host: chat}, weight: 50},"
        + " {destination: {host: chat, subset: v2}, weight: 50}]\n",
    )
    assert not found.policies.routes
    assert "subset v2" in found.listing


def test_subsets_are_pools_of_their_own_with_what_the_host_says_besides(run_import: Import) -> None:
    rule = (
        RULE
        + """\
    outlierDetection: {interval: 5s}
    connectionPool: {tcp: {maxConnections: 9}}
  subsets:
    - {name: v1, labels: {version: v1}}
    - {name: v2, labels: {version: v2}, trafficPolicy: {outlierDetection: {interval: 9s}}}
    - {name: v3, labels: {version: v3}}
"""
    )
    http = (
        "    - route: [{destination: {host: chat, subset: v1}, weight: 90},"
        " {destination: {host: chat, subset: v2}, weight: 10}]\n"
    )
    service = """\
---
apiVersion: v1
kind: Service
metadata: {name: chat, namespace: ml}
spec: {selector: {app: chat}, ports: [{port: 80, targetPort: 8001}]}
"""
    found = run_import(
        "istio", rule + VIRTUAL + http + service, "--model", "chat=llama", "--model", "chat-v2=next"
    )
    policies = found.policies
    assert {name: pool.spec.kubernetes.selector for name, pool in policies.pools.items()} == {
        "chat-v1": {"app": "chat", "version": "v1"},
        "chat-v2": {"app": "chat", "version": "v2"},
    }
    assert {pool.spec.kubernetes.port for pool in policies.pools.values()} == {8001}
    assert [policies.pools[name].spec.model for name in ("chat-v1", "chat-v2")] == ["llama", "next"]
    assert [one.weight for one in policies.routes["chat"].spec.pools] == [90, 10]
    assert (policies.effective["chat-v1"].breaker.interval, policies.effective["chat-v2"].breaker.interval) == (
        5,
        9,
    )
    assert policies.effective["chat-v2"].limits.max_connections == 9
    assert "subset without a route" in found.said_of("spec.subsets[2]")[0]


def test_subset_without_its_service_is_refused(run_import: Import) -> None:
    rule = RULE + "  subsets: [{name: v1, labels: {version: v1}}]\n"
    found = run_import("istio", rule + VIRTUAL + "    - route: [{destination: {host: chat, subset: v1}}]\n")
    assert "add the Service of chat.ml.svc.cluster.local to the files" in found.listing
    assert "chat-v1" not in found.text


def test_delegate_inherits_conditions(run_import: Import) -> None:
    root = VIRTUAL + "    - {match: [{uri: {prefix: /v1}}], delegate: {name: inner, namespace: ml}}\n"
    inner = VIRTUAL.replace("name: chat", "name: inner").replace("  hosts: [chat]\n", "") + (
        "    - match: [{headers: {a: {exact: b}}}, {uri: {prefix: /other}}]\n"
        "      route: [{destination: {host: chat}}]\n"
    )
    found = run_import("istio", root + inner)
    (route,) = found.policies.routes.values()
    assert route.spec.match.path_prefix == "/v1"
    assert [one.name for one in route.spec.match.headers] == ["a"]
    assert "no path can start with both /v1 and /other" in found.listing


def test_hosts_are_conditions_where_there_are_several(run_import: Import) -> None:
    other = VIRTUAL.replace("name: chat", "name: other").replace("[chat]", '["*.example.com"]')
    found = run_import("istio", VIRTUAL + TO_CHAT + other + TO_CHAT)
    regexes = [one.spec.match.headers[0].regex for one in found.policies.routes.values()]
    assert [one for one in regexes if "chat" in one and "svc" in one]
    assert [one for one in regexes if one.startswith("(?:.+\\.example\\.com)")]


def test_conflicting_timeouts_of_one_pool_are_reported(run_import: Import) -> None:
    http = (
        "    - {match: [{uri: {prefix: /a}}], route: [{destination: {host: chat}}], timeout: 60s}\n"
        "    - {route: [{destination: {host: chat}}], timeout: 90s}\n"
    )
    found = run_import("istio", VIRTUAL + http)
    # What the route says that asks for least.
    assert found.policies.effective["chat"].timeouts.streaming.total == 90.0
    assert "sets another" in found.said_of("spec.http[0].timeout")[0]


def test_the_port_of_a_match_is_where_envoys_listen(run_import: Import) -> None:
    http = (
        "    - {match: [{port: 8080}], route: [{destination: {host: chat}}]}\n"
        "    - {match: [{port: 9090}], route: [{destination: {host: chat}}]}\n"
    )
    found = run_import("istio", VIRTUAL + http)
    assert [one.spec.listener.port for one in found.policies.routes.values()] == [8080, 9090]
    assert "evaluated before" not in found.listing


def test_reordered_route_is_reported(run_import: Import) -> None:
    http = TO_CHAT + "    - {match: [{uri: {prefix: /a}}], route: [{destination: {host: chat}}]}\n"
    found = run_import("istio", VIRTUAL + http)
    assert "evaluated before less specific routes" in found.listing
    assert len(found.policies.routes) == 2


def test_hosts_common_to_all_routes_are_listed(run_import: Import) -> None:
    found = run_import("istio", RULE + "    {tls: {mode: DISABLE}}\n" + VIRTUAL + TO_CHAT)
    assert not next(iter(found.policies.routes.values())).spec.match.headers
    assert "requests for any host match" in found.said_of("spec.hosts")[0]
    found = run_import(
        "istio", RULE + "    {tls: {mode: DISABLE}}\n" + VIRTUAL.replace("[chat]", "['*']") + TO_CHAT
    )
    assert not found.listing


def test_hosts_whose_routes_are_omitted_are_listed(run_import: Import) -> None:
    other = VIRTUAL.replace("name: chat", "name: other").replace("[chat]", "[other]")
    gone = "    - redirect: {uri: /x}\n"
    found = run_import("istio", RULE + "    {tls: {mode: DISABLE}}\n" + VIRTUAL + TO_CHAT + other + gone)
    assert "none of its routes was imported" in found.said_of("spec.hosts")[0]


def test_entry_without_engines_is_listed(run_import: Import) -> None:
    found = run_import("istio", ENTRY)
    assert "pool gpu-example-com is empty" in found.said_of("spec.hosts")[0]


def test_service_that_no_subset_needs_is_listed(run_import: Import) -> None:
    service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: chat}\nspec: {type: ClusterIP}\n"
    found = run_import("istio", RULE + "    {tls: {mode: DISABLE}}\n" + service)
    assert "left as is: Service/chat" in found.listing


def test_model_of_an_unknown_pool_is_an_error(run_import: Import) -> None:
    found = run_import("istio", RULE + "    {tls: {mode: DISABLE}}\n", "--model", "chta=m")
    assert found.status == 2
    assert not found.text
    assert found.listing == "--model: no pool chta in these files\n"


def test_the_list_as_json(run_import: Import) -> None:
    found = run_import(
        "istio", RULE + "    {tls: {mode: SIMPLE}, outlierDetection: {maxEjectionPercent: 5}}\n", "-o", "json"
    )
    record = json.loads(found.listing)
    assert record["summary"] == {"not understood": 1, "changed": 1, "left as is": 0}
    assert {one["path"]: one["line"] for one in record["remarks"]} == {
        "spec.trafficPolicy.tls": 7,
        "spec.trafficPolicy.outlierDetection.maxEjectionPercent": 7,
    }


def test_a_list_and_stdin(run_import: Import) -> None:
    document = RULE + "    {tls: {mode: DISABLE}}\n"
    listed = "kind: List\nitems:\n- " + document.replace("\n", "\n  ").rstrip() + "\n"
    found = run_import("istio", listed, stdin=True)
    assert found.status == 0
    assert list(found.policies.pools) == ["chat"]
    assert not found.listing


def test_the_list_is_json_also_where_no_policy_came(run_import: Import) -> None:
    gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}\nspec: {}\n"
    found = run_import("istio", gateway, "-o", "json")
    assert (found.status, found.text) == (2, "")
    assert json.loads(found.listing)["summary"]["not understood"] == 1
