"""What istiod makes of exported objects, by the rules of its source, and how it applies EnvoyFilters to that.

Only as much of it as exported objects use, in Envoy's JSON form.

Source: istio/istio, ``pilot/pkg/networking/core/cluster_traffic_policy.go``, ``route/route.go``,
``route/retry/retry.go``, ``envoyfilter/{cluster_patch,rc_patch}.go`` and ``pkg/proto/merge``.
"""

import copy
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

SHAPE = Path(__file__).with_name("istio_shaped.yaml")
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
PREVIOUS_HOSTS = {
    "name": "envoy.retry_host_predicates.previous_hosts",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
    },
}
PREVIOUS_PRIORITIES = {
    "name": "envoy.retry_priorities.previous_priorities",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.retry.priority.previous_priorities.v3."
        "PreviousPrioritiesConfig",
        "update_frequency": 2,
    },
}
MOST = 2**32 - 1
LB_CONFIGS = ("least_request_lb_config", "round_robin_lb_config", "ring_hash_lb_config")

Object = dict[str, Any]


def of_kind(objects: Sequence[Any], kind: str) -> list[Object]:
    return [one for one in objects if one["kind"] == kind]


def sidecar(objects: Sequence[Any], *, patched: bool = True) -> Object:
    """The bootstrap of a sidecar with these objects, with or without their EnvoyFilters."""
    shape: Object = yaml.safe_load(SHAPE.read_text())
    resources = shape["static_resources"]
    resources["clusters"] += clusters(objects)
    for listener in resources["listeners"]:
        if listener["traffic_direction"] == "OUTBOUND":
            outbound_routes(listener)["virtual_hosts"][:0] = virtual_hosts(objects)
    for one in of_kind(objects, "EnvoyFilter") if patched else ():
        for patch in one["spec"]["configPatches"]:
            apply(patch, resources)
    return shape


def outbound_routes(listener: Object) -> Object:
    found: Object = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    return found


def clusters(objects: Sequence[Any]) -> Iterator[Object]:
    """The outbound cluster of each DestinationRule whose host is a ServiceEntry, and of its subsets."""
    ports = {
        one["spec"]["hosts"][0]: (
            one["spec"]["ports"][0],
            one["spec"].get("workloadSelector", {}).get("labels", {}),
        )
        for one in of_kind(objects, "ServiceEntry")
    }
    for rule in of_kind(objects, "DestinationRule"):
        host, policy = rule["spec"]["host"], rule["spec"]["trafficPolicy"]
        port, labels = ports[host]
        for subset in ({"name": "", "labels": {}}, *rule["spec"].get("subsets", ())):
            wanted = {**labels, **subset["labels"]}
            name = f"outbound|{port['number']}|{subset['name']}|{host}"
            yield _cluster(name, policy, list(_endpoints(objects, wanted, port["name"])))


def _endpoints(objects: Sequence[Any], labels: Object, port: str) -> Iterator[Object]:
    for entry in of_kind(objects, "WorkloadEntry"):
        spec = entry["spec"]
        if labels.items() <= spec["labels"].items():
            address = {"socket_address": {"address": spec["address"], "port_value": spec["ports"][port]}}
            yield {
                "endpoint": {"address": address},
                **({"load_balancing_weight": spec["weight"]} if "weight" in spec else {}),
            }


def _cluster(name: str, policy: Object, endpoints: list[Object]) -> Object:
    pool, balancing = policy["connectionPool"], policy["loadBalancer"]
    threshold: Object = {
        "max_connections": pool["tcp"].get("maxConnections") or MOST,
        "max_pending_requests": pool["http"].get("http1MaxPendingRequests") or MOST,
        "max_requests": pool["http"].get("http2MaxRequests") or MOST,
        "max_retries": MOST,
    }
    if budget := policy.get("retryBudget"):
        threshold["retry_budget"] = {
            "budget_percent": {"value": budget["percent"]},
            "min_retry_concurrency": budget["minRetryConcurrency"] or 3,
        }
    made: Object = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": pool["tcp"]["connectTimeout"],
        "lb_policy": balancing["simple"],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "circuit_breakers": {"thresholds": [threshold]},
        "outlier_detection": _outliers(policy["outlierDetection"]),
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {
                "@type": f"type.googleapis.com/{HTTP_OPTIONS}",
                "explicit_http_config": {"http_protocol_options": {}},
                "common_http_protocol_options": {"idle_timeout": pool["http"]["idleTimeout"]},
            }
        },
    }
    if balancing.get("localityLbSetting", {}).get("failoverPriority"):
        made["common_lb_config"]["locality_weighted_lb_config"] = {}
        made["load_assignment"]["endpoints"][0]["load_balancing_weight"] = 1
    if warmup := balancing.get("warmup"):
        made["least_request_lb_config"] = {
            "slow_start_config": {
                "slow_start_window": warmup["duration"],
                "aggression": {"default_value": warmup["aggression"], "runtime_key": "("},
                "min_weight_percent": {"value": warmup["minimumPercent"]},
            }
        }
    return made


def _outliers(said: Object) -> Object:
    made: Object = {
        "enforcing_success_rate": 0,
        "interval": said["interval"],
        "base_ejection_time": said["baseEjectionTime"],
    }
    for name, field in (("consecutive5xxErrors", "5xx"), ("consecutiveGatewayErrors", "gateway_failure")):
        made[f"consecutive_{field}"] = said[name]
        made[f"enforcing_consecutive_{field}"] = 100 if said[name] else 0
    if said["maxEjectionPercent"]:
        made["max_ejection_percent"] = said["maxEjectionPercent"]
    if said["splitExternalLocalOriginErrors"]:
        made |= {"split_external_local_origin_errors": True, "enforcing_local_origin_success_rate": 0}
        if said.get("consecutiveLocalOriginFailures"):
            made["consecutive_local_origin_failure"] = said["consecutiveLocalOriginFailures"]
            made["enforcing_consecutive_local_origin_failure"] = 100
    return made


