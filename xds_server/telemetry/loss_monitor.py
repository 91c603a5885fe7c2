"""Detects proxies whose telemetry is missing; reports it once when it begins, and once when it ends.

A load report is due from every connected Envoy. Access logs are due only if there were calls, which the load
reports show; without load reports, only those are reported as missing. Losing a signal ejects no engine (see
``traffic_store``), so the only effect is an alarm, and a louder one if all telemetry is lost.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from xds_server.model.pool_traffic import TelemetrySignal
from xds_server.model.token_bucket import RateLimit, TokenBucket, take_token

LOST_S: Final = 15.0
"""Silence that is not accidental: several report intervals, a reconnection with backoff, a server restart."""

CALLS_DUE: Final = 50.0
"""Sampled calls that a proxy may have made without an entry: fewer may all still be running."""

LINES: Final = RateLimit(burst=200.0, per_s=0.5)
"""Log lines about single proxies: a peer may connect as any node, and be silent as each of them."""

_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class ProxySignals:
    """When each signal of one proxy last arrived, and the calls it issued since its last access log."""

    at_s: dict[TelemetrySignal, float] = field(default_factory=dict)
    since_s: float = 0.0
    unlogged: float = 0.0


class TelemetryLossMonitor:
    """Last signals by proxy, and the alarms about missing ones."""

    def __init__(self, on_suppressed: Callable[[], object] = lambda: None) -> None:
        self._on_suppressed = on_suppressed
        self._lines: TokenBucket | None = None
        self.signals: dict[str, ProxySignals] = {}
        self.lost: dict[TelemetrySignal, frozenset[str]] = {signal: frozenset() for signal in TelemetrySignal}
        self._connected: frozenset[str] = frozenset()
        self._all_lost = False

    def set_connected(self, nodes: Collection[str], now_s: float) -> None:
        """Set the Envoys that are connected for xDS now."""
        fresh = frozenset(nodes)
        for node in fresh - self._connected:
            self.signals.setdefault(node, ProxySignals()).since_s = now_s
        self._connected = fresh

    def record(self, node: str, signal: TelemetrySignal, now_s: float) -> ProxySignals:
        """Record a signal of ``node``."""
        heard = self.signals.get(node)
        if heard is None:
            heard = self.signals[node] = ProxySignals(since_s=now_s)
        heard.at_s[signal] = now_s
        return heard

    def check(self, now_s: float) -> None:
        """Raise and end alarms, and forget proxies that are long gone."""
        for node in [node for node, heard in self.signals.items() if self._gone(node, heard, now_s)]:
            del self.signals[node]
        for signal in TelemetrySignal:
            lost = frozenset(node for node in self._connected if self._missing(self.signals[node], signal, now_s))
            for node in lost - self.lost[signal]:
                if self._may_log(now_s):
                    _log.warning("telemetry.silent", node=node, signal=signal.value, silent=len(lost))
            for node in (self.lost[signal] - lost) & self._connected:
                if self._may_log(now_s):
                    _log.info("telemetry.heard_again", node=node, signal=signal.value, silent=len(lost))
            self.lost[signal] = lost
        everybody = bool(self._connected) and all(
            all(now_s - at_s > LOST_S for at_s in [heard.since_s, *heard.at_s.values()])
            for heard in (self.signals[node] for node in self._connected)
        )
        if everybody != self._all_lost:
            self._all_lost = everybody
            if everybody:
                _log.error(
                    "telemetry.lost",
                    proxies=len(self._connected),
                    effect="proxy reports eject no engine; admission limits are divided evenly",
                )
            else:
                _log.info("telemetry.found", proxies=len(self._connected))

    def _may_log(self, now_s: float) -> bool:
        """Whether one more line about a single proxy may be written."""
        left = take_token(self._lines, LINES, now_s)
        if left is None:
            self._on_suppressed()
            return False
        self._lines = left
        return True

    def _gone(self, node: str, heard: ProxySignals, now_s: float) -> bool:
        newest = max([heard.since_s, *heard.at_s.values()])
        return node not in self._connected and now_s - newest > LOST_S

    def _missing(self, heard: ProxySignals, signal: TelemetrySignal, now_s: float) -> bool:
        if now_s - max(heard.since_s, heard.at_s.get(signal, float("-inf"))) <= LOST_S:
            return False
        return signal is TelemetrySignal.LOAD_REPORT or heard.unlogged >= CALLS_DUE
