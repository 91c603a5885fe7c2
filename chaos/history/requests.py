"""What became of a request, as a line of the history."""

from chaos.history.events import Request
from chaos.history.outcomes import Outcome


def as_request(outcome: Outcome, began_s: float) -> Request:
    """The outcome as an event; ``began_s`` is the monotonic time at which the first request could arrive."""
    return Request(
        at_s=outcome.arrived_at_s - began_s,
        request_id=outcome.request_id,
        question=outcome.question or outcome.request_id,
        try_number=outcome.try_number,
        proxy=outcome.target,
        streaming=outcome.streaming,
        batch=outcome.batch,
        lag_s=outcome.lag_s,
        status=outcome.status,
        reason=outcome.reason,
        first_token_s=outcome.first_token_s,
        latency_s=outcome.latency_s,
        tokens=outcome.tokens,
        longest_gap_s=outcome.longest_gap_s,
        fallback=outcome.fallback,
        refusal=outcome.refusal,
    )
