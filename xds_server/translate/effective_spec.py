"""Effective rules of a route: its policy with live decisions applied.

Decisions are folded into the policy's own model, so later code reads one set of rules.
"""

from dataclasses import dataclass
from typing import Final

from policies.resilience import ResilienceSpec, RetryCondition
from xds_server.decide.decisions import (
    DeadlineDecision,
    DegradationState,
    HedgeDecision,
    PoolDecisions,
    RetryDecision,
    TimeLimits,
)
from xds_server.decide.routing.time_limits import limits_for_cutting_proxies
from xds_server.translate.internal_listeners import uses_internal_listeners

_BEFORE_SENT: Final = (
    RetryCondition.CONNECT_FAILURE,
    RetryCondition.REFUSED_STREAM,
    RetryCondition.RESET_BEFORE_REQUEST,
)
"""The engine has not seen the request: connect failure, or a reset before it was read."""

_IMPLY_THEM: Final = frozenset({RetryCondition.RESET, RetryCondition.GATEWAY_ERROR, RetryCondition.SERVER_ERROR})


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDecisions:
    """Decisions on a pool that its routes carry; None: as in the policy."""

    hedge: HedgeDecision | None = None
    retries: RetryDecision | None = None
    limits: TimeLimits | None = None
    deadline: DeadlineDecision | None = None
    degradation: DegradationState | None = None

    @property
    def route_inputs(self) -> tuple[object, ...]:
        """Inputs of routes, without reasons and times that change every round."""
        hedge, limits, degradation = self.hedge, self.limits, self.degradation
        deadline = self.deadline
        return (
            hedge and (hedge.on, hedge.delay_s, hedge.answer_delay_s),
            self.retries and self.retries.statuses,
            limits
            and (
                limits.first_token_s,
                limits.between_tokens_s,
                limits.stream_total_s,
                limits.per_try_s,
                limits.total_s,
                limits.by_tokens,
            ),
            # Which step is in force is in the runtime layer.
            deadline and tuple(one and one.base_s for one in (deadline.answer, deadline.stream)),
            degradation
            and (
                degradation.hedging_off,
                degradation.max_tokens,
                degradation.reduces_answers,
                degradation.maintenance,
                degradation.acting_level,
            ),
        )


NO_ROUTE_DECISIONS: Final = RouteDecisions()


def route_decisions(
    pool: PoolDecisions | None, spec: ResilienceSpec, *, cuts: bool, longest_s: float | None = None
) -> RouteDecisions:
    """Decisions on a pool for the routes of a proxy.

    ``cuts``: it can cut requests held by a hung engine. ``longest_s``: the pool's ``longestServiceTime``.
    """
    if pool is None:
        return NO_ROUTE_DECISIONS
    limits = pool.limits
    if limits is not None and cuts and spec.breaker.cut_hung and uses_internal_listeners(spec):
        # In shadow mode no verdict cuts anything.
        limits = limits_for_cutting_proxies(
            limits, spec.timeouts, longest_s=None if spec.shadowed(None) else longest_s
        )
    return RouteDecisions(
        hedge=pool.hedge,
        retries=pool.retries,
        limits=limits,
        deadline=pool.deadline,
        degradation=pool.degradation,
    )


def effective_spec(spec: ResilienceSpec, decided: RouteDecisions, *, streaming: bool) -> ResilienceSpec:
    """Policy for one kind of request with these decisions applied."""
    hedge, retries, limits, degradation = decided.hedge, decided.retries, decided.limits, decided.degradation
    changes: dict[str, object] = {}
    if hedge is not None:
        delay_s = hedge.delay_s if streaming else hedge.answer_delay_s
        changes["hedging"] = spec.hedging.model_copy(
            update={"enabled": hedge.on and delay_s is not None, "delay": delay_s}
        )
    if degradation is not None and degradation.hedging_off:
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


def unhedged_spec(spec: ResilienceSpec) -> ResilienceSpec:
    """The same rules without hedges."""
    return spec.model_copy(update={"hedging": spec.hedging.model_copy(update={"enabled": False})})


def at_most_once_spec(spec: ResilienceSpec) -> ResilienceSpec:
    """Rules for requests that must not run twice: retry only if the first try never reached an engine.

    Omits timeouts that exist to retry elsewhere: without a retry they would only end requests that may succeed.
    """
    declared = frozenset(spec.retries.conditions)
    conditions = tuple(one for one in _BEFORE_SENT if one in declared or declared & _IMPLY_THEM)
    return spec.model_copy(
        update={
            "hedging": spec.hedging.model_copy(update={"enabled": False}),
            "retries": spec.retries.model_copy(update={"conditions": conditions, "statuses": ()}),
            "timeouts": spec.timeouts.model_copy(
                update={"non_streaming": spec.timeouts.non_streaming.model_copy(update={"per_try": None})}
            ),
        }
    )
