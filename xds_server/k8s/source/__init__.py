"""Policies and engines from a Kubernetes cluster."""

from xds_server.k8s.source.cluster_source import ClusterSource
from xds_server.k8s.source.reflector_set import WatchScope

__all__ = ["ClusterSource", "WatchScope"]
