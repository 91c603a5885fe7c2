"""What becomes of the fields of a ResiliencePolicy in the Gateway API, as they are in force for one pool."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from istio.export.field_outcome import FieldOutcome, Table, approximated, kept, lost
from istio.export.fields_of_pool import DOCUMENT
from istio.gateway_api.gateway_field_context import GatewayFieldContext, Judge
from policies.resilience import ResilienceSpec, RetryCondition

_POLICY: Final = "BackendTrafficPolicy"
_ROUTE: Final = "HTTPRoute"
_PLAIN: Final = "the Gateway API has nothing for it; Envoy Gateway's policies do"
_MODE: Final = "what Envoy does by itself is exported in either mode; what a control plane decides is not there"
_TRIALS: Final = "an engine is back when its time is over, without trials"
_STRAGGLER: Final = "engines are ejected for errors, never for slowness"
_CEILING: Final = (
    "circuitBreaker.maxParallelRequests, as it is while all engines are well, shared by --proxies, and counted "
    "once for each route"
)
_LADDER: Final = "a gateway knows no pressure and no levels; Switchgear's own Envoys are needed for them"
_REGIONS: Final = "backends know no regions"
_FLEET: Final = "each proxy has its own for each route; nobody divides it by what they ask"
_STREAMS: Final = (
    "rules[].timeouts.request; the longer of the two totals, unless the route asks for streams or not"
)

_OF_THE_GATEWAY_API: Final = frozenset(
    {
        "spec.pools",
        "spec.mode",
        "spec.retries.attempts",
        "spec.retries.conditions",
        "spec.retries.statuses",
        "spec.retries.backoff.base",
        "spec.timeouts.streaming.total",
        "spec.timeouts.nonStreaming.total",
        "spec.timeouts.nonStreaming.perTry",
    }
)
"""What stays without Envoy Gateway's policies."""

