"""A double of a Kubernetes API server, for tests and walk-throughs where there is none. It is not Kubernetes."""

from tests.cluster_double.serving import ClusterDouble, kubeconfig, running
from tests.cluster_double.troubles import Troubles

__all__ = ["ClusterDouble", "Troubles", "kubeconfig", "running"]
