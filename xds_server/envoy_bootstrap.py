"""The bootstrap an Envoy starts with: who it is, where the control plane is, and nothing that may change later.

The text is ``envoy/bootstrap.yaml`` with a few values filled in, comments and all: an operator will read it. In a
wheel that folder ships inside this package, in a source tree it stands beside it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final, Literal

from engine.tls.paths import TlsFiles

TEMPLATE: Final = "bootstrap.yaml"
IDENTITY_FILE: Final = "tls-identity.json"
AUTHORITIES_FILE: Final = "tls-authorities.json"
MAX_CONNECTIONS: Final = 50_000
"""Downstream connections after which Envoy protects itself; far above what a fleet of engines can serve."""

_START_CUTTING: Final = """\
# Start Envoy with a drain time of zero: envoy -c THIS --drain-time-s 0
# What a hung engine holds is ended by the removal of a listener, and that takes as long as the drain time."""

_START_DRAINING: Final = """\
# Start Envoy with a drain time no shorter than your longest stream: envoy -c THIS --drain-time-s 900"""

_HEALTH_LISTENER: Final = """\
  listeners:
  # For probes and scrapers of other machines: three pages, and nothing that could stop this Envoy.
  - name: health
    address:
      socket_address: {address: $health_address, port_value: $health_port}
    # Whoever is full of clients is well.
    ignore_global_conn_limit: true
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": >-
            type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: health
          route_config:
            virtual_hosts:
            - name: health
              domains: ["*"]
              routes:
              # That workers answer.
              - match: {path: /live}
                direct_response: {status: 200, body: {inline_string: "live\\n"}}
              # 503 while Envoy starts, and once it was told to take nothing new (POST /healthcheck/fail).
              - match: {path: /ready}
                route: {cluster: $admin_cluster}
              - match: {path: /stats/prometheus}
                route: {cluster: $admin_cluster}
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"""

_TLS: Final = """\
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        sni: $name
        common_tls_context:
          tls_params: {tls_minimum_protocol_version: TLSv1_2, tls_maximum_protocol_version: TLSv1_3}
          # By way of these files Envoy takes up new certificates while it runs.
          tls_certificate_sds_secret_configs:
          - name: identity
            sds_config: {path_config_source: {path: $identity}, resource_api_version: V3}
          combined_validation_context:
            default_validation_context:
              match_typed_subject_alt_names:
              - {san_type: $san_type, matcher: {exact: $proves}}
            validation_context_sds_secret_config:
              name: authorities
              sds_config: {path_config_source: {path: $authorities}, resource_api_version: V3}
"""

_SDS_TYPE: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

_ADMIN_CLUSTER: Final = """\
  - name: $admin_cluster
    type: STATIC
    connect_timeout: 1s
    load_assignment:
      cluster_name: $admin_cluster
      endpoints:
      - lb_endpoints: $admin
"""

ADMIN_CLUSTER: Final = "envoy_admin"
"""Envoy's own admin port as a cluster; no pool can have a name with an underscore."""

