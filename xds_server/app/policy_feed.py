"""Interface of policy sources: files or a cluster."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from prometheus_client.core import Metric

from xds_server.admin_api.status_types import Condition, RejectedObject
from xds_server.app.adapters import PublisherAdapter
from xds_server.ledger.ledger import Ledger
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef
from xds_server.model.policy_state import PolicyState
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, RemoteProxies
from xds_server.publish import Publisher
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.policy_file_source import PolicyFiles

_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_NO_PODS: Final[Mapping[EngineId, PodRef]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerContext:
    """Server parts that a feed uses or reports to."""

    reconciler: Reconciler
    publisher: Publisher
    connected: PublisherAdapter
    ledger: Ledger
    conditions: Callable[[], Sequence[Condition]]


class PolicyFeed(Protocol):
    """Yields a policy state after each change."""

    source: str
    """``files`` or ``kubernetes``."""

    def states(self) -> AsyncGenerator[PolicyState, None]:
        """Yields the current state, then each different one; runs next to ``run``."""
        ...

    async def run(self, context: ServerContext) -> None:
        """Background work of the feed, until cancelled."""
        ...

    def on_secrets_changed(self) -> None:
        """Validate secrets again after a change."""
        ...

    def lost_s(self) -> Mapping[str, float]:
        """Seconds without contact by kind of object; only kinds without contact."""
        ...

    def rejected(self) -> Sequence[RejectedObject]:
        """Custom resources whose latest spec is rejected."""
        ...

    def pods(self) -> Mapping[EngineId, PodRef]:
        """Pods of the engines; the same object while unchanged."""
        ...

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        """Proxies served by other replicas, in addition to those connected ``here``."""
        ...

    def leads(self) -> bool:
        """Whether this replica alone may do what one of them should do; True for all without a leader."""
        ...

    def families(self) -> Iterable[Metric]:
        """Metrics of this feed."""
        ...


class Outlet(Protocol):
    """Receiver of decisions besides proxies."""

    async def run(self, context: ServerContext, pods: Callable[[], Mapping[EngineId, PodRef]]) -> None:
        """Send decisions until cancelled."""
        ...


class FilesFeed:
    """Policies from files: never without contact, and no other replicas."""

    source = "files"

    def __init__(self, files: PolicyFiles) -> None:
        self._files = files

    def states(self) -> AsyncGenerator[PolicyState, None]:
        return self._files.states()

    async def run(self, context: ServerContext) -> None:  # noqa: ARG002 - files have nothing more to say
        await self._files.watch()

    def on_secrets_changed(self) -> None:
        """No action: files are validated as a whole."""

    def lost_s(self) -> Mapping[str, float]:
        return _NOTHING

    def rejected(self) -> Sequence[RejectedObject]:
        return ()

    def pods(self) -> Mapping[EngineId, PodRef]:
        return _NO_PODS

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:  # noqa: ARG002 - the same
        return NO_REMOTE_PROXIES

    def leads(self) -> bool:
        return True

    def families(self) -> Iterable[Metric]:
        return ()
