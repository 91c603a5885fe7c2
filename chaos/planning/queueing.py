"""Waiting for a slot: Little's law, and the queue with many servers, M/M/c, and with a ceiling, M/M/c/K.

Arrivals are Poisson and answer times exponential; slots serve one common queue. Answers of real engines scatter
less than that where outputs are bounded, and a least-request balancer over engines comes close to a common
queue but not quite; the first makes these sums careful, the second bold. Sums are in logarithms, so that they
hold for 100 000 slots and at any load.
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
    """``servers`` slots, of which each call takes one for ``service_s`` on the mean, at so many arrivals.

    ``room`` is how many may be in it at once, waiting and served; the next is refused. None: nobody is refused.
    """

    servers: int
    service_s: float
    arrivals_per_s: float
    room: int | None = None

    @property
    def load(self) -> float:
        """Slots that the arrivals keep busy if none is refused (Little's law): arrivals times service time."""
        return self.arrivals_per_s * self.service_s

    @property
    def pressure(self) -> float:
        """What is asked over what can be served; more than 1 cannot be served whatever the wait."""
        return self.load / self.servers


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """What a queue does in the long run.

    ``waits`` is the share of admitted requests that wait at all, ``late`` of those that wait longer than was asked
    about, ``refused`` the share of all that is refused. ``in_flight`` counts those served and those waiting. A
    queue that gets more than it can serve and refuses nothing never settles: its wait and number are infinite.
    """

    utilization: float
    waits: float
    late: float
    wait_mean_s: float
    in_flight: float
    refused: float


def checked_queue(queue: SlotQueue) -> SlotQueue:
    """The same queue, or ``PlanError`` for one that cannot be."""
    if queue.servers < 1:
        raise PlanError(f"{queue.servers} slots: at least one is needed")
    if queue.servers > MOST_SERVERS:
        raise PlanError(f"{queue.servers} slots: sums are done for up to {MOST_SERVERS}")
    if not (math.isfinite(queue.service_s) and queue.service_s > 0):
        raise PlanError("a service time must be more than nothing")
    if not (math.isfinite(queue.arrivals_per_s) and queue.arrivals_per_s >= 0):
        raise PlanError("arrivals cannot be negative")
    if queue.room is not None and queue.room < queue.servers:
        raise PlanError(f"room for {queue.room} in {queue.servers} slots: a ceiling below the slots wastes them")
    return queue


def erlang_b(servers: int, load: float) -> float:
    """Share of arrivals that find every server busy where nobody waits (Erlang B)."""
    return math.exp(-_log_inverse_b(servers, load))


def erlang_c(servers: int, load: float) -> float:
    """Share of arrivals that wait where everybody may (Erlang C); 1 where the load is all the servers or more."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def queue_stats(queue: SlotQueue, *, patience_s: float = 0.0) -> QueueStats:
    """How a queue does; ``late`` is about ``patience_s``."""
    checked_queue(queue)
    if patience_s < 0:
        raise PlanError("a wait cannot be shorter than nothing")
    if queue.arrivals_per_s == 0:
        return QueueStats(utilization=0, waits=0, late=0, wait_mean_s=0, in_flight=0, refused=0)
    return _endless(queue, patience_s) if queue.room is None else _bounded(queue, queue.room, patience_s)


def most_arrivals(servers: int, service_s: float, *, patience_s: float, late: float) -> float:
    """The arrivals per second that these slots take with at most ``late`` of them waiting over ``patience_s``."""
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
    """The smallest number of engines of ``each`` slots with at most ``late`` waiting over ``patience_s``."""
    if each < 1:
        raise PlanError(f"{each} slots per engine: at least one is needed")
    _judge_share(late)
    least = max(1, math.ceil(arrivals_per_s * service_s / each))

    def fits(more: int) -> bool:
        queue = SlotQueue(servers=(least + more) * each, service_s=service_s, arrivals_per_s=arrivals_per_s)
        return queue.pressure < 1 and queue_stats(queue, patience_s=patience_s).late <= late

    checked_queue(SlotQueue(servers=least * each, service_s=service_s, arrivals_per_s=arrivals_per_s))
    return least + fewest_satisfying(fits, most=MOST_SERVERS // each)


def _judge_share(late: float) -> None:
    if not 0 < late < 1:
        raise PlanError(f"late {late:g}: the share that may wait too long must lie between 0 and 1")


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
    """With a ceiling. Weights are of the states from all servers busy upwards, that one being 1, in logarithms."""
    beyond = np.arange(room - queue.servers + 1)
    logs = beyond * math.log(queue.pressure)
    below = _log_inverse_b(queue.servers, queue.load)  # up to and with all servers busy
    total = float(logsumexp([below, *([logsumexp(logs[1:])] if room > queue.servers else [])]))
    states = np.exp(logs - total)
    refused = float(states[-1])
    admitted = 1 - refused
    lining_up = float((beyond * states).sum())
    # Who is let in finds n waiting with the probability of that state among those that let in, and then waits for
    # n + 1 ends of calls: an Erlang time, over patience with the Poisson probability of at most n ends in it.
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
    """The logarithm of one over Erlang B: of the sum of ``c! / (c - k)! / load^k`` over k from 0 to c."""
    if load == 0:
        return math.inf
    gone = np.arange(servers + 1)
    return float(logsumexp(gammaln(servers + 1) - gammaln(servers - gone + 1) - gone * math.log(load)))
