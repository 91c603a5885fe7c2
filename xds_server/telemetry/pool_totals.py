"""Totals of a pool since the server started, from proxy telemetry: calls, requests, and GPU time.

Rates and windows (``tally``) are for decisions and expire; these only grow and are for alerts, which need losses
between two scrapes, however far apart. A sampled entry counts with its full weight. Missing or dropped entries are
in no total.

GPU time of a call is its even share of its engine: its duration times the engine's GPUs over its slots. A call
that waits inside a full engine counts like a running one, so a queue makes the total exceed the machines.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from policies.route import PriorityClass
from xds_server.metrics.fleet_metrics import CallerMetrics
from xds_server.model.pool_traffic import CallResult, DeadlineResult
from xds_server.telemetry.attempt_outcome import AttemptOutcome


def call_result(outcome: AttemptOutcome, *, complete: bool, asks: bool) -> CallResult:
    """The result of a call that reached its engine; ``complete``: the whole response arrived.

    For ``asks`` see ``TrafficStore``.
    """
    if outcome is AttemptOutcome.SUCCESS:
        return CallResult.SUCCESS
    if outcome is AttemptOutcome.FAILURE:
        return CallResult.FAILURE
    if not complete:
        return CallResult.ABANDONED
    return CallResult.SHED if asks else CallResult.REJECTED


class PoolTotals:
    """The totals of one pool."""

    __slots__ = ("attempts", "deadlines", "gpu_s", "refused", "requests", "retries", "timed_out")

    def __init__(self) -> None:
        self.attempts = dict.fromkeys(CallResult, 0.0)
        self.deadlines = dict.fromkeys(DeadlineResult, 0.0)
        self.gpu_s = dict.fromkeys(CallResult, 0.0)
        self.requests = dict.fromkeys(PriorityClass, 0.0)
        self.refused = dict.fromkeys(PriorityClass, 0.0)
        self.retries = 0.0
        self.timed_out = 0.0

    def add_call(
        self, became: CallResult, *, first: bool, priority: PriorityClass, weight: float, gpu_s: float
    ) -> None:
        """Add an ended call. ``first``: of its request; ``gpu_s``: its GPU time."""
        self.attempts[became] += weight
        self.gpu_s[became] += weight * gpu_s
        if first:
            self.requests[priority] += weight
        else:
            self.retries += weight

    def add_unsent(self, *, arrived: bool, ended: bool, priority: PriorityClass, weight: float) -> None:
        """Add a call that reached no engine. ``arrived``: count its request; ``ended``: it ended the request."""
        if arrived:
            self.requests[priority] += weight
        if ended:
            self.refused[priority] += weight


def families(totals: Mapping[str, PoolTotals]) -> Iterator[Metric]:
    """The totals of all pools, for a scrape."""
    pools = totals.items()
    yield CallerMetrics.attempts.family(
        {(pool, result.value): one.attempts[result] for pool, one in pools for result in CallResult}
    )
    yield CallerMetrics.attempt_gpu_seconds.family(
        {(pool, result.value): one.gpu_s[result] for pool, one in pools for result in CallResult}
    )
    yield CallerMetrics.requests.family(
        {(pool, priority.value): one.requests[priority] for pool, one in pools for priority in PriorityClass}
    )
    yield CallerMetrics.requests_refused.family(
        {(pool, priority.value): one.refused[priority] for pool, one in pools for priority in PriorityClass}
    )
    yield CallerMetrics.retries.family({(pool,): one.retries for pool, one in pools})
    yield CallerMetrics.deadline_requests.family(
        {(pool, result.value): one.deadlines[result] for pool, one in pools for result in DeadlineResult}
    )
    yield CallerMetrics.requests_timed_out.family({(pool,): one.timed_out for pool, one in pools})
