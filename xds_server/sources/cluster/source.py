"""Policies and engines from a cluster: the shell that watches, and says what became of it."""

import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType

from policies.findings import Finding
from xds_server.fleet import EngineId
from xds_server.kube.api import Api
from xds_server.kube.objects import PodRef, PolicyObject
from xds_server.orchestrator import OrchestratorWord
from xds_server.sources.cluster.signs import NodeSigns
from xds_server.sources.files import PolicyState


class ClusterSource:
    """Policies, and the engines that their pools name, as the API server has them now; see ``states``.

    ``namespaces`` are those watched, all when empty; ``selector`` chooses policy objects by label. ``run`` watches
    until it is cancelled. ``on_words`` gets, whenever they changed, all words that stand: an engine that is not in
    them is present. ``on_objects`` is called when ``policy_objects`` or ``pods`` became different.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespaces: Sequence[str] = (),
        selector: str = "",
        signs: NodeSigns | None = None,
        on_words: Callable[[Mapping[EngineId, OrchestratorWord]], None] = lambda _: None,
        on_objects: Callable[[], None] = lambda: None,
        settle_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self.policy_objects: tuple[PolicyObject, ...] = ()
        self.pods: Mapping[EngineId, PodRef] = MappingProxyType({})
        self.findings: tuple[Finding, ...] = ()

    @property
    def stale(self) -> Mapping[str, float]:
        """Seconds without contact, by the plural of the resource; only those that are not in touch."""
        return MappingProxyType({})

    async def states(self) -> AsyncGenerator[PolicyState, None]:
        """The state once every list was complete, then each different one, for as long as it is iterated."""
        raise NotImplementedError
        yield

    async def run(self) -> None:
        """Watch until cancelled."""
        raise NotImplementedError