TABLE: Final[Table] = MappingProxyType(
    {
        **DOCUMENT,
        "spec.mode": approximated(_MODE),
        "spec.pools": kept("what is in force for a pool is attached to the routes that lead to it", _POLICY),
        "spec.breaker.mode": approximated(_MODE),
        "spec.breaker.errorRatePercent": approximated(
            "passive.failurePercentageThreshold, by each proxy for itself, in whole percents and with Envoy's own "
            "least number of calls",
            _POLICY,
        ),
        "spec.breaker.windowCalls": lost("Envoy Gateway has no number of calls for a share of failures"),
        "spec.breaker.interval": approximated("passive.interval; never longer than localEjection", _POLICY),
        "spec.breaker.consecutiveErrors": approximated("passive.consecutive5XxErrors, of any 5xx", _POLICY),
        "spec.breaker.consecutiveLocalErrors": kept("passive.consecutiveLocalOriginFailures", _POLICY),
        "spec.breaker.minCalls": lost("Envoy Gateway has no number of calls for a share of failures"),
        "spec.breaker.weighPeers": lost("failures are weighed against nobody's"),
        "spec.breaker.cooldown": lost(
            "ejections start at localEjection and grow by as much, up to Envoy's own limit"
        ),
        "spec.breaker.maxCooldown": lost(_TRIALS),
        "spec.breaker.trialCalls": lost(_TRIALS),
        "spec.breaker.trialSharePercent": lost(_TRIALS),
        "spec.breaker.localEjection": kept("passive.baseEjectionTime", _POLICY),
        "spec.breaker.cutHung": lost("a hung engine keeps what it holds until a time limit ends it"),
        "spec.breaker.capacityFloorEngines": lost("Envoy's limit is a percentage only"),
        "spec.breaker.capacityFloorPercent": approximated(
            "passive.maxEjectionPercent, by each proxy for itself and in whole percents", _POLICY
        ),
        "spec.breaker.countStatuses": lost("every 5xx counts as a failure, 503 of an engine that sheds included"),
        "spec.straggler.mode": lost(_STRAGGLER),
        "spec.straggler.enabled": lost(_STRAGGLER),
        "spec.straggler.slowerThan": lost(_STRAGGLER),
        "spec.straggler.after": lost(_STRAGGLER),
        "spec.straggler.minPeers": lost(_STRAGGLER),
        "spec.limits.mode": approximated("in shadow no ceiling is exported but a wide one", _POLICY),
        "spec.limits.learn": lost("the ceiling stays as it was when exported"),
        "spec.limits.maxWait": approximated(_CEILING, _POLICY),
        "spec.limits.concurrentPerSlot": approximated(_CEILING, _POLICY),
        "spec.limits.maxConcurrent": approximated(_CEILING, _POLICY),
        "spec.limits.priorities.interactive.sharePercent": approximated(
            "part of the ceiling of its routes", _POLICY
        ),
        "spec.limits.priorities.batch.sharePercent": approximated("part of the ceiling of its routes", _POLICY),
        "spec.limits.maxConnections": kept("circuitBreaker.maxConnections and maxPendingRequests", _POLICY),
        "spec.retries.attempts": kept("retry.numRetries", _POLICY),
        "spec.retries.conditions": kept("retry.retryOn.triggers", _POLICY),
        "spec.retries.statuses": kept("retry.retryOn.httpStatusCodes", _POLICY),
        "spec.retries.backoff.base": kept("retry.perRetry.backOff.baseInterval", _POLICY),
        "spec.retries.backoff.max": kept("retry.perRetry.backOff.maxInterval", _POLICY),
        "spec.retries.retryAfter.honour": lost("Retry-After of an engine is not looked at"),
        "spec.retries.retryAfter.max": lost("Retry-After of an engine is not looked at"),
        "spec.retryBudget.percent": approximated(f"circuitBreaker.retryBudget.percent; {_FLEET}", _POLICY),
        "spec.retryBudget.minConcurrency": approximated(
            f"circuitBreaker.retryBudget.minRetryConcurrency; {_FLEET}", _POLICY
        ),
        "spec.timeouts.adaptive": lost("nothing is measured; only limits that are given are exported"),
        "spec.timeouts.connect": kept("timeout.tcp.connectTimeout", _POLICY),
        "spec.timeouts.streaming.firstToken": lost("there is no limit on the first byte of an answer"),
        "spec.timeouts.streaming.betweenTokens": approximated(
            "timeout.http.streamIdleTimeout, of every request of the route", _POLICY
        ),
        "spec.timeouts.streaming.total": approximated(_STREAMS, _ROUTE),
        "spec.timeouts.nonStreaming.perTry": approximated(
            "rules[].timeouts.backendRequest, only where the route asks for requests that do not stream", _ROUTE
        ),
        "spec.timeouts.nonStreaming.total": approximated(_STREAMS, _ROUTE),
        "spec.hedging.mode": kept("there are no hedges", ""),
        "spec.hedging.enabled": lost("there are no hedges in Envoy Gateway"),
        "spec.hedging.delayQuantilePercent": lost("there are no hedges in Envoy Gateway"),
        "spec.hedging.delay": lost("there are no hedges in Envoy Gateway"),
        "spec.hedging.maxPercent": lost("there are no hedges in Envoy Gateway"),
        "spec.hedging.belowUtilizationPercent": lost("there are no hedges in Envoy Gateway"),
        "spec.zones.mode": approximated(_MODE),
        "spec.zones.preferLocal": approximated(
            "loadBalancer.zoneAware.preferLocal: by the number of engines, not by their slots", _POLICY
        ),
        "spec.zones.spill": approximated(
            "what the own zone's share of engines does not cover goes to others", _POLICY
        ),
        "spec.zones.maxCrossZonePercent": lost("Envoy decides how much leaves a zone"),
        "spec.regions.mode": lost(_REGIONS),
        "spec.regions.serving": lost(_REGIONS),
        "spec.regions.order": lost(_REGIONS),
        "spec.regions.belowPercent": lost(_REGIONS),
        "spec.regions.marginPercent": lost(_REGIONS),
        "spec.regions.enterAfter": lost(_REGIONS),
        "spec.regions.leaveAfter": lost(_REGIONS),
        "spec.regions.failbackAfter": lost(_REGIONS),
        "spec.regions.failback": lost(_REGIONS),
        "spec.regions.acrossRevisions": lost(_REGIONS),
        "spec.drain.deadline": approximated("pods that end are drained as long as the gateway's own settings say"),
        "spec.slowStart.window": kept("loadBalancer.slowStart.window", _POLICY),
        "spec.slowStart.minWeightPercent": lost("Envoy Gateway has the window only"),
        "spec.degradation.mode": lost(_LADDER),
        "spec.degradation.enterAfter": lost(_LADDER),
        "spec.degradation.leaveAfter": lost(_LADDER),
        "spec.degradation.marginPercent": lost(_LADDER),
        "spec.degradation.noHedging.enabled": lost(_LADDER),
        "spec.degradation.noHedging.abovePressurePercent": lost(_LADDER),
        "spec.degradation.fallback.enabled": lost(_LADDER),
        "spec.degradation.fallback.abovePressurePercent": lost(_LADDER),
        "spec.degradation.fallback.maxSharePercent": lost(_LADDER),
        "spec.degradation.shed.enabled": lost(_LADDER),
        "spec.degradation.shed.abovePressurePercent": lost(_LADDER),
        "spec.degradation.shed.maxTokens": lost(_LADDER),
        "spec.degradation.maintenance.enabled": lost(_LADDER),
        "spec.degradation.maintenance.abovePressurePercent": lost(_LADDER),
        "spec.degradation.maintenance.message": lost(_LADDER),
    }
)


