"""Rules across the fields of a scenario. Pure; reports all problems at once."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from chaos.faults.actions import (
    ChangeLoad,
    CorruptConfig,
    FalsifyReports,
    FalsifyTelemetry,
    FaultAction,
    FreezeProcess,
    KillProcess,
    ProcessRole,
    PushPolicy,
    RestartEngine,
    SetEngineFault,
    SetGpuState,
    ShapeLink,
)
from chaos.faults.adapter_lost import AdapterLostFault
from chaos.faults.partition import PartitionFault
from chaos.faults.target_kind import TargetKind
from chaos.scenario.fault_timeline import fault_name, planned_outages
from chaos.scenario.placement import (
    every_engine,
    fallback_placements,
    proxy_placements,
    selected_targets,
    target_pool,
)
from chaos.scenario.scenario_model import (
    FaultSpec,
    ScenarioSpec,
    is_above_quota,
    is_hopeless,
    is_late_burden,
    is_served,
)
from policies.findings import did_you_mean, format_value
from policies.origin import Step
from policies.quantity import format_duration

DocumentPath: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioProblem:
    """A problem at one place of a scenario; ``steps`` is the path from the document's root."""

    code: str
    steps: DocumentPath
    message: str
    found: str = ""
    allowed: str = ""
    hint: str = ""


_COLLISION_SLACK_S: Final = 1e-9


