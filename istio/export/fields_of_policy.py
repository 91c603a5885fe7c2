"""What becomes of the fields of a ResiliencePolicy in Istio, as they are in force for one pool."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from istio.export.destination_rules import locality_labels
from istio.export.field_outcome import FieldContext, FieldOutcome, Judge, Table, approximated, kept, lost
from istio.export.fields_of_pool import DOCUMENT
from istio.export.istio_objects import LARGEST_INT32
from policies.resilience import ResilienceSpec

_MODE: Final = "what Envoy does by itself is exported in either mode; what a control plane decides is not there"
_TRIALS: Final = (
    "Istio lets an engine back when its time is over, without trials; `switchgear istio run` tries first"
)
_STRAGGLER: Final = "Istio ejects for errors, never for slowness; `switchgear istio run` takes stragglers out"
_CEILING: Final = (
    "http2MaxRequests, as it is while all engines are well, shared by --proxies; it follows no engine that leaves"
)
_LADDER: Final = "Istio knows no pressure and no levels; Switchgear's own Envoys are needed for them"
_BY_STREAM: Final = "; only streams that say so by a header have it"
_REGIONS: Final = "Istio fails over by place, at once and without thresholds"
_FLEET: Final = "each proxy has its own; nobody divides it by what they ask"

TABLE: Final[Table] = MappingProxyType(
    {
        **DOCUMENT,
        "spec.mode": approximated(_MODE),
        "spec.pools": kept("each pool's objects have what is in force for it", "DestinationRule"),
        "spec.breaker.mode": approximated(_MODE),
        "spec.breaker.errorRatePercent": approximated(
            "failure_percentage, by each proxy for itself and in whole percents", "EnvoyFilter"
        ),
        "spec.breaker.windowCalls": approximated(
            "failure_percentage_request_volume, of one interval", "EnvoyFilter"
        ),
        "spec.breaker.interval": approximated(
            "outlierDetection.interval; never longer than localEjection", "DestinationRule"
        ),
        "spec.breaker.consecutiveErrors": kept("outlierDetection.consecutive5xxErrors", "DestinationRule"),
        "spec.breaker.consecutiveLocalErrors": kept(
            "outlierDetection.consecutiveLocalOriginFailures", "DestinationRule"
        ),
        "spec.breaker.minCalls": approximated("failure_percentage_request_volume, of one interval", "EnvoyFilter"),
        "spec.breaker.weighPeers": lost("Istio weighs nobody's failures against those of others"),
        "spec.breaker.cooldown": approximated(
            "max_ejection_time; ejections start at localEjection and grow by as much", "EnvoyFilter"
        ),
        "spec.breaker.maxCooldown": lost(_TRIALS),
        "spec.breaker.trialCalls": lost(_TRIALS),
        "spec.breaker.trialSharePercent": lost(_TRIALS),
        "spec.breaker.localEjection": kept("outlierDetection.baseEjectionTime", "DestinationRule"),
        "spec.breaker.cutHung": lost("a hung engine keeps what it holds until a time limit ends it"),
        "spec.breaker.capacityFloorEngines": lost("Istio's limit is a percentage only"),
        "spec.breaker.capacityFloorPercent": approximated(
            "outlierDetection.maxEjectionPercent, by each proxy for itself and in whole percents",
            "DestinationRule",
        ),
        "spec.breaker.countStatuses": kept("outlierDetection.outlierDetectionHttpErrorCodes", "DestinationRule"),
        "spec.straggler.mode": lost(_STRAGGLER),
        "spec.straggler.enabled": lost(_STRAGGLER),
        "spec.straggler.slowerThan": lost(_STRAGGLER),
        "spec.straggler.after": lost(_STRAGGLER),
        "spec.straggler.minPeers": lost(_STRAGGLER),
        "spec.limits.mode": approximated("in shadow no ceiling is exported but a wide one", "DestinationRule"),
        "spec.limits.learn": lost("the ceiling stays as it was when exported"),
        "spec.limits.maxWait": approximated(_CEILING, "DestinationRule"),
        "spec.limits.concurrentPerSlot": approximated(_CEILING, "DestinationRule"),
        "spec.limits.maxConcurrent": approximated(
            f"http2MaxRequests, shared by --proxies; {_FLEET}", "DestinationRule"
        ),
        "spec.limits.priorities.interactive.sharePercent": approximated(
            "part of http2MaxRequests; what the other class leaves free stays unused", "DestinationRule"
        ),
        "spec.limits.priorities.batch.sharePercent": approximated(
            "a threshold of its own; what the other class leaves free stays unused", "EnvoyFilter"
        ),
        "spec.limits.maxConnections": kept("maxConnections and http1MaxPendingRequests", "DestinationRule"),
        "spec.retries.attempts": kept("retries.attempts", "VirtualService"),
        "spec.retries.conditions": kept("retries.retryOn", "VirtualService"),
        "spec.retries.statuses": kept("retries.retryOn; nameless ones by a patch", "VirtualService"),
        "spec.retries.backoff.base": kept("retries.backoff", "VirtualService"),
        "spec.retries.backoff.max": kept("retry_back_off.max_interval", "EnvoyFilter"),
        "spec.retries.retryAfter.honour": kept("rate_limited_retry_back_off", "EnvoyFilter"),
        "spec.retries.retryAfter.max": kept("rate_limited_retry_back_off.max_interval", "EnvoyFilter"),
        "spec.retryBudget.percent": approximated(f"retryBudget.percent; {_FLEET}", "DestinationRule"),
        "spec.retryBudget.minConcurrency": approximated(
            f"retryBudget.minRetryConcurrency, at least 1, shared by --proxies; {_FLEET}", "DestinationRule"
        ),
        "spec.timeouts.adaptive": lost("limits stay as they are written; none follows what is measured"),
        "spec.timeouts.connect": kept("connectionPool.tcp.connectTimeout", "DestinationRule"),
        "spec.timeouts.streaming.firstToken": approximated(
            f"perTryTimeout, or per_try_idle_timeout of the route{_BY_STREAM}", "VirtualService"
        ),
        "spec.timeouts.streaming.betweenTokens": approximated(
            f"per_try_idle_timeout, or idle_timeout of the route{_BY_STREAM}", "EnvoyFilter"
        ),
        "spec.timeouts.streaming.total": approximated(f"timeout{_BY_STREAM}", "VirtualService"),
        "spec.timeouts.nonStreaming.perTry": kept("retries.perTryTimeout", "VirtualService"),
        "spec.timeouts.nonStreaming.total": approximated(
            "timeout; the longer of both totals where streams that nobody marked may come", "VirtualService"
        ),
        "spec.hedging.mode": approximated(
            "hedges are exported where hedging is enabled, in either mode", "EnvoyFilter"
        ),
        "spec.hedging.enabled": kept("hedge_policy, where hedging.delay is given", "EnvoyFilter"),
        "spec.hedging.delayQuantilePercent": lost("no delay follows what is measured; give hedging.delay"),
        "spec.hedging.delay": approximated(
            "perTryTimeout with hedge_on_per_try_timeout; streams only where they say so by a header",
            "EnvoyFilter",
        ),
        "spec.hedging.maxPercent": approximated(f"the smaller of both budgets; {_FLEET}", "DestinationRule"),
        "spec.hedging.belowUtilizationPercent": lost("hedges go on however full the pool is"),
        "spec.zones.mode": approximated("zones are minded in either mode", "DestinationRule"),
        "spec.zones.preferLocal": approximated(
            "localityLbSetting.failoverPriority: all to the own zone while it is well, not while it has room",
            "DestinationRule",
        ),
        "spec.zones.spill": approximated(
            "others help when engines of the zone are ejected, not when they are full", "DestinationRule"
        ),
        "spec.zones.maxCrossZonePercent": lost("Istio moves as much as the zone's health lacks"),
        **{
            f"spec.regions.{name}": lost(_REGIONS)
            for name in (
                "mode", "serving", "order", "belowPercent", "marginPercent", "enterAfter", "leaveAfter",
                "failbackAfter", "failback", "acrossRevisions",
            )
        },
        "spec.drain.deadline": lost("nobody drains before a pod ends; `switchgear istio run` takes it out first"),
        "spec.slowStart.window": kept("loadBalancer.warmup.duration", "DestinationRule"),
        "spec.slowStart.minWeightPercent": kept("loadBalancer.warmup.minimumPercent", "DestinationRule"),
        **{
            f"spec.degradation.{name}": lost(_LADDER)
            for name in (
                "mode", "enterAfter", "leaveAfter", "marginPercent",
                "noHedging.enabled", "noHedging.abovePressurePercent",
                "fallback.enabled", "fallback.abovePressurePercent", "fallback.maxSharePercent",
                "shed.enabled", "shed.abovePressurePercent", "shed.maxTokens",
                "maintenance.enabled", "maintenance.abovePressurePercent", "maintenance.message",
            )
        },
    }
)  # fmt: skip


def _spec(seen: FieldContext) -> ResilienceSpec:
    return seen.policies.effective[seen.name]


def _when(condition: bool, outcome: FieldOutcome) -> FieldOutcome | None:
    return outcome if condition else None


def _absent(why: str) -> Judge:
    """Where nothing is said, nothing has to be carried."""
    return lambda seen: _when(seen.value is None, kept(why, ""))


def _off(value: Any, why: str) -> Judge:
    """With this value it does nothing, here or there."""
    return lambda seen: _when(seen.value == value, kept(why, ""))


def _without(reason: str, is_off: str) -> Judge:
    """Where the part that it belongs to is off (``straggler.enabled``), nothing has to be carried."""
    part, field = is_off.split(".")
    return lambda seen: _when(not getattr(getattr(_spec(seen), part), field), kept(reason, ""))


def _first_token(seen: FieldContext) -> FieldOutcome | None:
    if seen.value is None:
        return kept("there is no such limit; none is derived", "")
    gated = seen.policies.pools[seen.name].spec.first_token_gate
    return _when(
        not gated, approximated("without the first-token gate it only raises betweenTokens", "EnvoyFilter")
    )


def _per_try(seen: FieldContext) -> FieldOutcome | None:
    return _when(seen.value is None, kept("there is no such limit; none is derived", ""))


def _local_errors(seen: FieldContext) -> FieldOutcome | None:
    off = seen.value == 0 or _spec(seen).hedging.enabled
    return _when(off, kept("off, by a patch: Istio leaves it to Envoy, which ejects after five", "EnvoyFilter"))


def _connections(seen: FieldContext) -> FieldOutcome | None:
    return _when(seen.value > LARGEST_INT32, approximated("Istio counts to 2147483647", "DestinationRule"))


def _hedging(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return kept("there are no hedges", "")
    return _when(_spec(seen).hedging.delay is None, lost("hedges need hedging.delay: nothing is measured here"))


def _ceiling(seen: FieldContext) -> FieldOutcome | None:
    limits, pool = _spec(seen).limits, seen.policies.pools[seen.name]
    if seen.value is None:
        return kept("the ceiling is given in another way", "")
    if pool.spec.kubernetes is not None and limits.max_concurrent is None:
        return lost("how many engines the cluster has is not known here; give limits.maxConcurrent")
    return None


def _local(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return kept("localityLbSetting.enabled: false", "DestinationRule")
    named = next(locality_labels(seen.policies.pools[seen.name]), None)
    return _when(named is None, kept("no engine says where it stands", ""))


def _spill(seen: FieldContext) -> FieldOutcome | None:
    return _when(not seen.value, lost("Istio fails over to other zones when the own one is not well"))


def _millisecond(seen: FieldContext) -> FieldOutcome | None:
    rough = abs(seen.value * 1000 - round(seen.value * 1000)) > 1e-6
    return _when(rough, approximated("to the millisecond, and at least one", "DestinationRule"))


_STRAGGLERS_OFF: Final = _without("no straggler is taken out, here or there", "straggler.enabled")
_HEDGING_OFF: Final = _without("there are no hedges", "hedging.enabled")

JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.mode": _off("enforce", "what is exported is in force"),
        **{
            f"spec.{part}.mode": _absent("as the policy's own mode")
            for part in ("breaker", "limits", "zones", "regions", "degradation")
        },
        "spec.straggler.mode": _STRAGGLERS_OFF,
        "spec.straggler.enabled": _off(False, "no straggler is taken out, here or there"),
        "spec.straggler.slowerThan": _STRAGGLERS_OFF,
        "spec.straggler.after": _STRAGGLERS_OFF,
        "spec.straggler.minPeers": _STRAGGLERS_OFF,
        "spec.breaker.weighPeers": _off(False, "failures are weighed against nobody's, here or there"),
        "spec.breaker.cutHung": _off(False, "nothing is cut, here or there"),
        "spec.breaker.consecutiveLocalErrors": _local_errors,
        "spec.breaker.localEjection": _millisecond,
        "spec.limits.learn": _off(False, "the ceiling is made of the numbers that are written"),
        "spec.limits.maxWait": _ceiling,
        "spec.limits.concurrentPerSlot": _ceiling,
        "spec.limits.maxConcurrent": _absent("the ceiling is given in another way"),
        "spec.limits.maxConnections": _connections,
        "spec.retries.backoff.base": _millisecond,
        "spec.timeouts.adaptive": _off(False, "limits are those that are written"),
        "spec.timeouts.connect": _millisecond,
        "spec.timeouts.streaming.firstToken": _first_token,
        "spec.timeouts.streaming.betweenTokens": _absent("there is no such limit"),
        "spec.timeouts.nonStreaming.perTry": _per_try,
        "spec.hedging.mode": _absent("as the policy's own mode"),
        "spec.hedging.enabled": _hedging,
        "spec.hedging.delay": _absent("there is none"),
        "spec.hedging.delayQuantilePercent": _HEDGING_OFF,
        "spec.hedging.maxPercent": _HEDGING_OFF,
        "spec.hedging.belowUtilizationPercent": _HEDGING_OFF,
        "spec.zones.preferLocal": _local,
        "spec.zones.spill": _spill,
        "spec.zones.maxCrossZonePercent": _off(100.0, "as much as is needed may leave, here and there"),
        "spec.degradation.shed.maxTokens": _absent("no long answer is refused"),
        "spec.degradation.maintenance.enabled": _off(False, "there is no maintenance level"),
    }
)
