"""Envoy bootstrap: node identity, control-plane address, and only what stays fixed at runtime.

The text is ``envoy/bootstrap.yaml`` with values filled in, comments included, for operators to read. In a wheel
that folder ships inside this package; in a source tree it is next to it.
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
"""Downstream connections at which Envoy protects itself; far above what a fleet of engines can serve."""

_START_CUTTING: Final = """\
# Start Envoy with a drain time of zero: envoy -c THIS --drain-time-s 0
# Requests held by a hung engine are cut by removing a listener, which takes as long as the drain time."""

_START_DRAINING: Final = """\
# Start Envoy with a drain time no shorter than your longest stream: envoy -c THIS --drain-time-s 900"""

_HEALTH_LISTENER: Final = """\
  listeners:
  # For probes and scrapers on other machines: three read-only pages.
  - name: health
    address:
      socket_address: {address: $health_address, port_value: $health_port}
    # An Envoy at its connection limit is still healthy.
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
              # Liveness: the workers answer.
              - match: {path: /live}
                direct_response: {status: 200, body: {inline_string: "live\\n"}}
              # 503 while Envoy starts, and after POST /healthcheck/fail.
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
          # Envoy reloads certificates through these files.
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

_MEMORY: Final = """\
  # The heap against the memory limit of the container: Envoy refuses requests before the kernel kills it.
  - name: envoy.resource_monitors.fixed_heap
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig
      max_heap_size_bytes: $max_heap_bytes
  # Streams that hold 1 MiB or more of buffers are reset first, the largest before the others.
  buffer_factory_config: {minimum_account_to_track_power_of_two: 20}
  loadshed_points:
  # Bodies that arrive over HTTP/1: each read is refused with a probability that grows with the heap. A large body
  # takes many reads and a small request one, so large bodies are refused first.
  - name: envoy.load_shed_points.http1_server_abort_dispatch
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      scaled: {scaling_threshold: 0.65, saturation_threshold: 0.95}
  actions:
  # HTTP/2 streams: only those can be reset.
  - name: envoy.overload_actions.reset_high_memory_stream
    triggers:
    - name: envoy.resource_monitors.fixed_heap
      scaled: {scaling_threshold: 0.7, saturation_threshold: 0.95}
  - name: envoy.overload_actions.shrink_heap
    triggers:
    - {name: envoy.resource_monitors.fixed_heap, threshold: {value: 0.65}}
  # New requests get 503.
  - name: envoy.overload_actions.stop_accepting_requests
    triggers:
    - {name: envoy.resource_monitors.fixed_heap, threshold: {value: 0.92}}
"""

_FIXED_BYTES: Final = 64 * 1024 * 1024
"""Envoy's memory besides its heap, measured at rest: code, stacks, the allocator's own."""

_HEAP_SHARE: Final = 0.9
"""Share of the rest for the heap; bodies that arrive between two looks at the heap need some."""

LEAST_MEMORY_BYTES: Final = 256 * 1024 * 1024
"""Below this, a burst of bodies outruns the reading of the heap: 148 MB were used at a limit of 128 MiB."""

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
"""Cluster for Envoy's own admin port; the underscore cannot occur in a pool name."""

_API_TYPES: Final = {"delta": "DELTA_GRPC", "sotw": "GRPC"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapTls:
    """TLS identity of an Envoy, and the control-plane name it verifies: a DNS name or a URI (SPIFFE).

    ``folder`` is where this Envoy finds the files of ``secret_files``.
    """

    files: TlsFiles
    folder: Path
    server_name: str

    @property
    def by_uri(self) -> bool:
        """Whether control planes are verified by URI."""
        return "://" in self.server_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Values that differ between Envoys.

    ``servers``: (host, port) of equivalent control planes. Empty ``pools``: all. ``admin_port`` 0: any free port.
    ``listen_address``: bind address of every listener; empty: as in the routes. ``cuts``: this Envoy
    can cut requests held by a hung engine; requires a drain time of zero at start. ``health_port``: readiness and
    statistics, open to all machines; 0: none. It requires a fixed ``admin_port``. ``memory_bytes``: memory
    limit of the container, at which Envoy protects itself; 0: none.
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
    memory_bytes: int = 0
    tls: BootstrapTls | None = None

    def __post_init__(self) -> None:
        """Reject invalid combinations."""
        if self.health_port and not self.admin_port:
            raise ValueError("the health port serves data of the admin port: set the admin port, too")
        if self.health_port and self.health_port == self.admin_port:
            raise ValueError(f"the health port and the admin port cannot both be {self.health_port}")
        if self.memory_bytes and self.memory_bytes < LEAST_MEMORY_BYTES:
            raise ValueError(f"the memory limit must be at least {LEAST_MEMORY_BYTES // 1024**2}MiB")


def bootstrap_yaml(one: Bootstrap) -> str:
    """Complete bootstrap file of an Envoy."""
    # JSON is YAML, and quotes any characters in names.
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
        **_memory(one),
        tls=_tls(one.tls) if one.tls else "",
        start=_START_CUTTING if one.cuts else _START_DRAINING,
    )


def _health(one: Bootstrap) -> dict[str, str]:
    """Template values for the health port; empty without one."""
    if not one.health_port:
        return {"health_listener": "", "admin_cluster": ""}
    values = {
        "health_address": "0.0.0.0",
        "health_port": str(one.health_port),
        "admin_cluster": ADMIN_CLUSTER,
        "admin": json.dumps([_endpoint("127.0.0.1", one.admin_port)]),
    }
    return {
        "health_listener": Template(_HEALTH_LISTENER).substitute(values),
        "admin_cluster": Template(_ADMIN_CLUSTER).substitute(values),
    }


def _memory(one: Bootstrap) -> dict[str, str]:
    """Template values for the memory limit; empty without one."""
    if not one.memory_bytes:
        return {"memory_period": "", "memory": ""}
    heap = {"max_heap_bytes": str(int((one.memory_bytes - _FIXED_BYTES) * _HEAP_SHARE))}
    # A burst of bodies fills the heap within a second; Envoy's default is 1 s.
    return {"memory_period": "  refresh_interval: 0.05s\n", "memory": Template(_MEMORY).substitute(heap)}


def _tls(tls: BootstrapTls) -> str:
    return Template(_TLS).substitute(
        name=json.dumps("" if tls.by_uri else tls.server_name),
        san_type="URI" if tls.by_uri else "DNS",
        proves=json.dumps(tls.server_name),
        identity=json.dumps(str(tls.folder / IDENTITY_FILE)),
        authorities=json.dumps(str(tls.folder / AUTHORITIES_FILE)),
    )


def secret_files(tls: BootstrapTls) -> Mapping[str, str]:
    """SDS files that locate the certificates, by name; Envoy watches the folders of those certificates."""
    assert tls.files.authorities is not None, "an Envoy needs a CA for control planes"  # noqa: S101
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
