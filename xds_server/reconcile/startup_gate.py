"""Decides when enough is known about the engines to serve proxies for the first time.

Opening earlier would report every engine as healthy to proxies that reconnect after a restart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.report import ReportSource
from policies.model import PolicySet
from policies.pool import Probe
from xds_server.engine_health.engine_addresses import host_names
from xds_server.model.fleet import Engine, Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupWait:
    """Engines (``pool/engine``) without a verdict and hosts without an address; the port opens in ``left_s``."""

    engines: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    left_s: float = 0.0


class StartupGate:
    """Whether all engines have reported, or ``longest_s`` have passed since the first check."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._by_s: float | None = None

    def left_s(self, now_s: float) -> float:
        """Seconds until the port opens without further reports."""
        return self._longest_s if self._by_s is None else max(0.0, self._by_s - now_s)

    def due(self, policies: PolicySet, fleet: Fleet, addresses: Mapping[str, str], now_s: float) -> bool:
        """Whether the port may open now."""
        if self._by_s is None:
            self._by_s = now_s + self._longest_s
        return now_s >= self._by_s or fleet_reported(policies, fleet, addresses)


def fleet_reported(policies: PolicySet, fleet: Fleet, addresses: Mapping[str, str]) -> bool:
    """Whether every host name has an address, and every observed engine a verdict."""
    return not unresolved_hosts(policies, addresses) and not next(_unreported(policies, fleet), None)


def unresolved_hosts(policies: PolicySet, addresses: Mapping[str, str]) -> tuple[str, ...]:
    """Host names of engines without an address, sorted."""
    return tuple(sorted(host_names(policies) - addresses.keys()))


def unreported_engines(policies: PolicySet, fleet: Fleet) -> tuple[str, ...]:
    """``pool/engine`` of each observed engine without a verdict."""
    return tuple(_unreported(policies, fleet))


def _unreported(policies: PolicySet, fleet: Fleet) -> Iterator[str]:
    for pool, engines in fleet.pools.items():
        probe = policies.pools[pool].spec.probe
        yield from (f"{pool}/{engine.id.engine}" for engine in engines if not _judged(engine, probe))


def _judged(engine: Engine, probe: Probe) -> bool:
    """Whether an engine's verdict counts already, or none is expected."""
    if engine.pod_phase.final or not (probe.enabled or engine.has_agent):
        return True
    if engine.good_looks >= probe.healthy_after or engine.bad_looks >= probe.unhealthy_after:
        return True
    # Neither an agent's verdict nor a restored one needs several probes.
    return engine.report is not None and (
        engine.report.source is ReportSource.AGENT or not (engine.good_looks or engine.bad_looks)
    )
