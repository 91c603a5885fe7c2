"""Policies and engines as a Kubernetes cluster holds them."""

from xds_server.k8s.source.cluster_source import ClusterSource
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules

__all__ = ["ClusterSource", "NodeFaultRules"]
