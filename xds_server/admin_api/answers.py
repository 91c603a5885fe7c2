"""Answers of the admin port; each type is the JSON document of one endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xds_server.admin_api.status_types import (
    Condition,
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
    """Every operator order in force, the first to end first."""

    orders: tuple[OrderStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList:
    """Ledger events, oldest first."""

    events: tuple[EventStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemList:
    """Problems with files needed for trust or restart, and rolled-back resources."""

    troubles: tuple[FileProblem, ...] = ()
    rolled_back: tuple[RolledBackResource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionList:
    """Every condition of the server, the most severe first."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShrinkRelease:
    """The held policies are now served."""

    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEnd:
    """The order has ended."""

    ended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceContent:
    """One Envoy resource; ``content`` is Envoy's JSON form, null if secret."""

    type: str
    name: str
    version: str
    origins: tuple[str, ...]
    content: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyResources:
    """Resources served to one proxy in push order; with ``connected`` false, those it would get."""

    node: str
    connected: bool = True
    resources: tuple[ResourceContent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The request is refused; ``error`` gives the reason."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRefusal:
    """The change is refused. ``state``: ``refused``, or ``superseded`` by another version."""

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
    """The policy texts are invalid; ``problems`` lists the first errors."""

    error: str
    problems: tuple[TextProblem, ...]