def fault_collisions(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    """Faults that would undo each other: both set one control at the same time."""
    held: dict[Hashable, list[tuple[float, float, int]]] = {}
    told: set[tuple[int, int]] = set()
    for number, strike in enumerate(spec.faults):
        for outage in planned_outages(spec, strike, number):
            for switch in {one for name in outage.targets for one in _switches(strike, name)}:
                for start_s, end_s, other in held.setdefault(switch, []):
                    overlap = (
                        outage.start_s < end_s - _COLLISION_SLACK_S and start_s < outage.end_s - _COLLISION_SLACK_S
                    )
                    if overlap and (other, number) not in told:
                        told.add((other, number))
                        where = outage.targets[0] if len(outage.targets) == 1 else "the same targets"
                        first = fault_name(spec.faults[other], other)
                        yield ScenarioProblem(
                            code="SC006",
                            steps=("spec", "faults", number),
                            message=f"{fault_name(strike, number)} overlaps {first} on {where}, and would undo it",
                            hint="end one before the other begins, or use skip to hit other targets",
                        )
                held[switch].append((outage.start_s, outage.end_s, number))


def _switches(strike: FaultSpec, target: str) -> Iterator[Hashable]:
    """Controls that only one fault at a time may set. Load changes may overlap."""
    for pull in strike.fault.actions(target):
        match pull:
            case SetEngineFault(engine=engine) | RestartEngine(engine=engine):
                yield ProcessRole.ENGINE, engine
            case KillProcess(part=part, target=name) | FreezeProcess(part=part, target=name):
                yield part, name
            case SetGpuState(engine=engine):
                yield "gpu", engine
            case FalsifyReports(engine=engine):
                yield "reports", engine
            case ShapeLink(end=end, target=name, sources=sources):
                yield from (("wire", end, name, source) for source in sources)
            case FalsifyTelemetry(proxy=proxy):
                yield "telemetry", proxy
            case CorruptConfig(proxy=proxy, type=sort):
                yield "configuration", proxy, sort
            case PushPolicy():
                yield "policies"
            case ChangeLoad():
                pass


def blast_radius_problems(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    """Faults that together exceed the scenario's blast radius."""
    radius = spec.blast_radius
    hits = [
        (outage.start_s, outage.end_s, name, number)
        for number, strike in enumerate(spec.faults)
        for outage in planned_outages(spec, strike, number)
        for name in outage.targets
    ]
    sorts = (
        (every_engine(spec), radius.engines_percent, "engines", "enginesPercent"),
        (proxy_placements(spec), radius.proxies_percent, "proxies", "proxiesPercent"),
    )
    for spots, allowed, word, field in sorts:
        there, names = len(spots), {one.name for one in spots}
        for at_s, _, _, number in sorted(hits, key=lambda hit: hit[0]):
            bad = {
                name for start, end, name, _ in hits if start <= at_s < end - _COLLISION_SLACK_S and name in names
            }
            if 100 * len(bad) / there > allowed + _COLLISION_SLACK_S:
                yield ScenarioProblem(
                    code="SC007",
                    steps=("spec", "faults", number),
                    message=f"at {format_duration(at_s)} {len(bad)} of {there} {word} would be hit, "
                    f"{100 * len(bad) / there:.0f} %",
                    allowed=f"blastRadius.{field}: {allowed:g}",
                    hint="hit fewer targets, or raise the limit",
                )
                break
    for number, strike in enumerate(spec.faults):
        if strike.fault.aim is TargetKind.CONTROL_PLANE and not radius.control_plane:
            yield ScenarioProblem(
                code="SC007",
                steps=("spec", "faults", number),
                message=f"{strike.fault.kind} hits the control plane",
                allowed="blastRadius.controlPlane: false",
                hint="remove the fault, or allow it",
            )


_WORDS: Final = {
    TargetKind.ENGINES: "engines",
    TargetKind.PROXIES: "proxies",
    TargetKind.ZONES: "whole zones",
    TargetKind.CONTROL_PLANE: "the control plane",
    TargetKind.CLIENTS: "callers",
}
_FIELDS: Final = {
    TargetKind.ENGINES: frozenset({"zone", "region", "fallback", "stage", "engine", "fraction", "count", "skip"}),
    TargetKind.PROXIES: frozenset({"zone", "region", "proxy", "fraction", "count", "skip"}),
    TargetKind.ZONES: frozenset({"zone", "region"}),
    TargetKind.CONTROL_PLANE: frozenset[str](),
    TargetKind.CLIENTS: frozenset[str](),
}
_SLACK_S: Final = 1e-9


def scenario_problems(spec: ScenarioSpec) -> tuple[ScenarioProblem, ...]:
    """All contradictions within one scenario."""
    found = (*_in_topology(spec), *_in_load(spec), *_in_faults(spec), *_in_hypothesis(spec))
    # Compare targets and times only if both are valid.
    return found or (*fault_collisions(spec), *blast_radius_problems(spec))


def _in_topology(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    zones = spec.topology.zones
    groups: tuple[tuple[DocumentPath, str], ...] = (
        *((("engines", number), one.zone) for number, one in enumerate(spec.topology.engines)),
        *(
            (("fallbacks", pool, "engines", number), one.zone)
            for pool, fallback in enumerate(spec.topology.fallbacks)
            for number, one in enumerate(fallback.engines)
        ),
        *((("prefill", number), one.zone) for number, one in enumerate(spec.topology.prefill)),
        *((("proxies", number), one.zone) for number, one in enumerate(spec.topology.proxies)),
    )
    for steps, zone in groups:
        if zone and zone not in zones:
            yield _no_zone(spec, ("spec", "topology", *steps, "zone"), zone)
    for number, zone in enumerate(zones):
        if zone in zones[:number]:
            yield ScenarioProblem(
                code="SC012",
                steps=("spec", "topology", "zones", number),
                message=f"duplicate zone {format_value(zone)}",
                hint="list each zone once",
            )
    yield from _in_regions(spec)
    if spec.topology.prefill and spec.topology.engine != "simulated":
        yield ScenarioProblem(
            code="SC010",
            steps=("spec", "topology", "prefill"),
            message="a prefill pool needs simulated engines: real ones have no side-cars in the lab",
            hint="set topology.engine: simulated, or remove the prefill pool",
        )
    if spec.load.adapter and spec.topology.engine != "simulated":
        yield ScenarioProblem(
            code="SC010",
            steps=("spec", "load", "adapter"),
            message="an adapter needs simulated engines: real ones have none in the lab",
            hint="set topology.engine: simulated, or remove the adapter",
        )
    if spec.load.adapter and spec.topology.prefill:
        yield ScenarioProblem(
            code="SC008",
            steps=("spec", "load", "adapter"),
            message="adapter and prefill exclude each other in a route",
            hint="remove the prefill pool, or the adapter",
        )
    if all(group.demand == 0 for group in spec.topology.proxies):
        yield ScenarioProblem(
            code="SC008",
            steps=("spec", "topology", "proxies"),
            message="no proxy gets any requests",
            hint="set demand above 0 for at least one",
        )


def _in_regions(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    named: set[str] = set()
    region_of: dict[str, str] = {}
    for number, region in enumerate(spec.topology.regions):
        steps: DocumentPath = ("spec", "topology", "regions", number)
        if region.name in named:
            yield ScenarioProblem(
                code="SC012",
                steps=(*steps, "name"),
                message=f"duplicate region {format_value(region.name)}",
                hint="list each region once",
            )
        named.add(region.name)
        for place, zone in enumerate(region.zones):
            if zone not in spec.topology.zones:
                yield _no_zone(spec, (*steps, "zones", place), zone)
            elif zone in region_of:
                yield ScenarioProblem(
                    code="SC012",
                    steps=(*steps, "zones", place),
                    message=f"zone {format_value(zone)} is in region {format_value(region_of[zone])} too",
                    hint="list each zone in one region",
                )
            region_of.setdefault(zone, region.name)


def _no_region(spec: ScenarioSpec, steps: DocumentPath, region: str) -> ScenarioProblem:
    return _unknown(steps, "region", region, [one.name for one in spec.topology.regions])


def _no_zone(spec: ScenarioSpec, steps: DocumentPath, zone: str) -> ScenarioProblem:
    return _unknown(steps, "zone", zone, spec.topology.zones)


def _unknown(steps: DocumentPath, kind: str, name: str, known: Sequence[str]) -> ScenarioProblem:
    """The problem that the topology has no ``kind`` (region, zone) of this name."""
    return ScenarioProblem(
        code="SC001",
        steps=steps,
        message=f"the topology has no {kind} {format_value(name)}",
        found=name,
        allowed=", ".join(map(format_value, known)),
        hint=did_you_mean(name, known) or f"add it to spec.topology.{kind}s",
    )


def _in_load(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    load = spec.load
    given = [name for name in ("percent", "per_second", "trace") if name in load.model_fields_set]
    if len(given) > 1:
        names = {"percent": "percent", "per_second": "perSecond", "trace": "trace"}
        yield ScenarioProblem(
            code="SC008",
            steps=("spec", "load", names[given[-1]]),
            message=f"the load is set by both {' and '.join(names[one] for one in given)}",
            hint="keep one of them",
        )
    times = (
        *((("surges", number), one.at) for number, one in enumerate(load.surges)),
        *((("turns", number), one.at) for number, one in enumerate(load.turns)),
    )
    for (sort, number), at in times:
        if at >= spec.lasts:
            yield _too_late(spec, ("spec", "load", sort, number, "at"), at)
    named = [one.name for one in load.callers]
    for number, name in enumerate(named):
        if name in named[:number]:
            yield ScenarioProblem(
                code="SC012",
                steps=("spec", "load", "callers", number, "name"),
                message=f"duplicate group of callers {format_value(name)}",
                hint="list each group once",
            )
    count = len(proxy_placements(spec))
    for number, turn in enumerate(load.turns):
        steps: DocumentPath = ("spec", "load", "turns", number, "demand")
        if len(turn.demand) != count:
            yield ScenarioProblem(
                code="SC009",
                steps=steps,
                message=f"{len(turn.demand)} shares for {count} {'proxy' if count == 1 else 'proxies'}",
                allowed=f"{count}: one per proxy, in topology order",
            )
        elif min(turn.demand) < 0 or sum(turn.demand) <= 0:
            yield ScenarioProblem(
                code="SC009",
                steps=steps,
                message="shares must not be negative, and at least one must be above 0",
                found=", ".join(f"{one:g}" for one in turn.demand),
            )


def _too_late(spec: ScenarioSpec, steps: DocumentPath, at: float) -> ScenarioProblem:
    return ScenarioProblem(
        code="SC005",
        steps=steps,
        message=f"starts at {format_duration(at)}, after the last request",
        allowed=f"before {format_duration(spec.lasts)} (spec.lasts)",
        hint="start earlier, or raise spec.lasts",
    )


def _in_faults(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    names: set[str] = set()
    for number, strike in enumerate(spec.faults):
        steps: DocumentPath = ("spec", "faults", number)
        name = fault_name(strike, number)
        if name in names:
            yield ScenarioProblem(
                code="SC012",
                steps=(*steps, "name"),
                message=f"duplicate fault name {format_value(name)}",
            )
        names.add(name)
        yield from _in_time(spec, strike, steps)
        yield from _in_target(spec, strike, steps)
        yield from _in_reach(spec, strike, steps)
        if isinstance(strike.fault, AdapterLostFault) and not spec.load.adapter:
            yield ScenarioProblem(
                code="SC010",
                steps=(*steps, "fault"),
                message="no request asks for an adapter, so a lost one breaks nothing",
                hint="set load.adapter to its name",
            )


def _in_time(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    ends = strike.at + strike.lasts
    if strike.at >= spec.lasts:
        yield _too_late(spec, (*steps, "at"), strike.at)
    elif ends > spec.lasts + _SLACK_S:
        yield ScenarioProblem(
            code="SC005",
            steps=(*steps, "lasts"),
            message=f"healed at {format_duration(ends)}, after the last request",
            allowed=f"at most {format_duration(spec.lasts - strike.at)}",
            hint="shorten the fault, or raise spec.lasts",
        )
    if strike.pause_percent and not strike.in_turn:
        yield ScenarioProblem(
            code="SC008",
            steps=(*steps, "pausePercent"),
            message="pausePercent has no effect without inTurn",
            hint="set inTurn: true, or remove pausePercent",
        )


def _in_target(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    """Problems of the first check that finds any; later ones would only repeat them."""
    steps = (*steps, "target")
    for check in (_in_fields, _in_place, _in_indexes, _in_number, _in_zones):
        if found := tuple(check(spec, strike, steps)):
            yield from found
            return


def _in_fields(_spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    target, aim = strike.target, strike.fault.aim
    given = {name for name in target.model_fields_set if getattr(target, name) is not None}
    for name in sorted(given - _FIELDS[aim]):
        yield ScenarioProblem(
            code="SC003",
            steps=(*steps, name),
            message=f"{strike.fault.kind} hits {_WORDS[aim]}; {name} does not apply to it",
            found=name,
            allowed=", ".join(sorted(_FIELDS[aim])) or "no target",
            hint="remove the field, or use another fault",
        )
    if not given - _FIELDS[aim] and target.fraction is not None and target.count is not None:
        yield ScenarioProblem(
            code="SC008",
            steps=(*steps, "count"),
            message="the number of targets is set by both fraction and count",
            hint="keep one of them",
        )
    if not given - _FIELDS[aim] and target.stage is not None and target.fallback is not None:
        yield ScenarioProblem(
            code="SC008",
            steps=(*steps, "stage"),
            message="the pool is set by both fallback and stage",
            hint="keep one of them; a fault hits one pool",
        )


def _in_place(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    target = strike.target
    if target.zone is not None and target.zone not in spec.topology.zones:
        yield _no_zone(spec, (*steps, "zone"), target.zone)
    if target.region is not None and target.region not in {one.name for one in spec.topology.regions}:
        yield _no_region(spec, (*steps, "region"), target.region)


def _in_indexes(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    target, chain = strike.target, fallback_placements(spec)
    if target.fallback is not None and target.fallback >= len(chain):
        yield _no_index(
            (*steps, "fallback"),
            target.fallback,
            len(chain),
            hint="counted from 0, in chain order" if chain else "add the fallback pool to spec.topology.fallbacks",
        )
        return
    if target.stage is not None and not spec.topology.prefill:
        yield ScenarioProblem(
            code="SC002",
            steps=(*steps, "stage"),
            message="the topology has no prefill pool",
            hint="add its engines to spec.topology.prefill",
        )
        return
    for name, there in (("engine", len(target_pool(spec, target))), ("proxy", len(proxy_placements(spec)))):
        number = getattr(target, name)
        if number is not None and number >= there:
            yield _no_index((*steps, name), number, there, hint="counted from 0, in topology order")


def _in_number(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    target = strike.target
    if strike.fault.aim is TargetKind.ZONES and target.zone is target.region is None:
        if len(spec.topology.zones) > 1:
            yield ScenarioProblem(
                code="SC004",
                steps=steps,
                message=f"{strike.fault.kind} needs a zone or region",
                allowed=f"zone: one of {', '.join(map(format_value, spec.topology.zones))}",
                hint="to hit all zones, add one fault per zone",
            )
        return
    found = selected_targets(spec, strike)
    if not found.names:
        yield ScenarioProblem(
            code="SC004",
            steps=steps,
            message="the target matches nothing",
            hint="all fields must match; skip drops the first of the matches",
        )
    elif target.count is not None and target.count > len(found.names):
        yield ScenarioProblem(
            code="SC004",
            steps=(*steps, "count"),
            message=f"count {target.count} exceeds the {found.left} matching targets",
            allowed=f"at most {found.left}",
        )


def _in_zones(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    region = next((one for one in spec.topology.regions if one.name == strike.target.region), None)
    if isinstance(strike.fault, PartitionFault) and region is not None and len(region.zones) > 1:
        yield ScenarioProblem(
            code="SC003",
            steps=(*steps, "region"),
            message=f"partition cuts zones, and region {format_value(region.name)} has {len(region.zones)}",
            hint="use zone, or black_hole on the region's engines",
        )


def _no_index(steps: DocumentPath, number: int, there: int, *, hint: str) -> ScenarioProblem:
    return ScenarioProblem(
        code="SC002",
        steps=steps,
        message=f"unknown {steps[-1]} {number}",
        allowed=f"0 to {there - 1}" if there else "",
        hint=hint,
    )


def _in_reach(spec: ScenarioSpec, strike: FaultSpec, steps: DocumentPath) -> Iterator[ScenarioProblem]:
    """Check that the topology contains what the fault breaks."""
    names = selected_targets(spec, strike).names
    pulls = [pull for name in names[:1] for pull in strike.fault.actions(name)]
    kind = (*steps, "fault", "kind")
    if spec.topology.engine == "vllm" and any(isinstance(one, SetEngineFault | SetGpuState) for one in pulls):
        yield ScenarioProblem(
            code="SC010",
            steps=kind,
            message=f"{strike.fault.kind} needs simulated engines; on real ones only process faults work",
            hint="set topology.engine: simulated, or use freeze or oom_kill",
        )
    if not spec.topology.agents and any(_of_agents(one) for one in pulls):
        yield ScenarioProblem(
            code="SC010",
            steps=kind,
            message=f"{strike.fault.kind} needs agents, but the topology has none",
            hint="set topology.agents: true",
        )


def _of_agents(pull: FaultAction) -> bool:
    match pull:
        case SetGpuState() | FalsifyReports():
            return True
        case KillProcess(part=part) | FreezeProcess(part=part):
            return part is ProcessRole.AGENT
        case _:
            return False


_LATE_BURDEN: Final = "begins, and timesTokens or a timesShare above 1"


def _in_hypothesis(spec: ScenarioSpec) -> Iterator[ScenarioProblem]:
    asked = spec.hypothesis
    if spec.load.streaming_percent == 0 and spec.load.trace is None:
        for name, value in (
            ("firstTokenP99", asked.first_token_p99),
            ("tokenGapP99", asked.token_gap_p99),
            ("cutStreams", asked.cut_streams),
            ("callerFirstTokenTimes", asked.caller_first_token_times),
        ):
            if value is not None:
                yield ScenarioProblem(
                    code="SC011",
                    steps=("spec", "hypothesis", name),
                    message=f"{name} needs streaming requests, but the load has none",
                    hint="set load.streamingPercent, or remove the field",
                )
    for name, value, applies, setting in (
        ("callerGoodputPercent", asked.caller_goodput_percent, is_served, "timesQuota at most 1"),
        ("quotaErrorPercent", asked.quota_error_percent, is_above_quota, "timesQuota above 1"),
        ("callerP99Times", asked.caller_p99_times, is_late_burden, _LATE_BURDEN),
        ("callerFirstTokenTimes", asked.caller_first_token_times, is_late_burden, _LATE_BURDEN),
        ("hopelessRefusedPercent", asked.hopeless_refused_percent, is_hopeless, "timesService below 0.5"),
    ):
        if value is not None and not any(map(applies, spec.load.callers)):
            yield ScenarioProblem(
                code="SC011",
                steps=("spec", "hypothesis", name),
                message=f"{name} needs a group of callers with {setting}, but the load has none",
                hint="add one to load.callers, or remove the field",
            )
    if asked.prefilled_remotely_percent is not None and not spec.topology.prefill:
        yield ScenarioProblem(
            code="SC011",
            steps=("spec", "hypothesis", "prefilledRemotelyPercent"),
            message="prefilledRemotelyPercent needs a prefill pool, but the topology has none",
            hint="add its engines to spec.topology.prefill, or remove the field",
        )
    if asked.prefix_hit_percent is not None and spec.load.conversations is None:
        yield ScenarioProblem(
            code="SC011",
            steps=("spec", "hypothesis", "prefixHitPercent"),
            message="prefixHitPercent needs conversations, but the load has none",
            hint="add load.conversations, or remove the field",
        )
    breaks = any(
        strike.fault.breaks
        and strike.fault.aim is TargetKind.ENGINES
        and strike.target.fallback is None
        and strike.target.stage is None
        for strike in spec.faults
    )
    for name, value in (("leftAloneWithin", asked.left_alone_within), ("backWithin", asked.back_within)):
        if value is not None and not breaks:
            yield ScenarioProblem(
                code="SC011",
                steps=("spec", "hypothesis", name),
                message=f"{name} needs a fault that breaks engines of the pool under test, but there is none",
                hint="remove the field, or add such a fault",
            )
