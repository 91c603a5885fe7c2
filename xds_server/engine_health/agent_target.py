"""Addresses of agents, and how to dial them.

With credentials, agents are dialled by TLS and must prove their identity; only pools listed as plain text are
dialled without. There is no fallback.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import grpc
import grpc.aio

from engine.report_wire import MAX_REPORT_BYTES
from policies.model import PolicySet
from xds_server.model.fleet import EngineId

_OPTIONS: Final = (
    # A new channel must be a new connection, and not reuse the one that fell silent.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),
    # Heartbeats notice a dead connection sooner; this is for one that dies before the first of them.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.max_receive_message_length", MAX_REPORT_BYTES),
    # Unread messages are outdated: keep the buffer small.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", MAX_REPORT_BYTES),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTarget:
    """Address of the agent of one engine."""

    key: EngineId
    address: str
    port: int

    @property
    def authority(self) -> str:
        """``host:port`` in gRPC's syntax."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def agent_targets(policies: PolicySet) -> Mapping[EngineId, AgentTarget]:
    """The agents to dial: of every endpoint with an agent port."""
    return MappingProxyType(
        {
            key: AgentTarget(key=key, address=endpoint.address, port=endpoint.agent_port)
            for name, pool in policies.pools.items()
            for endpoint in pool.spec.endpoints
            if endpoint.agent_port is not None
            for key in (EngineId(name, endpoint.name),)
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCredentials:
    """How agents are dialled: ``name`` is the DNS name they must prove; if empty, the dialled one.

    ``current`` returns the present credentials, the same object while unchanged; None is plain text, as for the
    pools in ``plain_pools``.
    """

    current: Callable[[], grpc.ChannelCredentials | None]
    name: str = ""
    plain_pools: frozenset[str] = frozenset()

    def credentials(self, target: AgentTarget) -> grpc.ChannelCredentials | None:
        """Credentials for the agent of this engine."""
        return None if target.key.pool in self.plain_pools else self.current()

    def channel(self, target: AgentTarget, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """A new connection to this agent."""
        if credentials is None:
            return grpc.aio.insecure_channel(target.authority, options=_OPTIONS)
        name = self.name
        named = () if not name else (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))
        return grpc.aio.secure_channel(target.authority, credentials, options=(*_OPTIONS, *named))


PLAIN_TEXT: Final = AgentCredentials(current=lambda: None)
