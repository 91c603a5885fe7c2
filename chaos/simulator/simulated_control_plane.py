"""The control plane in simulated time: receives telemetry, decides with ``xds_server.decide``, and pushes.

Only timing is simulated: reports, access logs, load reports, rounds and pushes. Decisions and their translation
are the product's code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from chaos.history.event_sources import decision_event
from chaos.history.history_events import ConfigPush, ConfigReply, ControlPlaneDecision, HistoryEvent
from chaos.simulator.config_translator import ProxyConfigTranslator
from chaos.simulator.proxy_config import ProxyConfig, route_settings
from chaos.simulator.simulated_clock import SimulatedClock, TimerHandle
from chaos.simulator.simulated_proxy import SimulatedProxy
from chaos.simulator.telemetry_feed import TelemetryFeed
from chaos.testbed.request_shape import RequestKind
from engine.report import EngineReport
from policies.model import PolicySet
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.decisions import AdmissionDecision, Decisions, Health
from xds_server.decide.diff.decision_diff import ceiling_moved, diff_decisions
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.ledger.event import ClockReading, event_of
from xds_server.model.fleet import EngineId, Fleet, declared, with_report, with_traffic
from xds_server.model.pool_traffic import Proxy
from xds_server.model.view import GATEWAY
from xds_server.reconcile.round_interval import SPACING_S, TRAFFIC_TICK_S
from xds_server.telemetry.load_report_service import interval_s
from xds_server.translate.access_log_config import FLUSH_S

PUSH_S: Final = 0.005
"""Delay from a decision to its effect in a proxy.

