"""Everything that is watched in a cluster, and how it stands with the server. The shell around reflectors."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from xds_server.k8s.api_resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES, ApiResource
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.reflector import Reflector
from xds_server.k8s.source import cluster_objects
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.policy_manifest import PolicyManifest, manifest_reader
from xds_server.k8s.watch_backoff import WatchBackoffPolicy, WatchState

PULSE_S: Final = 5.0
"""How often the server is asked whether it is there: a watch whose other end is gone says nothing for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """What is watched: of these namespaces, all when empty, objects that the selectors choose by label."""

    namespaces: tuple[str, ...] = ()
    policies: str = ""
    pods: str = ""
    signs: NodeFaultRules = field(default_factory=NodeFaultRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHandlers:
    """Who is told: of keys that became different, with all objects of their list; and of a change of contact."""

    policies: Callable[[], None]
    pods: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.Pod]], None]
    slices: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.EndpointSlice]], None]
    nodes: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.KubeNode]], None]
    contact: Callable[[], None]


class ReflectorSet:
    """The reflectors of a scope; ``run`` keeps them until it is cancelled."""

    def __init__(
        self,
        api: KubeApi,
        scope: WatchScope,
        ears: WatchHandlers,
        *,
        pace: WatchBackoffPolicy | None = None,
        pulse_s: float = PULSE_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._pulse_s = pulse_s
        places = tuple(dict.fromkeys(scope.namespaces)) if all(scope.namespaces) else ()
        places = places or ("",)
        more: dict[str, Any] = {"pace": pace, "clock": clock, "rng": rng, "on_contact": ears.contact}

        def which(resource: ApiResource, place: str, labels: str = "") -> ObjectSelector:
            return ObjectSelector(resource=resource, namespace=place, labels=labels)

        self._policies: list[Reflector[PolicyManifest]] = [
            Reflector(
                api,
                which(resource, place, scope.policies),
                manifest_reader(kind),
                on_change=lambda *_: ears.policies(),
                **more,
            )
            for place in places
            for kind, resource in POLICY_RESOURCES.items()
        ]
        self._pods: list[Reflector[cluster_objects.Pod]] = [
            Reflector(api, which(PODS, place, scope.pods), cluster_objects.pod, on_change=ears.pods, **more)
            for place in places
        ]
        # A slice without the label belongs to no Service.
        self._slices: list[Reflector[cluster_objects.EndpointSlice]] = [
            Reflector(
                api,
                which(ENDPOINT_SLICES, place, cluster_objects.SERVICE_LABEL),
                cluster_objects.endpoint_slice,
                on_change=ears.slices,
                **more,
            )
            for place in places
        ]
        self._nodes: list[Reflector[cluster_objects.KubeNode]] = [
            Reflector(
                api,
                which(NODES, ""),
                cluster_objects.node_reader(scope.signs),
                on_change=ears.nodes,
                optional=True,
                **more,
            )
        ]

    def _all(self) -> Iterator[Reflector[Any]]:
        yield from self._policies
        yield from self._pods
        yield from self._slices
        yield from self._nodes

    @property
    def complete(self) -> bool:
        """Whether every list was whole once, or is known not to be had."""
        return all(one.complete for one in self._all())

    @property
    def stale(self) -> Mapping[str, float]:
        """Seconds without contact by plural, the longest of all namespaces; only where there is none."""
        longest: dict[str, float] = {}
        for one in self._all():
            seconds = one.stale_s
            if seconds is not None:
                plural = one.which.resource.plural
                longest[plural] = max(seconds, longest.get(plural, 0.0))
        return MappingProxyType(longest)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Why a resource cannot be read, by plural: ``forbidden`` or ``absent``, with the server's reason."""
        return MappingProxyType(
            {
                one.which.resource.plural: f"{one.state.value}: {one.reason}"
                for one in self._all()
                if one.state in {WatchState.FORBIDDEN, WatchState.ABSENT}
            }
        )

    @property
    def unobservable(self) -> frozenset[str] | None:
        """Namespaces of whose pods nothing new is heard; None when it is all of them."""
        lost = frozenset(one.which.namespace for one in self._pods if not one.current)
        return None if "" in lost else lost

    def manifests(self) -> Iterator[PolicyManifest]:
        """Every policy object there is."""
        for one in self._policies:
            yield from one.objects.values()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._all():
                tasks.create_task(one.run(), name=f"watch {one.which.resource.plural} {one.which.namespace}")
            tasks.create_task(self._pulse(), name="pulse of the API server")

    async def _pulse(self) -> None:
        """Notice that the server is gone though no connection says so; take watches up again when it is back."""
        silent = False
        while True:
            await asyncio.sleep(self._pulse_s)
            try:
                async with asyncio.timeout(self._pulse_s):
                    await self._api.get_raw("/version")
            except (ApiError, TimeoutError) as error:
                # Whoever refuses is there.
                if isinstance(error, TimeoutError) or not error.status:
                    silent = True
                    for one in self._all():
                        one.suspect("the server does not answer")
                    continue
            if silent:
                silent = False
                for one in self._all():
                    one.rewatch()
