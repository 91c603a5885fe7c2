"""The ladder of degradation: what is done, level by level, when more is asked than can be served."""

from policies.document import Spec, documented_field
from policies.quantity import Duration, Percent
from policies.resilience.mode import Mode, mode_of_part


class Step(Spec):
    """When one level of degradation is entered. Pressure: what is asked, in % of what the pool can serve."""

    enabled: bool = documented_field(True, "Whether this level does anything.")
    above_pressure_percent: float = documented_field(
        100.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )


class FallbackStep(Step):
    """Level 2: send what does not fit to the route's fallback pool."""

    above_pressure_percent: float = documented_field(
        100.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    max_share_percent: Percent = documented_field(
        100.0, "Largest share of a route's requests that the fallback gets because its pools are full.", unit="%"
    )


class ShedStep(Step):
    """Level 3: refuse batch requests, and long answers where a length is named."""

    above_pressure_percent: float = documented_field(
        130.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    max_tokens: int | None = documented_field(
        None, "Requests that ask for more tokens than this are refused; absent: none is.", unit="tokens", ge=1
    )


class MaintenanceStep(Step):
    """Level 4: one answer for everyone."""

    enabled: bool = documented_field(
        False, "Whether this level does anything.", why="to answer nobody is an operator's decision"
    )
    above_pressure_percent: float = documented_field(
        1000.0, "Pressure from which it is entered.", unit="%", ge=1, le=100_000
    )
    message: str = documented_field(
        "This model is under maintenance.", "What callers are told.", min_length=1, max_length=1000
    )


class Degradation(Spec):
    """The ladder: four levels, entered one after another and left in reverse."""

    mode: Mode | None = mode_of_part("the ladder")
    enter_after: Duration = documented_field(
        1.0, "How long the pressure must last before the next level is entered.", unit="duration", le=600
    )
    leave_after: Duration = documented_field(
        5.0, "How long it must be gone before a level is left.", unit="duration", le=3600
    )
    margin_percent: Percent = documented_field(
        10.0, "How far below its threshold the pressure must be before a level is left.", unit="%"
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
