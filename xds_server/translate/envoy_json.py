"""Resources in Envoy's JSON form, for operators, golden tests and an Envoy without control plane."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import yaml
from betterproto2 import Casing
from envoy_data_plane.envoy.config.core.v3 import HealthStatus

from xds_server.model.type_urls import CLUSTER, ENDPOINT, EXTENSION, LISTENER, ROUTE, RUNTIME, SECRET, SHORT_NAMES
from xds_server.translate.access_log_config import SERVER_CLUSTER
from xds_server.translate.translated_resource import TranslatedResource
from xds_server.wire.assignment import (
    DESTINATION_METADATA,
    AssignmentSpec,
    EndpointSpec,
    HostPort,
    InternalListener,
    LocalitySpec,
)

_CONNECTION_MANAGER: Final = "envoy.filters.network.http_connection_manager"
_INTERNAL_LISTENERS: Final = "type.googleapis.com/envoy.extensions.bootstrap.internal_listener.v3.InternalListener"
STATIC_SECRETS: Final = "secrets"
"""Folder with the certificates of a static Envoy, next to its working directory, as for ``serve --secrets``."""

_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def as_json(item: TranslatedResource) -> dict[str, Any]:
    """The resource as a dict that Envoy reads, keys in the order of Envoy's documentation."""
    if isinstance(item.message, AssignmentSpec):
        return _assignment(item.message)
    if item.type_url == SECRET:
        return {"name": item.name}  # never its content
    plain: dict[str, Any] = _plain(item.message.to_dict(casing=cast("Casing", _as_in_proto)))
    return plain


def as_yaml(items: Iterable[TranslatedResource]) -> str:
    """One YAML document per resource, each with a comment on its kind and origins."""
    return "".join(_document(item) for item in items)


