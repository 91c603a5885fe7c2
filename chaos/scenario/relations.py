"""What must hold between the parts of a scenario, beyond the shape of each field. Pure; every trouble at once."""

from collections.abc import Iterator
from typing import Final

from chaos.faults.fault import Aim
from chaos.faults.pulls import BreakEngine, Freeze, Gpu, Kill, Part, Pull, Reports
from chaos.scenario.collisions import at_once, beyond_radius
from chaos.scenario.model import ScenarioSpec, Strike
from chaos.scenario.places import engines, picked, proxies
from chaos.scenario.timeline import name_of
from chaos.scenario.trouble import Steps, Trouble
from policies.findings import did_you_mean, shown
from policies.quantity import format_duration

_WORDS: Final = {
    Aim.ENGINES: "engines",
    Aim.PROXIES: "Envoys",
    Aim.ZONES: "whole zones",
    Aim.CONTROL_PLANE: "the control plane",
    Aim.CLIENTS: "those who ask",
}
_FIELDS: Final = {
    Aim.ENGINES: frozenset({"zone", "engine", "fraction", "count", "skip"}),
    Aim.PROXIES: frozenset({"zone", "proxy", "fraction", "count", "skip"}),
    Aim.ZONES: frozenset({"zone"}),
    Aim.CONTROL_PLANE: frozenset[str](),
    Aim.CLIENTS: frozenset[str](),
}
_SLACK_S: Final = 1e-9


def troubles(spec: ScenarioSpec) -> tuple[Trouble, ...]:
    """Everything that contradicts itself in one scenario."""
    found = (*_in_topology(spec), *_in_load(spec), *_in_faults(spec), *_in_hypothesis(spec))
    # Who is hit, and when, is only worth comparing where both are known.
    return found or (*at_once(spec), *beyond_radius(spec))


def _in_topology(spec: ScenarioSpec) -> Iterator[Trouble]:
    zones = spec.topology.zones
    groups = (
        *((("engines", number), one.zone) for number, one in enumerate(spec.topology.engines)),
        *((("proxies", number), one.zone) for number, one in enumerate(spec.topology.proxies)),
    )
    for (sort, number), zone in groups:
        if zone and zone not in zones:
            yield _no_zone(spec, ("spec", "topology", sort, number, "zone"), zone)
    for number, zone in enumerate(zones):
        if zone in zones[:number]:
            yield Trouble(
                code="SC012",
                steps=("spec", "topology", "zones", number),
                message=f"there is a zone {shown(zone)} already",
                hint="name each zone once",
            )
    if all(group.demand == 0 for group in spec.topology.proxies):
        yield Trouble(
            code="SC008",
            steps=("spec", "topology", "proxies"),
            message="no Envoy gets a share of the requests",
            hint="give one of them a demand above 0",
        )


def _no_zone(spec: ScenarioSpec, steps: Steps, zone: str) -> Trouble:
    zones = spec.topology.zones
    return Trouble(
        code="SC001",
        steps=steps,
        message=f"the topology has no zone {shown(zone)}",
        found=zone,
        allowed=", ".join(map(shown, zones)),
        hint=did_you_mean(zone, zones) or "add it to spec.topology.zones",
    )


def _in_load(spec: ScenarioSpec) -> Iterator[Trouble]:
    load = spec.load
    said = [name for name in ("percent", "per_second", "trace") if name in load.model_fields_set]
    if len(said) > 1:
        names = {"percent": "percent", "per_second": "perSecond", "trace": "trace"}
        yield Trouble(
            code="SC008",
            steps=("spec", "load", names[said[-1]]),
            message=f"the load is said twice: by {' and by '.join(names[one] for one in said)}",
            hint="keep one of them",
        )
    times = (
        *((("surges", number), one.at) for number, one in enumerate(load.surges)),
        *((("turns", number), one.at) for number, one in enumerate(load.turns)),
    )
    for (sort, number), at in times:
        if at >= spec.lasts:
            yield _too_late(spec, ("spec", "load", sort, number, "at"), at)
    count = len(proxies(spec))
    for number, turn in enumerate(load.turns):
        steps: Steps = ("spec", "load", "turns", number, "demand")
        if len(turn.demand) != count:
            yield Trouble(
                code="SC009",
                steps=steps,
                message=f"{len(turn.demand)} shares for {count} Envoy{'s' * (count != 1)}",
                allowed=f"one for each, in the order of the topology: {count}",
            )
        elif min(turn.demand) < 0 or sum(turn.demand) <= 0:
            yield Trouble(
                code="SC009",
                steps=steps,
                message="shares are 0 or more, and at least one of them is more",
                found=", ".join(f"{one:g}" for one in turn.demand),
            )


def _too_late(spec: ScenarioSpec, steps: Steps, at: float) -> Trouble:
    return Trouble(
        code="SC005",
        steps=steps,
        message=f"at {format_duration(at)} the requests are over",
        allowed=f"before {format_duration(spec.lasts)}, which is what the scenario lasts",
        hint="begin earlier, or let the scenario last longer",
    )


def _in_faults(spec: ScenarioSpec) -> Iterator[Trouble]:
    names: set[str] = set()
    for number, strike in enumerate(spec.faults):
        steps: Steps = ("spec", "faults", number)
        name = name_of(strike, number)
        if name in names:
            yield Trouble(
                code="SC012", steps=(*steps, "name"), message=f"another fault is named {shown(name)} already"
            )
        names.add(name)
        yield from _in_time(spec, strike, steps)
        yield from _in_target(spec, strike, steps)
        yield from _in_reach(spec, strike, steps)


