"""The endpoints of one cluster, as plain values: what changes most often is not built from Envoy's messages."""

from dataclasses import dataclass

from xds_server.decide.decisions import Health


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One engine: IP address and port, health, weight among its peers, and text metadata by namespace."""

    address: str
    port: int
    health: Health = Health.HEALTHY
    weight: int = 1
    metadata: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalitySpec:
    """The engines of one zone; ``weight`` 0 means that the locality is listed and gets no traffic."""

    region: str
    zone: str
    weight: int
    endpoints: tuple[EndpointSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSpec:
    """The ClusterLoadAssignment of a cluster."""

    cluster: str
    localities: tuple[LocalitySpec, ...]