_API_TYPES: Final = {"delta": "DELTA_GRPC", "sotw": "GRPC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTls:
    """How an Envoy proves itself to control planes, and what they must prove: a DNS name, or a URI (SPIFFE).

    ``folder`` is where this Envoy finds the files of ``secret_files``.
    """

    files: TlsFiles
    folder: Path
    server_name: str

    @property
    def by_uri(self) -> bool:
        """Whether control planes prove a URI."""
        return "://" in self.server_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """What differs between one Envoy and another.

    ``servers`` are (host, port) of control planes, any of which will do. Empty ``pools`` means all.
    ``admin_port`` 0 takes a free one. ``listen_address`` is where this Envoy binds every listener; empty means as
    the routes say. ``cuts``: whether this Envoy can be told to end what a hung engine holds; it must then be
    started with a drain time of zero. ``health_port`` is where every machine may ask whether this Envoy is ready,
    and what it counts; 0 opens none. It needs an ``admin_port`` that is known.
    """

    node: str
    zone: str = ""
    region: str = ""
    role: Literal["gateway", "sidecar"] = "gateway"
    pools: Sequence[str] = ()
    listen_address: str = ""
    servers: Sequence[tuple[str, int]] = (("127.0.0.1", 18000),)
    admin_port: int = 9901
    protocol: Literal["delta", "sotw"] = "delta"
    max_connections: int = MAX_CONNECTIONS
    cuts: bool = True
    health_port: int = 0
    tls: BootstrapTls | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if self.health_port and not self.admin_port:
            raise ValueError("what the health port tells comes from the admin port: name that, too")
        if self.health_port and self.health_port == self.admin_port:
            raise ValueError(f"the health port and the admin port cannot both be {self.health_port}")


def bootstrap_yaml(one: Bootstrap) -> str:
    """The complete bootstrap file of an Envoy."""
    # JSON is YAML, and quotes whatever an operator may have put into a name.
    return Template(_template()).substitute(
        node_id=json.dumps(one.node),
        zone=json.dumps(one.zone),
        region=json.dumps(one.region),
        role=json.dumps(one.role),
        pools=json.dumps(list(one.pools)),
        listen_address=json.dumps(one.listen_address),
        servers=json.dumps([_endpoint(host, port) for host, port in one.servers]),
        admin_port=one.admin_port,
        api_type=_API_TYPES[one.protocol],
        max_connections=one.max_connections,
        cuts=json.dumps(one.cuts),
        **_health(one),
        tls=_tls(one.tls) if one.tls else "",
        start=_START_CUTTING if one.cuts else _START_DRAINING,
    )


def _health(one: Bootstrap) -> dict[str, str]:
    """The parts for the health port; empty without one."""
    if not one.health_port:
        return {"health_listener": "", "admin_cluster": ""}
    said = {
        "health_address": "0.0.0.0",
        "health_port": str(one.health_port),
        "admin_cluster": ADMIN_CLUSTER,
        "admin": json.dumps([_endpoint("127.0.0.1", one.admin_port)]),
    }
    return {
        "health_listener": Template(_HEALTH_LISTENER).substitute(said),
        "admin_cluster": Template(_ADMIN_CLUSTER).substitute(said),
    }


def _tls(tls: BootstrapTls) -> str:
    return Template(_TLS).substitute(
        name=json.dumps("" if tls.by_uri else tls.server_name),
        san_type="URI" if tls.by_uri else "DNS",
        proves=json.dumps(tls.server_name),
        identity=json.dumps(str(tls.folder / IDENTITY_FILE)),
        authorities=json.dumps(str(tls.folder / AUTHORITIES_FILE)),
    )


def secret_files(tls: BootstrapTls) -> Mapping[str, str]:
    """The files, by name, that tell Envoy where certificates are; it watches the folders of those."""
    assert tls.files.authorities is not None, "an Envoy trusts no control plane without"  # noqa: S101
    identity = {
        "certificate_chain": {"filename": str(tls.files.certificate)},
        "private_key": {"filename": str(tls.files.key)},
        "watched_directory": {"path": str(tls.files.certificate.parent)},
    }
    authorities = {
        "trusted_ca": {"filename": str(tls.files.authorities)},
        "watched_directory": {"path": str(tls.files.authorities.parent)},
    }
    return {
        IDENTITY_FILE: _secret("identity", tls_certificate=identity),
        AUTHORITIES_FILE: _secret("authorities", validation_context=authorities),
    }


def _secret(name: str, **content: Any) -> str:
    return json.dumps({"resources": [{"@type": _SDS_TYPE, "name": name, **content}]}, indent=2) + "\n"


def _endpoint(host: str, port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


def _template() -> str:
    shipped = files(__package__).joinpath("envoy_files", TEMPLATE)
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    return (Path(__file__).parent.parent / "envoy" / TEMPLATE).read_text(encoding="utf-8")