def _in_time(spec: ScenarioSpec, strike: Strike, steps: Steps) -> Iterator[Trouble]:
    ends = strike.at + strike.lasts
    if strike.at >= spec.lasts:
        yield _too_late(spec, (*steps, "at"), strike.at)
    elif ends > spec.lasts + _SLACK_S:
        yield Trouble(
            code="SC005",
            steps=(*steps, "lasts"),
            message=f"it would be healed at {format_duration(ends)}, when the requests are over",
            allowed=f"at most {format_duration(spec.lasts - strike.at)}",
            hint="let it last shorter, or the scenario longer",
        )
    if strike.pause_percent and not strike.in_turn:
        yield Trouble(
            code="SC008",
            steps=(*steps, "pausePercent"),
            message="there are no turns to pause between",
            hint="say inTurn: true, or take it out",
        )


def _in_target(spec: ScenarioSpec, strike: Strike, steps: Steps) -> Iterator[Trouble]:
    steps = (*steps, "target")
    target, aim = strike.target, strike.fault.aim
    said = {name for name in target.model_fields_set if getattr(target, name) is not None}
    for name in sorted(said - _FIELDS[aim]):
        yield Trouble(
            code="SC003",
            steps=(*steps, name),
            message=f"{strike.fault.kind} hits {_WORDS[aim]}, and {name} picks among others",
            found=name,
            allowed=", ".join(sorted(_FIELDS[aim])) or "no target",
            hint="take it out, or use another fault",
        )
    if said - _FIELDS[aim]:
        return
    if target.zone is not None and target.zone not in spec.topology.zones:
        yield _no_zone(spec, (*steps, "zone"), target.zone)
        return
    for name, there in (("engine", len(engines(spec))), ("proxy", len(proxies(spec)))):
        number = getattr(target, name)
        if number is not None and number >= there:
            yield Trouble(
                code="SC002",
                steps=(*steps, name),
                message=f"there is no {name} {number}",
                allowed=f"0 to {there - 1}",
                hint="they are counted from 0 in the order of the topology",
            )
            return
    if target.fraction is not None and target.count is not None:
        yield Trouble(
            code="SC008",
            steps=(*steps, "count"),
            message="how many is said twice: by fraction and by count",
            hint="keep one of them",
        )
        return
    if aim is Aim.ZONES and target.zone is None and len(spec.topology.zones) > 1:
        yield Trouble(
            code="SC004",
            steps=steps,
            message=f"{strike.fault.kind} of which zone?",
            allowed=f"zone: one of {', '.join(map(shown, spec.topology.zones))}",
            hint="all zones at once are one",
        )
        return
    found = picked(spec, strike)
    if not found.names:
        yield Trouble(
            code="SC004",
            steps=steps,
            message="this picks nobody",
            hint="what is said must all hold; skip leaves out those drawn first",
        )
    elif target.count is not None and target.count > len(found.names):
        yield Trouble(
            code="SC004",
            steps=(*steps, "count"),
            message=f"only {found.left} are left to pick {target.count} from",
            allowed=f"at most {found.left}",
        )


def _in_reach(spec: ScenarioSpec, strike: Strike, steps: Steps) -> Iterator[Trouble]:
    """Whether what the fault breaks is part of the topology."""
    names = picked(spec, strike).names
    pulls = [pull for name in names[:1] for pull in strike.fault.pulls(name)]
    kind = (*steps, "fault", "kind")
    if spec.topology.engine == "vllm" and any(isinstance(one, BreakEngine | Gpu) for one in pulls):
        yield Trouble(
            code="SC010",
            steps=kind,
            message=f"{strike.fault.kind} needs simulated engines; of real ones only the process can be hit",
            hint="say topology.engine: simulated, or stop or kill the process",
        )
    if not spec.topology.agents and any(_of_agents(one) for one in pulls):
        yield Trouble(
            code="SC010",
            steps=kind,
            message=f"{strike.fault.kind} is about agents, and this topology has none",
            hint="say topology.agents: true",
        )


def _of_agents(pull: Pull) -> bool:
    match pull:
        case Gpu() | Reports():
            return True
        case Kill(part=part) | Freeze(part=part):
            return part is Part.AGENT
        case _:
            return False


def _in_hypothesis(spec: ScenarioSpec) -> Iterator[Trouble]:
    asked = spec.hypothesis
    if spec.load.streaming_percent == 0 and spec.load.trace is None:
        for name, value in (
            ("firstTokenP99", asked.first_token_p99),
            ("tokenGapP99", asked.token_gap_p99),
            ("cutStreams", asked.cut_streams),
        ):
            if value is not None:
                yield Trouble(
                    code="SC011",
                    steps=("spec", "hypothesis", name),
                    message=f"{name} is about streams, and no request is streamed",
                    hint="set load.streamingPercent, or take it out",
                )
    breaks = any(strike.fault.breaks and strike.fault.aim is Aim.ENGINES for strike in spec.faults)
    for name, value in (("leftAloneWithin", asked.left_alone_within), ("backWithin", asked.back_within)):
        if value is not None and not breaks:
            yield Trouble(
                code="SC011",
                steps=("spec", "hypothesis", name),
                message=f"{name} is about engines that are better left alone, and no fault makes one",
                hint="take it out",
            )
