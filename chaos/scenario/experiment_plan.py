"""A scenario made definite: who stands where, which engines each fault hits, and when. Values only.

Names are the same everywhere: engines ``e0``, ``e1``, ..., proxies ``p0``, ``p1``, ..., and ``control-plane``.
Times are seconds from the moment at which the first request may arrive.
"""

from dataclasses import dataclass

from chaos.faults.fault import Fault
from chaos.scenario.scenario_model import ScenarioSpec

CONTROL_PLANE = "control-plane"
CLIENTS = "clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """One engine of the pool under test. ``slowness`` multiplies every time it needs."""

    name: str
    zone: str
    slots: int
    slowness: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlacement:
    """One Envoy. ``demand`` is its share of the requests, relative to the others."""

    name: str
    zone: str
    demand: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOutage:
    """One fault on one or more targets for ``[start_s, end_s)``. ``id`` is unique in the experiment."""

    id: str
    fault: Fault
    targets: tuple[str, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One scenario, all choices made. ``service_s`` is the mean time a request holds a slot of an engine that is
    not slow, ``rate_per_s`` the usual rate of requests, before surges.
    """

    name: str
    spec: ScenarioSpec
    engines: tuple[EnginePlacement, ...]
    proxies: tuple[ProxyPlacement, ...]
    outages: tuple[PlannedOutage, ...]
    service_s: float
    rate_per_s: float
    seconds: float
    seed: int

    @property
    def slots(self) -> int:
        """Of all engines."""
        return sum(one.slots for one in self.engines)

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the healthy fleet finishes when it is never idle."""
        return sum(one.slots / (self.service_s * one.slowness) for one in self.engines)

    @property
    def fault_s(self) -> float:
        """When the first fault begins; the end where there is none."""
        return min((one.start_s for one in self.outages), default=self.seconds)

    @property
    def healed_s(self) -> float:
        """When the last fault is healed."""
        return max((one.end_s for one in self.outages), default=self.seconds)
