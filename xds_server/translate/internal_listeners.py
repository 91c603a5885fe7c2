"""Engines behind listeners of Envoy's own, so that what one engine holds can be ended and nothing else is touched.

No change of endpoints or clusters ends a request that an engine holds. The removal of the listener it went through
does, within milliseconds, where Envoy runs with a drain time of zero. So a proxy that is able to is told that each
engine is a listener inside itself, which passes on to the address that its endpoint carries:

    pool's cluster -> endpoint ``engine/<pool>/<engine>`` -> that listener -> ``hop/<pool>`` -> the engine

A listener is made of names only: addresses that change do not change it, and so end nothing. The listeners of a
thousand engines are encoded once, for all proxies and for good.

Measured, with alternatives and prices: docs/adr/0002.
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
"""What the names of all listeners of engines begin with."""

HOP_CLUSTER_PREFIX: Final = "hop/"
"""What the names of all clusters behind such listeners begin with."""

_RETRIES_A_CUT: Final = frozenset(
    (RetryCondition.RESET, RetryCondition.GATEWAY_ERROR, RetryCondition.SERVER_ERROR)
)


def engine_listener_name(pool: str, engine: str) -> str:
    """Name of the listener that an engine is reached through, and the address that access logs show of it."""
    return f"{ENGINE_LISTENER_PREFIX}{pool}/{engine}"


def hop_cluster_name(pool: str) -> str:
    """Name of the cluster that listeners of a pool's engines pass on to."""
    return f"{HOP_CLUSTER_PREFIX}{pool}"


def uses_internal_listeners(spec: ResilienceSpec) -> bool:
    """Whether the engines of a pool with this policy are reached through listeners, by proxies that are able to.

    Through a listener a refused connection looks like a reset after the request was sent. Where that is not
    retried, requests caught by a crashed engine would be lost that are tried elsewhere now; so there the engines
    are reached directly, and time limits end what hung ones hold.
    """
    return not _RETRIES_A_CUT.isdisjoint(spec.retries.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTemplate:
    """What the listeners of a pool's engines do with connections; packing it for each took seconds for 1 000."""

    listener_filter: ListenerFilter
    filter_chain: FilterChain


def listener_template(pool: str) -> ListenerTemplate:
    """What the listeners of this pool's engines have in common."""
    proxy = TcpProxy(
        stat_prefix=hop_cluster_name(pool),
        cluster=hop_cluster_name(pool),
        # The pool's cluster and its routes know when a connection has been silent for too long.
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
    """The listener that an engine is reached through, with the ``listener_template`` of its pool."""
    return Listener(
        name=engine_listener_name(pool, engine),
        internal_listener=ListenerInternalListenerConfig(),
        listener_filters=[through.listener_filter],
        filter_chains=[through.filter_chain],
    )


def hop_cluster(pool: str, spec: ResilienceSpec) -> Cluster:
    """Where the listeners of a pool's engines pass on to: whatever address the connection was opened for."""
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
    """How the pool's cluster connects: inside Envoy, with the engine's address passed along.

    ``inside`` is how it speaks to the engine itself. Where that is TLS, it goes from the cluster to the engine,
    and the listener and the hop pass on what they cannot read.
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
