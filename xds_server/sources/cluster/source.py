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
from xds_server.fleet import EngineId
from xds_server.fleet.orchestrator import OrchestratorWord
from xds_server.kube.api import Api
from xds_server.kube.mirror import Key
from xds_server.kube.objects import PodRef, PolicyObject
from xds_server.kube.patience import Pace
from xds_server.sources.cluster.document import Held, discovery
from xds_server.sources.cluster.judging import Judge, Offer, Outcome
from xds_server.sources.cluster.seen import Node, Pod, Slice
from xds_server.sources.cluster.sightings import Block, Sightings
from xds_server.sources.cluster.signs import NodeSigns
from xds_server.sources.cluster.watching import PULSE_S, Ears, Scope, Watching
from xds_server.sources.files import PolicyState

_REST_PER_WORK: Final = 2.0
"""Documents are judged for at most a third of the time."""

_log = structlog.get_logger()


class ClusterSource:
    """Policies, and the engines that their pools name, as the API server has them now; see ``states``.

    ``namespaces`` are those watched, all when empty; ``selector`` chooses policy objects, ``pod_selector`` pods,
    by label. ``run`` watches until it is cancelled. ``on_words`` gets all words that stand, and what tells engines
    of one name apart, whenever either changed: an engine without a word is present. ``on_objects`` is called when
    ``policy_objects`` or ``pods`` became different. ``secret_error`` says what is wrong with a secret that a pool
    names; ``look_again`` is to be called when that may be different.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespaces: Sequence[str] = (),
        selector: str = "",
        pod_selector: str = "",
        signs: NodeSigns | None = None,
        on_words: Callable[[Mapping[EngineId, OrchestratorWord], Mapping[EngineId, str]], None] = lambda _, __: (
            None
        ),
        on_objects: Callable[[], None] = lambda: None,
        secret_error: SecretError = lambda _name, _at: None,
        settle_s: float = 0.05,
        pace: Pace | None = None,
        pulse_s: float = PULSE_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._on_words = on_words
        self._on_objects = on_objects
        self._settle_s = settle_s
        self._judge = Judge(secret_error)
        self._sightings = Sightings()
        self._watching = Watching(
            api,
            Scope(
                namespaces=tuple(namespaces),
                policies=selector,
                pods=pod_selector,
                signs=signs or NodeSigns(),
            ),
            Ears(
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
        self._serving: dict[str, Block] = {}
        self._words: Mapping[EngineId, OrchestratorWord] = MappingProxyType({})
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
    def without(self) -> Mapping[str, str]:
        """Resources that cannot be read, by plural, each with the reason; what can be is served without them."""
        return self._watching.without

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._watching.run()

    def look_again(self) -> None:
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

    async def _judged(self) -> Outcome:
        """The outcome for everything as it is now."""
        self._due.clear()
        wanted: dict[Held, list[tuple[str, Block | None]]] = {}
        for held in self._watching.held():
            wanted[held] = [(spec, self._block(held, spec)) for spec in self._judge.specs(held)]
        self._sightings.keep(block for pairs in wanted.values() for _, block in pairs if block is not None)
        self._sightings.look()
        offers = {held: [self._offer(spec, block) for spec, block in pairs] for held, pairs in wanted.items()}
        return await asyncio.to_thread(self._judge.outcome, offers)

    def _block(self, held: Held, spec: str) -> Block | None:
        found = discovery(held.kind, spec)
        return self._sightings.want((found,), held.namespace)[0] if found is not None else None

    def _offer(self, spec: str, block: Block | None) -> Offer:
        entries, remarks = self._sightings.entries(block) if block is not None else ((), ())
        return Offer(spec=spec, entries=entries, remarks=remarks)

    def _adopt(self, outcome: Outcome) -> None:
        """What is served from now on: whose words count, and what became of each object."""
        serving = {}
        for one in outcome.objects:
            found = discovery(one.kind, outcome.served.get(one.file, ""))
            if found is not None:
                (serving[one.name],) = self._sightings.want((found,), one.namespace)
        self._serving = serving
        if outcome.objects != self.policy_objects:
            _tell(self.policy_objects, outcome.objects)
            self.policy_objects = outcome.objects
            self._on_objects()
        self._look()

    # -- what comes in ---------------------------------------------------------------------------------------

    def _policies_changed(self) -> None:
        self._due.set()

    def _pods_changed(self, keys: frozenset[Key], pods: Mapping[Key, Pod]) -> None:
        self._sightings.see_pods(keys, pods)
        self._look_soon()

    def _slices_changed(self, keys: frozenset[Key], slices: Mapping[Key, Slice]) -> None:
        self._sightings.see_slices(keys, slices)
        self._look_soon()

    def _nodes_changed(self, keys: frozenset[Key], nodes: Mapping[Key, Node]) -> None:
        self._sightings.see_nodes(keys, nodes)
        self._look_soon()

    def _met(self) -> None:
        """Contact was lost or found, or a list is complete."""
        self._sightings.trust(self._watching.blind)
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
        if self._sightings.look():
            self._due.set()
        seen = self._sightings.seen(self._serving)
        if seen.words != self._words or seen.uids != self._uids:
            self._words, self._uids = MappingProxyType(seen.words), MappingProxyType(seen.uids)
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
