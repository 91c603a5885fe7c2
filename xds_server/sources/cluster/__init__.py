"""Policies and engines as a Kubernetes cluster holds them."""

from xds_server.sources.cluster.signs import NodeSigns
from xds_server.sources.cluster.source import ClusterSource

__all__ = ["ClusterSource", "NodeSigns"]
