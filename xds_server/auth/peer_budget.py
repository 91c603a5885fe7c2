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
from xds_server.model.token_bucket import RateLimit

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


class _Tokens:
    """Tokens of a host at a moment; changed in place, since each message charges several."""

    __slots__ = ("at_s", "tokens")

    def __init__(self, burst: float, now_s: float) -> None:
        self.at_s = now_s
        self.tokens = burst

    def at(self, rate: RateLimit, now_s: float) -> float:
        """What is available now."""
        return _refilled(self.tokens, rate, now_s - self.at_s)


class _HostUse:
    """Tokens of a host at a moment: with factor, and without."""

    __slots__ = ("at_s", "limited", "most")

    def __init__(self, limit: RateLimit, most: RateLimit, now_s: float) -> None:
        self.at_s = now_s
        self.limited = limit.burst
        self.most = most.burst


class _NodeUse:
    """Tokens of a node at a moment: one object, since each message charges all three."""

    __slots__ = ("at_s", "floor", "node", "peak")

    def __init__(self, limits: CpuLimits, now_s: float) -> None:
        self.at_s = now_s
        self.floor = min(NEW_FLOOR_S, limits.floor.burst)
        self.node = limits.node.burst
        self.peak = limits.peak.burst


class HostTime:
    """What hosts have used for messages of all kinds: one object for all services of a port."""

    def __init__(
        self, limit: RateLimit = ALL_CPU, most: RateLimit = MOST_CPU, peak: RateLimit = PEAK_HOST_CPU
    ) -> None:
        self._limit = limit
        self._most = most
        self._peak = peak
        self._used: BoundedDict[str, _HostUse] = BoundedDict(MAX_REMEMBERED)
        self._peaks: BoundedDict[str, _Tokens] = BoundedDict(MAX_REMEMBERED)

    def spend(self, host: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge this time; ``factor`` as in ``CpuBudget.spend``."""
        used = self._used.newest(host)
        if used is None:
            used = self._used[host] = _HostUse(self._limit, self._most, now_s)
        passed_s = now_s - used.at_s
        used.at_s = now_s
        used.limited = _refilled(used.limited, self._limit, passed_s) - factor * cpu_s
        used.most = _refilled(used.most, self._most, passed_s) - cpu_s

    def wait_s(self, host: str, now_s: float, *, frugal: bool) -> float:
        """Seconds until a message of this host may be read; ``frugal``: of a node that uses little."""
        used = self._used.get(host)
        if used is None:
            return 0.0
        tokens, rate = (used.most, self._most) if frugal else (used.limited, self._limit)
        return _until_s(tokens, rate, now_s - used.at_s)

    def forget(self, now_s: float) -> None:
        """Forget hosts whose buckets are full again."""
        self._used.expire(
            lambda used: (
                _refilled(used.limited, self._limit, now_s - used.at_s) >= self._limit.burst
                and _refilled(used.most, self._most, now_s - used.at_s) >= self._most.burst
            )
        )
        self._peaks.expire(partial(_is_full, rate=self._peak, now_s=now_s))

    def spend_peak(self, host: str, cpu_s: float, now_s: float) -> None:
        """Charge the time of a node that uses much."""
        _spend(self._peaks, host, self._peak, cpu_s, now_s)

    def pause_s(self, host: str, now_s: float) -> float:
        """Seconds until a node of this host that uses much may be read."""
        return _debt_s(self._peaks.get(host), self._peak, now_s)


class CpuBudget:
    """What nodes and hosts have used of one service."""

    def __init__(self, limits: CpuLimits, hosts: HostTime | None = None) -> None:
        self._limits = limits
        self._all = hosts or HostTime()
        self._nodes: BoundedDict[tuple[str, str], _NodeUse] = BoundedDict(MAX_REMEMBERED)
        self._hosts: BoundedDict[str, _Tokens] = BoundedDict(MAX_REMEMBERED)
        self._openings: BoundedDict[str, _Tokens] = BoundedDict(MAX_REMEMBERED)
        self._spent = 0

    def spend(self, host: str, node: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge this time; nodes that use little are charged without ``factor``."""
        limits, key, charged_s = self._limits, (host, node), factor * cpu_s
        used = self._nodes.newest(key)
        if used is None:
            used = self._nodes[key] = _NodeUse(limits, now_s)
        passed_s = now_s - used.at_s
        used.at_s = now_s
        used.floor = _refilled(used.floor, limits.floor, passed_s) - cpu_s
        used.node = _refilled(used.node, limits.node, passed_s) - charged_s
        used.peak = _refilled(used.peak, limits.peak, passed_s) - charged_s
        if used.floor <= 0:
            self._all.spend_peak(host, charged_s, now_s)
        self._spend_of_host(host, cpu_s, now_s, factor)
        self._spent += 1
        if self._spent % FORGET_EACH == 0:
            self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        """Forget nodes and hosts whose buckets are full again, and nodes only when they count as unknown."""
        self._nodes.expire(lambda used: self._is_forgotten(used, now_s - used.at_s))
        for hosts, rate in ((self._hosts, self._limits.host), (self._openings, OPENING_CPU)):
            hosts.expire(partial(_is_full, rate=rate, now_s=now_s))
        self._all.forget(now_s)

    def _is_forgotten(self, used: _NodeUse, passed_s: float) -> bool:
        limits = self._limits
        return (
            passed_s >= FLOOR_FORGOTTEN_S
            and _refilled(used.node, limits.node, passed_s) >= limits.node.burst
            and _refilled(used.peak, limits.peak, passed_s) >= limits.peak.burst
        )

    def must_wait(self, host: str, node: str, now_s: float) -> bool:
        """Whether ``pause_s`` or ``wait_s`` is not 0."""
        used = self._nodes.get((host, node))
        if used is None:
            return self.wait_s(host, node, now_s) > 0
        limits, passed_s = self._limits, now_s - used.at_s
        if _refilled(used.peak, limits.peak, passed_s) < 0 or _refilled(used.node, limits.node, passed_s) < 0:
            return True
        frugal = _refilled(used.floor, limits.floor, passed_s) > 0
        if self._all.wait_s(host, now_s, frugal=frugal) > 0:
            return True
        return not frugal and (
            self._all.pause_s(host, now_s) > 0 or _debt_s(self._hosts.get(host), limits.host, now_s) > 0
        )

    def pause_s(self, host: str, node: str, now_s: float) -> float:
        """Seconds that others have until the next message may be read, at most ``MAX_WAIT_S``; 0: now."""
        used = self._nodes.get((host, node))
        pause_s = 0.0 if used is None else _until_s(used.peak, self._limits.peak, now_s - used.at_s)
        if not self._is_frugal(used, now_s):
            pause_s = max(pause_s, self._all.pause_s(host, now_s))
        return min(pause_s, MAX_WAIT_S)

    def wait_s(self, host: str, node: str, now_s: float) -> float:
        """Seconds until the next message may be read, at most ``MAX_WAIT_S``; 0: now."""
        limits, used = self._limits, self._nodes.get((host, node))
        wait_s = 0.0 if used is None else _until_s(used.node, limits.node, now_s - used.at_s)
        frugal = self._is_frugal(used, now_s)
        wait_s = max(wait_s, self._all.wait_s(host, now_s, frugal=frugal))
        if not frugal:
            wait_s = max(wait_s, _debt_s(self._hosts.get(host), limits.host, now_s))
        return min(wait_s, MAX_WAIT_S)

    def spend_opening(self, host: str, cpu_s: float, now_s: float, *, factor: float = 1.0) -> None:
        """Charge a stream or first message whose node is unknown."""
        _spend(self._openings, host, OPENING_CPU, cpu_s, now_s)
        self._spend_of_host(host, cpu_s, now_s, factor)

    def opening_wait_s(self, host: str, now_s: float) -> float:
        """Seconds until this host may open a stream, or send a large first message; 0: now."""
        used_s = max(
            _debt_s(self._hosts.get(host), self._limits.host, now_s), self._all.wait_s(host, now_s, frugal=False)
        )
        return min(used_s, _debt_s(self._openings.get(host), OPENING_CPU, now_s), MAX_WAIT_S)

    def _is_frugal(self, used: _NodeUse | None, now_s: float) -> bool:
        """Whether a node uses little, so that it never waits for its host."""
        return used is None or _refilled(used.floor, self._limits.floor, now_s - used.at_s) > 0

    def _spend_of_host(self, host: str, cpu_s: float, now_s: float, factor: float) -> None:
        _spend(self._hosts, host, self._limits.host, factor * cpu_s, now_s)
        self._all.spend(host, cpu_s, now_s, factor=factor)


def _refilled(tokens: float, rate: RateLimit, passed_s: float) -> float:
    """The tokens this much later; none are added if the clock goes back."""
    if passed_s > 0.0:
        tokens += passed_s * rate.per_s
        return min(tokens, rate.burst)
    return tokens


def _until_s(tokens: float, rate: RateLimit, passed_s: float) -> float:
    """Seconds until none are owed."""
    tokens = _refilled(tokens, rate, passed_s)
    return -tokens / rate.per_s if tokens < 0.0 else 0.0


def _spend(used_by: BoundedDict[str, _Tokens], host: str, rate: RateLimit, cpu_s: float, now_s: float) -> None:
    used = used_by.newest(host)
    if used is None:
        used = used_by[host] = _Tokens(rate.burst, now_s)
    used.tokens = used.at(rate, now_s) - cpu_s
    used.at_s = now_s


def _debt_s(used: _Tokens | None, rate: RateLimit, now_s: float) -> float:
    return 0.0 if used is None else _until_s(used.tokens, rate, now_s - used.at_s)


def _is_full(used: _Tokens, rate: RateLimit, now_s: float) -> bool:
    return used.at(rate, now_s) >= rate.burst
