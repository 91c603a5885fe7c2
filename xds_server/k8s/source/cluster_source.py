"""Policies and engines from a cluster: what is watched, joined to what becomes of it.

Two speeds. What the cluster says of an engine goes out as a word, in the same moment in which it came in, and no
document is touched. What changes documents (policies, and which engines there are, and where) is gathered for
``settle_s`` and then judged in a thread; only documents that differ are parsed.

Nothing comes out before every list was complete once: policies without their engines would be a smaller fleet.
A lost server changes nothing but ``stale``.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import structlog

from policies.engine_tls import SecretError
from xds_server.k8s.kube_api import KubeApi
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.policy_object import PolicyObject
from xds_server.k8s.source.cluster_objects import EndpointSlice, KubeNode, Pod
from xds_server.k8s.source.engine_discovery import DiscoveryBlock, EngineDiscovery
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.policy_evaluation import OfferedSpec, PolicyEvaluation, PolicyEvaluator
from xds_server.k8s.source.policy_manifest import PolicyManifest, discovery_of
from xds_server.k8s.source.reflector_set import PULSE_S, ReflectorSet, WatchHandlers, WatchScope
from xds_server.k8s.watch_backoff import WatchBackoffPolicy
from xds_server.model.fleet import EngineId
from xds_server.model.pod_state import PodRef, PodState
from xds_server.model.policy_state import PolicyState

_REST_PER_WORK: Final = 2.0
"""Documents are judged for at most a third of the time."""

_log = structlog.get_logger()


class ClusterSource:
    """Policies, and the engines that their pools name, as the API server has them now; see ``states``.

    ``namespaces`` are those watched, all when empty; ``selector`` chooses policy objects, ``pod_selector`` pods,
    by label. ``run`` watches until it is cancelled. ``on_words`` gets all words that stand, and what tells engines
    of one name apart, whenever either changed: an engine without a word is present. ``on_objects`` is called when
    ``policy_objects`` or ``pods`` became different. ``secret_error`` says what is wrong with a secret that a pool
    names; ``reevaluate`` is to be called when that may be different.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespaces: Sequence[str] = (),
        selector: str = "",
        pod_selector: str = "",
        signs: NodeFaultRules | None = None,
        on_words: Callable[[Mapping[EngineId, PodState], Mapping[EngineId, str]], None] = lambda _, __: None,
        on_objects: Callable[[], None] = lambda: None,
        secret_error: SecretError = lambda _name, _at: None,
        settle_s: float = 0.05,
        pace: WatchBackoffPolicy | None = None,
        pulse_s: float = PULSE_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._on_words = on_words
        self._on_objects = on_objects
        self._settle_s = settle_s
        self._judge = PolicyEvaluator(secret_error)
        self._sightings = EngineDiscovery()
        self._watching = ReflectorSet(
            api,
            WatchScope(
                namespaces=tuple(namespaces),
                policies=selector,
                pods=pod_selector,
                signs=signs or NodeFaultRules(),
            ),
            WatchHandlers(
                policies=self._policies_changed,
                pods=self._pods_changed,
                slices=self._slices_changed,
                nodes=self._nodes_changed,
                contact=self._met,
            ),
            pace=pace,
            pulse_s=pulse_s,
            clock=clock,
            rng=rng,
        )
        self._serving: dict[str, DiscoveryBlock] = {}
        self._words: Mapping[EngineId, PodState] = MappingProxyType({})
        self._uids: Mapping[EngineId, str] = MappingProxyType({})
        self._looking = False
        self._due = asyncio.Event()
        self.policy_objects: tuple[PolicyObject, ...] = ()
        self.pods: Mapping[EngineId, PodRef] = MappingProxyType({})

    @property
    def stale(self) -> Mapping[str, float]:
        """Seconds without contact, by the plural of the resource; only those that are not in touch."""
        return self._watching.stale

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Resources that cannot be read, by plural, each with the reason; what can be is served without them."""
        return self._watching.unreadable

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._watching.run()

    def reevaluate(self) -> None:
        """Judge the same objects once more."""
        self._due.set()

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        """The state once every list was complete, then each different one, for as long as it is iterated."""
        said: str | None = None
        took_s = 0.0
        while True:
            await self._due.wait()
            if self._watching.complete:
                # One change seldom comes alone; and a thousand engines that are replaced one by one should not
                # keep a core busy with documents that are old when they are done.
                await asyncio.sleep(max(self._settle_s, _REST_PER_WORK * took_s))
                began_s = time.monotonic()
                outcome = await self._judged()
                took_s = time.monotonic() - began_s
                self._adopt(outcome)
                if outcome.state.digest != said:
                    said = outcome.state.digest
                    yield outcome.state
            else:
                self._due.clear()

    async def _judged(self) -> PolicyEvaluation:
        """The outcome for everything as it is now."""
        self._due.clear()
        wanted: dict[PolicyManifest, list[tuple[str, DiscoveryBlock | None]]] = {}
        for held in self._watching.manifests():
            wanted[held] = [(spec, self._block(held, spec)) for spec in self._judge.specs(held)]
        self._sightings.retain(block for pairs in wanted.values() for _, block in pairs if block is not None)
        self._sightings.refresh()
        offers = {held: [self._offer(spec, block) for spec, block in pairs] for held, pairs in wanted.items()}
        return await asyncio.to_thread(self._judge.evaluate, offers)

    def _block(self, held: PolicyManifest, spec: str) -> DiscoveryBlock | None:
        found = discovery_of(held.kind, spec)
        return self._sightings.track((found,), held.namespace)[0] if found is not None else None

    def _offer(self, spec: str, block: DiscoveryBlock | None) -> OfferedSpec:
        entries, remarks = self._sightings.entries(block) if block is not None else ((), ())
        return OfferedSpec(spec=spec, entries=entries, remarks=remarks)

    def _adopt(self, outcome: PolicyEvaluation) -> None:
        """What is served from now on: whose words count, and what became of each object."""
        serving = {}
        for one in outcome.objects:
            found = discovery_of(one.kind, outcome.served.get(one.file, ""))
            if found is not None:
                (serving[one.name],) = self._sightings.track((found,), one.namespace)
        self._serving = serving
        if outcome.objects != self.policy_objects:
            _tell(self.policy_objects, outcome.objects)
            self.policy_objects = outcome.objects
            self._on_objects()
        self._look()

    # -- what comes in ---------------------------------------------------------------------------------------

    def _policies_changed(self) -> None:
        self._due.set()

    def _pods_changed(self, keys: frozenset[ObjectKey], pods: Mapping[ObjectKey, Pod]) -> None:
        self._sightings.on_pods(keys, pods)
        self._look_soon()

    def _slices_changed(self, keys: frozenset[ObjectKey], slices: Mapping[ObjectKey, EndpointSlice]) -> None:
        self._sightings.on_slices(keys, slices)
        self._look_soon()

    def _nodes_changed(self, keys: frozenset[ObjectKey], nodes: Mapping[ObjectKey, KubeNode]) -> None:
        self._sightings.on_nodes(keys, nodes)
        self._look_soon()

    def _met(self) -> None:
        """Contact was lost or found, or a list is complete."""
        self._sightings.set_unobservable(self._watching.unobservable)
        self._look_soon()
        if self._watching.complete:
            self._due.set()

    def _look_soon(self) -> None:
        """Look when what has already come in has been taken: a page of pods is one change."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._sightings.refresh():
            self._due.set()
        seen = self._sightings.discovered(self._serving)
        if seen.pod_states != self._words or seen.uids != self._uids:
            self._words, self._uids = MappingProxyType(seen.pod_states), MappingProxyType(seen.uids)
            self._on_words(self._words, self._uids)
        if seen.pods != self.pods:
            self.pods = MappingProxyType(seen.pods)
            self._on_objects()


def _tell(before: Sequence[PolicyObject], after: Sequence[PolicyObject]) -> None:
    """One line for each object that is refused, or no longer is."""
    known = {one.uid: one for one in before}
    for one in after:
        earlier = known.get(one.uid)
        reasons = [str(problem) for problem in one.problems]
        if reasons and (earlier is None or [str(problem) for problem in earlier.problems] != reasons):
            _log.warning("policies.object_rejected", file=one.file, serving=one.serving, reasons=reasons)
        elif not reasons and earlier is not None and earlier.problems:
            _log.info("policies.object_accepted", file=one.file)
