"""The reflectors of a cluster, and the state of their watches."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeVar

from xds_server.k8s.api_resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES, ApiResource
from xds_server.k8s.kube_api import ApiError, KubeApi, ObjectSelector
from xds_server.k8s.object_store import ObjectKey
from xds_server.k8s.reflector import Reflector, ReflectorHandlers
from xds_server.k8s.source import cluster_objects
from xds_server.k8s.source.gpu_node_rules import NodeFaultRules
from xds_server.k8s.source.policy_manifest import PolicyManifest, manifest_reader
from xds_server.k8s.watch_backoff import WatchBackoffPolicy, WatchState

T = TypeVar("T")

PING_S: Final = 5.0
"""Ping interval: a watch whose peer vanished stays silent for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """Watched objects: in these namespaces (empty: all), chosen by selectors."""

    namespaces: tuple[str, ...] = ()
    policy_selector: str = ""
    pod_selector: str = ""
    node_fault_rules: NodeFaultRules = field(default_factory=NodeFaultRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchHandlers:
    """Callbacks: for changed keys with all objects of their list, and for a changed watch state."""

    policies: Callable[[], None]
    pods: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.Pod]], None]
    slices: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.EndpointSlice]], None]
    nodes: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, cluster_objects.KubeNode]], None]
    watch_state: Callable[[], None]


class ReflectorSet:
    """The reflectors of a scope; ``run`` keeps them until cancelled."""

    def __init__(
        self,
        api: KubeApi,
        scope: WatchScope,
        handlers: WatchHandlers,
        *,
        backoff: WatchBackoffPolicy | None = None,
        ping_s: float = PING_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._ping_s = ping_s
        places = tuple(dict.fromkeys(scope.namespaces)) if all(scope.namespaces) else ()
        places = places or ("",)
        more: dict[str, Any] = {"backoff": backoff, "clock": clock, "rng": rng}

        def on(change: Callable[[frozenset[ObjectKey], Mapping[ObjectKey, T]], None]) -> ReflectorHandlers[T]:
            return ReflectorHandlers(on_change=change, on_state_change=handlers.watch_state)

        def selector(resource: ApiResource, place: str, labels: str = "") -> ObjectSelector:
            return ObjectSelector(resource=resource, namespace=place, labels=labels)

        self._policies: list[Reflector[PolicyManifest]] = [
            Reflector(
                api,
                selector(resource, place, scope.policy_selector),
                manifest_reader(kind),
                on(lambda *_: handlers.policies()),
                **more,
            )
            for place in places
            for kind, resource in POLICY_RESOURCES.items()
        ]
        self._pods: list[Reflector[cluster_objects.Pod]] = [
            Reflector(
                api, selector(PODS, place, scope.pod_selector), cluster_objects.pod, on(handlers.pods), **more
            )
            for place in places
        ]
        # A slice without the label belongs to no Service.
        self._slices: list[Reflector[cluster_objects.EndpointSlice]] = [
            Reflector(
                api,
                selector(ENDPOINT_SLICES, place, cluster_objects.SERVICE_LABEL),
                cluster_objects.endpoint_slice,
                on(handlers.slices),
                **more,
            )
            for place in places
        ]
        self._nodes: list[Reflector[cluster_objects.KubeNode]] = [
            Reflector(
                api,
                selector(NODES, ""),
                cluster_objects.node_reader(scope.node_fault_rules),
                on(handlers.nodes),
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
        """Whether every list was complete once, or the server has none."""
        return all(one.complete for one in self._all())

    @property
    def stale(self) -> Mapping[str, float]:
        """Seconds without contact by plural, the maximum over namespaces; only resources without contact."""
        longest: dict[str, float] = {}
        for one in self._all():
            seconds = one.stale_s
            if seconds is not None:
                plural = one.selector.resource.plural
                longest[plural] = max(seconds, longest.get(plural, 0.0))
        return MappingProxyType(longest)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Why a resource cannot be read, by plural: ``forbidden`` or ``absent``, with the server's reason."""
        return MappingProxyType(
            {
                one.selector.resource.plural: f"{one.state.value}: {one.reason}"
                for one in self._all()
                if one.state in {WatchState.FORBIDDEN, WatchState.ABSENT}
            }
        )

    @property
    def unobservable(self) -> frozenset[str] | None:
        """Namespaces whose pods are without contact; None if all are."""
        lost = frozenset(one.selector.namespace for one in self._pods if not one.current)
        return None if "" in lost else lost

    def manifests(self) -> Iterator[PolicyManifest]:
        """Every policy object."""
        for one in self._policies:
            yield from one.objects.values()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for one in self._all():
                tasks.create_task(one.run(), name=f"watch {one.selector.resource.plural} {one.selector.namespace}")
            tasks.create_task(self._ping(), name="ping of the API server")

    async def _ping(self) -> None:
        """Detect a silent server, and reopen all watches when it answers."""
        silent = False
        while True:
            await asyncio.sleep(self._ping_s)
            try:
                async with asyncio.timeout(self._ping_s):
                    await self._api.get_raw("/version")
            except (ApiError, TimeoutError) as error:
                # A refusal is an answer, too.
                if isinstance(error, TimeoutError) or not error.status:
                    silent = True
                    for one in self._all():
                        one.suspect("no answer from the server")
                    continue
            if silent:
                silent = False
                for one in self._all():
                    one.rewatch()