Envoy 1.40 ACKed a change among ten endpoints in 3 to 8 ms, including the round.
"""

_REPORT_S: Final = 0.001
_LOGGED_S: Final = 0.001


class SimulatedControlPlane:
    """``receive_report`` takes reports; faults use ``start`` and ``stop``. ``on_out`` gets the ejected engines."""

    def __init__(
        self,
        timeline: SimulatedClock,
        policies: PolicySet,
        translator: ProxyConfigTranslator,
        proxies: Sequence[SimulatedProxy],
        *,
        on_event: Callable[[HistoryEvent], None],
        on_out: Callable[[frozenset[EngineId]], None],
    ) -> None:
        self._timeline = timeline
        self._policies = policies
        self._translator = translator
        self._proxies = tuple(proxies)
        self._on_event = on_event
        self._on_out = on_out
        self._seen = MappingProxyType(
            {
                one.name: Proxy(
                    node=one.name,
                    zone=one.zone,
                    role=GATEWAY,
                    cuts=True,
                    pools=frozenset(policies.pools),
                    region=one.region,
                )
                for one in self._proxies
            }
        )
        self._connected = ConnectedProxies(
            by_node=self._seen,
            by_role={GATEWAY: len(self._proxies)},
            calling_zones=frozenset({one.zone for one in self._proxies} | {""}),
        )
        self._told: dict[str, ProxyConfig] = {}
        self._nonce = 0
        self.runs = False
        self.rounds = 0
        self.hearing = TelemetryFeed(policies, translator.port)
        self._fleet: Fleet = declared(policies)
        self._decisions: Decisions | None = None
        self._memory = NO_MEMORY
        self._ceilings: dict[str, AdmissionDecision] = {}
        self._out: frozenset[EngineId] = frozenset()
        self._round_at: TimerHandle | None = None
        self._round_due_s = 0.0
        self._last_s = -1.0
        for place, one in enumerate(self._proxies):
            # Proxies report at different times.
            shift_s = place / len(self._proxies)
            timeline.after(FLUSH_S * shift_s, lambda one=one: self._flush(one))  # type: ignore[misc]
            timeline.after(self._load_each_s * shift_s, lambda one=one: self._load(one))  # type: ignore[misc]

    @property
    def fleet(self) -> Fleet:
        """Current fleet state."""
        return self._fleet

    @property
    def _load_each_s(self) -> float:
        return interval_s(len(self._proxies))

    # -- life ----------------------------------------------------------------------------------------------

    def start(self, *, afresh: bool) -> None:
        """Run. ``afresh``: without state, like a new process."""
        self.runs = True
        if afresh:
            spoilt = self.hearing.spoilt
            self.hearing = TelemetryFeed(self._policies, self._translator.port)
            self.hearing.spoilt = spoilt
            self._fleet, self._ceilings = declared(self._policies), {}
            self._decisions, self._memory = None, NO_MEMORY
        self._wake(0.0)

    def stop(self) -> None:
        """Stop; proxies keep their configuration."""
        self.runs = False
        if self._round_at is not None:
            self._round_at.cancel()
            self._round_at = None

    # -- what is heard -------------------------------------------------------------------------------------

    def receive_report(self, report: EngineReport) -> None:
        """Receive a report after its delay."""
        self._timeline.after(_REPORT_S, lambda: self._heard(report))

    def _heard(self, report: EngineReport) -> None:
        if not self.runs:
            return
        key = EngineId(report.pool, report.engine)
        before = self._fleet.engine(key)
        self._fleet = with_report(self._fleet, report, self._timeline.now_s)
        known = None if before is None or before.report is None else before.report.verdict
        # Reports without news wait for the tick.
        if known is not report.verdict or not report.verdict.good or key in self._out:
            self._wake(0.0)

    def _flush(self, proxy: SimulatedProxy) -> None:
        self._timeline.after(_LOGGED_S, lambda: self._logged(proxy))
        self._timeline.after(FLUSH_S, lambda: self._flush(proxy))

    def _logged(self, proxy: SimulatedProxy) -> None:
        if self.runs and self.hearing.logs(proxy, self._timeline.now_s):
            self._wake(0.0)

    def _load(self, proxy: SimulatedProxy) -> None:
        if self.runs:
            self.hearing.load(proxy, self._timeline.now_s)
        self._timeline.after(self._load_each_s, lambda: self._load(proxy))

    # -- rounds --------------------------------------------------------------------------------------------

    def _wake(self, seconds: float) -> None:
        """Schedule a round after this delay, but not before the minimum spacing."""
        due_s = max(self._timeline.now_s + seconds, self._last_s + SPACING_S)
        if self._round_at is not None:
            if self._round_due_s <= due_s:
                return
            self._round_at.cancel()
        self._round_due_s = due_s
        self._round_at = self._timeline.at(due_s, self._round)

    def _round(self) -> None:
        self._round_at, now_s = None, self._timeline.now_s
        self._last_s = now_s
        self._fleet = with_traffic(self._fleet, self.hearing.book.traffic(now_s))
        demand = self.hearing.book.tenants.demand.demand(now_s, tuple(self._seen))
        decisions, self._memory = decide(
            self._policies, self._fleet, self._memory, proxies=replace(self._connected, demand=demand), now_s=now_s
        )
        self.rounds += 1
        self._write_down(decisions)
        if self._decisions is not decisions:
            self._decisions = decisions
            self._out = frozenset(
                key for key, one in decisions.engines.items() if one.health is not Health.HEALTHY
            )
            self._on_out(self._out)
        for proxy in self._proxies:
            told = self._translator.proxy_config(self._fleet, decisions, self._seen[proxy.name])
            if told != self._told.get(proxy.name):
                self._push(proxy, told)
        self._wake(TRAFFIC_TICK_S)

    def _push(self, proxy: SimulatedProxy, told: ProxyConfig) -> None:
        before, self._told[proxy.name] = self._told.get(proxy.name), told
        for kind in _types(before, told):
            self._nonce += 1
            self._say_pushed(proxy.name, kind, str(self._nonce))
        self._timeline.after(PUSH_S, lambda: proxy.apply_config(told))

    def _say_pushed(self, proxy: str, kind: str, nonce: str) -> None:
        at_s = self._timeline.now_s - self._timeline.began_s
        self._on_event(ConfigPush(at_s=at_s, proxy=proxy, type=kind, nonce=nonce))
        self._on_event(ConfigReply(at_s=at_s + PUSH_S, proxy=proxy, type=kind, nonce=nonce))

    def _write_down(self, decisions: Decisions) -> None:
        now_s = self._timeline.now_s
        moment = ClockReading(s=now_s, unix_s=now_s)
        for change in diff_decisions(self._decisions, decisions, self._ceilings):
            event: ControlPlaneDecision = decision_event(
                event_of(change, moment, self._policies), self._timeline.began_s
            )
            self._on_event(event)
        for name, pool in decisions.pools.items():
            told = self._ceilings.get(name)
            if pool.admission is not None and (told is None or ceiling_moved(told, pool.admission)):
                self._ceilings[name] = pool.admission


def _types(before: ProxyConfig | None, now: ProxyConfig) -> Sequence[str]:
    """Which types of resources differ."""
    if before is None:
        return ("cds", "eds", "lds", "rds", "rtds")
    weights_before, weights_now = _weights(before), _weights(now)
    found = []
    if before.localities != now.localities or before.prefillers != now.prefillers:
        found.append("eds")
    if before.cut != now.cut:
        found.append("lds")
    if before.quotas != now.quotas or route_settings(before) != route_settings(now):
        found.append("rds")
    if before.limits != now.limits or weights_before != weights_now or before.percentages != now.percentages:
        found.append("rtds")
    if before.parts != now.parts:
        found.append("ecds")
    return found


def _weights(told: ProxyConfig) -> Mapping[RequestKind, Mapping[str, int]]:
    return {kind: rules.weights for kind, rules in told.rules.items()}
