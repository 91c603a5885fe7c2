"""When an engine is ejected: because it fails, or is clearly slower than its peers."""

from typing import Final

from policies.document import Spec, documented_field
from policies.fidelity import approximated, kept, lost
from policies.field_checks import CelRule, ValueLint, ordered_durations
from policies.field_targets import FieldTargets, Xds, exported_alike
from policies.quantity import Duration, ErrorStatus, Percent
from policies.resilience.mode import EITHER_MODE, Mode, mode_of_part

_ISTIO_CALLS: Final = approximated("failure_percentage_request_volume, of one interval", "EnvoyFilter")
_GATEWAY_CALLS: Final = lost("Envoy Gateway has no minimum number of calls for a share of failures")

_TRIALS: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio returns an engine after a fixed time, without trials; `switchgear istio run` has trials"),
    gateway_api=lost("an engine returns after a fixed time, without trials"),
)
_STRAGGLER: Final = FieldTargets(
    live=Xds.EDS,
    istio=lost("Istio ejects for errors, never for slowness; `switchgear istio run` ejects stragglers"),
    gateway_api=lost("engines are ejected for errors, never for slowness"),
)


class Breaker(Spec):
    """When a failing engine is ejected, and for how long."""

    mode: Mode | None = mode_of_part(
        "the breaker",
        targets=exported_alike(Xds.EDS, EITHER_MODE),
    )
    error_rate_percent: Percent = documented_field(
        40.0,
        "Share of failed calls that ejects an engine; 0 disables it.",
        why="the published starting point for LLM engines",
        unit="%",
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=approximated("failure_percentage, per proxy, in whole percent", "EnvoyFilter"),
            gateway_api=approximated(
                "passive.failurePercentageThreshold, per proxy, in whole percent, with Envoy's own minimum "
                "number of calls",
                "BackendTrafficPolicy",
            ),
        ),
    )
    window_calls: int = documented_field(
        25,
        "Calls in the window of the error rate.",
        why="the published starting point",
        unit="calls",
        checks=(
            CelRule(
                # Where no document counts the error rate, the window may be as it likes.
                rule="!has(self.errorRatePercent) || self.errorRatePercent == 0.0 || !has(self.minCalls) || "
                "!has(self.windowCalls) || self.minCalls <= self.windowCalls",
                message="windowCalls is at least minCalls, or the error rate never counts",
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
        "Interval at which Envoy evaluates the error rate.",
        why="it is also the window: at this interval 25 calls are 5 calls per second and engine",
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
        "Consecutive failures that eject an engine at once; 0 disables it.",
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
        "Consecutive connection failures that eject an engine at once; 0 or hedging disables it.",
        why="least-request prefers a dead engine, as it has nothing in flight; two measured best",
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
        "Calls in the window before the error rate counts.",
        why="an engine that fails every call is ejected after eight; fewer prove nothing",
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
        "Compare failures with those of the other engines: eject sooner if calls to the others succeed, not at "
        "all if they fail as often.",
        why="if other calls succeed, three consecutive failures are significant; if all engines fail alike, the "
        "requests are at fault, and ejection only costs capacity",
        targets=FieldTargets(
            live=Xds.EDS,
            istio=lost("Istio does not compare failures between engines"),
            gateway_api=lost("failures are not compared between engines"),
        ),
    )
    cooldown: Duration = documented_field(
        60.0,
        "Time that a failing engine stays ejected, unless it passes a trial sooner; doubles with each failed "
        "trial.",
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
        "Longest cooldown after failed trials.",
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
        "Requests that an engine on trial must answer before it returns to rotation.",
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
        "Time that one Envoy ejects an engine by itself; grows by the same amount each time, up to cooldown.",
        why="the control plane ejects for longer if needed; an ejection that outlasts the fault costs capacity",
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
        "Cut requests on an engine that hangs or fails every call, and retry those without any output.",
        why="they occupy admission slots until the caller gives up; only proxies that support cuts do it",
        targets=exported_alike(Xds.EDS | Xds.LDS, lost("requests on a hung engine last until a timeout")),
    )
    capacity_floor_engines: int = documented_field(
        1,
        "Engines that errors and slowness always leave in rotation.",
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
        "Share of the capacity that errors and slowness always leave; useless engines do not count.",
        why="half a fleet that sometimes fails serves more than none; dead and hung engines are always ejected",
        unit="%",
        checks=(
            ValueLint(
                code="SG123",
                applies=lambda percent: percent == 0,
                message="errors and slowness may eject every engine: one prompt that crashes all of them empties "
                "the "
                "pool",
                fix="write 50; dead and hung engines are ejected in any case",
            ),
            ValueLint(
                code="SG124",
                applies=lambda percent: percent >= 100,
                message="no engine is ejected for errors or slowness; only dead and hung ones are",
                fix="write 50, unless ejection is meant to be off",
            ),
        ),
        targets=FieldTargets(
            live=Xds.EDS | Xds.CDS,
            istio=approximated(
                "outlierDetection.maxEjectionPercent, per proxy, in whole percent",
                "DestinationRule",
            ),
            gateway_api=approximated(
                "passive.maxEjectionPercent, per proxy, in whole percent",
                "BackendTrafficPolicy",
            ),
        ),
    )
    count_statuses: tuple[ErrorStatus, ...] = documented_field(
        (500, 502, 504),
        "HTTP statuses that count as failures; 503 and 429 are load shedding, not failures.",
        targets=FieldTargets(
            live=Xds.CDS,
            istio=kept(
                "HTTP options of the cluster; outlierDetectionHttpErrorCodes has no effect in istiod 1.31",
                "EnvoyFilter",
            ),
            gateway_api=lost("every 5xx counts as a failure, also 503 from load shedding"),
        ),
        max_length=32,
    )


class Straggler(Spec):
    """When an engine that is clearly slower than its peers is ejected."""

    mode: Mode | None = mode_of_part(
        "ejection of stragglers",
        targets=_STRAGGLER,
    )
    enabled: bool = documented_field(
        True,
        "Eject an engine for slowness alone.",
        targets=_STRAGGLER,
    )
    slower_than: float = documented_field(
        3.0,
        "Slowdown against the median of its peers that ejects an engine.",
        why="low weights kept the 99th percentile at 6-8 s; ejection lowered it to 1.2-3.7 s",
        targets=_STRAGGLER,
        ge=1.2,
        le=1000,
    )
    after: Duration = documented_field(
        1.0, "Time it must be that slow without interruption.", unit="duration", targets=_STRAGGLER, ge=0.1, le=600
    )
    min_peers: int = documented_field(
        3,
        "Engines with enough traffic for a comparison, itself included.",
        unit="engines",
        targets=_STRAGGLER,
        ge=2,
        le=20_000,
    )
