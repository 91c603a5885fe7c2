"""Events of a publisher, for logs and metrics: one method per state change."""

from dataclasses import dataclass
from typing import Protocol

from xds_server.model.snapshot import Resource
from xds_server.publish.nack_decision import RollbackScope
from xds_server.xds import NodeInfo, StuckResponse, XdsVariant


@dataclass(frozen=True, slots=True, kw_only=True)
class Nack:
    """A proxy rejected a response.

    ``resources``: those at fault, with their ``origins`` in the policies. ``reason``: end of the proxy's error
    message. ``scope``: proxies for which they are rolled back.
    """

    node: NodeInfo
    type_url: str
    resources: tuple[Resource, ...]
    reason: str
    scope: RollbackScope


class PublisherObserver(Protocol):
    """Called on the event loop that serves the streams: return at once."""

    def on_connect(self, node: NodeInfo, mode: XdsVariant) -> None:
        """A stream has sent its node."""

    def on_disconnect(self, node: NodeInfo, mode: XdsVariant, reason: str) -> None:
        """A stream has ended; ``reason`` is empty if the peer closed it."""

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None:
        """A response is sent."""

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None:
        """A response was accepted (ACK) ``latency_s`` after it was sent."""

    def on_nack(self, nack: Nack) -> None:
        """A response was refused (NACK)."""

    def on_refusals_cleared(self) -> None:
        """A proxy accepted content that others had refused."""

    def on_stuck(self, node: NodeInfo, stuck: StuckResponse) -> None:
        """A response has had no ACK or NACK for long."""

    def on_unknown_type(self, node: NodeInfo, type_url: str) -> None:
        """A peer requests an unknown type."""


class NullObserver:
    """An observer that does nothing."""

    def on_connect(self, node: NodeInfo, mode: XdsVariant) -> None: ...

    def on_disconnect(self, node: NodeInfo, mode: XdsVariant, reason: str) -> None: ...

    def on_push(self, node: NodeInfo, type_url: str, size_bytes: int) -> None: ...

    def on_ack(self, node: NodeInfo, type_url: str, latency_s: float) -> None: ...

    def on_nack(self, nack: Nack) -> None: ...

    def on_refusals_cleared(self) -> None: ...

    def on_stuck(self, node: NodeInfo, stuck: StuckResponse) -> None: ...

    def on_unknown_type(self, node: NodeInfo, type_url: str) -> None: ...
