"""Log lines that peers may cause: of limits, one of each kind a minute and few of each host; and of events."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from engine.bounded_dict import BoundedDict
from xds_server.auth.reached_limits import PeerLimit, ReachedLimits
from xds_server.model.token_bucket import RateLimit, TokenBucket, is_full, take_token

AGAIN_S: Final = 60.0
"""A line of one kind is not repeated within this time."""

LINES_OF_HOST: Final = RateLimit(burst=10.0, per_s=0.1)
"""Of all kinds: a host may choose the names in them."""

EVENTS_OF_HOST: Final = RateLimit(burst=1_000.0, per_s=0.5)
"""Lines of events: a thousand proxies behind one gateway reconnect at once; 10 MB a day at most."""

EVENTS_OF_NODE: Final = RateLimit(burst=100.0, per_s=0.1)
"""Of one event and node."""

MAX_REMEMBERED: Final = 4_096

_log = structlog.get_logger()


class LogBudget:
    """Lines written so far, by host and by kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._written_at_s: BoundedDict[tuple[str, str], float] = BoundedDict(MAX_REMEMBERED)
        self._hosts: BoundedDict[str, TokenBucket] = BoundedDict(MAX_REMEMBERED)

    def take(self, host: str, kind: str) -> bool:
        """Whether a line of this kind may be written about this host now."""
        now_s = self._clock()
        if now_s - self._written_at_s.get((host, kind), float("-inf")) < AGAIN_S:
            return False
        left = take_token(self._hosts.get(host), LINES_OF_HOST, now_s)
        if left is None:
            return False
        self._hosts[host] = left
        self._written_at_s[host, kind] = now_s
        self._hosts.expire(partial(is_full, rate=LINES_OF_HOST, now_s=now_s))
        self._written_at_s.expire(lambda at_s: now_s - at_s >= AGAIN_S)
        return True


class EventLines:
    """Log lines of events that peers cause at will: connects, disconnects, refusals.

    ``on_suppressed`` is called for each line left out; the first one within a minute is logged by host.
    """

    def __init__(
        self,
        on_suppressed: Callable[[], object] = lambda: None,
        reached: ReachedLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_suppressed = on_suppressed
        self._reached = reached or ReachedLimits(clock)
        self._clock = clock
        self._notices = LogBudget(clock)
        self._hosts: BoundedDict[str, TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._nodes: BoundedDict[tuple[str, str, str], TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._suppressed: BoundedDict[str, int] = BoundedDict(MAX_REMEMBERED)

    def take(self, event: str, host: str, node: str) -> bool:
        """Whether a line of this event may be written about this node of a host now."""
        now_s, key = self._clock(), (event, host, node)
        of_host = take_token(self._hosts.get(host), EVENTS_OF_HOST, now_s)
        of_node = take_token(self._nodes.get(key), EVENTS_OF_NODE, now_s)
        if of_host is not None and of_node is not None:
            self._hosts[host], self._nodes[key] = of_host, of_node
            self._hosts.expire(partial(is_full, rate=EVENTS_OF_HOST, now_s=now_s))
            self._nodes.expire(partial(is_full, rate=EVENTS_OF_NODE, now_s=now_s))
            return True
        self._on_suppressed()
        self._reached.add(PeerLimit.LINES, host, node)
        count = self._suppressed.get(host, 0) + 1
        if self._notices.take(host, ""):
            _log.warning("peers.lines_suppressed", host=host, node=node, lines=count)
            count = 0
        self._suppressed[host] = count
        return False
