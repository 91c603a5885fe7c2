"""The xDS types that Switchgear serves, in push order.

Make-before-break: a cluster and its endpoints must exist before a route names them. Endpoints may be internal
listeners, which must exist first; a listener waits for its routes, and for filters that it
discovers, by itself. Runtime comes first because Envoy requests it first and delays its start until it is
answered.
"""

from typing import Final

RUNTIME: Final = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
CLUSTER: Final = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINT: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER: Final = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTE: Final = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
EXTENSION: Final = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
SECRET: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  # a type URL

PUSH_ORDER: Final = (RUNTIME, CLUSTER, SECRET, LISTENER, ENDPOINT, ROUTE, EXTENSION)

MOVING: Final = (RUNTIME, EXTENSION)
"""Types whose numbers move by the second: nothing waits for their acknowledgement."""

SHORT_NAMES: Final = {
    RUNTIME: "RTDS",
    CLUSTER: "CDS",
    ENDPOINT: "EDS",
    SECRET: "SDS",
    LISTENER: "LDS",
    ROUTE: "RDS",
    EXTENSION: "ECDS",
}
"""Short names of the types, as operators know them."""
