"""The xDS types Switchgear serves, in the order in which they must be pushed.

Make-before-break: a cluster and its endpoints must exist before a route names them. Endpoints may be listeners
inside the proxy, which must exist before them; a listener that asks for routes waits for them by itself. Runtime
comes first because Envoy asks for it first and delays its start until it
is answered.
"""

from typing import Final

RUNTIME: Final = "type.googleapis.com/envoy.service.runtime.v3.Runtime"
CLUSTER: Final = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
ENDPOINT: Final = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
LISTENER: Final = "type.googleapis.com/envoy.config.listener.v3.Listener"
ROUTE: Final = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
SECRET: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"  # noqa: S105  # a type URL

PUSH_ORDER: Final = (RUNTIME, CLUSTER, SECRET, LISTENER, ENDPOINT, ROUTE)

SHORT_NAMES: Final = {
    RUNTIME: "RTDS",
    CLUSTER: "CDS",
    ENDPOINT: "EDS",
    SECRET: "SDS",
    LISTENER: "LDS",
    ROUTE: "RDS",
}
"""The name operators know each type by."""
