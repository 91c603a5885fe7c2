"""ResiliencePolicy: how a pool behaves when engines or callers misbehave.

Every field has a default that was chosen from a measurement or a published source; ``why`` says which. The
document named ``default`` applies to every pool, and a document that lists pools overrides it field by field.
"""

from typing import Final, Literal

from policies.document import (
    API_VERSION,
    OF_THE_KIND,
    OF_THE_NAME,
    OF_THE_VERSION,
    Metadata,
    Spec,
    documented_field,
)
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ListKeys
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, Name, Percent
from policies.resilience.degradation import Degradation
from policies.resilience.ejection import Breaker, Straggler
from policies.resilience.limits import Limits
from policies.resilience.mode import EITHER_MODE, Mode, mode_of_part
from policies.resilience.regions import Regions
from policies.resilience.retries import Hedging, Retries, RetryBudget
from policies.resilience.timeouts import Timeouts

DEFAULT: Final = "default"
"""Name of the policy that is for every pool."""


class Zones(Spec):
    """How callers of one zone share the engines of all zones."""

    mode: Mode | None = mode_of_part(
        "sharing between zones",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated("zones are minded in either mode", "DestinationRule"),
            gateway_api=EITHER_MODE,
        ),
    )
    prefer_local: bool = documented_field(
        True,
        "Fill the caller's own zone first.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated(
                "localityLbSetting.failoverPriority: all to the own zone while it is well, not while it has room",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "loadBalancer.zoneAware.preferLocal: by the number of engines, not by their slots",
                "BackendTrafficPolicy",
            ),
        ),
    )
    spill: bool = documented_field(
        True,
        "Send what the own zone cannot hold to others by their spare capacity.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated(
                "others help when engines of the zone are ejected, not when they are full", "DestinationRule"
            ),
            gateway_api=approximated(
                "what the own zone's share of engines does not cover goes to others", "BackendTrafficPolicy"
            ),
        ),
    )
    max_cross_zone_percent: Percent = documented_field(
        100.0,
        "Largest share of a zone's requests that may leave it while it has a ready engine.",
        unit="%",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio moves as much as the zone's health lacks"),
            gateway_api=lost("Envoy decides how much leaves a zone"),
        ),
    )


class Drain(Spec):
    """How long an engine that leaves may take to finish."""

    deadline: Duration = documented_field(
        900.0,
        "Longest wait for requests in flight.",
        why="the longest stream allowed",
        unit="duration",
        targets=FieldTargets(
            live=Xds.EDS | Xds.LDS,
            istio=lost("nobody drains before a pod ends; `switchgear istio run` takes it out first"),
            gateway_api=approximated("pods that end are drained as long as the gateway's own settings say"),
        ),
        le=86400,
    )


class SlowStart(Spec):
    """How traffic returns to an engine that was away."""

    window: Duration = documented_field(
        0.0,
        "Time over which an engine's share grows; 0s sends its full share at once.",
        why="ramping up over 5 s brought nothing under an admission ceiling; cold caches may want it",
        unit="duration",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("loadBalancer.warmup.duration", "DestinationRule"),
            gateway_api=kept("loadBalancer.slowStart.window", "BackendTrafficPolicy"),
        ),
        le=3600,
    )
    min_weight_percent: Percent = documented_field(
        10.0,
        "Share it starts with.",
        unit="%",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("loadBalancer.warmup.minimumPercent", "DestinationRule"),
            gateway_api=lost("Envoy Gateway has the window only"),
        ),
    )


class ResilienceSpec(Spec):
    """Everything a pool does about failure."""

    mode: Mode = documented_field(
        Mode.ENFORCE,
        "enforce, or shadow: decisions are made, recorded and reported, and nothing is done.",
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS, EITHER_MODE),
    )

    pools: tuple[Name, ...] = documented_field(
        (),
        "Pools this policy is for; empty only in the policy named default, which is for all.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("each pool's objects have what is in force for it", "DestinationRule"),
            gateway_api=kept(
                "what is in force for a pool is attached to the routes that lead to it", "BackendTrafficPolicy"
            ),
        ),
        checks=(ListKeys(),),
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

    api_version: Literal["switchgear.dev/v1alpha1"] = documented_field(
        API_VERSION, "Version of the document.", targets=OF_THE_VERSION
    )
    kind: Literal["ResiliencePolicy"] = documented_field(
        "ResiliencePolicy", "Kind of the document.", targets=OF_THE_KIND
    )
    metadata: Metadata = documented_field(..., "Name and labels.", targets=exported_alike(Xds.NONE, OF_THE_NAME))
    spec: ResilienceSpec = documented_field(
        ResilienceSpec,
        "What the pools do about failure.",
        checks=(
            CelRule(
                rule=f"self.metadata.name != '{DEFAULT}' || !has(self.spec) || !has(self.spec.pools) || "
                "size(self.spec.pools) == 0",
                message="the policy named default is for every pool and lists none",
                code="SG034",
                field=".spec.pools",
            ),
            CelRule(
                rule=f"self.metadata.name == '{DEFAULT}' || "
                "(has(self.spec) && has(self.spec.pools) && size(self.spec.pools) > 0)",
                message="a policy lists at least one pool in spec.pools, or is named default and is for all",
                code="SG033",
                field=".spec",
            ),
        ),
    )
