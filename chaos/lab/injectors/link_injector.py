"""Network faults: rules for the netem links of engines, agents and the control plane."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import ClassVar

from chaos.faults.actions import EVERYBODY, OTHER_ZONES, FaultAction, ShapeLink
from chaos.lab.injectors.tap_injectors import TapRuleClient
from chaos.lab.lab_handles import LabHandles
from chaos.netem.packet_filter import unavailable_reason


def link_names(
    pull: ShapeLink, engine_zones: Mapping[str, str], proxy_zones: Mapping[str, str]
) -> tuple[str, ...]:
    """Names of the links that an action needs. ``zones`` are those of all engines and proxies."""
    if pull.target != OTHER_ZONES:
        return (f"{pull.end}:{pull.target}",)
    own = {proxy_zones[source] for source in pull.sources}
    return tuple(f"{pull.end}:{engine}" for engine, zone in engine_zones.items() if zone not in own)


class LinkInjector:
    """Sets rules on netem links; links of proxies to the control plane belong to the xDS tap."""

    handles: ClassVar[tuple[type, ...]] = (ShapeLink,)

    def __init__(self, site: LabHandles) -> None:
        self._site = site
        self._orders = TapRuleClient(site.session)

    def refusal(self, pull: FaultAction) -> str:
        assert isinstance(pull, ShapeLink)  # noqa: S101 -- see handles
        links = self._links(pull)
        if unlaid := [link for link in links if link not in self._site.link_ports]:
            return f"no netem link for {unlaid[0]}"
        return unavailable_reason() if links and (pull.black_hole or pull.loss_percent) else ""

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, ShapeLink)  # noqa: S101 -- see handles
        links, sources = self._links(pull), self._sources(pull)
        if links and sources:
            settings = {key: value for key, value in asdict(pull).items() if key not in {"end", "target"}}
            control = self._site.wiretap if pull.end == "xds" else self._site.wires
            await self._orders.put_rule(pull, f"{control}/rules", {**settings, "links": links, "sources": sources})

    async def revert(self, pull: FaultAction) -> None:
        await self._orders.delete_rule(pull)

    def _links(self, pull: ShapeLink) -> tuple[str, ...]:
        """Links of the action; none if the lab lacks the target."""
        match pull.end:
            case "agent" if self._site.engines[pull.target].agent_port is None:
                return ()
            case "xds" if not self._site.control_plane:
                return ()
            case _:
                engines = {one.name: one.zone for one in self._site.engines.values()}
                return link_names(pull, engines, {one.name: one.zone for one in self._site.proxies.values()})

    def _sources(self, pull: ShapeLink) -> tuple[str, ...]:
        """Source addresses; empty if none match."""
        if pull.end != "engine" or EVERYBODY in pull.sources:
            return (EVERYBODY,)
        proxies = self._site.proxies.values()
        if OTHER_ZONES in pull.sources:
            own = self._site.engines[pull.target].zone
            return tuple(one.address for one in proxies if one.zone != own)
        return tuple(one.address for one in proxies if one.name in pull.sources)
