"""Degradation levels for demand above capacity."""

from enum import StrEnum
from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_checks import ValueLint
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, Percent
from policies.resilience.mode import Mode, mode_of_part

_LADDER: Final = FieldTargets(
    live=Xds.RTDS | Xds.RDS,
    istio=lost("Istio has no pressure and no levels; they need Switchgear's own Envoys"),
    gateway_api=lost("a gateway has no pressure and no levels; they need Switchgear's own Envoys"),
)


class Step(Spec):
    """One degradation level. Pressure: demand in % of what the pool can serve.

    Further signs enter the level, and those below it, at any pressure; absent: not used.
    """

    enabled: bool = documented_field(
        True,
        "Enable this level.",
        targets=_LADDER,
    )
    above_pressure_percent: float = documented_field(
        100.0, "Pressure that enters the level.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    above_failed_percent: float | None = documented_field(
        None, "Share of recent calls that failed; enters the level.", unit="%", targets=_LADDER, ge=1, le=100
    )
    above_ejected_percent: float | None = documented_field(
        None, "Share of slots ejected by evidence; enters the level.", unit="%", targets=_LADDER, ge=1, le=100
    )
    above_kv_cache_percent: float | None = documented_field(
        None, "Mean use of the KV caches; enters the level.", unit="%", targets=_LADDER, ge=1, le=100
    )
    above_throttled_percent: float | None = documented_field(
        None,
        "Share of engines in rotation with a throttled GPU; enters the level.",
        unit="%",
        targets=_LADDER,
        ge=1,
        le=100,
    )
    above_first_token: Duration | None = documented_field(
        None,
        "99th percentile of the time to first token; enters the level.",
        unit="duration",
        targets=_LADDER,
        ge=0.01,
        le=3600,
    )


class FallbackStep(Step):
    """Level 2: send overflow to the route's fallback pool."""

    above_pressure_percent: float = documented_field(
        100.0, "Pressure that enters the level.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    max_share_percent: Percent = documented_field(
        100.0,
        "Largest share of a route's requests that overflow to the fallback.",
        unit="%",
        targets=_LADDER,
    )


class LongAnswers(StrEnum):
    """What happens to requests for more than ``maxTokens``."""

    REFUSE = "refuse"
    REDUCE = "reduce"


class ShedStep(Step):
    """Level 3: refuse batch requests, and refuse or shorten long answers if maxTokens is set."""

    above_pressure_percent: float = documented_field(
        130.0, "Pressure that enters the level.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    max_tokens: int | None = documented_field(
        None,
        "Longest answer of this level; absent: no limit.",
        unit="tokens",
        targets=_LADDER,
        ge=1,
    )
    long_answers: LongAnswers = documented_field(
        LongAnswers.REFUSE,
        "`refuse` requests for more than maxTokens, or `reduce` them to it; `reduce` also sets it where a request "
        "has no limit.",
        why="an answer that is cut short must be an operator's decision",
        targets=_LADDER,
    )

    @property
    def reduces_answers(self) -> bool:
        """Whether requests for long answers are forwarded with the limit."""
        return self.max_tokens is not None and self.long_answers is LongAnswers.REDUCE


class MaintenanceStep(Step):
    """Level 4: the maintenance answer for all requests."""

    enabled: bool = documented_field(
        False,
        "Enable this level.",
        why="refusing all requests is an operator's decision",
        targets=_LADDER,
    )
    above_pressure_percent: float = documented_field(
        1000.0, "Pressure that enters the level.", unit="%", targets=_LADDER, ge=1, le=100_000
    )
    message: str = documented_field(
        "This model is under maintenance.",
        "Message to callers.",
        targets=_LADDER,
        min_length=1,
        max_length=1000,
    )


class Degradation(Spec):
    """Four levels, entered in order and left in reverse."""

    mode: Mode | None = mode_of_part(
        "degradation",
        targets=_LADDER,
    )
    enter_after: Duration = documented_field(
        1.0,
        "Time the pressure must last before the next level is entered.",
        unit="duration",
        targets=_LADDER,
        le=600,
    )
    leave_after: Duration = documented_field(
        5.0, "Time it must be gone before a level is left.", unit="duration", targets=_LADDER, le=3600
    )
    margin_percent: Percent = documented_field(
        10.0,
        "Margin below its threshold at which a level is left.",
        unit="%",
        targets=_LADDER,
        checks=(
            ValueLint(
                code="SG144",
                applies=lambda percent: percent == 0,
                message="a level is left at the pressure that enters it, so it oscillates",
                fix="write 10",
            ),
        ),
    )
    no_hedging: Step = documented_field(
        Step(above_pressure_percent=100.0),
        "Level 1: no hedging, minimum retries.",
        why="not below 100 %: one of eight engines restarting at 80 % load makes 91 %, where retries cost "
        "nothing; "
        "hedges stop at their own limit before",
    )
    fallback: FallbackStep = documented_field(FallbackStep, "Level 2: overflow goes to the fallback pool.")
    shed: ShedStep = documented_field(ShedStep, "Level 3: batch requests and long answers are refused.")
    maintenance: MaintenanceStep = documented_field(
        MaintenanceStep, "Level 4: the maintenance answer for all requests."
    )