class _Dumper(yaml.CSafeDumper):
    """Writes multi-line text, e.g. a script, as a block."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _document(item: TranslatedResource) -> str:
    origins = f", from {', '.join(item.origins)}" if item.origins else ""
    resource = {"@type": item.type_url, **as_json(item)}
    text = yaml.dump(resource, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return f"---  # {SHORT_NAMES[item.type_url]} {item.name}{origins}\n{text}"


def _plain(value: Any) -> Any:
    """Convert integral floats to int; the runtime layer has only floating point."""
    match value:
        case dict():
            return {key: _plain(one) for key, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value


def static_bootstrap(items: Iterable[TranslatedResource], server: tuple[str, int] | None = None) -> dict[str, Any]:
    """Fully static bootstrap, for ``envoy --mode validate`` and an air-gapped Envoy.

    Endpoints, routes and discovered filters are inlined in clusters and listeners; the runtime layer is static.
    Certificates are read from ``STATIC_SECRETS`` and are not included. ``server``: host and port for access
    logs; None: no logs.
    """
    by_type: dict[str, dict[str, dict[str, Any]]] = {}
    for item in items:
        by_type.setdefault(item.type_url, {})[item.name] = as_json(item)
    endpoints, routes, filters = by_type.get(ENDPOINT, {}), by_type.get(ROUTE, {}), by_type.get(EXTENSION, {})
    return {
        "bootstrap_extensions": [
            {"name": "envoy.bootstrap.internal_listener", "typed_config": {"@type": _INTERNAL_LISTENERS}}
        ],
        "static_resources": {
            "clusters": [
                *(_static_cluster(one, endpoints) for one in by_type.get(CLUSTER, {}).values()),
                _server_cluster(server),
            ],
            "listeners": [_static_listener(one, routes, filters) for one in by_type.get(LISTENER, {}).values()],
        },
        "layered_runtime": {
            "layers": [
                {"name": name, "static_layer": layer["layer"]} for name, layer in by_type.get(RUNTIME, {}).items()
            ]
        },
    }


def _server_cluster(server: tuple[str, int] | None) -> dict[str, Any]:
    """Cluster for access logs; Envoy refuses listeners that name an unknown cluster."""
    cluster: dict[str, Any] = {"name": SERVER_CLUSTER, "type": "STATIC"}
    if server is None:
        return cluster
    host, port = server
    address = {"socket_address": {"address": host, "port_value": port}}
    options = {
        "@type": f"type.googleapis.com/{_HTTP_OPTIONS}",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        **cluster,
        "load_assignment": {
            "cluster_name": SERVER_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {_HTTP_OPTIONS: options},
    }


def _as_in_proto(field: str) -> str:
    # betterproto2's snake case turns consecutive_5xx and http2 into names that Envoy rejects.
    return field


def _static_cluster(cluster: dict[str, Any], endpoints: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    kept = {key: value for key, value in cluster.items() if key != "eds_cluster_config"}
    if "transport_socket" in kept:
        kept["transport_socket"] = _static_socket(kept["transport_socket"])
    if cluster["name"] not in endpoints:
        return kept
    return {**kept, "type": "STATIC", "load_assignment": endpoints[cluster["name"]]}


def _static_socket(socket: dict[str, Any]) -> dict[str, Any]:
    """The socket with certificates from files, at any nesting of TLS."""
    config = dict(socket["typed_config"])
    if "transport_socket" in config:
        config["transport_socket"] = _static_socket(config["transport_socket"])
    if "common_tls_context" in config:
        config["common_tls_context"] = _from_files(config["common_tls_context"])
    return {**socket, "typed_config": config}


def _from_files(context: dict[str, Any]) -> dict[str, Any]:
    kept = dict(context)
    shown, combined = (
        kept.pop("tls_certificate_sds_secret_configs", ()),
        kept.pop("combined_validation_context", None),
    )

    def file(one: dict[str, Any], name: str) -> dict[str, str]:
        return {"filename": f"{STATIC_SECRETS}/{one['name'].partition('/')[0]}/{name}"}

    certificates = [
        {"certificate_chain": file(one, "tls.crt"), "private_key": file(one, "tls.key")} for one in shown
    ]
    shown_certificates = {"tls_certificates": certificates} if certificates else {}
    if combined is None:  # callers show no certificate
        return {**kept, **shown_certificates}
    trusted = file(combined["validation_context_sds_secret_config"], "ca.crt")
    return {
        **kept,
        **shown_certificates,
        "validation_context": {**combined["default_validation_context"], "trusted_ca": trusted},
    }


def _static_listener(
    listener: dict[str, Any], routes: Mapping[str, dict[str, Any]], filters: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    def static(one: dict[str, Any]) -> dict[str, Any]:
        if one["name"] != _CONNECTION_MANAGER:
            return one
        manager = dict(one["typed_config"])
        name = manager.pop("rds")["route_config_name"]
        manager["http_filters"] = [filters.get(of["name"], of) for of in manager["http_filters"]]
        return {**one, "typed_config": {**manager, "route_config": routes[name]}}

    def static_chain(chain: dict[str, Any]) -> dict[str, Any]:
        socket = (
            {"transport_socket": _static_socket(chain["transport_socket"])} if "transport_socket" in chain else {}
        )
        return {**chain, "filters": [static(one) for one in chain["filters"]], **socket}

    chains = [static_chain(chain) for chain in listener["filter_chains"]]
    return {**listener, "filter_chains": chains}


def _assignment(spec: AssignmentSpec) -> dict[str, Any]:
    factor = spec.overprovisioning_percent
    return {
        "cluster_name": spec.cluster,
        "endpoints": [_locality(one) for one in spec.localities],
        **({} if factor is None else {"policy": {"overprovisioning_factor": factor}}),
    }


def _locality(spec: LocalitySpec) -> dict[str, Any]:
    place = {key: value for key, value in (("region", spec.region), ("zone", spec.zone)) if value}
    weight = {"load_balancing_weight": spec.weight} if spec.weight else {}
    priority = {"priority": spec.priority} if spec.priority else {}
    return {"locality": place, "lb_endpoints": [_endpoint(one) for one in spec.endpoints], **weight, **priority}


def _endpoint(spec: EndpointSpec) -> dict[str, Any]:
    hostname = {"hostname": spec.hostname} if spec.hostname else {}
    return {
        "endpoint": {"address": _address(spec.address), **hostname},
        "health_status": HealthStatus(spec.health).name,
        "metadata": {"filter_metadata": _metadata(spec)},
        "load_balancing_weight": spec.weight,
    }


def _metadata(spec: EndpointSpec) -> dict[str, dict[str, str | list[str]]]:
    labels = {"envoy.lb": {name: value if isinstance(value, str) else list(value) for name, value in spec.labels}}
    if isinstance(spec.address, HostPort):
        return labels
    return {**labels, DESTINATION_METADATA: {"local": spec.address.endpoint_id}}


def _address(address: HostPort | InternalListener) -> dict[str, Any]:
    if isinstance(address, HostPort):
        return {"socket_address": {"address": address.host, "port_value": address.port}}
    return {"envoy_internal_address": {"server_listener_name": address.name, "endpoint_id": address.endpoint_id}}
