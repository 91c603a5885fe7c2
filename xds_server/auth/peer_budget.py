"""CPU time that a peer's messages may use: by node, and by host. Pure.

The server has one event loop, so one peer's messages delay all others. A peer that has used up its time is not
read until it has some again; HTTP/2 flow control then holds its messages back. Nothing is lost; no stream ends.

A node that uses little is read even if its host has used up its time: others may share the host.

What a node has saved up it may use, but not all at once: it pauses after long messages, so that those of others
come between.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from engine.bounded_dict import BoundedDict
from xds_server.model.token_bucket import RateLimit, TokenBucket, available_tokens, is_full

MAX_REMEMBERED: Final = 16_384
"""Limit of remembered nodes and hosts each; the longest unused are forgotten, and have a full budget again."""

FORGET_EACH: Final = 64
"""Messages until buckets that are full again are forgotten: made-up nodes would fill memory for hours."""

FLOOR_FORGOTTEN_S: Final = 600.0
"""Time without messages after which a node that uses little counts as unknown."""

MAX_WAIT_S: Final = 5.0
"""Longest wait before the budget is checked again."""


FLOOR_CPU: Final = RateLimit(burst=0.1, per_s=0.005)
"""Of a node that never waits for its host: 25 ACKs a second."""

NEW_FLOOR_S: Final = 0.01
"""What an unknown node has of that: its first requests take 1 to 3 ms. A host may make up any number of nodes."""

OPENING_CPU: Final = RateLimit(burst=1.5, per_s=0.1)
"""Of a host's new streams and large first messages, even if it has used up its time: 1 500 streams at once."""

ALL_CPU: Final = RateLimit(burst=2.0, per_s=0.5)
"""Of a host, for messages of all kinds: each kind has a limit, and they share one event loop."""

MOST_CPU: Final = RateLimit(burst=4.0, per_s=0.75)
"""The same, including nodes that use little."""

PEAK_CPU: Final = RateLimit(burst=0.02, per_s=0.33)
"""Of a node at any moment, whatever it has saved up: work of others takes 1.5 times as long meanwhile."""

PEAK_HOST_CPU: Final = RateLimit(burst=0.05, per_s=0.5)
"""Of all nodes of a host together that use much, for messages of all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimits:
    """Seconds of CPU time per second: of a node, of a host, and of a node that never waits for its host.

    ``peak``: of a node at any moment.
    """

    node: RateLimit
    host: RateLimit
    floor: RateLimit = FLOOR_CPU
    peak: RateLimit = PEAK_CPU


DISCOVERY_CPU: Final = CpuLimits(node=RateLimit(burst=0.5, per_s=0.1), host=RateLimit(burst=2.0, per_s=0.25))
"""An ACK takes 0.1 to 0.2 ms and a new proxy 1 to 3 ms, so 1 000 at once from one host fit the burst."""

LOAD_REPORT_CPU: Final = CpuLimits(node=RateLimit(burst=0.5, per_s=0.1), host=RateLimit(burst=1.0, per_s=0.2))
"""A report of 10 000 engines takes 20 ms, four times a second."""

ACCESS_LOG_CPU: Final = CpuLimits(
    node=RateLimit(burst=1.0, per_s=0.4),
    host=RateLimit(burst=1.0, per_s=0.4),
    peak=RateLimit(burst=0.02, per_s=0.4),
)
"""The whole budget of access log entries takes a quarter of a core, and may come from one gateway."""


class HostTime:
    """What hosts have used for messages of all kinds: one object for all services of a port."""

    def __init__(
        self, limit: RateLimit = ALL_CPU, most: RateLimit = MOST_CPU, peak: RateLimit = PEAK_HOST_CPU
    ) -> None:
        self._limit = limit
        self._most = most
        self._peak = peak
        self._used: BoundedDict[str, tuple[TokenBucket, TokenBucket]] = BoundedDict(MAX_REMEMBERED)
        self._peaks: BoundedDict[str, TokenBucket] = BoundedDict(MAX_REMEMBERED)

    def spend(self, host: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge this time; ``factor`` as in ``CpuBudget.spend``."""
        limited, most = self._used.get(host, (None, None))
        self._used[host] = (
            _spent(limited, self._limit, factor * cpu_s, now_s),
            _spent(most, self._most, cpu_s, now_s),
        )

    def wait_s(self, host: str, now_s: float, *, frugal: bool) -> float:
        """Seconds until a message of this host may be read; ``frugal``: of a node that uses little."""
        limited, most = self._used.get(host, (None, None))
        return _debt_s(most, self._most, now_s) if frugal else _debt_s(limited, self._limit, now_s)

    def forget(self, now_s: float) -> None:
        """Forget hosts whose buckets are full again."""
        self._used.expire(
            lambda used: is_full(used[0], self._limit, now_s) and is_full(used[1], self._most, now_s)
        )
        self._peaks.expire(partial(is_full, rate=self._peak, now_s=now_s))

    def spend_peak(self, host: str, cpu_s: float, now_s: float) -> None:
        """Charge the time of a node that uses much."""
        self._peaks[host] = _spent(self._peaks.get(host), self._peak, cpu_s, now_s)

    def pause_s(self, host: str, now_s: float) -> float:
        """Seconds until a node of this host that uses much may be read."""
        return _debt_s(self._peaks.get(host), self._peak, now_s)


