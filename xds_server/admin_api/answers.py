"""The answers of the admin port: each is the JSON document of one endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xds_server.admin_api.status_types import (
    EngineStatus,
    EventStatus,
    FileProblem,
    OrderStatus,
    PoolStatus,
    ProxyStatus,
    RolledBackResource,
    ZoneStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The process runs; ``status`` is ``ok``."""

    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyList:
    """Every connected proxy."""

    proxies: tuple[ProxyStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineList:
    """Every declared engine, or those of one pool."""

    engines: tuple[EngineStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolList:
    """Every pool."""

    pools: tuple[PoolStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneList:
    """Every pool in every zone."""

    zones: tuple[ZoneStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderList:
    """Every order in force, the one that ends first in front."""

    orders: tuple[OrderStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList:
    """Events of the ledger, oldest first."""

    events: tuple[EventStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemList:
    """Problems with files that trust or a restart depends on, and resources that are rolled back."""

    troubles: tuple[FileProblem, ...] = ()
    rolled_back: tuple[RolledBackResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRelease:
    """The server serves the policies that it held back."""

    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEnd:
    """The order is no longer in force."""

    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceContent:
    """One Envoy resource; ``content`` is Envoy's JSON form, or null where it is secret."""

    type: str
    name: str
    version: str
    origins: tuple[str, ...]
    content: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyResources:
    """The resources that one proxy gets, in push order; or would get, while ``connected`` is false."""

    node: str
    connected: bool = True
    resources: tuple[ResourceContent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The server refuses the request; ``error`` has the reason."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRefusal:
    """The server refuses a change. ``state``: ``refused``, or ``superseded`` by another version."""

    error: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextProblem:
    """One error in the policy texts; ``place`` is ``file:line:column``, also given as three fields."""

    code: str
    place: str
    file: str
    line: int
    column: int
    path: str
    message: str
    found: str
    allowed: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRefusal:
    """The server cannot serve the policy texts; ``problems`` has the first errors."""

    error: str
    problems: tuple[TextProblem, ...]
