"""Everything that is watched in a cluster, and how it stands with the server. The shell around reflectors."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from xds_server.kube.api import Api, ApiError, Selection
from xds_server.kube.mirror import Key
from xds_server.kube.patience import Contact, Pace
from xds_server.kube.reflector import Reflector
from xds_server.kube.resources import ENDPOINT_SLICES, NODES, PODS, POLICY_RESOURCES, Resource
from xds_server.sources.cluster import seen
from xds_server.sources.cluster.document import Held, reader
from xds_server.sources.cluster.signs import NodeSigns

PULSE_S: Final = 5.0
"""How often the server is asked whether it is there: a watch whose other end is gone says nothing for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What is watched: of these namespaces, all when empty, objects that the selectors choose by label."""

    namespaces: tuple[str, ...] = ()
    policies: str = ""
    pods: str = ""
    signs: NodeSigns = field(default_factory=NodeSigns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ears:
    """Who is told: of keys that became different, with all objects of their list; and of a change of contact."""

    policies: Callable[[], None]
    pods: Callable[[frozenset[Key], Mapping[Key, seen.Pod]], None]
    slices: Callable[[frozenset[Key], Mapping[Key, seen.Slice]], None]
    nodes: Callable[[frozenset[Key], Mapping[Key, seen.Node]], None]
    contact: Callable[[], None]


class Watching:
    """The reflectors of a scope; ``run`` keeps them until it is cancelled."""

    def __init__(
        self,
        api: Api,
        scope: Scope,
        ears: Ears,
        *,
        pace: Pace | None = None,
        pulse_s: float = PULSE_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._api = api
        self._pulse_s = pulse_s
        places = tuple(dict.fromkeys(scope.namespaces)) if all(scope.namespaces) else ()
        places = places or ("",)
        more: dict[str, Any] = {"pace": pace, "clock": clock, "rng": rng, "on_contact": ears.contact}

        def which(resource: Resource, place: str, labels: str = "") -> Selection:
            return Selection(resource=resource, namespace=place, labels=labels)

        self._policies: list[Reflector[Held]] = [
            Reflector(
                api,
                which(resource, place, scope.policies),
                reader(kind),
                on_change=lambda *_: ears.policies(),
                **more,
            )
            for place in places
            for kind, resource in POLICY_RESOURCES.items()
        ]
        self._pods: list[Reflector[seen.Pod]] = [
            Reflector(api, which(PODS, place, scope.pods), seen.pod, on_change=ears.pods, **more)
            for place in places
        ]
        # A slice without the label belongs to no Service.
        self._slices: list[Reflector[seen.Slice]] = [
            Reflector(
                api,
                which(ENDPOINT_SLICES, place, seen.SERVICE_LABEL),
                seen.endpoint_slice,
                on_change=ears.slices,
                **more,
            )
            for place in places
        ]
        self._nodes: list[Reflector[seen.Node]] = [
            Reflector(
                api,
                which(NODES, ""),
                seen.node_reader(scope.signs),
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
    def without(self) -> Mapping[str, str]:
        """Why a resource cannot be read, by plural: ``forbidden`` or ``absent``, with the server's reason."""
        return MappingProxyType(
            {
                one.which.resource.plural: f"{one.contact.value}: {one.reason}"
                for one in self._all()
                if one.contact in {Contact.FORBIDDEN, Contact.ABSENT}
            }
        )

    @property
    def blind(self) -> frozenset[str] | None:
        """Namespaces of whose pods nothing new is heard; None when it is all of them."""
        lost = frozenset(one.which.namespace for one in self._pods if not one.current)
        return None if "" in lost else lost

    def held(self) -> Iterator[Held]:
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
                    await self._api.ask("/version")
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
                    one.again()
