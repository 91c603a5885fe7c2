"""Exported objects as the real Envoy Gateway takes them: ``egctl x translate``.

Around the exports stands what an operator has: a GatewayClass, the Gateway with a listener for each port, Services
of engines, authorities in ConfigMaps. egctl loads neither InferencePools nor EndpointSlices, so they are left out,
and Services without an address get one.
"""

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from istio.export.istio_objects import Object
from istio.gateway_api.gateway_objects import ROUTES
from tests.mesh_parts import ENVOY_GATEWAY, required
from xds_server.auth.lab_ca import make_certificates

_CLASS: Final = "envoy"
_NOT_LOADED: Final = frozenset({"InferencePool", "EndpointSlice"})
_LISTS: Final = {
    "Backend": "backends",
    "BackendTLSPolicy": "backendTLSPolicies",
    "BackendTrafficPolicy": "backendTrafficPolicies",
    "ClientTrafficPolicy": "clientTrafficPolicies",
    "Gateway": "gateways",
    "HTTPRoute": "httpRoutes",
}
"""Kinds that get a status, and where egctl prints them."""

_GOOD: Final = frozenset({"Accepted", "BackendsAvailable", "Programmed", "ResolvedRefs"})
"""Conditions that must be true. Others, such as Conflicted, Overridden and Warning, must not."""

_DUMPS: Final = {
    "Clusters": ("dynamicActiveClusters", "cluster"),
    "Endpoints": ("dynamicEndpointConfigs", "endpointConfig"),
    "Listeners": ("dynamicListeners", "activeState", "listener"),
    "Routes": ("dynamicRouteConfigs", "routeConfig"),
}
_LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyGatewayTranslation:
    """``refusals``: what Envoy Gateway has against each object, by ``KIND NAMESPACE/NAME``.

    ``clusters`` and ``listeners`` of each Gateway (``NAMESPACE/NAME``) are static: they have endpoints and routes.
    """

    refusals: Mapping[str, Sequence[str]]
    clusters: Mapping[str, Sequence[dict[str, Any]]]
    listeners: Mapping[str, Sequence[dict[str, Any]]]


def translated(exported: Sequence[Object], folder: Path) -> EnvoyGatewayTranslation:
    """The translation of these objects, which may belong to several Gateways."""
    program = required(ENVOY_GATEWAY)
    objects = [_loadable(one) for one in exported if one["kind"] not in _NOT_LOADED]
    make_certificates(folder / "made", [], lasts=timedelta(days=1))
    authority = (folder / "made" / "ca.crt").read_text()
    file = folder / "exported.yaml"
    file.write_text(yaml.dump_all([*_around(objects, authority), *objects], Dumper=yaml.CSafeDumper))
    command = [program, "x", "translate", "--from", "gateway-api", "--to", "gateway-api,xds", "--output", "json"]
    done = subprocess.run(
        [*command, "--file", file], capture_output=True, text=True, check=False, timeout=_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # Authorities would come by SDS, which egctl does not print.
    dumps = {name: _dumped(_trusting(one["configs"], authority)) for name, one in said["xds"].items()}
    refusals = {_key(one): list(_refusals(one, said)) for one in objects}
    return EnvoyGatewayTranslation(
        refusals={key: complaints for key, complaints in refusals.items() if complaints},
        clusters={name: [_static_cluster(one, of) for one in of["Clusters"]] for name, of in dumps.items()},
        listeners={name: [_static_listener(one, of) for one in of["Listeners"]] for name, of in dumps.items()},
    )


def _key(one: Mapping[str, Any]) -> str:
    return f"{one['kind']} {one['metadata']['namespace']}/{one['metadata']['name']}"


def _loadable(one: Mapping[str, Any]) -> Object:
    if one["kind"] == "Service":
        return {**one, "spec": {**one["spec"], "clusterIP": "10.96.0.1"}}
    return dict(one)


def _around(objects: Sequence[Mapping[str, Any]], authority: str) -> Iterator[Object]:
    """What the objects refer to and an operator already has."""
    yield {
        "apiVersion": f"{ROUTES}/v1",
        "kind": "GatewayClass",
        "metadata": {"name": _CLASS},
        "spec": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
    }
    routes = [one for one in objects if one["kind"] == "HTTPRoute"]
    parents = [ref for one in routes for ref in one["spec"]["parentRefs"]]
    for namespace, name in sorted({(ref["namespace"], ref["name"]) for ref in parents}):
        ports = {ref["port"] for ref in parents if (ref["namespace"], ref["name"]) == (namespace, name)}
        yield {
            "apiVersion": f"{ROUTES}/v1",
            "kind": "Gateway",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "gatewayClassName": _CLASS,
                "listeners": [
                    {
                        "name": f"port-{port}",
                        "port": port,
                        "protocol": "HTTP",
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    }
                    for port in sorted(ports)
                ],
            },
        }
    own = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in objects if one["kind"] == "Service"}
    services: dict[tuple[str, str], set[int]] = {}
    for one in routes:
        for ref in (ref for rule in one["spec"]["rules"] for ref in rule["backendRefs"]):
            place = (ref.get("namespace", one["metadata"]["namespace"]), ref["name"])
            if ref["kind"] == "Service" and place not in own:
                services.setdefault(place, set()).add(ref["port"])
    for (namespace, name), ports in sorted(services.items()):
        yield {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "clusterIP": "10.96.0.2",
                "ports": [{"name": f"p{port}", "port": port} for port in sorted(ports)],
            },
        }
    policies = [one for one in objects if one["kind"] == "BackendTLSPolicy"]
    authorities = {
        (one["metadata"]["namespace"], ref["name"])
        for one in policies
        for ref in one["spec"]["validation"]["caCertificateRefs"]
    }
    for namespace, name in sorted(authorities):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {"ca.crt": authority},
        }


