"""Engines behind internal listeners, so that requests held by one engine can be cut without side effects.

No change of endpoints or clusters ends a request held by an engine. Removing the listener it passed through does,
within milliseconds, if Envoy runs with a drain time of zero. So a capable proxy sees each engine as an internal
listener that forwards to the address in its endpoint:

pool's cluster -> endpoint ``engine/<pool>/<engine>`` -> that listener -> ``hop/<pool>`` -> the engine

A listener contains only names: a changed address does not change it, so ends no request. The listeners of a
thousand engines are encoded once, for all proxies.

Measurements and alternatives: docs/adr/0002.
"""

from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterDiscoveryType,
    ClusterLbPolicy,
)
from envoy_data_plane.envoy.config.core.v3 import TransportSocket
from envoy_data_plane.envoy.config.listener.v3 import (
    Filter,
    FilterChain,
    Listener,
    ListenerFilter,
    ListenerInternalListenerConfig,
)
from envoy_data_plane.envoy.extensions.filters.listener.original_dst.v3 import OriginalDst
from envoy_data_plane.envoy.extensions.filters.network.tcp_proxy.v3 import TcpProxy
from envoy_data_plane.envoy.extensions.transport_sockets.internal_upstream.v3 import (
    InternalUpstreamTransport,
    InternalUpstreamTransportMetadataValueSource,
)
from envoy_data_plane.envoy.extensions.transport_sockets.raw_buffer.v3 import RawBuffer
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKind, MetadataKindHost

from policies.resilience import ResilienceSpec, RetryCondition
from xds_server.translate.envoy_values import pack_any, seconds
from xds_server.wire.assignment import DESTINATION_METADATA

ENGINE_LISTENER_PREFIX: Final = "engine/"
"""Prefix of the names of engine listeners."""

HOP_CLUSTER_PREFIX: Final = "hop/"
"""Prefix of the names of clusters behind engine listeners."""

_RETRIES_A_CUT: Final = frozenset(
    (RetryCondition.RESET, RetryCondition.GATEWAY_ERROR, RetryCondition.SERVER_ERROR)
)


def engine_listener_name(pool: str, engine: str) -> str:
    """Name of an engine's listener, which is also the engine's address in access logs."""
    return f"{ENGINE_LISTENER_PREFIX}{pool}/{engine}"


def hop_cluster_name(pool: str) -> str:
    """Name of the cluster that a pool's engine listeners forward to."""
    return f"{HOP_CLUSTER_PREFIX}{pool}"


def uses_internal_listeners(spec: ResilienceSpec) -> bool:
    """Whether capable proxies reach the engines of a pool with this policy through listeners.

    Through a listener a refused connection looks like a reset after the request was sent. If that is not retried,
    requests hit by a crashed engine would be lost; such engines are reached directly, and timeouts end requests
    held by hung ones.
    """
    return not _RETRIES_A_CUT.isdisjoint(spec.retries.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTemplate:
    """Shared part of a pool's engine listeners; packing it for each took seconds for 1 000 engines."""

    listener_filter: ListenerFilter
    filter_chain: FilterChain


def listener_template(pool: str) -> ListenerTemplate:
    """Shared part of this pool's engine listeners."""
    proxy = TcpProxy(
        stat_prefix=hop_cluster_name(pool),
        cluster=hop_cluster_name(pool),
        # The pool's cluster and routes enforce the idle timeouts.
        idle_timeout=seconds(0),
    )
    return ListenerTemplate(
        listener_filter=ListenerFilter(
            name="envoy.filters.listener.original_dst", typed_config=pack_any(OriginalDst())
        ),
        filter_chain=FilterChain(
            filters=[Filter(name="envoy.filters.network.tcp_proxy", typed_config=pack_any(proxy))]
        ),
    )


def engine_listener(pool: str, engine: str, through: ListenerTemplate) -> Listener:
    """Listener of an engine, based on its pool's ``listener_template``."""
    return Listener(
        name=engine_listener_name(pool, engine),
        internal_listener=ListenerInternalListenerConfig(),
        listener_filters=[through.listener_filter],
        filter_chains=[through.filter_chain],
    )


def hop_cluster(pool: str, spec: ResilienceSpec) -> Cluster:
    """Cluster behind a pool's engine listeners: forwards to the connection's destination address."""
    return Cluster(
        name=hop_cluster_name(pool),
        type=ClusterDiscoveryType.ORIGINAL_DST,
        lb_policy=ClusterLbPolicy.CLUSTER_PROVIDED,
        connect_timeout=seconds(spec.timeouts.connect),
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=spec.limits.max_connections, max_pending_requests=spec.limits.max_connections
                )
            ]
        ),
    )


def internal_upstream_socket(inside: TransportSocket | None = None) -> TransportSocket:
    """Socket of the pool's cluster: connects inside Envoy and passes the engine's address along.

    ``inside``: transport to the engine itself. TLS runs from the cluster to the engine; listener and hop forward
    it unread.
    """
    passed_on = InternalUpstreamTransportMetadataValueSource(
        kind=MetadataKind(host=MetadataKindHost()), name=DESTINATION_METADATA
    )
    return TransportSocket(
        name="envoy.transport_sockets.internal_upstream",
        typed_config=pack_any(
            InternalUpstreamTransport(
                passthrough_metadata=[passed_on],
                transport_socket=inside
                or TransportSocket(name="envoy.transport_sockets.raw_buffer", typed_config=pack_any(RawBuffer())),
            )
        ),
    )
