"""Retries, hedges and time limits of one Envoy route.

Streaming and non-streaming requests get different limits because only a stream shows progress: nothing of a
non-streaming answer arrives before all of it exists, so every idle timer would kill healthy long generations.
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
"""Picks after which a retry settles for an engine that was already tried.

Least-request takes the least busy of three draws, so an engine is picked before idler ones only where all three
draw it: one time in 64 among four. Of a hundred picks none was of it for one retry in five.
"""

_STATUS_CODES: Final = "retriable-status-codes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TryTimers:
    """Envoy's timers of one kind of request, in seconds; None is off.

    ``per_try_s`` ends (or hedges) a try without headers, ``per_try_idle_s`` a silent one; both lead to a retry as
    long as no header has gone to the client. ``idle_s`` ends the whole request when nothing moves, and never
    retries.
    """

    per_try_s: float | None
    per_try_idle_s: float | None
    idle_s: float | None


def retry_policy(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> RetryPolicy:
    """How a request of this kind is tried again; ``gated``: headers come with the first token.

    Present even without retries, because Envoy keeps the limits of a single try in here.
    """
    hedged = hedge_delay_s(spec, streaming=streaming, gated=gated) is not None
    retries = spec.retries
    timers = try_timers(spec, streaming=streaming, gated=gated)
    return RetryPolicy(
        retry_on=_retry_on(retries, hedged=hedged),
        num_retries=max(retries.attempts, 1) if hedged else retries.attempts,
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
    """A second try beside the first, or None."""
    if hedge_delay_s(spec, streaming=streaming, gated=gated) is None:
        return None
    return HedgePolicy(hedge_on_per_try_timeout=True)


def hedge_delay_s(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> float | None:
    """When the second try starts; None where there is none.

    A stream without the gate is never hedged: its headers come at once and end Envoy's wait.
    """
    if not spec.hedging.enabled or (streaming and not gated):
        return None
    return spec.hedging.delay


def try_timers(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> TryTimers:
    """The timers of a request of this kind.

    A stream never has both per-try timers: when ``per_try_timeout`` runs out after the headers, Envoy ignores it
    but deletes the idle timer with it, and a stream that hangs later hangs for ever (seen; ``UpstreamRequest``
    in Envoy's router). Where both limits are wanted, one idle timer does for both if it is not the longer
    silence that is allowed between tokens; otherwise that silence is watched by the route's own idle timer.
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
        # The idle timer runs before the first byte, too, so it is never shorter than the wait for the first token.
        return TryTimers(per_try_s=None, per_try_idle_s=max(between_s, first_s or 0.0), idle_s=None)
    return TryTimers(
        per_try_s=first_s, per_try_idle_s=None, idle_s=max(between_s, _longest_silence_s(first_s, spec.retries))
    )


def _longest_silence_s(first_token_s: float, retries: Retries) -> float:
    """How long nothing may reach the client while every try waits for its first token and every pause is long."""
    pause_s = max(retries.backoff.max, retries.retry_after.max if retries.retry_after.honour else 0.0)
    return (retries.attempts + 1) * first_token_s + retries.attempts * pause_s


def _retry_on(retries: Retries, *, hedged: bool) -> str:
    """Conditions as Envoy writes them; empty where there are no second tries at all.

    Envoy hedges only under a retry policy with a condition. Where hedges are wanted and retries are not, that is
    the one about status codes, with no code listed: it never holds.
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
