"""The rules in force for a route: what its policy says, with what was decided live in place of it.

Decisions are folded into the policy's own shape, so that everything after this reads one set of rules and cannot
tell whether a number was written or decided.
"""

from typing import Final

from policies.resilience import ResilienceSpec, RetryCondition
from xds_server.decide.decisions import DegradationState, HedgeDecision, RetryDecision, TimeLimits

_BEFORE_SENT: Final = (
    RetryCondition.CONNECT_FAILURE,
    RetryCondition.REFUSED_STREAM,
    RetryCondition.RESET_BEFORE_REQUEST,
)
"""The engine has not seen the request: Envoy could not connect, or was told that nothing was read."""

_IMPLY_THEM: Final = frozenset({RetryCondition.RESET, RetryCondition.GATEWAY_ERROR, RetryCondition.SERVER_ERROR})


def route_inputs(
    hedge: HedgeDecision | None,
    retries: RetryDecision | None,
    limits: TimeLimits | None,
    ladder: DegradationState | None,
) -> tuple[object, ...]:
    """What routes are made of in these decisions, without the reasons and times that change with every round."""
    return (
        hedge and (hedge.on, hedge.delay_s, hedge.answer_delay_s),
        retries and retries.statuses,
        limits
        and (
            limits.first_token_s,
            limits.between_tokens_s,
            limits.stream_total_s,
            limits.per_try_s,
            limits.total_s,
        ),
        ladder and (ladder.hedging_off, ladder.max_tokens, ladder.maintenance),
    )


def effective_spec(
    spec: ResilienceSpec,
    *,
    streaming: bool,
    hedge: HedgeDecision | None,
    retries: RetryDecision | None,
    limits: TimeLimits | None,
    ladder: DegradationState | None,
) -> ResilienceSpec:
    """The policy for one kind of request with these decisions in it; None means as the policy says."""
    changes: dict[str, object] = {}
    if hedge is not None:
        delay_s = hedge.delay_s if streaming else hedge.answer_delay_s
        changes["hedging"] = spec.hedging.model_copy(
            update={"enabled": hedge.on and delay_s is not None, "delay": delay_s}
        )
    if ladder is not None and ladder.hedging_off:
        changes["hedging"] = spec.hedging.model_copy(update={"enabled": False})
    if retries is not None:
        changes["retries"] = spec.retries.model_copy(update={"statuses": retries.statuses})
    if limits is not None:
        of_streams = {
            "first_token": limits.first_token_s,
            "between_tokens": limits.between_tokens_s,
            "total": limits.stream_total_s,
        }
        of_answers = {"per_try": limits.per_try_s, "total": limits.total_s}
        changes["timeouts"] = spec.timeouts.model_copy(
            update={
                "streaming": spec.timeouts.streaming.model_copy(update=of_streams),
                "non_streaming": spec.timeouts.non_streaming.model_copy(update=of_answers),
            }
        )
    return spec.model_copy(update=changes) if changes else spec


def at_most_once_spec(spec: ResilienceSpec) -> ResilienceSpec:
    """The rules for requests that must not run twice: another try only where the first never reached an engine.

    Limits that exist to try elsewhere go, too: without another try they would only end what may yet succeed.
    """
    said = frozenset(spec.retries.conditions)
    conditions = tuple(one for one in _BEFORE_SENT if one in said or said & _IMPLY_THEM)
    return spec.model_copy(
        update={
            "hedging": spec.hedging.model_copy(update={"enabled": False}),
            "retries": spec.retries.model_copy(update={"conditions": conditions, "statuses": ()}),
            "timeouts": spec.timeouts.model_copy(
                update={"non_streaming": spec.timeouts.non_streaming.model_copy(update={"per_try": None})}
            ),
        }
    )
