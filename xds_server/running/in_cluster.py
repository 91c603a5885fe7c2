"""One replica in a cluster: reads policies and engines there, knows the other replicas, and writes back.

Nothing here decides. The source's states and words go to the reconciler; what is to be written is made of what the
reconciler served last. An API server that is lost costs news and no request: what was known last goes on.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from prometheus_client.core import Metric

from policies.engine_tls import SecretError
from xds_server.config import ConfigError, ServeConfig
from xds_server.decide.changes.change import Change, ChangeKind, Subject
from xds_server.fleet import EngineId
from xds_server.kube.api import Api, ApiError
from xds_server.kube.connecting import Access, connected
from xds_server.kube.elsewhere import NOWHERE, Elsewhere
from xds_server.kube.objects import PodRef
from xds_server.kube.replicas import Replicas
from xds_server.kube.resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES
from xds_server.metrics import gauge
from xds_server.offers.feed import Around
from xds_server.running.reporting import Reporting
from xds_server.sources.cluster import ClusterSource
from xds_server.sources.files import PolicyState
from xds_server.writeback.writer import Writer, Writing

LOST_S: Final = 2.0
"""A watch that is begun anew is out of touch for a moment; after this long it is told."""

UNREACHED_S: Final = 3.0
"""How long a server that starts waits for the API before it serves what the last run did."""

_LOOK_S: Final = 0.5
_LEASE: Final = "switchgear"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WATCHED: Final = (*POLICY_RESOURCES.values(), ENDPOINT_SLICES, PODS, NODES)
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_NO_PODS: Final[Mapping[EngineId, PodRef]] = MappingProxyType({})

_log = structlog.get_logger()


class ClusterFeed:
    """A feed from a cluster; see ``feed``."""

    source = "kubernetes"

    def __init__(self, config: ServeConfig, secret_error: SecretError = lambda _name, _at: None) -> None:
        self._config = config
        self._secret_error = secret_error
        self._writing = writing(config)
        self._reader: ClusterSource | None = None
        self._replicas: Replicas | None = None
        self._writer: Writer | None = None
        self._reading = asyncio.Event()
        self._first = asyncio.Event()
        self._told: frozenset[str] = frozenset()

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        await self._reading.wait()
        assert self._reader is not None  # noqa: S101 - what the event says
        async with aclosing(self._reader.states()) as states:
            async for state in states:
                self._first.set()
                yield state

    async def run(self, around: Around) -> None:
        """Read, speak and write until cancelled; ``ConfigError`` where nothing says how to reach the cluster."""
        config = self._config
        try:
            async with connected(Access(kubeconfig=config.kubeconfig, context=config.context)) as api:
                _log.info("cluster.reading", server=api.server, namespaces=config.namespaces or "all")
                await self._run(api, around)
        except ApiError as error:
            flag = "--kubeconfig" if config.kubeconfig or config.context else "--kubernetes"
            raise ConfigError(f"{flag}: {error.message}") from error

    async def _run(self, api: Api, around: Around) -> None:
        config, writing_as = self._config, self._writing
        reporting = Reporting(around, lambda: self._replicas, lambda: self._reader)
        self._reader = ClusterSource(
            api,
            namespaces=config.namespaces,
            selector=config.selector,
            on_words=around.reconciler.stand,
            on_objects=self._objects_changed,
            secret_error=self._secret_error,
        )
        self._replicas = Replicas(
            api,
            namespace=writing_as.namespace,
            group=writing_as.lease,
            identity=writing_as.identity,
            own=reporting.presence,
            on_change=around.reconciler.look_again,
        )
        self._reading.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reader.run(), name="cluster")
            tasks.create_task(self._replicas.run(), name="replicas")
            tasks.create_task(self._follow_contact(around), name="contact")
            if config.write_status:
                self._writer = Writer(api, writing_as, reporting.scene)
                tasks.create_task(self._writer.run(), name="writer")

    def _objects_changed(self) -> None:
        if self._writer is not None:
            self._writer.look_again()

    def look_again(self) -> None:
        if self._reader is not None:
            self._reader.look_again()

    @property
    def lost_s(self) -> Mapping[str, float]:
        if self._reader is None:
            return _NOTHING
        return {name: round(lost_s, 3) for name, lost_s in self._reader.stale.items() if lost_s >= LOST_S}

    @property
    def pods(self) -> Mapping[EngineId, PodRef]:
        return _NO_PODS if self._reader is None else self._reader.pods

    def elsewhere(self, here: Mapping[str, object]) -> Elsewhere:
        return NOWHERE if self._replicas is None else self._replicas.elsewhere(here)

    def families(self) -> Iterable[Metric]:
        """How long each kind of object has been out of touch, and whether this replica writes."""
        stale = _NOTHING if self._reader is None else self._reader.stale
        seconds: dict[tuple[str, ...], float] = {(one.plural,): stale.get(one.plural, 0.0) for one in _WATCHED}
        yield gauge(
            "switchgear_source_stale_seconds",
            "Time without contact to the Kubernetes API.",
            ("resource",),
            seconds,
        )
        if self._config.write_status:
            # A replica that is told not to write is no candidate: nobody holding the lease is then no trouble.
            holds = self._writer is not None and self._writer.holds
            yield gauge(
                "switchgear_lease_held", "1 while this replica is the one that writes.", (), {(): float(holds)}
            )

    async def _follow_contact(self, around: Around) -> None:
        """Tell when the API is out of touch and when it is back; at the start, that the last run has to do.

        And have the other replicas told what is new here.
        """
        while True:
            lost = self.lost_s
            if not self._first.is_set() and max(lost.values(), default=0.0) >= UNREACHED_S:
                around.reconciler.unreached(f"the Kubernetes API let nothing be read ({', '.join(sorted(lost))})")
            if frozenset(lost) != self._told:
                around.ledger.tell(_contact(self._told, lost))
                self._told = frozenset(lost)
            if self._replicas is not None:
                self._replicas.look_again()
            await asyncio.sleep(_LOOK_S)


def writing(config: ServeConfig) -> Writing:
    """The Lease of those that serve the same, and who this replica is."""
    namespace, _, name = config.lease.partition("/")
    return Writing(
        namespace=namespace or _own_namespace(),
        lease=name or _LEASE,
        identity=config.identity or socket.gethostname(),
    )


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _contact(before: frozenset[str], lost: Mapping[str, float]) -> Change:
    said = ", ".join(sorted(lost))
    return Change(
        kind=ChangeKind.SOURCE,
        subject=Subject(),
        before=f"lost: {', '.join(sorted(before))}" if before else "in touch",
        after=f"lost: {said}" if lost else "in touch",
        reason=f"the Kubernetes API does not answer for {said}: what was last known is served"
        if lost
        else "the Kubernetes API answers again",
        returns="with its next answer" if lost else "",
        alarm=bool(lost),
    )
