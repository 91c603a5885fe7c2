"""Kubernetes feed of one replica: reads policies and engines, finds other replicas, writes status.

Takes no decisions. Policy states and pod states go to the reconciler; status is written from the latest round.
Without the API server no request fails: the last known state stays in force.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import structlog
from prometheus_client.core import Metric

from policies.engine_tls import SecretError
from xds_server.admin_api.status_types import RejectedObject
from xds_server.app.policy_feed import ServerContext
from xds_server.app.replica_reporter import ReplicaReporter
from xds_server.decide.diff.change import Change, ChangeKind, Subject
from xds_server.k8s.api_resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES
from xds_server.k8s.client_config import ClientConfig, open_kube_api
from xds_server.k8s.kube_api import ApiError, KubeApi
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.replica_registry import ReplicaIdentity, ReplicaRegistry
from xds_server.k8s.source import ClusterSource, WatchScope
from xds_server.k8s.status.status_writer import LeaderElectionConfig, StatusWriter
from xds_server.metrics.control_metrics import ControlPlaneMetrics
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef
from xds_server.model.policy_state import PolicyState
from xds_server.model.remote_proxies import NO_REMOTE_PROXIES, RemoteProxies
from xds_server.serve_config import ConfigError, ServeConfig

LOST_S: Final = 2.0
"""Report lost contact after this long; a restarted watch is briefly without contact."""

UNREACHED_S: Final = 3.0
"""Wait at start for the API before serving the state of the previous run."""

_LOOK_S: Final = 0.5
_LEASE: Final = "switchgear"
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_WATCHED: Final = (*POLICY_RESOURCES.values(), ENDPOINT_SLICES, PODS, NODES)
_NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
_NO_PODS: Final[Mapping[EngineId, PodRef]] = MappingProxyType({})

_log = structlog.get_logger()


class ClusterFeed:
    """Feed from a cluster; see ``feed``."""

    source = "kubernetes"

    def __init__(self, config: ServeConfig, secret_error: SecretError = lambda _name, _at, _path: None) -> None:
        self._config = config
        self._secret_error = secret_error
        self._writing = lease_identity(config)
        self._reader: ClusterSource | None = None
        self._replicas: ReplicaRegistry | None = None
        self._writer: StatusWriter | None = None
        self._reading = asyncio.Event()
        self._first = asyncio.Event()
        self._told: frozenset[str] = frozenset()
        self._objects: Sequence[PolicyObject] = ()

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        await self._reading.wait()
        assert self._reader is not None  # noqa: S101 - what the event says
        async with aclosing(self._reader.states()) as states:
            async for state in states:
                self._first.set()
                yield state

    async def run(self, context: ServerContext) -> None:
        """Read, exchange and write until cancelled; ``ConfigError`` without access to a cluster."""
        config = self._config
        try:
            async with open_kube_api(ClientConfig(kubeconfig=config.kubeconfig, context=config.context)) as api:
                _log.info("cluster.reading", server=api.server, namespaces=config.namespaces or "all")
                await self._run(api, context)
        except ApiError as error:
            flag = "--kubeconfig" if config.kubeconfig or config.context else "--kubernetes"
            raise ConfigError(f"{flag}: {error.message}") from error

    async def _run(self, api: KubeApi, context: ServerContext) -> None:
        config, writing_as = self._config, self._writing
        reporter = ReplicaReporter(context)
        self._reader = reader = ClusterSource(
            api,
            WatchScope(namespaces=tuple(config.namespaces), policy_selector=config.selector),
            on_pod_states=context.reconciler.on_pod_states,
            on_objects=partial(self._objects_changed, context),
            secret_error=self._secret_error,
        )
        self._replicas = replicas = ReplicaRegistry(
            api,
            ReplicaIdentity(namespace=writing_as.namespace, group=writing_as.lease, identity=writing_as.identity),
            own_status=reporter.replica_status,
            on_change=partial(self._peers_changed, context),
        )
        self._reading.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reader.run(), name="cluster")
            tasks.create_task(replicas.run(), name="replicas")
            tasks.create_task(self._follow_contact(context), name="contact")
            if config.write_status:
                write_context = partial(reporter.write_context, reader, replicas)
                self._writer = StatusWriter(api, writing_as, write_context)
                tasks.create_task(self._writer.run(), name="writer")

    def _peers_changed(self, context: ServerContext) -> None:
        self._release_with_peers(context)
        context.reconciler.request_round()

    def _release_with_peers(self, context: ServerContext) -> None:
        """An operator releases held policies on one replica; the others follow."""
        if self._replicas is not None:
            released = {one.released for one in self._replicas.peer_statuses().values()} - {""}
            context.reconciler.release_with_peers(released)

    def _objects_changed(self, context: ServerContext) -> None:
        objects = () if self._reader is None else self._reader.policy_objects
        for change in _rejections(self._objects, objects):
            context.ledger.record(change)
        self._objects = objects
        if self._writer is not None:
            self._writer.request_write()

    def on_secrets_changed(self) -> None:
        if self._reader is not None:
            self._reader.reevaluate()

    def lost_s(self) -> Mapping[str, float]:
        if self._reader is None:
            return _NOTHING
        return {name: round(lost_s, 3) for name, lost_s in self._reader.stale.items() if lost_s >= LOST_S}

    def rejected(self) -> Sequence[RejectedObject]:
        return [
            RejectedObject(
                kind=one.kind, namespace=one.namespace, name=one.name, file=one.file, sentence=one.rejection
            )
            for one in self._objects
            if one.rejection
        ]

    def pods(self) -> Mapping[EngineId, PodRef]:
        return _NO_PODS if self._reader is None else self._reader.pods

    def remote_proxies(self, here: Mapping[str, object]) -> RemoteProxies:
        return NO_REMOTE_PROXIES if self._replicas is None else self._replicas.remote_proxies(here)

    def leads(self) -> bool:
        return not self._config.write_status or (self._writer is not None and self._writer.holds)

    def families(self) -> Iterable[Metric]:
        """Time without contact by kind of object, and whether this replica is the leader."""
        stale = _NOTHING if self._reader is None else self._reader.stale
        seconds: dict[tuple[str, ...], float] = {(one.plural,): stale.get(one.plural, 0.0) for one in _WATCHED}
        yield ControlPlaneMetrics.source_stale_seconds.family(seconds)
        if self._config.write_status:
            # With --no-write-status this replica is not a candidate, so a lease without holder is not a problem.
            holds = self._writer is not None and self._writer.holds
            yield ControlPlaneMetrics.lease_held.family({(): float(holds)})

    async def _follow_contact(self, context: ServerContext) -> None:
        """Report lost and restored contact; at start, when to serve the state of the previous run.

        Also publishes this replica's changes to the other replicas.
        """
        while True:
            lost = self.lost_s()
            if not self._first.is_set() and max(lost.values(), default=0.0) >= UNREACHED_S:
                context.reconciler.on_source_unreachable(
                    f"nothing could be read from the Kubernetes API ({', '.join(sorted(lost))})"
                )
            if frozenset(lost) != self._told:
                context.ledger.record(_contact(self._told, lost))
                self._told = frozenset(lost)
            self._release_with_peers(context)
            if self._replicas is not None:
                self._replicas.request_renewal()
            await asyncio.sleep(_LOOK_S)


def lease_identity(config: ServeConfig) -> LeaderElectionConfig:
    """Lease shared by the replicas of one installation, and this replica's identity."""
    namespace, _, name = config.lease.partition("/")
    return LeaderElectionConfig(
        namespace=namespace or _own_namespace(),
        lease=name or _LEASE,
        identity=config.identity or socket.gethostname(),
    )


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or "default"
    except OSError:
        return "default"


def _rejections(before: Sequence[PolicyObject], after: Sequence[PolicyObject]) -> Iterator[Change]:
    """Objects that become rejected, are rejected for other reasons, or are accepted again."""
    known = {one.uid: one.rejection for one in before}
    for one in after:
        earlier = known.get(one.uid, "")
        if one.rejection != earlier:
            yield Change(
                kind=ChangeKind.OBJECT,
                subject=Subject(),
                before="rejected" if earlier else "accepted",
                after="rejected" if one.rejection else "accepted",
                reason=f"{one.file}: {one.rejection or 'the latest spec is in force'}",
                returns="a corrected spec" if one.rejection else "",
                alarm=bool(one.rejection),
            )


def _contact(before: frozenset[str], lost: Mapping[str, float]) -> Change:
    kinds = ", ".join(sorted(lost))
    return Change(
        kind=ChangeKind.SOURCE,
        subject=Subject(),
        before=f"lost: {', '.join(sorted(before))}" if before else "connected",
        after=f"lost: {kinds}" if lost else "connected",
        reason=f"no answer from the Kubernetes API for {kinds}: serving the last known state"
        if lost
        else "the Kubernetes API answers again",
        returns="its next answer" if lost else "",
        alarm=bool(lost),
    )
