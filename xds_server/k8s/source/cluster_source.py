"""Policies and engines from a cluster: evaluates watched objects into policies.

Two speeds. A change of an engine's pod state is published at once, without evaluating documents. Changes of
documents (policies, the set of engines, their addresses) are collected for ``settle_s``. A thread then evaluates
them, parsing only documents that differ.

Nothing is published before every list was complete once: policies without their engines would look like a smaller
fleet. Losing the server changes only ``stale``.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import structlog

from policies.engine_tls import SecretError
from xds_server.k8s.kube_api import KubeApi
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod
from xds_server.k8s.source.engine_discovery import DiscoveryBlock, EngineDiscovery
from xds_server.k8s.source.policy_evaluation import OfferedSpec, PolicyEvaluation, PolicyEvaluator
from xds_server.k8s.source.policy_manifest import PolicyManifest, discovery_of
from xds_server.k8s.source.reflector_set import PING_S, ReflectorSet, WatchHandlers, WatchScope
from xds_server.k8s.watch_backoff import WatchBackoffPolicy
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef, PodState
from xds_server.model.policy_state import PolicyState

_REST_PER_WORK: Final = 2.0
"""Limits evaluation to a third of the time."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSourceTimings:
    """Settle time, ping interval, and waits after failures."""

    settle_s: float = 0.05
    ping_s: float = PING_S
    backoff: WatchBackoffPolicy = field(default_factory=WatchBackoffPolicy)


DEFAULT_SCOPE: Final = WatchScope()
DEFAULT_TIMINGS: Final = ClusterSourceTimings()


