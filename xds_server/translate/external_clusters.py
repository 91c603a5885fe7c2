"""Clusters of external services: one per reference, so that a service may have other settings at each port.

The name contains the port and the field, not the address: an edit of the address changes no listener.
"""

from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    Http1ProtocolOptions,
    Http2ProtocolOptions,
    KeepaliveSettings,
    SocketAddress,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions as UpstreamHttpProtocolOptions
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptionsExplicitHttpConfig

from policies.external_service import ExternalService
from policies.quantity import is_ip
from xds_server.translate.envoy_values import pack_any, seconds
from xds_server.translate.upstream_tls import external_tls_socket

CONNECT_TIMEOUT_S: Final = 2.0
"""Time to connect to an external service, with TLS."""

KEEPALIVE_S: Final = 30.0
"""Interval of HTTP/2 pings: a service that vanished is noticed, and NATs keep the connection."""

_HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def external_cluster_name(port: int, field: str) -> str:
    """Name of the cluster of the service in this field of a port's listener; no pool can have it."""
    return f"port-{port}/{field}"


def external_cluster(name: str, service: ExternalService, *, http2: bool) -> Cluster:
    """Cluster of an external service; ``http2``: it speaks gRPC."""
    options = (
        HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=Http2ProtocolOptions(
                connection_keepalive=KeepaliveSettings(
                    interval=seconds(KEEPALIVE_S), timeout=seconds(CONNECT_TIMEOUT_S)
                )
            )
        )
        if http2
        else HttpProtocolOptionsExplicitHttpConfig(http_protocol_options=Http1ProtocolOptions())
    )
    address = Address(socket_address=SocketAddress(address=service.address, port_value=service.port))
    endpoint = LbEndpoint(endpoint=Endpoint(address=address, hostname=service.address))
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.STATIC if is_ip(service.address) else ClusterDiscoveryType.STRICT_DNS,
        # A name that does not resolve must not delay the listeners of an Envoy that starts.
        wait_for_warm_on_init=None if is_ip(service.address) else False,
        connect_timeout=seconds(CONNECT_TIMEOUT_S),
        load_assignment=ClusterLoadAssignment(
            cluster_name=name, endpoints=[LocalityLbEndpoints(lb_endpoints=[endpoint])]
        ),
        transport_socket=external_tls_socket(service, http2=http2),
        typed_extension_protocol_options={
            _HTTP_OPTIONS: pack_any(UpstreamHttpProtocolOptions(explicit_http_config=options))
        },
    )
