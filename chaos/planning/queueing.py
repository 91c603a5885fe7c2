"""Waiting for a slot: Little's law, M/M/c, and M/M/c/K with an admission limit.

Assumes Poisson arrivals, exponential service times, and one queue for all slots. Real service times vary less
where outputs are bounded, which makes the results conservative. A least-request balancer is slightly worse than
one queue, which makes them optimistic. Sums use logarithms, so they hold for 100 000 slots at any load.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from chaos.planning.error import PlanError
from chaos.planning.spare_engines import fewest_satisfying

MOST_SERVERS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotQueue:
    """``servers`` slots; each request holds one for ``service_s`` on average.

    ``room`` limits requests in the queue, served and waiting; further ones are refused. None: no limit.
    """

    servers: int
    service_s: float
    arrivals_per_s: float
    room: int | None = None

    @property
    def load(self) -> float:
        """Busy slots if nothing is refused (Little's law): arrivals times service time."""
        return self.arrivals_per_s * self.service_s

    @property
    def pressure(self) -> float:
        """Demand over capacity; above 1, the queue never settles."""
        return self.load / self.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """Steady state of a queue.

    ``waits`` is the share of admitted requests that wait at all, ``late`` the share that waits longer than the
    patience given, ``refused`` the share of all requests refused. ``in_flight`` counts served and waiting
    requests. An overloaded queue without a limit never settles: its wait and length are infinite.
    """

    utilization: float
    waits: float
    late: float
    wait_mean_s: float
    in_flight: float
    refused: float


def checked_queue(queue: SlotQueue) -> SlotQueue:
    """Return the queue; raise ``PlanError`` if it is invalid."""
    if queue.servers < 1:
        raise PlanError(f"{queue.servers} slots: need at least one")
    if queue.servers > MOST_SERVERS:
        raise PlanError(f"{queue.servers} slots: the limit is {MOST_SERVERS}")
    if not (math.isfinite(queue.service_s) and queue.service_s > 0):
        raise PlanError("service time must be above 0")
    if not (math.isfinite(queue.arrivals_per_s) and queue.arrivals_per_s >= 0):
        raise PlanError("arrivals must not be negative")
    if queue.room is not None and queue.room < queue.servers:
        raise PlanError(f"admission limit {queue.room} is below {queue.servers} slots")
    return queue


def erlang_b(servers: int, load: float) -> float:
    """Erlang B: share of arrivals that find every server busy, without a queue."""
    return math.exp(-_log_inverse_b(servers, load))


def erlang_c(servers: int, load: float) -> float:
    """Erlang C: share of arrivals that wait, with an unlimited queue; 1 if load >= servers."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def queue_stats(queue: SlotQueue, *, patience_s: float = 0.0) -> QueueStats:
    """Compute the steady state; ``late`` uses ``patience_s``."""
    checked_queue(queue)
    if patience_s < 0:
        raise PlanError("wait must not be negative")
    if queue.arrivals_per_s == 0:
        return QueueStats(utilization=0, waits=0, late=0, wait_mean_s=0, in_flight=0, refused=0)
    return _endless(queue, patience_s) if queue.room is None else _bounded(queue, queue.room, patience_s)


def wait_quantile(queue: SlotQueue, share: float) -> float:
    """Wait that the share ``share`` of admitted requests does not exceed; infinite if the queue never settles."""
    _judge_share(share)
    found = queue_stats(queue)
    if math.isinf(found.wait_mean_s):
        return math.inf
    if found.waits <= 1 - share:
        return 0.0
    low, high = 0.0, found.wait_mean_s + queue.service_s / queue.servers
    while queue_stats(queue, patience_s=high).late > 1 - share:
        low, high = high, 2 * high
    for _ in range(30):  # to a part in 10^9
        middle = (low + high) / 2
        late = queue_stats(queue, patience_s=middle).late > 1 - share
        low, high = (middle, high) if late else (low, middle)
    return high


def most_arrivals(servers: int, service_s: float, *, patience_s: float, late: float) -> float:
    """Highest arrivals per second with at most the share ``late`` waiting over ``patience_s``."""
    checked_queue(SlotQueue(servers=servers, service_s=service_s, arrivals_per_s=0))
    _judge_share(late)

    def fits(arrivals_per_s: float) -> bool:
        queue = SlotQueue(servers=servers, service_s=service_s, arrivals_per_s=arrivals_per_s)
        return queue.pressure < 1 and queue_stats(queue, patience_s=patience_s).late <= late

    low, high = 0.0, servers / service_s
    for _ in range(50):  # to a part in 10^15
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fewest_servers(
    arrivals_per_s: float, service_s: float, *, patience_s: float, late: float, each: int = 1
) -> int:
    """Fewest engines of ``each`` slots with at most the share ``late`` waiting over ``patience_s``."""
    if each < 1:
        raise PlanError(f"{each} slots per engine: need at least one")
    _judge_share(late)
    least = max(1, math.ceil(arrivals_per_s * service_s / each))

    def fits(more: int) -> bool:
        queue = SlotQueue(servers=(least + more) * each, service_s=service_s, arrivals_per_s=arrivals_per_s)
        return queue.pressure < 1 and queue_stats(queue, patience_s=patience_s).late <= late

    checked_queue(SlotQueue(servers=least * each, service_s=service_s, arrivals_per_s=arrivals_per_s))
    return least + fewest_satisfying(fits, most=MOST_SERVERS // each)


def _judge_share(share: float) -> None:
    if not 0 < share < 1:
        raise PlanError(f"share {share:g}: must be between 0 and 1")


def _endless(queue: SlotQueue, patience_s: float) -> QueueStats:
    if queue.pressure >= 1:
        return QueueStats(utilization=1, waits=1, late=1, wait_mean_s=math.inf, in_flight=math.inf, refused=0)
    waits = erlang_c(queue.servers, queue.load)
    spare_per_s = (queue.servers - queue.load) / queue.service_s
    mean_s = waits / spare_per_s
    return QueueStats(
        utilization=queue.pressure,
        waits=waits,
        late=waits * math.exp(-spare_per_s * patience_s),
        wait_mean_s=mean_s,
        in_flight=queue.load + queue.arrivals_per_s * mean_s,
        refused=0,
    )


def _bounded(queue: SlotQueue, room: int, patience_s: float) -> QueueStats:
    """M/M/c/K. Log weights of the states from all servers busy (weight 1) upwards."""
    beyond = np.arange(room - queue.servers + 1)
    logs = beyond * math.log(queue.pressure)
    below = _log_inverse_b(queue.servers, queue.load)  # up to and with all servers busy
    total = float(logsumexp([below, *([logsumexp(logs[1:])] if room > queue.servers else [])]))
    states = np.exp(logs - total)
    refused = float(states[-1])
    admitted = 1 - refused
    lining_up = float((beyond * states).sum())
    # An admitted request that finds n waiting waits for n + 1 completions, an Erlang time. It exceeds patience
    # with the Poisson probability of at most n completions in that time.
    found = states[:-1] / admitted
    ends = queue.servers / queue.service_s * patience_s
    late = float((found * _at_most(len(found), ends)).sum())
    return QueueStats(
        utilization=min(1.0, queue.pressure * admitted),
        waits=min(1.0, float(found.sum())),
        late=late,
        wait_mean_s=lining_up / (queue.arrivals_per_s * admitted),
        in_flight=queue.load * admitted + lining_up,
        refused=refused,
    )


def _at_most(count: int, mean: float) -> NDArray[np.float64]:
    """Poisson probabilities of at most 0, 1, ... ``count - 1``."""
    if mean == 0:
        return np.ones(count)
    number = np.arange(count)
    summed: NDArray[np.float64] = np.cumsum(np.exp(number * math.log(mean) - mean - gammaln(number + 1)))
    return np.minimum(1.0, summed)


def _log_inverse_b(servers: int, load: float) -> float:
    """Logarithm of 1 / Erlang B: the sum of ``c! / (c - k)! / load^k`` for k from 0 to c."""
    if load == 0:
        return math.inf
    gone = np.arange(servers + 1)
    return float(logsumexp(gammaln(servers + 1) - gammaln(servers - gone + 1) - gone * math.log(load)))
