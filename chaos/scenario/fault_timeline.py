"""Times and targets of each fault of a scenario. Pure."""

from collections.abc import Iterator

from chaos.scenario.experiment_plan import PlannedOutage
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, ScenarioSpec


def fault_timeline(spec: ScenarioSpec) -> tuple[PlannedOutage, ...]:
    """All outages, by start time."""
    found = (one for number, strike in enumerate(spec.faults) for one in planned_outages(spec, strike, number))
    return tuple(sorted(found, key=lambda one: (one.start_s, one.id)))


def planned_outages(spec: ScenarioSpec, strike: FaultSpec, number: int) -> Iterator[PlannedOutage]:
    """Outages of the fault at this index: one for all targets, or one per target with inTurn."""
    targets = selected_targets(spec, strike).names
    name = fault_name(strike, number)
    if not strike.in_turn:
        end_s = strike.at + strike.lasts
        yield PlannedOutage(id=name, fault=strike.fault, targets=targets, start_s=strike.at, end_s=end_s)
        return
    turn_s = strike.lasts / max(1, len(targets))
    bad_s = turn_s * (1 - strike.pause_percent / 100)
    for place, target in enumerate(targets):
        start_s = strike.at + turn_s * place
        yield PlannedOutage(
            id=f"{name}/{target}", fault=strike.fault, targets=(target,), start_s=start_s, end_s=start_s + bad_s
        )


def fault_name(strike: FaultSpec, number: int) -> str:
    """Name of the fault at this index."""
    return strike.name or f"{strike.fault.kind}-{number}"