def without_envoy_gateway(path: str, outcome: FieldOutcome) -> FieldOutcome:
    """The outcome without Envoy Gateway's policies."""
    if path.startswith(("apiVersion", "kind", "metadata.")) or outcome.target != _POLICY:
        return outcome
    return approximated("rules[].retry", _ROUTE) if path in _OF_THE_GATEWAY_API else lost(_PLAIN)


def _spec(seen: GatewayFieldContext) -> ResilienceSpec:
    return seen.policies.effective[seen.name]


def _where(holds: Callable[[ResilienceSpec], bool], how: str) -> Judge:
    """Kept, and how, where the policy is such that nothing can be lost."""
    return lambda seen: kept(how, "") if holds(_spec(seen)) else None


def _conditions(seen: GatewayFieldContext) -> FieldOutcome | None:
    if seen.site.plain:
        return approximated(
            "what implementations retry: connections and requests that never reached an engine", _ROUTE
        )
    if RetryCondition.RESET_BEFORE_REQUEST in _spec(seen).retries.conditions:
        return approximated("retry.retryOn.triggers, without reset-before-request", _POLICY)
    return None


def _local_errors(seen: GatewayFieldContext) -> FieldOutcome | None:
    spec = _spec(seen)
    if spec.hedging.enabled and spec.breaker.consecutive_local_errors:
        return approximated("off, as it is where hedging is on", _POLICY)
    return None


def _ceiling(seen: GatewayFieldContext) -> FieldOutcome | None:
    pool = seen.policies.pools[seen.name]
    if pool.spec.kubernetes is not None and _spec(seen).limits.max_concurrent is None:
        return lost("how many engines the cluster has is not known here; give limits.maxConcurrent")
    return None


def _duration(value: Callable[[ResilienceSpec], float]) -> Judge:
    """Durations are whole milliseconds there."""

    def judge(seen: GatewayFieldContext) -> FieldOutcome | None:
        ms = value(_spec(seen)) * 1000
        return (
            approximated("to the millisecond, and at least one", _POLICY) if abs(ms - round(ms)) > 1e-6 else None
        )

    return judge


def _either(first: Judge, second: Judge) -> Judge:
    return lambda seen: first(seen) or second(seen)


