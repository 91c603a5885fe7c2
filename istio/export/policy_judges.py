"""ResiliencePolicy fields whose outcome in Istio depends on the value or on other fields."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from istio.export.destination_rules import exported_affinity, locality_labels
from istio.export.field_context import FieldContext, Judge
from istio.export.istio_objects import LARGEST_INT32
from policies.fidelity import FieldOutcome, approximated, kept, lost
from policies.resilience import ResilienceSpec


def _spec(seen: FieldContext) -> ResilienceSpec:
    return seen.policies.effective[seen.name]


def _when(condition: bool, outcome: FieldOutcome) -> FieldOutcome | None:
    return outcome if condition else None


def _absent(why: str) -> Judge:
    """Exact if the field is not set."""
    return lambda seen: _when(seen.value is None, kept(why, ""))


def _off(value: Any, why: str) -> Judge:
    """Exact for a value without effect."""
    return lambda seen: _when(seen.value == value, kept(why, ""))


def _without(reason: str, is_off: str) -> Judge:
    """Exact if its part is off (``straggler.enabled``)."""
    part, field = is_off.split(".")
    return lambda seen: _when(not getattr(getattr(_spec(seen), part), field), kept(reason, ""))


def _no_long_answers(seen: FieldContext) -> FieldOutcome | None:
    unlimited = _spec(seen).degradation.shed.max_tokens is None
    return _when(unlimited, kept("long answers are not limited", ""))


def _first_token(seen: FieldContext) -> FieldOutcome | None:
    if seen.value is None:
        return kept("no such limit in Istio", "")
    gated = seen.policies.pools[seen.name].spec.first_token_gate
    return _when(
        not gated, approximated("without the first-token gate it only raises betweenTokens", "EnvoyFilter")
    )


def _per_try(seen: FieldContext) -> FieldOutcome | None:
    return _when(seen.value is None, kept("no such limit in Istio", ""))


def _slow_start(seen: FieldContext) -> FieldOutcome | None:
    if not _spec(seen).slow_start.window or exported_affinity(seen.policies, seen.name) is None:
        return None
    return lost("Istio allows no warm-up with a consistent hash")


def _local_errors(seen: FieldContext) -> FieldOutcome | None:
    off = seen.value == 0 or _spec(seen).hedging.enabled
    return _when(off, kept("disabled by a patch; Envoy's default would eject after five", "EnvoyFilter"))


def _connections(seen: FieldContext) -> FieldOutcome | None:
    return _when(seen.value > LARGEST_INT32, approximated("Istio's maximum is 2147483647", "DestinationRule"))


def _hedging(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return kept("no hedging", "")
    return _when(_spec(seen).hedging.delay is None, lost("needs hedging.delay: an export has no measured latency"))


def _ceiling(seen: FieldContext) -> FieldOutcome | None:
    limits, pool = _spec(seen).limits, seen.policies.pools[seen.name]
    if seen.value is None:
        return kept("the admission limit is set by another field", "")
    if pool.spec.kubernetes is not None and limits.max_concurrent is None:
        return lost("number of engines in the cluster unknown; set limits.maxConcurrent")
    return None


def _local(seen: FieldContext) -> FieldOutcome | None:
    if not seen.value:
        return kept("localityLbSetting.enabled: false", "DestinationRule")
    named = next(locality_labels(seen.policies.pools[seen.name]), None)
    return _when(named is None, kept("no engine has a zone or region", ""))


def _spill(seen: FieldContext) -> FieldOutcome | None:
    return _when(not seen.value, lost("Istio fails over to other zones when the local one is unhealthy"))


def _millisecond(seen: FieldContext) -> FieldOutcome | None:
    rough = abs(seen.value * 1000 - round(seen.value * 1000)) > 1e-6
    return _when(rough, approximated("rounded to milliseconds, at least 1 ms", "DestinationRule"))


def _any_size(in_force: Callable[[ResilienceSpec], bool]) -> Judge:
    """Exact where nothing depends on the tokens of a request."""
    return lambda seen: _when(not in_force(_spec(seen)), kept("requests of any size are alike", ""))


_STRAGGLERS_OFF: Final = _without("straggler ejection is off", "straggler.enabled")
_HEDGING_OFF: Final = _without("no hedging", "hedging.enabled")

JUDGES: Final[Mapping[str, Judge]] = MappingProxyType(
    {
        "spec.mode": _off("enforce", "exported objects are always enforced"),
        **{
            f"spec.timeouts.nonStreaming.byTokens.{field}": _any_size(
                lambda spec: spec.timeouts.non_streaming.by_tokens.enabled
            )
            for field in ("enabled", "perToken", "min")
        },
        **{
            f"spec.retries.large.{field}": _any_size(lambda spec: spec.retries.large.tokens_above is not None)
            for field in ("tokensAbove", "attempts", "belowUtilizationPercent")
        },
        "spec.hedging.maxTokens": _any_size(
            lambda spec: spec.hedging.enabled and spec.hedging.max_tokens is not None
        ),
        **{
            f"spec.{part}.mode": _absent("as the mode of the policy")
            for part in ("breaker", "limits", "zones", "regions", "degradation")
        },
        "spec.straggler.mode": _STRAGGLERS_OFF,
        "spec.straggler.enabled": _off(False, "straggler ejection is off"),
        "spec.straggler.slowerThan": _STRAGGLERS_OFF,
        "spec.straggler.after": _STRAGGLERS_OFF,
        "spec.straggler.minPeers": _STRAGGLERS_OFF,
        "spec.breaker.weighPeers": _off(False, "failures are not compared with other engines"),
        "spec.breaker.cutHung": _off(False, "cutting is off"),
        "spec.breaker.consecutiveLocalErrors": _local_errors,
        "spec.breaker.localEjection": _millisecond,
        "spec.limits.learn": _off(False, "the admission limit is computed from the configured values"),
        "spec.limits.maxWait": _ceiling,
        "spec.limits.concurrentPerSlot": _ceiling,
        "spec.limits.maxConcurrent": _absent("the admission limit is set by another field"),
        "spec.limits.maxConnections": _connections,
        "spec.retries.backoff.base": _millisecond,
        "spec.timeouts.adaptive": _off(False, "limits are fixed, not learned"),
        "spec.timeouts.connect": _millisecond,
        "spec.timeouts.streaming.firstToken": _first_token,
        "spec.timeouts.streaming.betweenTokens": _absent("there is no such limit"),
        "spec.timeouts.nonStreaming.perTry": _per_try,
        "spec.hedging.mode": _absent("as the mode of the policy"),
        "spec.hedging.enabled": _hedging,
        "spec.hedging.delay": _absent("there is none"),
        "spec.hedging.delayQuantilePercent": _HEDGING_OFF,
        "spec.hedging.maxPercent": _HEDGING_OFF,
        "spec.hedging.belowUtilizationPercent": _HEDGING_OFF,
        "spec.zones.preferLocal": _local,
        "spec.slowStart.window": _slow_start,
        "spec.slowStart.minWeightPercent": _slow_start,
        "spec.zones.spill": _spill,
        "spec.zones.maxCrossZonePercent": _off(100.0, "no limit on ejections"),
        "spec.degradation.shed.maxTokens": _absent("long answers are not limited"),
        "spec.degradation.shed.longAnswers": _no_long_answers,
        "spec.degradation.maintenance.enabled": _off(False, "maintenance level is off"),
    }
)
