"""When each fault of a scenario hits whom. Pure."""

from collections.abc import Iterator

from chaos.scenario.model import ScenarioSpec, Strike
from chaos.scenario.places import picked
from chaos.scenario.plan import Outage


def timeline(spec: ScenarioSpec) -> tuple[Outage, ...]:
    """Every outage, by the time it begins."""
    found = (one for number, strike in enumerate(spec.faults) for one in outages(spec, strike, number))
    return tuple(sorted(found, key=lambda one: (one.start_s, one.id)))


def outages(spec: ScenarioSpec, strike: Strike, number: int) -> Iterator[Outage]:
    """Those of one fault, which is this number in the list: one for all targets, or one for each in turn."""
    targets = picked(spec, strike).names
    name = name_of(strike, number)
    if not strike.in_turn:
        end_s = strike.at + strike.lasts
        yield Outage(id=name, fault=strike.fault, targets=targets, start_s=strike.at, end_s=end_s)
        return
    turn_s = strike.lasts / max(1, len(targets))
    bad_s = turn_s * (1 - strike.pause_percent / 100)
    for place, target in enumerate(targets):
        start_s = strike.at + turn_s * place
        yield Outage(
            id=f"{name}/{target}", fault=strike.fault, targets=(target,), start_s=start_s, end_s=start_s + bad_s
        )


def name_of(strike: Strike, number: int) -> str:
    """What the fault at this place of the list is called."""
    return strike.name or f"{strike.fault.kind}-{number}"
