"""The own gRPC server of the xDS port: sockets and TLS around the pure ``h2``, and the limits of streams.

One callback per event, no task per stream: a stream that is idle is a few objects. ``publish`` and ``telemetry``
provide the services.
"""

from xds_server.transport.h2_server import H2Server
from xds_server.transport.rpc_service import RpcError, RpcHandler, RpcPeer, RpcService
from xds_server.transport.transport_limits import TransportLimits

__all__ = ("H2Server", "RpcError", "RpcHandler", "RpcPeer", "RpcService", "TransportLimits")
