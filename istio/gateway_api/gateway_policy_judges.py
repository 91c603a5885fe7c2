"""Fields of a ResiliencePolicy whose outcome in the Gateway API depends on the value, or on its neighbours."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from istio.gateway_api.gateway_field_context import GatewayFieldContext, Judge
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.resilience import ResilienceSpec, RetryCondition
from policies.schema import leaf_targets

_POLICY: Final = "BackendTrafficPolicy"
_ROUTE: Final = "HTTPRoute"
_PLAIN: Final = "not in the Gateway API; Envoy Gateway's policies have it"
_STANDARD: Final = "HTTPRoute.retry is in the experimental channel only; with its CRDs, use --channel experimental"

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


def without_envoy_gateway(path: str, outcome: FieldOutcome, *, experimental: bool) -> FieldOutcome:
    """The outcome without Envoy Gateway's policies."""
    if path.startswith(("apiVersion", "kind", "metadata.")) or outcome.target != _POLICY:
        return outcome
    if path.startswith("spec.retries.") and path in _OF_THE_GATEWAY_API and not experimental:
        return lost(_STANDARD)
    return approximated("rules[].retry", _ROUTE) if path in _OF_THE_GATEWAY_API else lost(_PLAIN)


def _spec(seen: GatewayFieldContext) -> ResilienceSpec:
    return seen.policies.effective[seen.name]


def _where(holds: Callable[[ResilienceSpec], bool], how: str) -> Judge:
    """Kept, and how, where the policy is such that nothing can be lost."""
    return lambda seen: kept(how, "") if holds(_spec(seen)) else None


def _conditions(seen: GatewayFieldContext) -> FieldOutcome | None:
    if seen.site.plain:
        if not seen.site.experimental:
            return lost(_STANDARD)
        return approximated("implementations retry connections and requests that never reached an engine", _ROUTE)
    if RetryCondition.RESET_BEFORE_REQUEST in _spec(seen).retries.conditions:
        return approximated("retry.retryOn.triggers, without reset-before-request", _POLICY)
    return None


def _local_errors(seen: GatewayFieldContext) -> FieldOutcome | None:
    spec = _spec(seen)
    if spec.hedging.enabled and spec.breaker.consecutive_local_errors:
        return approximated("off while hedging is on", _POLICY)
    return None


def _ceiling(seen: GatewayFieldContext) -> FieldOutcome | None:
    pool = seen.policies.pools[seen.name]
    if pool.spec.kubernetes is not None and _spec(seen).limits.max_concurrent is None:
        return lost("number of engines in the cluster unknown; set limits.maxConcurrent")
    return None


def _duration(value: Callable[[ResilienceSpec], float]) -> Judge:
    """Durations are whole milliseconds there."""

    def judge(seen: GatewayFieldContext) -> FieldOutcome | None:
        ms = value(_spec(seen)) * 1000
        return (
            approximated("rounded to milliseconds, at least 1 ms", _POLICY) if abs(ms - round(ms)) > 1e-6 else None
        )

    return judge


def _either(first: Judge, second: Judge) -> Judge:
    return lambda seen: first(seen) or second(seen)


def _absent(value: Callable[[ResilienceSpec], Any], how: str = "not set") -> Judge:
    return _where(lambda spec: value(spec) is None, how)


_NO_HEDGES: Final = _where(lambda spec: not spec.hedging.enabled, "no hedging")
_NO_TIMES_BY_TOKENS: Final = _where(
    lambda spec: not spec.timeouts.non_streaming.by_tokens.enabled, "requests of any size are alike"
)
_NO_LARGE: Final = _where(lambda spec: spec.retries.large.tokens_above is None, "requests of any size are alike")
_NO_STRAGGLERS: Final = _where(lambda spec: not spec.straggler.enabled, "straggler ejection is off")
_NO_WINDOW: Final = _where(lambda spec: not spec.slow_start.window, "slow start is off")


def _hashed(seen: GatewayFieldContext) -> FieldOutcome | None:
    """Envoy Gateway allows neither slow start nor zones with a consistent hash."""
    routes = [
        name
        for name, route in seen.policies.routes.items()
        if route.spec.pools[0].pool == seen.name
        and route.spec.affinity is not None
        and route.spec.affinity.by_header_or_cookie
    ]
    if not routes or seen.site.plain:
        return None
    return lost(f"not with the consistent hash of route {routes[0]}")


