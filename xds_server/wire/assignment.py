"""What a ClusterLoadAssignment says, as plain values.

Endpoints are what changes all day, so they do not go through Envoy's message classes: these values are cheap to
make and to compare, and ``wire.eds`` joins their bytes from a cache. Whoever builds them keeps the objects of
endpoints that have not changed; the encoder then recognises them by identity.

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
"""Where Envoy's original_dst filter looks for the address that an internal connection is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalListener:
    """A listener inside the same Envoy, which passes on to ``destination``.

    Envoy tells the endpoints of one listener apart by the destination: another one is another host to it.
    """

    name: str
    destination: HostPort

    @property
    def endpoint_id(self) -> str:
        """The destination as Envoy writes addresses."""
        host = self.destination.host
        return f"[{host}]:{self.destination.port}" if ":" in host else f"{host}:{self.destination.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One engine as a cluster sees it.

    ``health`` is a number of ``envoy.config.core.v3.HealthStatus`` (1 healthy, 2 unhealthy, 3 draining);
    ``weight`` is relative, 1..128, ``None`` for Envoy's default of 1. ``labels`` are what subset load
    balancing and access logs read as ``envoy.lb`` metadata; of two with one name the last counts.
    """

    address: HostPort | InternalListener
    health: int = 0
    weight: int | None = None
    hostname: str = ""
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalitySpec:
    """The endpoints of one zone at one priority (0 is tried first).

    ``weight`` is the zone's share among those of the same priority, >= 1; ``None`` leaves the zone without
    load where locality weights are in force.
    """

    region: str = ""
    zone: str
    weight: int | None = None
    priority: int = 0
    endpoints: tuple[EndpointSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DropOverload:
    """A share of requests that Envoy answers with 503 by itself, counted under ``category``."""

    category: str
    parts_per_million: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentSpec:
    """Everything EDS says of one cluster.

    ``overprovisioning_percent`` is how far healthy endpoints may be loaded beyond their share before a zone or
    priority spills over; ``None`` leaves Envoy's 140.
    """

    cluster: str
    localities: tuple[LocalitySpec, ...] = ()
    drop_overloads: tuple[DropOverload, ...] = ()
    overprovisioning_percent: int | None = None
