"""Content of a ClusterLoadAssignment as plain values.

Endpoints change all day, so they bypass Envoy's message classes: these values are cheap to create and compare,
and ``wire.eds`` joins their bytes from a cache. Builders reuse the objects of unchanged endpoints; the encoder
recognises them by identity.

Source: envoy/config/endpoint/v3/endpoint.proto, endpoint_components.proto
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

Label: TypeAlias = tuple[str, str | tuple[str, ...]]
"""Name and value of a label, or all of its values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """An IP address (Envoy resolves no name in EDS) and a TCP port."""

    host: str
    port: int


DESTINATION_METADATA: Final = "envoy.filters.listener.original_dst"
"""Metadata key in which Envoy's original_dst filter looks for the destination of an internal connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalListener:
    """A listener inside the same Envoy, which forwards to ``destination``.

    Envoy distinguishes endpoints of one listener by destination: another destination is another host.
    """

    name: str
    destination: HostPort

    @property
    def endpoint_id(self) -> str:
        """The destination in Envoy's address format."""
        host = self.destination.host
        return f"[{host}]:{self.destination.port}" if ":" in host else f"{host}:{self.destination.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One engine as an endpoint of a cluster.

    ``health``: value of ``envoy.config.core.v3.HealthStatus`` (1 healthy, 2 unhealthy, 3 draining). ``weight``:
    relative, 1..128, ``None`` for Envoy's default of 1. ``labels``: ``envoy.lb`` metadata for subset load
    balancing and access logs; of two with one name the last counts.
    """

    address: HostPort | InternalListener
    health: int = 0
    weight: int | None = None
    hostname: str = ""
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalitySpec:
    """Endpoints of one zone at one priority (0 is tried first).

    ``weight``: the zone's share among those of the same priority, >= 1; ``None`` gives the zone no load with
    locality weights.
    """

    region: str = ""
    zone: str
    weight: int | None = None
    priority: int = 0
    endpoints: tuple[EndpointSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DropOverload:
    """A share of requests that Envoy itself refuses with 503, counted under ``category``."""

    category: str
    parts_per_million: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSpec:
    """Everything EDS contains for one cluster.

    ``overprovisioning_percent``: how far healthy endpoints may be loaded beyond their share before a zone or
    priority overflows; ``None`` leaves Envoy's 140.
    """

    cluster: str
    localities: tuple[LocalitySpec, ...] = ()
    drop_overloads: tuple[DropOverload, ...] = ()
    overprovisioning_percent: int | None = None
