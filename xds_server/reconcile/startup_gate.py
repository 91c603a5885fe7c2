"""Decides when enough is known about the engines to serve proxies for the first time.

Opening earlier would report every engine as healthy to proxies that reconnect after a restart.
"""

from collections.abc import Mapping

from engine.report import ReportSource
from policies.model import PolicySet
from policies.pool import Probe
from xds_server.engine_health.engine_addresses import host_names
from xds_server.model.fleet import Engine, Fleet


class StartupGate:
    """Whether all engines have reported, or ``longest_s`` have passed since the first check."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._by_s: float | None = None

    def due(self, policies: PolicySet, fleet: Fleet, addresses: Mapping[str, str], now_s: float) -> bool:
        """Whether the port may open now."""
        if self._by_s is None:
            self._by_s = now_s + self._longest_s
        return now_s >= self._by_s or fleet_reported(policies, fleet, addresses)


def fleet_reported(policies: PolicySet, fleet: Fleet, addresses: Mapping[str, str]) -> bool:
    """Whether every host name has an address, and every observed engine a verdict."""
    if not host_names(policies) <= addresses.keys():
        return False
    return all(
        _judged(engine, policies.pools[pool].spec.probe)
        for pool, engines in fleet.pools.items()
        for engine in engines
    )


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
