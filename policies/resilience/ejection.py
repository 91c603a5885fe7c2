"""When an engine is taken out: because it fails, or because it is clearly slower than its peers."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ValueLint, ordered_durations
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, ErrorStatus, Percent
from policies.resilience.mode import EITHER_MODE, Mode, mode_of_part

_ISTIO_CALLS: Final = approximated("failure_percentage_request_volume, of one interval", "EnvoyFilter")
_GATEWAY_CALLS: Final = lost("Envoy Gateway has no number of calls for a share of failures")

_TRIALS: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost(
        "Istio lets an engine back when its time is over, without trials; `switchgear istio run` tries first"
    ),
    gateway_api=lost("an engine is back when its time is over, without trials"),
)
_STRAGGLER: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio ejects for errors, never for slowness; `switchgear istio run` takes stragglers out"),
    gateway_api=lost("engines are ejected for errors, never for slowness"),
)


class Breaker(Spec):
    """When an engine that fails is taken out, and for how long."""

    mode: Mode | None = mode_of_part(
        "the breaker",
        targets=exported_alike(Xds.EDS, EITHER_MODE),
    )
    error_rate_percent: Percent = documented_field(
        40.0,
        "Share of failed calls that ejects an engine; 0 turns it off.",
        why="the published starting point for LLM engines",
        unit="%",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=approximated(
                "failure_percentage, by each proxy for itself and in whole percents", "EnvoyFilter"
            ),
            gateway_api=approximated(
                "passive.failurePercentageThreshold, by each proxy for itself, in whole percents and "
                "with Envoy's own least number of calls",
                "BackendTrafficPolicy",
            ),
        ),
    )
    window_calls: int = documented_field(
        25,
        "Calls the error rate is taken over.",
        why="the published starting point",
        unit="calls",
        checks=(
            CelRule(
                # Where no document counts the error rate, the window may be as it likes.
                rule="!has(self.errorRatePercent) || self.errorRatePercent == 0.0 || !has(self.minCalls) || "
                "!has(self.windowCalls) || self.minCalls <= self.windowCalls",
                message="the window holds at least minCalls calls, for otherwise the error rate never counts",
                code="SG041",
                field=".windowCalls",
            ),
        ),
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=_ISTIO_CALLS,
            gateway_api=_GATEWAY_CALLS,
        ),
        ge=1,
        le=100_000,
    )
    interval: Duration = documented_field(
        5.0,
        "How often Envoy looks at the error rate.",
        why="the window tumbles with it: at this interval 25 calls are 5 calls per second and engine",
        unit="duration",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=approximated("outlierDetection.interval; never longer than localEjection", "DestinationRule"),
            gateway_api=approximated("passive.interval; never longer than localEjection", "BackendTrafficPolicy"),
        ),
        ge=0.1,
        le=600,
    )
    consecutive_errors: int = documented_field(
        5,
        "Failures in a row that eject an engine at once; 0 turns it off.",
        unit="calls",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=kept("outlierDetection.consecutive5xxErrors", "DestinationRule"),
            gateway_api=approximated("passive.consecutive5XxErrors, of any 5xx", "BackendTrafficPolicy"),
        ),
        ge=0,
        le=100_000,
    )
    consecutive_local_errors: int = documented_field(
        2,
        "Connection failures in a row that eject an engine at once; 0 turns it off, and so does hedging.",
        why="least-request is drawn to a dead engine: it has nothing active. Two was measured best",
        unit="connections",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("outlierDetection.consecutiveLocalOriginFailures", "DestinationRule"),
            gateway_api=kept("passive.consecutiveLocalOriginFailures", "BackendTrafficPolicy"),
        ),
        ge=0,
        le=100_000,
    )
    min_calls: int = documented_field(
        8,
        "Calls of the window that must be there before the error rate counts.",
        why="an engine that fails everything is out after eight calls; fewer are too few to tell",
        unit="calls",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=_ISTIO_CALLS,
            gateway_api=_GATEWAY_CALLS,
        ),
        ge=1,
        le=100_000,
    )
    weigh_peers: bool = documented_field(
        True,
        "Whether failures are weighed against those of the other engines: sooner out where calls to the others "
        "succeed, not at all where they fail as often.",
        why="where hardly any other call fails, three failures in a row are no chance; where all engines fail "
        "alike it is the requests, and taking out the unluckiest only costs capacity",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio weighs nobody's failures against those of others"),
            gateway_api=lost("failures are weighed against nobody's"),
        ),
    )
    cooldown: Duration = documented_field(
        60.0,
        "How long an engine that fails stays out, unless it proves itself sooner; doubles with each failed trial.",
        why="the published starting point",
        unit="duration",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=approximated(
                "max_ejection_time; ejections start at localEjection and grow by as much", "EnvoyFilter"
            ),
            gateway_api=lost("ejections start at localEjection and grow by as much, up to Envoy's own limit"),
        ),
        ge=0.1,
        le=86400,
    )
    max_cooldown: Duration = documented_field(
        600.0,
        "Longest cooldown, however often trials have failed.",
        unit="duration",
        targets=_TRIALS,
        checks=(
            ordered_durations("cooldown", "maxCooldown", code="SG041", message="maxCooldown is at least cooldown"),
        ),
        ge=0.1,
        le=86400,
    )
    trial_calls: int = documented_field(
        5,
        "Real requests that an engine on trial answers before it counts as well again.",
        unit="calls",
        targets=_TRIALS,
        ge=1,
        le=1000,
    )
    trial_share_percent: Percent = documented_field(
        25.0, "Share of its normal traffic that an engine on trial gets.", unit="%", targets=_TRIALS, gt=0
    )
    local_ejection: Duration = documented_field(
        1.0,
        "How long one Envoy by itself keeps an engine out; grows by as much each time in a row, up to cooldown.",
        why="the control plane keeps out what must stay out; an ejection that outlasts the fault costs capacity",
        unit="duration",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("outlierDetection.baseEjectionTime", "DestinationRule"),
            gateway_api=kept("passive.baseEjectionTime", "BackendTrafficPolicy"),
        ),
        ge=0.1,
        le=86400,
    )
    cut_hung: bool = documented_field(
        True,
        "Whether requests that a hung engine holds are ended at once, and tried elsewhere where nothing was sent.",
        why="they hold places in the ceiling until the caller gives up; only proxies that can are told to",
        targets=exported_alike(
            Xds.EDS | Xds.LDS, lost("a hung engine keeps what it holds until a time limit ends it")
        ),
    )
    capacity_floor_engines: int = documented_field(
        1,
        "Engines of the pool that soft evidence always leaves in.",
        unit="engines",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio's limit is a percentage only"),
            gateway_api=lost("Envoy's limit is a percentage only"),
        ),
        ge=0,
        le=20_000,
    )
    capacity_floor_percent: Percent = documented_field(
        50.0,
        "Share of the pool's engines that soft evidence (errors, slowness) never ejects.",
        why="half a fleet that sometimes fails serves more than none; a dead or hung engine always leaves",
        unit="%",
        checks=(
            ValueLint(
                code="SG123",
                applies=lambda percent: percent == 0,
                message="soft evidence may take every engine out: one bad prompt that all of them fail on empties "
                "the pool",
                fix="say 50; a dead or hung engine leaves whatever the floor",
            ),
            ValueLint(
                code="SG124",
                applies=lambda percent: percent >= 100,
                message="no engine is ever taken out for errors or slowness; only dead and hung ones are",
                fix="say 50, or leave it if that is what is wanted",
            ),
        ),
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=approximated(
                "outlierDetection.maxEjectionPercent, by each proxy for itself and in whole percents",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "passive.maxEjectionPercent, by each proxy for itself and in whole percents",
                "BackendTrafficPolicy",
            ),
        ),
    )
    count_statuses: tuple[ErrorStatus, ...] = documented_field(
        (500, 502, 504),
        "HTTP statuses that count as failures; 503 and 429 are an engine shedding load, not failing.",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept("outlierDetection.outlierDetectionHttpErrorCodes", "DestinationRule"),
            gateway_api=lost("every 5xx counts as a failure, 503 of an engine that sheds included"),
        ),
        max_length=32,
    )


class Straggler(Spec):
    """When an engine that is clearly slower than its peers is taken out."""

    mode: Mode | None = mode_of_part(
        "taking out stragglers",
        targets=_STRAGGLER,
    )
    enabled: bool = documented_field(
        True,
        "Whether slowness alone takes an engine out.",
        targets=_STRAGGLER,
    )
    slower_than: float = documented_field(
        3.0,
        "Times slower than the median of its peers from which an engine is out.",
        why="low weights kept the 99th percentile at 6-8 s; out of the pool it fell to 1.2-3.7 s",
        targets=_STRAGGLER,
        ge=1.2,
        le=1000,
    )
    after: Duration = documented_field(
        1.0, "How long it must be that slow, without a break.", unit="duration", targets=_STRAGGLER, ge=0.1, le=600
    )
    min_peers: int = documented_field(
        3,
        "Engines with enough traffic to compare, itself included.",
        unit="engines",
        targets=_STRAGGLER,
        ge=2,
        le=20_000,
    )