def virtual_hosts(objects: Sequence[Any]) -> Iterator[Object]:
    for service in of_kind(objects, "VirtualService"):
        host = service["spec"]["hosts"][0]
        port = service["spec"]["http"][0]["match"][0]["port"]
        yield {
            "name": f"{host}:{port}",
            "domains": [host, f"{host}:{port}"],
            "include_request_attempt_count": True,
            "routes": list(_until_one_takes_all(_route(http) for http in service["spec"]["http"])),
        }


def _until_one_takes_all(routes: Iterator[Object]) -> Iterator[Object]:
    """What follows a route that matches everything is left out."""
    for route in routes:
        yield route
        if route["match"] == {"prefix": "/"}:
            return


def _route(http: Object) -> Object:
    match = http["match"][0]
    headers = [_header(name, text, invert=False) for name, text in match.get("headers", {}).items()]
    headers += [_header(name, text, invert=True) for name, text in match.get("withoutHeaders", {}).items()]
    headers += [
        _header(f":{name}", match[name], invert=False)
        for name in ("method", "authority", "scheme")
        if name in match
    ]
    # Not max_grpc_timeout: Envoy warns about it as deprecated.
    action: Object = {"timeout": http.get("timeout", "0s")}
    names = [_cluster_of(one["destination"], match["port"]) for one in http["route"]]
    if len(names) == 1:
        action["cluster"] = names[0]
    else:
        weights = zip(names, (one["weight"] for one in http["route"]), strict=True)
        action["weighted_clusters"] = {"clusters": [{"name": name, "weight": weight} for name, weight in weights]}
    if (policy := _retries(http["retries"])) is not None:
        action["retry_policy"] = policy
    return {
        "name": http["name"],
        "match": {"prefix": match["uri"]["prefix"], **({"headers": headers} if headers else {})},
        "route": action,
    }


def _cluster_of(destination: Object, listener: int) -> str:
    """Without a port, that of the listener: its routes see no Services of other ports."""
    port = destination.get("port", {}).get("number", listener)
    return f"outbound|{port}|{destination.get('subset', '')}|{destination['host']}"


def _header(name: str, text: Object, *, invert: bool) -> Object:
    if not text:
        return {"name": name, "present_match": True, "invert_match": invert}
    if "regex" in text:
        return {"name": name, "string_match": {"safe_regex": {"regex": text["regex"]}}, "invert_match": invert}
    return {"name": name, "string_match": text, "invert_match": invert}


def _retries(said: Object) -> Object | None:
    if not said["attempts"]:
        return None
    known = {str(one.value) for one in HTTPStatus}
    parts = said["retryOn"].split(",")
    codes = [int(one) for one in parts if one in known]
    on = [one for one in parts if one not in known]
    if codes and "retriable-status-codes" not in on:
        on.append("retriable-status-codes")
    made: Object = {
        "num_retries": said["attempts"],
        "retry_on": ",".join(on),
        "retriable_status_codes": codes,
        "host_selection_retry_max_attempts": 5,
        "retry_host_predicate": [PREVIOUS_HOSTS] if said["retryIgnorePreviousHosts"] else [],
    }
    if "perTryTimeout" in said:
        made["per_try_timeout"] = said["perTryTimeout"]
    if said.get("retryRemoteLocalities"):
        made["retry_priority"] = PREVIOUS_PRIORITIES
    if "backoff" in said:
        made["retry_back_off"] = {"base_interval": said["backoff"]}
    return made


def apply(patch: Object, resources: Object) -> None:
    """One patch of an EnvoyFilter, to everything outbound that it matches."""
    match, value = patch["match"], patch["patch"]["value"]
    assert patch["patch"]["operation"] == "MERGE"
    assert match["context"] == "SIDECAR_OUTBOUND"
    if patch["applyTo"] == "CLUSTER":
        for cluster in resources["clusters"]:
            if _cluster_matches(cluster["name"], match["cluster"]):
                merge(cluster, value)
        return
    assert patch["applyTo"] == "HTTP_ROUTE"
    wanted = match["routeConfiguration"]["vhost"]
    for listener in resources["listeners"]:
        if listener["traffic_direction"] != "OUTBOUND":
            continue
        for host in outbound_routes(listener)["virtual_hosts"]:
            for route in host["routes"]:
                named = wanted.get("name", host["name"]) == host["name"]
                if named and wanted["route"]["name"] == route["name"] and "route" in route:
                    merge(route, value)


def _cluster_matches(name: str, match: Object) -> bool:
    parts = name.split("|")
    return len(parts) == 4 and parts[0] == "outbound" and match["service"] == parts[3]


def merge(into: Object, patch: Object) -> None:
    """Istio's merge of messages: lists are appended to, a zero changes nothing that is there, Durations and packed
    messages are replaced as a whole, and so is what belongs to another case of a oneof."""
    for key, value in patch.items():
        if key in LB_CONFIGS:
            for other in LB_CONFIGS:
                if other != key:
                    into.pop(other, None)
        there = into.get(key)
        if there is None:
            into[key] = copy.deepcopy(value)
        elif isinstance(value, dict) and isinstance(there, dict) and "@type" not in value:
            merge(there, value)
        elif isinstance(value, list):
            into[key] = [*there, *copy.deepcopy(value)]
        elif value not in (0, False, ""):
            into[key] = copy.deepcopy(value)
