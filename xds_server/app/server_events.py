"""The events inside one server: parts raise them, and the composition root adds their handlers.

A part gets its events when it is built, before the parts that handle them exist. An event without handlers does
nothing, so no part ever holds a reference to an object that is not complete.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

from engine.report import EngineReport
from xds_server.model.policy_state import ServingPolicies
from xds_server.model.snapshot import Snapshot
from xds_server.model.view import View
from xds_server.publish import Nack
from xds_server.reconcile.pipeline import BuildResult

P = ParamSpec("P")


class EventHandlers(Generic[P]):
    """The handlers of one event; calling it calls them in the order in which they were added."""

    def __init__(self) -> None:
        self._handlers: list[Callable[P, object]] = []

    def add(self, *handlers: Callable[P, object]) -> None:
        """Call these as well from now on."""
        self._handlers.extend(handlers)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Raise the event."""
        for handler in self._handlers:
            handler(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvents:
    """Every event that one part raises and another handles."""

    round_requested: EventHandlers[[]] = field(default_factory=EventHandlers)
    """Traffic, orders or certificates changed."""

    proxies_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """A proxy connected or disconnected."""

    nack: EventHandlers[[Nack]] = field(default_factory=EventHandlers)
    """A proxy rejected a resource."""

    ack: EventHandlers[[str]] = field(default_factory=EventHandlers)
    """A proxy confirmed a response; the argument is its type URL."""

    agent_report: EventHandlers[[EngineReport]] = field(default_factory=EventHandlers)
    """An agent reported its engine."""

    probe_report: EventHandlers[[EngineReport]] = field(default_factory=EventHandlers)
    """A probe judged an engine."""

    coverage_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """Agents cover other engines than before."""

    addresses_changed: EventHandlers[[]] = field(default_factory=EventHandlers)
    """A host name has another address."""

    policies_adopted: EventHandlers[[ServingPolicies]] = field(default_factory=EventHandlers)
    """The server serves these policies from now on."""

    round_published: EventHandlers[[BuildResult, Mapping[View, Snapshot]]] = field(default_factory=EventHandlers)
    """A round ended; the second argument is what each view is served."""
