"""How bytes travel between proxies and the publisher: one transport per way, each behind ``Transport``."""

from xds_server.transport.grpc_ads import GrpcAdsServer
from xds_server.transport.interface import Transport

__all__ = ("GrpcAdsServer", "Transport")
