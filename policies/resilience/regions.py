"""Failover between regions: which region serves, when another takes over, and which revisions may."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from policies.document import Spec, documented_field
from policies.fidelity import lost
from policies.field_targets import FieldTargets, Xds
from policies.quantity import Duration, Percent, Zone
from policies.resilience.mode import Mode, mode_of_part


class Serving(StrEnum):
    """Which region serves a caller while all regions are healthy."""

    ACTIVE_ACTIVE = "active-active"  # each region its own callers
    ACTIVE_STANDBY = "active-standby"  # one region all callers; the next in the order takes over


class Failback(StrEnum):
    """How callers return to the first region."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"


class AcrossRevisions(StrEnum):
    """Which revisions of the model may replace that of the serving region."""

    EXACT = "exact"
    SAME_MAJOR = "same-major"
    ANY = "any"


_REGIONS: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio fails over by locality, at once and without thresholds"),
    gateway_api=lost("backends have no regions"),
)


class Regions(Spec):
    """Sharing of callers between regions; no effect with one region."""

    mode: Mode | None = mode_of_part(
        "sharing between regions",
        targets=_REGIONS,
    )
    serving: Serving = documented_field(
        Serving.ACTIVE_ACTIVE,
        "active-active: each region serves its own callers and takes overflow of others. active-standby: one "
        "region serves all callers, and the next in the order takes over when it cannot.",
        targets=_REGIONS,
    )
    order: tuple[Annotated[Zone, Field(min_length=1)], ...] = documented_field(
        (),
        "Order in which regions serve (active-standby; unlisted regions never serve) or take overflow "
        "(active-active; unlisted regions come last, together).",
        targets=_REGIONS,
        max_length=16,
    )
    below_percent: float = documented_field(
        100.0,
        "Healthy capacity of a region, in % of its demand, below which others help (active-active) or take over "
        "(active-standby). A region without a ready engine is below it at once.",
        unit="%",
        targets=_REGIONS,
        ge=0,
        le=10_000,
    )
    margin_percent: Percent = documented_field(
        20.0,
        "Margin above the threshold at which others stop helping.",
        why="returning traffic raises the demand: without a margin it would leave again",
        unit="%",
        targets=_REGIONS,
    )
    enter_after: Duration = documented_field(
        5.0,
        "Time the capacity must be too small before others help.",
        why="another region is far; zones absorb bursts of a few seconds",
        unit="duration",
        targets=_REGIONS,
        le=3600,
    )
    leave_after: Duration = documented_field(
        30.0,
        "Time the capacity must suffice before others stop helping.",
        unit="duration",
        targets=_REGIONS,
        le=86400,
    )
    failback_after: Duration = documented_field(
        300.0,
        "Time an earlier region must be healthy before it serves again (active-standby).",
        why="a region that just returned has cold caches and may fail again; each move affects all callers",
        unit="duration",
        targets=_REGIONS,
        le=86400,
    )
    failback: Failback = documented_field(
        Failback.AUTOMATIC,
        "manual: a region that took over serves until failback or the order changes.",
        targets=_REGIONS,
    )
    across_revisions: AcrossRevisions = documented_field(
        AcrossRevisions.SAME_MAJOR,
        "Which engines may take over: those with the revision of an engine in the serving region, those with its "
        "major version, or any. Engines without a revision match each other.",
        why="another major revision answers differently",
        targets=replace(_REGIONS, live=Xds.EDS | Xds.RTDS),
    )
