"""What proxies told of a pool since the server started, as sums that only grow: calls, requests, and GPU time.

Rates and windows (``tally``) are for decisions and forget; these are for alerts, which need to know how much was
lost between two looks however far apart. An entry that was sampled stands for its whole weight. What nobody told,
or what was dropped because there was too much, is in no sum.

GPU time goes by a call's even share of its engine: its duration times the GPUs of the engine over its slots. A
call that waits inside a full engine counts like one that runs, so a queue makes the sum larger than the machines.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric

from policies.route import PriorityClass
from xds_server.telemetry.attempt_outcome import AttemptOutcome

SUCCESS: Final = "success"
FAILURE: Final = "failure"
SHED: Final = "shed"
REJECTED: Final = "rejected"
ABANDONED: Final = "abandoned"

CALL_RESULTS: Final = (SUCCESS, FAILURE, SHED, REJECTED, ABANDONED)
"""What became of a call: a whole answer; the engine's failure; turned away by the engine (503, 429); the caller's
mistake (other 4xx); or nobody waited for its end (the caller left, a hedge lost, the route's time was up).
"""


def call_result(outcome: AttemptOutcome, *, complete: bool, asks: bool) -> str:
    """What became of a call that reached its engine. ``complete``: a whole answer came; ``asks``: see ``Book``."""
    if outcome is AttemptOutcome.SUCCESS:
        return SUCCESS
    if outcome is AttemptOutcome.FAILURE:
        return FAILURE
    if not complete:
        return ABANDONED
    return SHED if asks else REJECTED


class PoolTotals:
    """The sums of one pool."""

    __slots__ = ("attempts", "gpu_s", "refused", "requests", "retries", "timed_out")

    def __init__(self) -> None:
        self.attempts = dict.fromkeys(CALL_RESULTS, 0.0)
        self.gpu_s = dict.fromkeys(CALL_RESULTS, 0.0)
        self.requests = dict.fromkeys(PriorityClass, 0.0)
        self.refused = dict.fromkeys(PriorityClass, 0.0)
        self.retries = 0.0
        self.timed_out = 0.0

    def add_call(self, became: str, *, first: bool, priority: PriorityClass, weight: float, gpu_s: float) -> None:
        """A call has ended. ``first``: of its request; ``gpu_s``: the GPU time it took."""
        self.attempts[became] += weight
        self.gpu_s[became] += weight * gpu_s
        if first:
            self.requests[priority] += weight
        else:
            self.retries += weight

    def add_unsent(self, *, arrived: bool, ended: bool, priority: PriorityClass, weight: float) -> None:
        """A call reached no engine. ``arrived``: its request is counted here; ``ended``: that was its end."""
        if arrived:
            self.requests[priority] += weight
        if ended:
            self.refused[priority] += weight


def families(totals: Mapping[str, PoolTotals]) -> Iterator[Metric]:
    """The sums of all pools, for a scrape."""
    attempts = CounterMetricFamily(
        "switchgear_attempts", "Calls to engines, by what became of them.", labels=("pool", "outcome")
    )
    gpu_s = CounterMetricFamily(
        "switchgear_attempt_gpu_seconds", "GPU time of those calls.", labels=("pool", "outcome")
    )
    requests = CounterMetricFamily("switchgear_requests", "Requests that arrived.", labels=("pool", "class"))
    refused = CounterMetricFamily(
        "switchgear_requests_refused", "Requests refused before an engine had them.", labels=("pool", "class")
    )
    retries = CounterMetricFamily(
        "switchgear_retries", "Calls after the first of a request, hedges included.", labels=("pool",)
    )
    timed_out = CounterMetricFamily(
        "switchgear_requests_timed_out", "Requests that their route's time limit ended.", labels=("pool",)
    )
    for pool, one in totals.items():
        for became in CALL_RESULTS:
            attempts.add_metric((pool, became), one.attempts[became])
            gpu_s.add_metric((pool, became), one.gpu_s[became])
        for priority in PriorityClass:
            requests.add_metric((pool, priority.value), one.requests[priority])
            refused.add_metric((pool, priority.value), one.refused[priority])
        retries.add_metric((pool,), one.retries)
        timed_out.add_metric((pool,), one.timed_out)
    return iter((attempts, gpu_s, requests, refused, retries, timed_out))