class ClusterSource:
    """Policies and their pools' engines, as in the API server now; see ``states``.

    ``run`` watches the ``scope`` until cancelled. ``on_pod_states`` receives all pod states, and the uids that
    distinguish engines of one name, when either changed; an engine without a pod state is present. ``on_objects``
    is called when ``policy_objects`` or ``pods`` changed. ``secret_error`` returns the problem with a secret
    named by a pool; call ``reevaluate`` when its answer may have changed.
    """

    def __init__(
        self,
        api: KubeApi,
        scope: WatchScope = DEFAULT_SCOPE,
        *,
        on_pod_states: Callable[[Mapping[EngineId, PodState], Mapping[EngineId, str]], None] = lambda _, __: None,
        on_objects: Callable[[], None] = lambda: None,
        secret_error: SecretError = lambda _name, _at, _path: None,
        timings: ClusterSourceTimings = DEFAULT_TIMINGS,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._on_pod_states = on_pod_states
        self._on_objects = on_objects
        self._settle_s = timings.settle_s
        self._evaluator = PolicyEvaluator(secret_error)
        self._discovery = EngineDiscovery()
        self._reflectors = ReflectorSet(
            api,
            scope,
            WatchHandlers(
                policies=self._policies_changed,
                pods=self._pods_changed,
                slices=self._slices_changed,
                nodes=self._nodes_changed,
                watch_state=self._watch_state_changed,
            ),
            backoff=timings.backoff,
            ping_s=timings.ping_s,
            clock=clock,
            rng=rng,
        )
        self._serving: dict[str, DiscoveryBlock] = {}
        self._pod_states: Mapping[EngineId, PodState] = MappingProxyType({})
        self._uids: Mapping[EngineId, str] = MappingProxyType({})
        self._refresh_scheduled = False
        self._due = asyncio.Event()
        self.policy_objects: tuple[PolicyObject, ...] = ()
        self.pods: Mapping[EngineId, PodRef] = MappingProxyType({})

    @property
    def stale(self) -> Mapping[str, float]:
        """Seconds without contact, by plural of the resource; only resources without contact."""
        return self._reflectors.stale

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Resources that cannot be read, by plural, with the reason; the others are served without them."""
        return self._reflectors.unreadable

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflectors.run()

    def reevaluate(self) -> None:
        """Evaluate the same objects again."""
        self._due.set()

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        """The state once every list was complete, then each different one."""
        digest: str | None = None
        took_s = 0.0
        while True:
            await self._due.wait()
            if self._reflectors.complete:
                # Changes come in bursts; replacing a thousand engines one by one must not keep a core busy with
                # documents that are outdated when evaluated.
                await asyncio.sleep(max(self._settle_s, _REST_PER_WORK * took_s))
                began_s = time.monotonic()
                outcome = await self._evaluate()
                took_s = time.monotonic() - began_s
                self._adopt(outcome)
                if outcome.state.digest != digest:
                    digest = outcome.state.digest
                    yield outcome.state
            else:
                self._due.clear()

    async def _evaluate(self) -> PolicyEvaluation:
        """Evaluate the current objects."""
        self._due.clear()
        wanted: dict[PolicyManifest, list[tuple[str, DiscoveryBlock | None]]] = {}
        for held in self._reflectors.manifests():
            wanted[held] = [(spec, self._block(held, spec)) for spec in self._evaluator.specs(held)]
        self._discovery.retain(block for pairs in wanted.values() for _, block in pairs if block is not None)
        self._discovery.refresh()
        offers = {held: [self._offer(spec, block) for spec, block in pairs] for held, pairs in wanted.items()}
        return await asyncio.to_thread(self._evaluator.evaluate, offers)

    def _block(self, held: PolicyManifest, spec: str) -> DiscoveryBlock | None:
        found = discovery_of(held.kind, spec)
        return self._discovery.track((found,), held.namespace)[0] if found is not None else None

    def _offer(self, spec: str, block: DiscoveryBlock | None) -> OfferedSpec:
        entries, remarks = self._discovery.entries(block) if block is not None else ((), ())
        return OfferedSpec(spec=spec, entries=entries, remarks=remarks)

    def _adopt(self, outcome: PolicyEvaluation) -> None:
        """Set the served pools, whose pod states count, and the state of each object."""
        serving = {}
        for one in outcome.objects:
            found = discovery_of(one.kind, outcome.served.get(one.file, ""))
            if found is not None:
                (serving[one.name],) = self._discovery.track((found,), one.namespace)
        self._serving = serving
        if outcome.objects != self.policy_objects:
            _log_changes(self.policy_objects, outcome.objects)
            self.policy_objects = outcome.objects
            self._on_objects()
        self._refresh()

    # -- changes from the API server -------------------------------------------------------------------------

    def _policies_changed(self) -> None:
        self._due.set()

    def _pods_changed(self, keys: frozenset[ObjectKey], pods: Mapping[ObjectKey, Pod]) -> None:
        self._discovery.on_pods(keys, pods)
        self._schedule_refresh()

    def _slices_changed(self, keys: frozenset[ObjectKey], slices: Mapping[ObjectKey, EndpointSlice]) -> None:
        self._discovery.on_slices(keys, slices)
        self._schedule_refresh()

    def _nodes_changed(self, keys: frozenset[ObjectKey], nodes: Mapping[ObjectKey, KubeNode]) -> None:
        self._discovery.on_nodes(keys, nodes)
        self._schedule_refresh()

    def _watch_state_changed(self) -> None:
        """A watch was lost or restored, or a list completed."""
        self._discovery.set_unobservable(self._reflectors.unobservable)
        self._schedule_refresh()
        if self._reflectors.complete:
            self._due.set()

    def _schedule_refresh(self) -> None:
        """Refresh after the changes that have already arrived: a page of pods is one change."""
        if not self._refresh_scheduled:
            self._refresh_scheduled = True
            asyncio.get_running_loop().call_soon(self._refresh)

    def _refresh(self) -> None:
        self._refresh_scheduled = False
        if self._discovery.refresh():
            self._due.set()
        found = self._discovery.discovered(self._serving)
        if found.pod_states != self._pod_states or found.uids != self._uids:
            self._pod_states, self._uids = MappingProxyType(found.pod_states), MappingProxyType(found.uids)
            self._on_pod_states(self._pod_states, self._uids)
        if found.pods != self.pods:
            self.pods = MappingProxyType(found.pods)
            self._on_objects()


def _log_changes(before: Sequence[PolicyObject], after: Sequence[PolicyObject]) -> None:
    """Log each object that becomes refused or accepted again."""
    known = {one.uid: one for one in before}
    for one in after:
        earlier = known.get(one.uid)
        reasons = [str(problem) for problem in one.problems]
        if reasons and (earlier is None or [str(problem) for problem in earlier.problems] != reasons):
            _log.warning("policies.object_rejected", file=one.file, serving=one.serving, reasons=reasons)
        elif not reasons and earlier is not None and earlier.problems:
            _log.info("policies.object_accepted", file=one.file)
