"""Retries, hedges and timeouts of one Envoy route.

Streaming and non-streaming requests get different timeouts because only a stream shows progress: a non-streaming
answer arrives complete at the end, so an idle timer would kill healthy long generations.
"""

from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.route.v3 import (
    HedgePolicy,
    RetryPolicy,
    RetryPolicyRateLimitedRetryBackOff,
    RetryPolicyResetHeader,
    RetryPolicyResetHeaderFormat,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
)
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate

from policies.resilience import ResilienceSpec, Retries
from xds_server.translate.envoy_values import pack_any, seconds

HOST_SELECTION_ATTEMPTS: Final = 1000
"""Picks after which a retry accepts an engine that was already tried.

Least-request takes the least busy of three draws, so a busier engine is picked only if all three draw it: one
time in 64 among four. With a hundred picks, one retry in five found no other engine.
"""

_STATUS_CODES: Final = "retriable-status-codes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TryTimers:
    """Envoy's timers for one kind of request, in seconds; None is off.

    ``per_try_s`` ends (or hedges) a try without headers, ``per_try_idle_s`` a silent one; both are retried until
    headers reach the client. ``idle_s`` ends the whole request on silence, without retry.
    """

    per_try_s: float | None
    per_try_idle_s: float | None
    idle_s: float | None


def retry_policy(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> RetryPolicy:
    """Retry policy for this kind of request; ``gated``: headers come with the first token.

    Present even without retries: it holds the per-try timeouts.
    """
    hedged = hedge_delay_s(spec, streaming=streaming, gated=gated) is not None
    retries = spec.retries
    timers = try_timers(spec, streaming=streaming, gated=gated)
    return RetryPolicy(
        retry_on=_retry_on(retries, hedged=hedged),
        num_retries=spec.hedging.per_request if hedged else retries.attempts,
        retriable_status_codes=list(retries.statuses_in_force) if retries.attempts else [],
        per_try_timeout=seconds(timers.per_try_s) if timers.per_try_s else None,
        per_try_idle_timeout=seconds(timers.per_try_idle_s) if timers.per_try_idle_s else None,
        retry_host_predicate=[_NEVER_TWICE],
        host_selection_retry_max_attempts=HOST_SELECTION_ATTEMPTS,
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=seconds(retries.backoff.base),
            max_interval=seconds(max(retries.backoff.base, retries.backoff.max)),
        ),
        rate_limited_retry_back_off=_retry_after(retries),
    )


def hedge_policy(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> HedgePolicy | None:
    """Hedge policy, or None."""
    if hedge_delay_s(spec, streaming=streaming, gated=gated) is None:
        return None
    return HedgePolicy(hedge_on_per_try_timeout=True)


def hedge_delay_s(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> float | None:
    """Delay of the hedge; None without hedging.

    A stream without the gate is never hedged: its headers come at once and end Envoy's wait.
    """
    if not spec.hedging.enabled or (streaming and not gated):
        return None
    return spec.hedging.delay


def try_timers(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> TryTimers:
    """Timers for this kind of request.

    A stream never has both per-try timers: when ``per_try_timeout`` fires after the headers, Envoy ignores it but
    also deletes the idle timer, and a stream that hangs later hangs forever (observed; ``UpstreamRequest`` in
    Envoy's router). If both limits are wanted, one idle timer serves both unless the allowed silence between
    tokens is longer; then the route's own idle timer watches that silence.
    """
    delay_s = hedge_delay_s(spec, streaming=streaming, gated=gated)
    if not streaming:
        per_try_s = spec.timeouts.non_streaming.per_try if delay_s is None else delay_s
        return TryTimers(per_try_s=per_try_s, per_try_idle_s=None, idle_s=None)
    between_s = spec.timeouts.streaming.between_tokens or None
    first_s = spec.timeouts.streaming.first_token or None
    if delay_s is not None:
        idle_s = None if between_s is None else max(between_s, first_s or 0.0) + delay_s
        return TryTimers(per_try_s=delay_s, per_try_idle_s=None, idle_s=idle_s)
    if between_s is None:
        return TryTimers(per_try_s=first_s if gated else None, per_try_idle_s=None, idle_s=None)
    if first_s is None or not gated or between_s <= first_s:
        # The idle timer also runs before the first byte, so it must not be shorter than the wait for the first
        # token.
        return TryTimers(per_try_s=None, per_try_idle_s=max(between_s, first_s or 0.0), idle_s=None)
    return TryTimers(
        per_try_s=first_s, per_try_idle_s=None, idle_s=max(between_s, _longest_silence_s(first_s, spec.retries))
    )


def _longest_silence_s(first_token_s: float, retries: Retries) -> float:
    """Maximum silence towards the client: every try waits for its first token, with maximum backoff."""
    return (retries.attempts + 1) * first_token_s + retries.attempts * longest_pause_s(retries)


def longest_pause_s(retries: Retries) -> float:
    """The longest wait before a retry."""
    return max(retries.backoff.max, retries.retry_after.max if retries.retry_after.honour else 0.0)


def _retry_on(retries: Retries, *, hedged: bool) -> str:
    """Retry conditions in Envoy's format; empty without retries and hedges.

    Envoy hedges only under a retry policy with a condition. For hedges without retries this is the condition on
    status codes without any code, which never holds.
    """
    conditions = [condition.value for condition in retries.conditions] if retries.attempts else []
    if (retries.attempts and retries.statuses_in_force) or (hedged and not conditions):
        conditions.append(_STATUS_CODES)
    return ",".join(conditions)


def _retry_after(retries: Retries) -> RetryPolicyRateLimitedRetryBackOff | None:
    if not retries.retry_after.honour:
        return None
    return RetryPolicyRateLimitedRetryBackOff(
        reset_headers=[RetryPolicyResetHeader(name="retry-after", format=RetryPolicyResetHeaderFormat.SECONDS)],
        max_interval=seconds(retries.retry_after.max),
    )


_NEVER_TWICE: Final = RetryPolicyRetryHostPredicate(
    name="envoy.retry_host_predicates.previous_hosts", typed_config=pack_any(PreviousHostsPredicate())
)