def _refusals(one: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[str]:
    if one["kind"] not in _LISTS:
        return
    place = (one["metadata"]["namespace"], one["metadata"]["name"])
    (found,) = [
        found
        for found in said[_LISTS[one["kind"]]]
        if (found["metadata"]["namespace"], found["metadata"]["name"]) == place
    ]
    conditions = list(_conditions(found.get("status", {})))
    if not any(condition["type"] == "Accepted" for condition in conditions):
        yield "was not looked at"
    for condition in conditions:
        if (condition["status"] == "True") != (condition["type"] in _GOOD):
            yield f"{condition['type']} is {condition['status']} ({condition['reason']}): {condition['message']}"


def _conditions(status: Any) -> Iterator[Mapping[str, str]]:
    """Every condition below, of whichever parent, ancestor or listener."""
    if isinstance(status, list):
        for one in status:
            yield from _conditions(one)
    elif isinstance(status, dict):
        yield from status.get("conditions", ())
        yield from _conditions([one for key, one in status.items() if key != "conditions"])


def _trusting(node: Any, authority: str) -> Any:
    """The same with the authority in each validation context that names one by SDS."""
    if isinstance(node, list):
        return [_trusting(one, authority) for one in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _trusting(value, authority) for key, value in node.items()}
    if "combinedValidationContext" in plain:
        context = plain.pop("combinedValidationContext")["defaultValidationContext"]
        plain["validationContext"] = {**context, "trustedCa": {"inlineString": authority}}
    return plain


def _dumped(configs: Sequence[Mapping[str, Any]]) -> Mapping[str, Sequence[dict[str, Any]]]:
    """The resources of a config dump by kind."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _DUMPS}
    for config in configs:
        for kind, (entries, *path) in _DUMPS.items():
            for entry in config.get(entries, ()):
                resource = functools.reduce(lambda inside, part: inside[part], path, entry)
                found[kind].append({key: value for key, value in resource.items() if key != "@type"})
    return found


def _static_cluster(one: dict[str, Any], found: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The cluster with its endpoints inside."""
    if one.get("type") != "EDS":
        return one
    named = {assignment["clusterName"]: assignment for assignment in found["Endpoints"]}
    rest = {key: value for key, value in one.items() if key != "edsClusterConfig"}
    return {**rest, "type": "STATIC", "loadAssignment": named[one["edsClusterConfig"]["serviceName"]]}


def _static_listener(one: dict[str, Any], found: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """The listener with its routes inside."""
    named = {routes["name"]: routes for routes in found["Routes"]}
    plain: dict[str, Any] = json.loads(json.dumps(one))
    for chain in (*plain.get("filterChains", ()), *filter(None, [plain.get("defaultFilterChain")])):
        for each in chain["filters"]:
            manager = each["typedConfig"]
            if "rds" in manager:
                manager["routeConfig"] = named[manager.pop("rds")["routeConfigName"]]
    return plain
