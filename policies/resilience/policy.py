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
    ApiVersion,
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
"""Name of the policy that applies to every pool."""


class Zones(Spec):
    """How callers of one zone share the engines of all zones."""

    mode: Mode | None = mode_of_part(
        "sharing between zones",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated("zones are respected in either mode", "DestinationRule"),
            gateway_api=EITHER_MODE,
        ),
    )
    prefer_local: bool = documented_field(
        True,
        "Fill the caller's own zone first.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated(
                "localityLbSetting.failoverPriority: all to the own zone while it is healthy, not while it has "
                "capacity",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "loadBalancer.zoneAware.preferLocal: by number of engines, not slots",
                "BackendTrafficPolicy",
            ),
        ),
    )
    spill: bool = documented_field(
        True,
        "Send overflow of the own zone to other zones by their spare capacity.",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=approximated(
                "other zones help when engines are ejected, not when they are full", "DestinationRule"
            ),
            gateway_api=approximated(
                "requests beyond the zone's share of engines go to other zones", "BackendTrafficPolicy"
            ),
        ),
    )
    max_cross_zone_percent: Percent = documented_field(
        100.0,
        "Largest share of a zone's requests that may leave it while it has a ready engine.",
        unit="%",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio moves traffic in proportion to the lost health"),
            gateway_api=lost("Envoy decides how much leaves a zone"),
        ),
    )


class Drain(Spec):
    """How long a draining engine may take to finish."""

    deadline: Duration = documented_field(
        900.0,
        "Longest wait for requests in flight.",
        why="the longest stream allowed",
        unit="duration",
        targets=FieldTargets(
            live=Xds.EDS | Xds.LDS,
            istio=lost("pods end without a drain; `switchgear istio run` drains them first"),
            gateway_api=approximated("the gateway's own settings limit the drain of ending pods"),
        ),
        le=86400,
    )


class SlowStart(Spec):
    """How traffic grows for an engine that joins or returns, also if it is alone in its zone."""

    window: Duration = documented_field(
        0.0,
        "Ramp-up of an engine's share; 0s sends the full share at once.",
        why="a ramp of 5 s had no benefit under an admission limit; cold caches may need one",
        unit="duration",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=kept("loadBalancer.warmup.duration", "DestinationRule"),
            gateway_api=kept("loadBalancer.slowStart.window", "BackendTrafficPolicy"),
        ),
        le=3600,
    )
    min_weight_percent: Percent = documented_field(
        10.0,
        "Part of its share at the start.",
        unit="%",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=kept("loadBalancer.warmup.minimumPercent", "DestinationRule"),
            gateway_api=lost("Envoy Gateway has only the window"),
        ),
    )


class ResilienceSpec(Spec):
    """Handling of failures in a pool."""

    mode: Mode = documented_field(
        Mode.ENFORCE,
        "enforce, or shadow: decisions are recorded and reported, but not applied.",
        targets=exported_alike(Xds.EDS | Xds.RTDS | Xds.RDS, EITHER_MODE),
    )

    pools: tuple[Name, ...] = documented_field(
        (),
        "Pools of this policy; empty only in the policy named default, which applies to all.",
        targets=FieldTargets(
            live=Xds.EDS | Xds.RTDS | Xds.RDS | Xds.CDS,
            istio=kept("each pool's objects have its effective policy", "DestinationRule"),
            gateway_api=kept("the effective policy of a pool is attached to its routes", "BackendTrafficPolicy"),
        ),
        checks=(ListKeys(),),
        max_length=10_000,
    )
    breaker: Breaker = documented_field(Breaker, "Ejection of failing engines.")
    straggler: Straggler = documented_field(Straggler, "Ejection of slow engines.")
    limits: Limits = documented_field(Limits, "Admission limit.")
    retries: Retries = documented_field(Retries, "Retries.")
    retry_budget: RetryBudget = documented_field(RetryBudget, "Limit of retries in flight.")
    timeouts: Timeouts = documented_field(Timeouts, "Timeouts.")
    hedging: Hedging = documented_field(Hedging, "Parallel tries.")
    zones: Zones = documented_field(Zones, "Sharing between zones.")
    regions: Regions = documented_field(Regions, "Sharing between regions.")
    drain: Drain = documented_field(Drain, "Draining.")
    slow_start: SlowStart = documented_field(SlowStart, "Return of engines.")
    degradation: Degradation = documented_field(Degradation, "Degradation levels under overload.")

    def shadowed(self, part: Mode | None) -> bool:
        """Whether a part with this ``mode`` only records its decisions."""
        return (self.mode if part is None else part) is Mode.SHADOW


class ResiliencePolicy(Spec):
    """A named resilience policy."""

    api_version: ApiVersion = documented_field(API_VERSION, "Version of the document.", targets=OF_THE_VERSION)
    kind: Literal["ResiliencePolicy"] = documented_field(
        "ResiliencePolicy", "Kind of the document.", targets=OF_THE_KIND
    )
    metadata: Metadata = documented_field(..., "Name and labels.", targets=exported_alike(Xds.NONE, OF_THE_NAME))
    spec: ResilienceSpec = documented_field(
        ResilienceSpec,
        "Handling of failures.",
        checks=(
            CelRule(
                rule=f"self.metadata.name != '{DEFAULT}' || !has(self.spec) || !has(self.spec.pools) || "
                "size(self.spec.pools) == 0",
                message="the policy named default applies to every pool and takes no list",
                code="SG034",
                field=".spec.pools",
            ),
            CelRule(
                rule=f"self.metadata.name == '{DEFAULT}' || "
                "(has(self.spec) && has(self.spec.pools) && size(self.spec.pools) > 0)",
                message="list at least one pool in spec.pools, or name the policy default",
                code="SG033",
                field=".spec",
            ),
        ),
    )
