"""Events inside the server: parts raise them, the composition root adds handlers.

A part gets its events at construction, before their handlers exist. An event without handlers does nothing, so no
part holds an incomplete object.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

from engine.report import EngineReport, EngineTotals
from xds_server.model.fleet import EngineId
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.reconcile.pipeline import BuildResult

P = ParamSpec("P")


class EventHandlers(Generic[P]):
    """Handlers of one event; calling it runs them in the order they were added."""

    def __init__(self) -> None:
        self._handlers: list[Callable[P, object]] = []

    def add(self, *handlers: Callable[P, object]) -> None:
        """Add handlers."""
        self._handlers.extend(handlers)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Raise the event."""
        for handler in self._handlers:
            handler(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvents:
    """Events raised by one part and handled by another."""

    round_requested: EventHandlers[[]] = field(default_factory=EventHandlers)
    """Traffic, orders or certificates changed."""

    proxies_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """A proxy connected or disconnected."""

    refusals_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """A proxy refused (NACK) a resource, or accepted one that others had refused."""

    ack: EventHandlers[[str]] = field(default_factory=EventHandlers)
    """A proxy accepted (ACK) a response; the argument is its type URL."""

    agent_report: EventHandlers[[EngineReport]] = field(default_factory=EventHandlers)
    """An agent reported its engine."""

    totals: EventHandlers[[EngineId, str, EngineTotals]] = field(default_factory=EventHandlers)
    """An agent or a probe reported the growing counters of an engine in this boot."""

    probe_report: EventHandlers[[EngineReport]] = field(default_factory=EventHandlers)
    """A probe reported an engine."""

    coverage_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """The set of engines covered by agents changed."""

    addresses_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """A host name resolved to another address."""

    policies_adopted: EventHandlers[[ServingPolicies]] = field(default_factory=EventHandlers)
    """The server now serves these policies."""

    round_published: EventHandlers[[BuildResult, Mapping[View, Snapshot]]] = field(default_factory=EventHandlers)
    """A round ended; the second argument is the snapshot of each view."""
