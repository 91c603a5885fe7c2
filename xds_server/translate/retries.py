"""Retries, hedges and time limits of one Envoy route.

Streaming and non-streaming requests get different limits because only a stream shows progress: nothing of a
non-streaming answer arrives before all of it exists, so every idle timer would kill healthy long generations.
"""

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

from policies.resilience import ResilienceSpec, Retries, StreamTimeouts
from xds_server.translate.shapes import packed, seconds

HOST_ATTEMPTS: Final = 100
"""Picks after which a retry settles for an engine that was already tried."""

_STATUS_CODES: Final = "retriable-status-codes"


def retry_policy(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> RetryPolicy:
    """How a request of this kind is tried again; ``gated``: headers come with the first token.

    Present even without retries, because Envoy keeps the limits of a single try in here.
    """
    hedged = hedge_delay_s(spec, streaming=streaming, gated=gated) is not None
    attempts = max(spec.retries.attempts, 1) if hedged else spec.retries.attempts
    try_s = _try_timeout_s(spec, streaming=streaming, gated=gated)
    idle_s = idle_timeout_s(spec.timeouts.streaming) if streaming else None
    return RetryPolicy(
        retry_on=_retry_on(spec.retries) if attempts else "",
        num_retries=attempts,
        retriable_status_codes=list(spec.retries.statuses),
        per_try_timeout=seconds(try_s) if try_s else None,
        per_try_idle_timeout=seconds(idle_s) if idle_s else None,
        retry_host_predicate=[_NEVER_TWICE],
        host_selection_retry_max_attempts=HOST_ATTEMPTS,
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=seconds(spec.retries.backoff.base),
            max_interval=seconds(max(spec.retries.backoff.base, spec.retries.backoff.max)),
        ),
        rate_limited_retry_back_off=_retry_after(spec.retries),
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


def idle_timeout_s(timeouts: StreamTimeouts) -> float | None:
    """Longest silence of one try of a stream; None where it is off.

    Envoy's timer runs before the first byte, too, so it must not be shorter than the wait for the first token.
    """
    if not timeouts.between_tokens:
        return None
    return max(timeouts.between_tokens, timeouts.first_token or 0.0)


def _try_timeout_s(spec: ResilienceSpec, *, streaming: bool, gated: bool) -> float | None:
    """Envoy's limit for a try to send headers; under hedging it starts the second try and kills nothing."""
    delay_s = hedge_delay_s(spec, streaming=streaming, gated=gated)
    if delay_s is not None:
        return delay_s
    if not streaming:
        return spec.timeouts.non_streaming.per_try
    return spec.timeouts.streaming.first_token if gated else None


def _retry_on(retries: Retries) -> str:
    conditions = [condition.value for condition in retries.conditions]
    if retries.statuses:
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
    name="envoy.retry_host_predicates.previous_hosts", typed_config=packed(PreviousHostsPredicate())
)
