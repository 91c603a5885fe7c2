"""Which proxies should have told something and did not: told once when it begins, and once when it is over.

A load report is due from every connected Envoy, whatever it does. Access logs are due only where there were calls,
which the load reports know; a proxy that reports no load at all is missed by that alone. Losing a signal ejects
nobody (see ``book``), so an alarm is all it brings, and losing all of it from everybody is a louder one.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

LOST_S: Final = 15.0
"""Silence that is no accident: several report intervals, a reconnection with its back-off, a restart of ours."""

CALLS_DUE: Final = 50.0
"""Sampled calls that a proxy may have made without an entry: fewer may all be running still."""

_log = structlog.get_logger()


class Signal(StrEnum):
    """What a proxy tells by itself."""

    ACCESS_LOG = "access_log"
    LOAD_REPORT = "load_report"


@dataclass(slots=True, kw_only=True)
class Heard:
    """When one proxy was last heard, by signal, and the calls it issued since its last access log."""

    at_s: dict[Signal, float] = field(default_factory=dict)
    since_s: float = 0.0
    unlogged: float = 0.0


class Losses:
    """What was heard of whom, and the alarms about it."""

    def __init__(self) -> None:
        self.heard: dict[str, Heard] = {}
        self.lost: dict[Signal, frozenset[str]] = {signal: frozenset() for signal in Signal}
        self._connected: frozenset[str] = frozenset()
        self._all_lost = False

    def connected(self, nodes: Collection[str], now_s: float) -> None:
        """These Envoys are connected for configuration now."""
        fresh = frozenset(nodes)
        for node in fresh - self._connected:
            self.heard.setdefault(node, Heard()).since_s = now_s
        self._connected = fresh

    def told(self, node: str, signal: Signal, now_s: float) -> Heard:
        """Something of ``node`` arrived."""
        heard = self.heard.get(node)
        if heard is None:
            heard = self.heard[node] = Heard(since_s=now_s)
        heard.at_s[signal] = now_s
        return heard

    def check(self, now_s: float) -> None:
        """Raise and end alarms, and forget proxies that are long gone."""
        for node in [node for node, heard in self.heard.items() if self._gone(node, heard, now_s)]:
            del self.heard[node]
        for signal in Signal:
            lost = frozenset(node for node in self._connected if self._missing(self.heard[node], signal, now_s))
            for node in lost - self.lost[signal]:
                _log.warning("telemetry.silent", node=node, signal=signal.value)
            for node in (self.lost[signal] - lost) & self._connected:
                _log.info("telemetry.heard_again", node=node, signal=signal.value)
            self.lost[signal] = lost
        everybody = bool(self._connected) and all(
            all(now_s - at_s > LOST_S for at_s in [heard.since_s, *heard.at_s.values()])
            for heard in (self.heard[node] for node in self._connected)
        )
        if everybody != self._all_lost:
            self._all_lost = everybody
            if everybody:
                _log.error(
                    "telemetry.lost",
                    proxies=len(self._connected),
                    effect="nobody is ejected for what proxies saw; ceilings are divided evenly",
                )
            else:
                _log.info("telemetry.found", proxies=len(self._connected))

    def _gone(self, node: str, heard: Heard, now_s: float) -> bool:
        newest = max([heard.since_s, *heard.at_s.values()])
        return node not in self._connected and now_s - newest > LOST_S

    def _missing(self, heard: Heard, signal: Signal, now_s: float) -> bool:
        if now_s - max(heard.since_s, heard.at_s.get(signal, float("-inf"))) <= LOST_S:
            return False
        return signal is Signal.LOAD_REPORT or heard.unlogged >= CALLS_DUE
