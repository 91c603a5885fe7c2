"""Where policies come from, as the rest of the server sees it: files or a cluster, and it need not know which."""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from prometheus_client.core import Metric

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
    """The parts of the server that a feed speaks to beside giving states, and those that it tells of."""

    reconciler: Reconciler
    publisher: Publisher
    connected: PublisherAdapter
    ledger: Ledger


class PolicyFeed(Protocol):
    """Gives the states of the policies, each time there is another one."""

    source: str
    """``files`` or ``kubernetes``."""

    def states(self) -> AsyncGenerator[PolicyState, None]:
        """The state now, then each different one, for as long as it is iterated; beside ``run``."""
        ...

    async def run(self, context: ServerContext) -> None:
        """What has to go on for that, and what comes with it; for ever."""
        ...

    def on_secrets_changed(self) -> None:
        """Note that what is wrong with secrets may be different now."""
        ...

    def lost_s(self) -> Mapping[str, float]:
        """Seconds without contact, by kind of object; only those that are out of touch."""
        ...

    def pods(self) -> Mapping[EngineId, PodRef]:
        """The pods that engines run in; the same object while they are the same."""
        ...

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        """What other replicas serve beside the proxies that are connected ``here``."""
        ...

    def families(self) -> Iterable[Metric]:
        """Metrics of its own."""
        ...


class Outlet(Protocol):
    """Somebody besides proxies who is told what was decided."""

    async def run(self, context: ServerContext, pods: Callable[[], Mapping[EngineId, PodRef]]) -> None:
        """Tell until cancelled."""
        ...


class FilesFeed:
    """Policies from files: nothing is out of touch, and nobody else is known."""

    source = "files"

    def __init__(self, files: PolicyFiles) -> None:
        self._files = files

    def states(self) -> AsyncGenerator[PolicyState, None]:
        return self._files.states()

    async def run(self, context: ServerContext) -> None:  # noqa: ARG002 - files have nothing more to say
        await self._files.watch()

    def on_secrets_changed(self) -> None:
        """Nothing: files are judged as a whole, by who is given them."""

    def lost_s(self) -> Mapping[str, float]:
        return _NOTHING

    def pods(self) -> Mapping[EngineId, PodRef]:
        return _NO_PODS

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:  # noqa: ARG002 - the same
        return NO_REMOTE_PROXIES

    def families(self) -> Iterable[Metric]:
        return ()
