"""The ladder of degradation: what is done, level by level, when more is asked than can be served."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_checks import ValueLint
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, Percent
from policies.resilience.mode import Mode, mode_of_part

_LADDER: Final = FieldTargets(
    live=Xds.RTDS | Xds.RDS,
    istio=lost("Istio knows no pressure and no levels; Switchgear's own Envoys are needed for them"),
    gateway_api=lost("a gateway knows no pressure and no levels; Switchgear's own Envoys are needed for them"),
)


class Step(Spec):
    """When one level of degradation is entered. Pressure: what is asked, in % of what the pool can serve."""

    enabled: bool = documented_field(
        True,
        "Whether this level does anything.",
        targets=_LADDER,
    )
    above_pressure_percent: float = documented_field(
        100.0, "Pressure from which it is entered.", unit="%", targets=_LADDER, ge=1, le=100_000
    )


class FallbackStep(Step):
    """Level 2: send what does not fit to the route's fallback pool."""

    above_pressure_percent: float = documented_field(
        100.0, "Pressure from which it is entered.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    max_share_percent: Percent = documented_field(
        100.0,
        "Largest share of a route's requests that the fallback gets because its pools are full.",
        unit="%",
        targets=_LADDER,
    )


class ShedStep(Step):
    """Level 3: refuse batch requests, and long answers where a length is named."""

    above_pressure_percent: float = documented_field(
        130.0, "Pressure from which it is entered.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    max_tokens: int | None = documented_field(
        None,
        "Requests that ask for more tokens than this are refused; absent: none is.",
        unit="tokens",
        targets=_LADDER,
        ge=1,
    )


class MaintenanceStep(Step):
    """Level 4: one answer for everyone."""

    enabled: bool = documented_field(
        False,
        "Whether this level does anything.",
        why="to answer nobody is an operator's decision",
        targets=_LADDER,
    )
    above_pressure_percent: float = documented_field(
        1000.0, "Pressure from which it is entered.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    message: str = documented_field(
        "This model is under maintenance.",
        "What callers are told.",
        targets=_LADDER,
        min_length=1,
        max_length=1000,
    )


class Degradation(Spec):
    """The ladder: four levels, entered one after another and left in reverse."""

    mode: Mode | None = mode_of_part(
        "the ladder",
        targets=_LADDER,
    )
    enter_after: Duration = documented_field(
        1.0,
        "How long the pressure must last before the next level is entered.",
        unit="duration",
        targets=_LADDER,
        le=600,
    )
    leave_after: Duration = documented_field(
        5.0, "How long it must be gone before a level is left.", unit="duration", targets=_LADDER, le=3600
    )
    margin_percent: Percent = documented_field(
        10.0,
        "How far below its threshold the pressure must be before a level is left.",
        unit="%",
        targets=_LADDER,
        checks=(
            ValueLint(
                code="SG144",
                applies=lambda percent: percent == 0,
                message="a level is left at the pressure at which it is entered, so a pool just there "
                "goes to and fro",
                fix="say 10",
            ),
        ),
    )
    no_hedging: Step = documented_field(
        Step(above_pressure_percent=100.0),
        "Level 1: no hedging, retries at their minimum.",
        why="not below 100 %: one of eight engines restarting at 80 % load makes 91 %, and there retries lose "
        "nothing; hedges end at their own limit before that",
    )
    fallback: FallbackStep = documented_field(FallbackStep, "Level 2: the fallback pool takes what does not fit.")
    shed: ShedStep = documented_field(ShedStep, "Level 3: batch requests and long answers are refused.")
    maintenance: MaintenanceStep = documented_field(MaintenanceStep, "Level 4: one answer for everyone.")