_LEAVES: Final = leaf_targets("ResiliencePolicy")
JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.mode": _where(lambda spec: spec.mode == "enforce", "exported objects are always enforced"),
        "spec.breaker.mode": _absent(lambda spec: spec.breaker.mode, "as the mode of the policy"),
        "spec.limits.mode": _absent(lambda spec: spec.limits.mode, "as the mode of the policy"),
        "spec.zones.mode": _absent(lambda spec: spec.zones.mode, "as the mode of the policy"),
        "spec.regions.mode": _absent(lambda spec: spec.regions.mode, "as the mode of the policy"),
        "spec.degradation.mode": _absent(lambda spec: spec.degradation.mode, "as the mode of the policy"),
        **{path: _NO_TIMES_BY_TOKENS for path in _LEAVES if ".byTokens." in path},
        **{path: _NO_LARGE for path in _LEAVES if path.startswith("spec.retries.large.")},
        **{path: _NO_STRAGGLERS for path in _LEAVES if path.startswith("spec.straggler.")},
        **{path: _NO_HEDGES for path in _LEAVES if path.startswith("spec.hedging.")},
        "spec.breaker.weighPeers": _where(
            lambda spec: not spec.breaker.weigh_peers, "not compared with other engines"
        ),
        "spec.breaker.cutHung": _where(lambda spec: not spec.breaker.cut_hung, "cutting is off"),
        "spec.breaker.consecutiveLocalErrors": _local_errors,
        "spec.breaker.localEjection": _duration(lambda spec: spec.breaker.local_ejection),
        "spec.limits.learn": _where(
            lambda spec: not spec.limits.learn, "the admission limit is computed from the configured values"
        ),
        "spec.limits.maxWait": _ceiling,
        "spec.limits.concurrentPerSlot": _either(
            _absent(lambda spec: spec.limits.concurrent_per_slot, "the admission limit is set by another field"),
            _ceiling,
        ),
        "spec.limits.maxConcurrent": _absent(
            lambda spec: spec.limits.max_concurrent, "the admission limit is set by another field"
        ),
        "spec.retries.conditions": _conditions,
        "spec.retries.backoff.base": _duration(lambda spec: spec.retries.backoff.base),
        "spec.retries.backoff.max": _duration(lambda spec: spec.retries.backoff.max),
        "spec.retries.retryAfter.honour": _where(
            lambda spec: not spec.retries.retry_after.honour, "this signal is off"
        ),
        "spec.retries.retryAfter.max": _where(
            lambda spec: not spec.retries.retry_after.honour, "this signal is off"
        ),
        "spec.timeouts.adaptive": _where(lambda spec: not spec.timeouts.adaptive, "limits are fixed, not learned"),
        "spec.timeouts.connect": _duration(lambda spec: spec.timeouts.connect),
        "spec.timeouts.streaming.firstToken": _absent(lambda spec: spec.timeouts.streaming.first_token),
        "spec.timeouts.nonStreaming.perTry": _absent(lambda spec: spec.timeouts.non_streaming.per_try),
        "spec.zones.maxCrossZonePercent": _where(
            lambda spec: spec.zones.max_cross_zone_percent == 100, "no limit on ejections"
        ),
        "spec.slowStart.window": _either(
            _either(_NO_WINDOW, _hashed), _duration(lambda spec: spec.slow_start.window)
        ),
        "spec.slowStart.minWeightPercent": _either(_NO_WINDOW, _hashed),
        "spec.zones.preferLocal": _either(
            _where(lambda spec: not spec.zones.prefer_local, "zones are not preferred"), _hashed
        ),
        "spec.degradation.shed.maxTokens": _absent(
            lambda spec: spec.degradation.shed.max_tokens, "long answers are not limited"
        ),
        "spec.degradation.shed.longAnswers": _absent(
            lambda spec: spec.degradation.shed.max_tokens, "long answers are not limited"
        ),
        "spec.degradation.maintenance.enabled": _where(
            lambda spec: not spec.degradation.maintenance.enabled, "maintenance level is off"
        ),
    }
)