def _absent(value: Callable[[ResilienceSpec], Any], how: str = "not said") -> Judge:
    return _where(lambda spec: value(spec) is None, how)


_NO_HEDGES: Final = _where(lambda spec: not spec.hedging.enabled, "there are no hedges")
_NO_STRAGGLERS: Final = _where(lambda spec: not spec.straggler.enabled, "no straggler is taken out, here or there")
_NO_WINDOW: Final = _where(lambda spec: not spec.slow_start.window, "an engine has its full share at once")

JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.mode": _where(lambda spec: spec.mode == "enforce", "what is exported is in force"),
        "spec.breaker.mode": _absent(lambda spec: spec.breaker.mode, "as the policy's own mode"),
        "spec.limits.mode": _absent(lambda spec: spec.limits.mode, "as the policy's own mode"),
        "spec.zones.mode": _absent(lambda spec: spec.zones.mode, "as the policy's own mode"),
        "spec.regions.mode": _absent(lambda spec: spec.regions.mode, "as the policy's own mode"),
        "spec.degradation.mode": _absent(lambda spec: spec.degradation.mode, "as the policy's own mode"),
        **{path: _NO_STRAGGLERS for path in TABLE if path.startswith("spec.straggler.")},
        **{path: _NO_HEDGES for path in TABLE if path.startswith("spec.hedging.")},
        "spec.breaker.weighPeers": _where(lambda spec: not spec.breaker.weigh_peers, "weighed against nobody's"),
        "spec.breaker.cutHung": _where(lambda spec: not spec.breaker.cut_hung, "nothing is cut, here or there"),
        "spec.breaker.consecutiveLocalErrors": _local_errors,
        "spec.breaker.localEjection": _duration(lambda spec: spec.breaker.local_ejection),
        "spec.limits.learn": _where(lambda spec: not spec.limits.learn, "the ceiling is made of what is written"),
        "spec.limits.maxWait": _ceiling,
        "spec.limits.concurrentPerSlot": _either(
            _absent(lambda spec: spec.limits.concurrent_per_slot, "the ceiling is given in another way"), _ceiling
        ),
        "spec.limits.maxConcurrent": _absent(
            lambda spec: spec.limits.max_concurrent, "the ceiling is given in another way"
        ),
        "spec.retries.conditions": _conditions,
        "spec.retries.backoff.base": _duration(lambda spec: spec.retries.backoff.base),
        "spec.retries.backoff.max": _duration(lambda spec: spec.retries.backoff.max),
        "spec.retries.retryAfter.honour": _where(
            lambda spec: not spec.retries.retry_after.honour, "it is not looked at, here or there"
        ),
        "spec.retries.retryAfter.max": _where(
            lambda spec: not spec.retries.retry_after.honour, "it is not looked at, here or there"
        ),
        "spec.timeouts.adaptive": _where(
            lambda spec: not spec.timeouts.adaptive, "limits are those that are written"
        ),
        "spec.timeouts.connect": _duration(lambda spec: spec.timeouts.connect),
        "spec.timeouts.streaming.firstToken": _absent(lambda spec: spec.timeouts.streaming.first_token),
        "spec.timeouts.nonStreaming.perTry": _absent(lambda spec: spec.timeouts.non_streaming.per_try),
        "spec.zones.maxCrossZonePercent": _where(
            lambda spec: spec.zones.max_cross_zone_percent == 100, "as much as is needed may leave, here and there"
        ),
        "spec.slowStart.window": _either(_NO_WINDOW, _duration(lambda spec: spec.slow_start.window)),
        "spec.slowStart.minWeightPercent": _NO_WINDOW,
        "spec.degradation.shed.maxTokens": _absent(
            lambda spec: spec.degradation.shed.max_tokens, "no long answer is refused"
        ),
        "spec.degradation.maintenance.enabled": _where(
            lambda spec: not spec.degradation.maintenance.enabled, "there is no maintenance level"
        ),
    }
)
