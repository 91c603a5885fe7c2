"""How regions stand in for each other: who serves whom, when another takes over, and which models may."""

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
    """Which region serves a caller while all is well."""

    ACTIVE_ACTIVE = "active-active"  # each its own callers
    ACTIVE_STANDBY = "active-standby"  # one region everybody, the next of the order takes over


class Failback(StrEnum):
    """Who decides that callers go back to the region that comes first."""

    AUTOMATIC = "automatic"
    MANUAL = "manual"


class AcrossRevisions(StrEnum):
    """Which revisions of the model may stand in for that of the region which is to serve."""

    EXACT = "exact"
    SAME_MAJOR = "same-major"
    ANY = "any"


_REGIONS: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio fails over by place, at once and without thresholds"),
    gateway_api=lost("backends know no regions"),
)


class Regions(Spec):
    """How callers of one region are served by engines of several; without effect where all are in one."""

    mode: Mode | None = mode_of_part(
        "sharing between regions",
        targets=_REGIONS,
    )
    serving: Serving = documented_field(
        Serving.ACTIVE_ACTIVE,
        "active-active: each region serves its own callers, and others only what does not fit. active-standby: "
        "one region serves the callers of all, and the next in the order takes over when it cannot.",
        targets=_REGIONS,
    )
    order: tuple[Annotated[Zone, Field(min_length=1)], ...] = documented_field(
        (),
        "Regions in the order in which they serve (active-standby; those not listed never do), or in which they "
        "are asked once a region has nothing left (active-active; those not listed come last, together).",
        targets=_REGIONS,
        max_length=16,
    )
    below_percent: float = documented_field(
        100.0,
        "Healthy capacity of a region, in % of what is asked of it, below which others help (active-active) or "
        "take over (active-standby). A region without a ready engine is below it at once.",
        unit="%",
        targets=_REGIONS,
        ge=0,
        le=10_000,
    )
    margin_percent: Percent = documented_field(
        20.0,
        "How far above the threshold the capacity must be before others stop helping.",
        why="what left the region comes back to it: without a margin it would leave again",
        unit="%",
        targets=_REGIONS,
    )
    enter_after: Duration = documented_field(
        5.0,
        "How long the capacity must be too small before others help.",
        why="another region is far; a burst that the zones hold within a few seconds is not worth the way",
        unit="duration",
        targets=_REGIONS,
        le=3600,
    )
    leave_after: Duration = documented_field(
        30.0,
        "How long the capacity must be enough again before others stop helping.",
        unit="duration",
        targets=_REGIONS,
        le=86400,
    )
    failback_after: Duration = documented_field(
        300.0,
        "How long an earlier region of the order must be well before it serves again (active-standby).",
        why="a region that has just come back has cold caches and may go again; each move costs all callers",
        unit="duration",
        targets=_REGIONS,
        le=86400,
    )
    failback: Failback = documented_field(
        Failback.AUTOMATIC,
        "manual: a region that took over serves until failback is automatic, or until the order is another.",
        targets=_REGIONS,
    )
    across_revisions: AcrossRevisions = documented_field(
        AcrossRevisions.SAME_MAJOR,
        "Which engines may stand in: those with the same revision as an engine of the region that is to serve, "
        "those with the same major part, or any. An engine that says no revision is like those that say none.",
        why="another major revision answers differently; nobody asked for that",
        targets=replace(_REGIONS, live=Xds.EDS | Xds.RTDS),
    )