class CpuBudget:
    """What nodes and hosts have used of one service."""

    def __init__(self, limits: CpuLimits, hosts: HostTime | None = None) -> None:
        self._limits = limits
        self._all = hosts or HostTime()
        self._nodes: BoundedDict[tuple[str, str], TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._floors: BoundedDict[tuple[str, str], TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._peaks: BoundedDict[tuple[str, str], TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._hosts: BoundedDict[str, TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._openings: BoundedDict[str, TokenBucket] = BoundedDict(MAX_REMEMBERED)
        self._spent = 0

    def spend(self, host: str, node: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge this time; nodes that use little are charged without ``factor``."""
        limits, key = self._limits, (host, node)
        floor = self._floors.get(key)
        if floor is None:
            floor = TokenBucket(tokens=min(NEW_FLOOR_S, limits.floor.burst), at_s=now_s)
        self._floors[key] = _spent(floor, limits.floor, cpu_s, now_s)
        self._nodes[key] = _spent(self._nodes.get(key), limits.node, factor * cpu_s, now_s)
        self._peaks[key] = _spent(self._peaks.get(key), limits.peak, factor * cpu_s, now_s)
        if not self._is_frugal(key, now_s):
            self._all.spend_peak(host, factor * cpu_s, now_s)
        self._spend_of_host(host, cpu_s, now_s, factor)
        self._spent += 1
        if self._spent % FORGET_EACH == 0:
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        """Forget nodes and hosts whose buckets are full again."""
        limits = self._limits
        for nodes, rate in ((self._nodes, limits.node), (self._peaks, limits.peak)):
            nodes.expire(partial(is_full, rate=rate, now_s=now_s))
        for hosts, rate in ((self._hosts, limits.host), (self._openings, OPENING_CPU)):
            hosts.expire(partial(is_full, rate=rate, now_s=now_s))
        self._floors.expire(lambda floor: now_s - floor.at_s >= FLOOR_FORGOTTEN_S)
        self._all.forget(now_s)

    def pause_s(self, host: str, node: str, now_s: float) -> float:
        """Seconds that others have until the next message may be read, at most ``MAX_WAIT_S``; 0: now."""
        key = (host, node)
        pause_s = _debt_s(self._peaks.get(key), self._limits.peak, now_s)
        if not self._is_frugal(key, now_s):
            pause_s = max(pause_s, self._all.pause_s(host, now_s))
        return min(pause_s, MAX_WAIT_S)

    def wait_s(self, host: str, node: str, now_s: float) -> float:
        """Seconds until the next message may be read, at most ``MAX_WAIT_S``; 0: now."""
        limits, key = self._limits, (host, node)
        wait_s = _debt_s(self._nodes.get(key), limits.node, now_s)
        frugal = self._is_frugal(key, now_s)
        wait_s = max(wait_s, self._all.wait_s(host, now_s, frugal=frugal))
        if not frugal:
            wait_s = max(wait_s, _debt_s(self._hosts.get(host), limits.host, now_s))
        return min(wait_s, MAX_WAIT_S)

    def spend_opening(self, host: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge a stream or first message whose node is unknown."""
        self._openings[host] = _spent(self._openings.get(host), OPENING_CPU, cpu_s, now_s)
        self._spend_of_host(host, cpu_s, now_s, factor)

    def opening_wait_s(self, host: str, now_s: float) -> float:
        """Seconds until this host may open a stream, or send a large first message; 0: now."""
        used_s = max(
            _debt_s(self._hosts.get(host), self._limits.host, now_s), self._all.wait_s(host, now_s, frugal=False)
        )
        return min(used_s, _debt_s(self._openings.get(host), OPENING_CPU, now_s), MAX_WAIT_S)

    def _is_frugal(self, key: tuple[str, str], now_s: float) -> bool:
        """Whether a node uses little, so that it never waits for its host."""
        return available_tokens(self._floors.get(key), self._limits.floor, now_s) > 0

    def _spend_of_host(self, host: str, cpu_s: float, now_s: float, factor: float) -> None:
        self._hosts[host] = _spent(self._hosts.get(host), self._limits.host, factor * cpu_s, now_s)
        self._all.spend(host, cpu_s, now_s, factor=factor)


def _spent(bucket: TokenBucket | None, rate: RateLimit, cpu_s: float, now_s: float) -> TokenBucket:
    return TokenBucket(tokens=available_tokens(bucket, rate, now_s) - cpu_s, at_s=now_s)


def _debt_s(bucket: TokenBucket | None, rate: RateLimit, now_s: float) -> float:
    return max(0.0, -available_tokens(bucket, rate, now_s) / rate.per_s)
