"""ResiliencePolicy: how a pool behaves when engines or callers misbehave.

Every field has a default that was chosen from a measurement or a published source; ``why`` says which. The
document named ``default`` applies to every pool, and a document that lists pools overrides it field by field.
"""

from typing import Literal

from pydantic import Field

from policies.document import API_VERSION, Metadata, Spec, documented_field
from policies.quantity import Duration, Name, Percent
from policies.resilience.degradation import Degradation
from policies.resilience.ejection import Breaker, Straggler
from policies.resilience.limits import Limits
from policies.resilience.mode import Mode, mode_of_part
from policies.resilience.regions import Regions
from policies.resilience.retries import Hedging, Retries, RetryBudget
from policies.resilience.timeouts import Timeouts


class Zones(Spec):
    """How callers of one zone share the engines of all zones."""

    mode: Mode | None = mode_of_part("sharing between zones")
    prefer_local: bool = documented_field(True, "Fill the caller's own zone first.")
    spill: bool = documented_field(True, "Send what the own zone cannot hold to others by their spare capacity.")
    max_cross_zone_percent: Percent = documented_field(
        100.0, "Largest share of a zone's requests that may leave it while it has a ready engine.", unit="%"
    )


class Drain(Spec):
    """How long an engine that leaves may take to finish."""

    deadline: Duration = documented_field(
        900.0,
        "Longest wait for requests in flight.",
        why="the longest stream allowed",
        unit="duration",
        le=86400,
    )


class SlowStart(Spec):
    """How traffic returns to an engine that was away."""

    window: Duration = documented_field(
        0.0,
        "Time over which an engine's share grows; 0s sends its full share at once.",
        why="ramping up over 5 s brought nothing under an admission ceiling; cold caches may want it",
        unit="duration",
        le=3600,
    )
    min_weight_percent: Percent = documented_field(10.0, "Share it starts with.", unit="%")


class ResilienceSpec(Spec):
    """Everything a pool does about failure."""

    mode: Mode = documented_field(
        Mode.ENFORCE,
        "enforce, or shadow: decisions are made, recorded and reported, and nothing is done.",
    )

    pools: tuple[Name, ...] = documented_field(
        (),
        "Pools this policy is for; empty only in the policy named default, which is for all.",
        max_length=10_000,
    )
    breaker: Breaker = documented_field(Breaker, "Taking failing engines out.")
    straggler: Straggler = documented_field(Straggler, "Taking slow engines out.")
    limits: Limits = documented_field(Limits, "How much is let in.")
    retries: Retries = documented_field(Retries, "Second tries.")
    retry_budget: RetryBudget = documented_field(RetryBudget, "Ceiling on second tries.")
    timeouts: Timeouts = documented_field(Timeouts, "Time limits.")
    hedging: Hedging = documented_field(Hedging, "Parallel second tries.")
    zones: Zones = documented_field(Zones, "Sharing between zones.")
    regions: Regions = documented_field(Regions, "Sharing between regions.")
    drain: Drain = documented_field(Drain, "Leaving.")
    slow_start: SlowStart = documented_field(SlowStart, "Coming back.")
    degradation: Degradation = documented_field(Degradation, "Serving less before serving nobody.")

    def shadowed(self, part: Mode | None) -> bool:
        """Whether decisions of a part with this ``mode`` are only recorded."""
        return (self.mode if part is None else part) is Mode.SHADOW


class ResiliencePolicy(Spec):
    """A named resilience policy."""

    api_version: Literal["switchgear.dev/v1alpha1"] = Field(API_VERSION, description="Version of the document.")
    kind: Literal["ResiliencePolicy"] = Field("ResiliencePolicy", description="Kind of the document.")
    metadata: Metadata = documented_field(..., "Name and labels.")
    spec: ResilienceSpec = documented_field(ResilienceSpec, "What the pools do about failure.")
