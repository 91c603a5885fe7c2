"""A resolved scenario: placements, and the targets and times of each fault. Values only.

Names: engines ``e0``, ``e1``, ..., those of the first fallback ``f0-e0``, ``f0-e1``, ..., of the prefill pool
``prefill-e0``, ..., proxies ``p0``, ``p1``, ..., and ``control-plane``. Times are seconds from the earliest first
request.
"""

from dataclasses import dataclass

from chaos.faults.fault import Fault
from chaos.scenario.scenario_model import ScenarioSpec

CONTROL_PLANE = "control-plane"
CLIENTS = "clients"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """One engine of a pool. ``slowness`` multiplies all of its service times; ``region`` may be empty."""

    name: str
    zone: str
    slots: int
    slowness: float = 1.0
    region: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlacement:
    """One proxy. ``demand`` is its relative share of the requests; ``region`` may be empty."""

    name: str
    zone: str
    demand: float = 1.0
    region: str = ""


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
    """One scenario with all choices made.

    ``engines`` are those of the pool under test, ``fallbacks`` those of each fallback pool, in chain order,
    ``prefill`` those of the prefill pool.
    ``service_s`` is the mean time a request holds a slot at slowness 1; ``rate_per_s`` is the request rate outside
    surges.
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
    fallbacks: tuple[tuple[EnginePlacement, ...], ...] = ()
    prefill: tuple[EnginePlacement, ...] = ()

    @property
    def slots(self) -> int:
        """Slots of all engines of the pool under test."""
        return sum(one.slots for one in self.engines)

    @property
    def capacity_per_s(self) -> float:
        """Maximum requests per second of the healthy fleet."""
        return sum(one.slots / (self.service_s * one.slowness) for one in self.engines)

    @property
    def fault_s(self) -> float:
        """Start of the first fault; the end if there is none."""
        return min((one.start_s for one in self.outages), default=self.seconds)

    @property
    def healed_s(self) -> float:
        """End of the last fault."""
        return max((one.end_s for one in self.outages), default=self.seconds)
