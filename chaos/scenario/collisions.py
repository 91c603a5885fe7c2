"""What goes wrong between the faults of one scenario: two that undo each other, and too many at once. Pure."""

from collections.abc import Hashable, Iterator
from typing import Final

from chaos.faults.fault import Aim
from chaos.faults.pulls import (
    BreakEngine,
    Callers,
    Corrupt,
    Freeze,
    Gpu,
    Kill,
    Part,
    PushPolicy,
    Reports,
    Restart,
    Telemetry,
    Wire,
)
from chaos.scenario.model import ScenarioSpec, Strike
from chaos.scenario.places import engines, proxies
from chaos.scenario.timeline import name_of, outages
from chaos.scenario.trouble import Trouble
from policies.quantity import format_duration

_SLACK_S: Final = 1e-9


def at_once(spec: ScenarioSpec) -> Iterator[Trouble]:
    """Faults that would undo each other: both on one switch at one time."""
    held: dict[Hashable, list[tuple[float, float, int]]] = {}
    told: set[tuple[int, int]] = set()
    for number, strike in enumerate(spec.faults):
        for outage in outages(spec, strike, number):
            for switch in {one for name in outage.targets for one in _switches(strike, name)}:
                for start_s, end_s, other in held.setdefault(switch, []):
                    overlap = outage.start_s < end_s - _SLACK_S and start_s < outage.end_s - _SLACK_S
                    if overlap and (other, number) not in told:
                        told.add((other, number))
                        where = outage.targets[0] if len(outage.targets) == 1 else "the same targets"
                        first = name_of(spec.faults[other], other)
                        yield Trouble(
                            code="SC006",
                            steps=("spec", "faults", number),
                            message=f"{name_of(strike, number)} and {first} would undo each other on {where}",
                            hint="let one end before the other begins, or have one skip those the other has",
                        )
                held[switch].append((outage.start_s, outage.end_s, number))


def _switches(strike: Strike, target: str) -> Iterator[Hashable]:
    """What only one fault at a time can hold. Callers can be told several things at once."""
    for pull in strike.fault.pulls(target):
        match pull:
            case BreakEngine(engine=engine) | Restart(engine=engine):
                yield Part.ENGINE, engine
            case Kill(part=part, target=name) | Freeze(part=part, target=name):
                yield part, name
            case Gpu(engine=engine):
                yield "gpu", engine
            case Reports(engine=engine):
                yield "reports", engine
            case Wire(end=end, target=name, sources=sources):
                yield from (("wire", end, name, source) for source in sources)
            case Telemetry(proxy=proxy):
                yield "telemetry", proxy
            case Corrupt(proxy=proxy, type=sort):
                yield "configuration", proxy, sort
            case PushPolicy():
                yield "policies"
            case Callers():
                pass


def beyond_radius(spec: ScenarioSpec) -> Iterator[Trouble]:
    """What would break more at some moment than the scenario allows itself."""
    radius = spec.blast_radius
    hits = [
        (outage.start_s, outage.end_s, name, number)
        for number, strike in enumerate(spec.faults)
        for outage in outages(spec, strike, number)
        for name in outage.targets
    ]
    sorts = (
        ("e", len(engines(spec)), radius.engines_percent, "engines", "enginesPercent"),
        ("p", len(proxies(spec)), radius.proxies_percent, "Envoys", "proxiesPercent"),
    )
    for letter, there, allowed, word, field in sorts:
        for at_s, _, _, number in sorted(hits, key=lambda hit: hit[0]):
            bad = {
                name
                for start, end, name, _ in hits
                if start <= at_s < end - _SLACK_S and name[0] == letter and name[1:].isdigit()
            }
            if 100 * len(bad) / there > allowed + _SLACK_S:
                yield Trouble(
                    code="SC007",
                    steps=("spec", "faults", number),
                    message=f"at {format_duration(at_s)} {len(bad)} of {there} {word} would be hit, "
                    f"{100 * len(bad) / there:.0f} %",
                    allowed=f"blastRadius.{field}: {allowed:g}",
                    hint="hit fewer, or allow more",
                )
                break
    for number, strike in enumerate(spec.faults):
        if strike.fault.aim is Aim.CONTROL_PLANE and not radius.control_plane:
            yield Trouble(
                code="SC007",
                steps=("spec", "faults", number),
                message=f"{strike.fault.kind} hits the control plane",
                allowed="blastRadius.controlPlane: false",
                hint="take the fault out, or allow it",
            )
