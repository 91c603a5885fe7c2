"""The reconcile loop: keeps what proxies are served equal to policies and engine states.

Inputs arrive by method calls and are only recorded; a round then turns all of them into snapshots. The latest
wins: ten edits during a round are one edit afterwards. A report that can change a decision starts a round at once,
at least ``SPACING_S`` after the previous one; reports that only confirm wait for the tick. Proxies that come or go
are gathered, since a newcomer is served from the last round at once.

New policies are served only once snapshots could be built from them and do not drop too much. Until then, and
whenever a round fails, the served state stays as it is. Only this module catches ``Exception``: a bug must not
take configuration away from proxies.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import structlog

from engine.report import EngineReport
from policies.model import PolicySet
from xds_server.decide.decision_memory import NO_MEMORY, DecisionMemory
from xds_server.decide.ejection.report_evidence import can_change
from xds_server.metrics.metric_registry import Metrics
from xds_server.model.fleet import EngineId, Fleet, with_report, with_traffic
from xds_server.model.memo import reuse_mapping
from xds_server.model.pod_state import PodState
from xds_server.model.policy_state import (
    AcceptedPolicies,
    PolicyState,
    RejectedPolicies,
    ServingPolicies,
    SourceState,
    serving_policies,
)
from xds_server.model.snapshot import Snapshot, same_own, unless_equal
from xds_server.model.view import View
from xds_server.reconcile.canary_build import CanaryBuild
from xds_server.reconcile.orchestrator_states import OrchestratorStates
from xds_server.reconcile.pipeline import REFERENCE_VIEW, BuildResult
from xds_server.reconcile.policy_gate import (
    count_resources,
    count_state,
    fleet_for,
    hold_reason,
    log_accepted,
    log_held,
    log_rejected,
    log_stale,
)
from xds_server.reconcile.ports import PublisherPort, SignalsPort
from xds_server.reconcile.proxy_counts import ProxyCounts, RemoteProxySource
from xds_server.reconcile.round_interval import GATHER_MOST_S, GATHER_REST, SPACING_S, TICK_S, TRAFFIC_TICK_S
from xds_server.reconcile.snapshot_builder import SnapshotBuilder
from xds_server.reconcile.startup_gate import StartupGate, StartupWait, unreported_engines, unresolved_hosts


class SnapshotPublisher:
    """Publishes builds with changes; ``served`` is what each view has."""

    def __init__(self, proxies: PublisherPort, metrics: Metrics) -> None:
        self._proxies = proxies
        self._metrics = metrics
        self._built: BuildResult | None = None
        self.served: dict[View, Snapshot] = {}

    def publish(self, built: BuildResult) -> bool:
        """Publish; returns whether anything changed."""
        # Publishing an equal snapshot would compare it on every stream to find no change.
        fresh = {view: unless_equal(self.served.get(view), made) for view, made in built.snapshots.items()}
        same = reuse_mapping(self.served, fresh) is self.served
        if same and same_own({} if self._built is None else self._built.own, built.own):
            return False
        self._proxies.publish(fresh, built.own)
        # Afterwards: a failed publication is due again in the next round.
        self.served, self._built = fresh, built
        count_resources(self._metrics, fresh[REFERENCE_VIEW])
        return True


_BUG: Final = "a bug in Switchgear, not in the policies; see reconcile.failed in the log"

_NO_UIDS: Final[Mapping[EngineId, str]] = MappingProxyType({})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerOptions:
    """How rounds start, and what they adopt.

    ``allow_shrink``: adopt policies even if they drop much of what is served. ``first_reports_s``: maximum wait at
    startup for first reports of engines.
    """

    allow_shrink: bool = False
    first_reports_s: float = 0.0


_DEFAULTS: Final = ReconcilerOptions()


class Reconciler:
    """Records changes and builds snapshots from them; see ``run``."""

    def __init__(
        self,
        proxies: PublisherPort,
        metrics: Metrics,
        *,
        signals: SignalsPort | None = None,
        peers: RemoteProxySource | None = None,
        options: ReconcilerOptions = _DEFAULTS,
        on_adopted: Callable[[ServingPolicies], None] = lambda _: None,
        on_round: Callable[[BuildResult, Mapping[View, Snapshot]], None] = lambda _, __: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_adopted`` gets policies once they are served; ``on_round`` each round, with what proxies are
        served."""
        self._proxies = proxies
        self._metrics = metrics
        self.clock = clock
        self._on_adopted = on_adopted
        self._on_round = on_round
        self._signals = signals
        self._allow_shrink = options.allow_shrink
        self._opening = StartupGate(options.first_reports_s)
        self._words = OrchestratorStates()
        self._wake = asyncio.Event()
        self._gathering: asyncio.TimerHandle | None = None
        self._gather_until_s = -math.inf
        self._offered: AcceptedPolicies | None = None
        self._held: AcceptedPolicies | None = None
        self._released = ""
        self._urgent_since_s: float | None = None
        self.news_s: float | None = None
        """Time of the oldest news in the current round; None without news."""
        self._failure = ""
        self.canary_build: CanaryBuild | None = None
        self._told_stale = False
        self._publishing = SnapshotPublisher(proxies, metrics)
        self.proxy_counts = ProxyCounts(proxies, peers)
        self._building = SnapshotBuilder(proxies, signals, self.proxy_counts)
        self.source_state = SourceState(state="unread", digest="", since_s=clock())
        self.serving: ServingPolicies | None = None
        self.fleet: Fleet | None = None
        self.built: BuildResult | None = None
        self.restored: DecisionMemory = NO_MEMORY  # learned in the last run, for the first round
        self.ready = asyncio.Event()
        """Set once there is something to serve that considers engine reports."""
        self.worth_keeping = asyncio.Event()
        """Set when state for a restart has changed; cleared by the component that saves it."""

    def startup_wait(self) -> StartupWait:
        """What the first snapshot waits for; empty before policies are accepted."""
        if self.serving is None or self.fleet is None:
            return StartupWait()
        policies = self.serving.policies
        return StartupWait(
            engines=unreported_engines(policies, self.fleet),
            hosts=unresolved_hosts(policies, self._building.addresses),
            left_s=self._opening.left_s(self.clock()),
        )

    # -- inputs --------------------------------------------------------------------------------------------

    def offer(self, state: PolicyState) -> None:
        """Record the present state of the policy source."""
        if isinstance(state, AcceptedPolicies):
            self._offered = state
            self._wake.set()
            return
        self._offered = self._held = None
        self._set_files("refused", state.digest, refused=state)
        log_rejected(state, self._serving_digest())

    def on_source_unreachable(self, reason: str) -> None:
        """Record that the policy source has not answered yet: the version of the last run is served meanwhile."""
        if self.source_state.state != "unread" or self._offered is not None:
            return
        self._set_files("unreached", "", reason=reason)
        _log.warning("policies.unreached", reason=reason)
        self._wake.set()

    def restore(
        self,
        stored: AcceptedPolicies,
        proxies_by_role: Mapping[str, int],
        proxies_by_zone: Mapping[str, int] | None = None,
    ) -> None:
        """Record what the last run served, and its proxies; it is served until policies are accepted."""
        self.proxy_counts.restore(proxies_by_role, proxies_by_zone or {}, self.clock())
        self._adopt(stored, stale=True)

    def on_report(self, report: EngineReport) -> None:
        """Record one report; a round follows at once if it can change a decision."""
        self._metrics.count_report(report.source.value, report.verdict.value)
        if self.fleet is None:
            return
        key = EngineId(report.pool, report.engine)
        before = self.fleet.engine(key)
        now_s = self.clock()
        self.fleet = with_report(self.fleet, report, now_s)
        decision = self.built.decisions.engines.get(key) if self.built else None
        if before is None or not can_change(before.report, report, decision):
            return
        self._news(now_s, urgent=True)

    def on_pod_states(self, words: Mapping[EngineId, PodState], uids: Mapping[EngineId, str] = _NO_UIDS) -> None:
        """Record all present pod states; ``uids`` tell engines of the same name apart."""
        self._words.update(words, self.fleet, self.clock(), uids)
        if self._held is not None and self._offered is None:
            self._offered = self._held  # ending engines may be why they are missing
        self._news(self.clock(), urgent=True)

    def resolve(self, addresses: Mapping[str, str]) -> None:
        """Record the addresses of host names."""
        self._building.addresses = addresses
        self._wake.set()

    def proxies_changed(self) -> None:
        """Record that a proxy connected, left, or changed its view; a round follows within ``GATHER_MOST_S``."""
        left_s = self._gather_until_s - self.clock()
        if left_s <= 0:
            self._wake.set()
        elif self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(left_s, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self._wake.set()

    def request_round(self) -> None:
        """Record that traffic, orders or certificates changed."""
        self._news(self.clock())

    def begin_canary(self, accepted: AcceptedPolicies) -> str:
        """Serve these policies to canary views from now on; returns why not otherwise."""
        if self.serving is None or self.fleet is None or self.built is None:
            return "nothing served yet"
        trial = CanaryBuild(accepted, self.serving.policies, self._building.resolved)
        try:
            reason = trial.hold_reason(self.built, self.fleet, self._words, self.clock())
        except Exception as error:  # noqa: BLE001 - as in a round: it is tried so that no round meets it
            self._failed(error)
            return _BUG
        if not reason or self._allow_shrink:
            self.canary_build, reason = trial, ""
        return reason

    def end_canary(self) -> None:
        """Serve canary views what all others are served."""
        self.canary_build = None

    def withdraw(self, accepted: AcceptedPolicies) -> bool:
        """Withdraw policies that are offered or held and not served; returns whether they were held."""
        held = self._held is accepted
        self._offered = None if self._offered is accepted else self._offered
        self._held = None if held else self._held
        return held

    @property
    def released(self) -> str:
        """The digest of policies that were released from the shrink guard, while they are served."""
        serving = "" if self.serving is None else self.serving.digest
        return self._released if self._released == serving else ""

    def release_with_peers(self, digests: Container[str]) -> None:
        """Release held policies that another replica has released; same objects give the same digest."""
        if self._held is not None and self._held.digest in digests and not self.release_shrink():
            self.request_round()

    def release_shrink(self) -> str:
        """Release policies that are held back; returns why not otherwise."""
        if self._held is None:
            return "no policies are held back"
        if self.canary_build is not None:
            return "a canary is running: wait for it, or run `switchgear apply --end-canary`"
        if self._offered is not None and self._offered is not self._held:
            return "newer policies are being validated: try again in a moment"
        _log.warning("policies.released", digest=self._held.digest[:12], reason=self.source_state.reason)
        self._released = self._held.digest
        self._adopt(self._held, stale=False)
        return ""

    # -- queries -------------------------------------------------------------------------------------------

    @property
    def pending_policies(self) -> tuple[PolicySet, ...]:
        """Policies that are offered, held back or on trial, and not served to all proxies."""
        waiting = (self._offered, self._held, None if self.canary_build is None else self.canary_build.accepted)
        return tuple(one.policies for one in waiting if one is not None)

    def snapshot_for(self, view: View) -> Snapshot:
        """The snapshot for the first proxy of a view, at once; the proxy counts among those that share limits."""
        if self.serving is None or self.fleet is None:
            return Snapshot()
        now_s = self.clock()
        self._call_roll(now_s, arriving=view)
        try:
            # Only this view: many connecting proxies, each first of its view, must not build all views each time.
            made = self._build(self.serving.policies, self.fleet, now_s, views=frozenset({view}))
        except Exception as error:  # noqa: BLE001 - the same round, begun by a proxy
            self._failed(error)
            return Snapshot()
        others = self.built.snapshots if self.built else {}
        self.built = replace(made, snapshots=MappingProxyType({**others, **made.snapshots}))
        self._publishing.served[view] = made.snapshots[view]
        self._wake.set()
        return made.snapshots[view]

    def peek(self, view: View) -> Snapshot | None:
        """What a proxy of this view would be served; None while nothing is."""
        if self.built is None:
            return None
        return self.built.snapshots.get(view) or self._building.peek(self.built, view)

    # -- rounds --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while True:
            # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the end of the wait.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRAFFIC_TICK_S if self.fleet and self.fleet.traffic else TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            if self._gathering is not None:
                # This round is theirs, too.
                self._gathering.cancel()
                self._gathering = None
            started_s = self.clock()
            try:
                self._round()
            except Exception as error:  # noqa: BLE001 - a bug must not take from proxies what they have
                self._failed(error)
            else:
                if self._failure:
                    _log.info("reconcile.recovered")
                    self._failure = ""
            took_s = self.clock() - started_s
            self._gather_until_s = started_s + took_s + min(GATHER_MOST_S, GATHER_REST * took_s)
            # After a long round, leave as long again to the streams: waiting proxies would start the next one.
            await asyncio.sleep(max(took_s, SPACING_S - took_s))

    def _round(self) -> None:
        if self.source_state.state == "unread" and self._offered is None:
            return  # the last run's version counts only if the files cannot be used
        now_s = self.clock()
        self._call_roll(now_s)
        offered, self._offered = self._offered, None
        if offered is not None:
            try:
                self._consider(offered)
            except Exception:
                self._held = None  # outdated: a release request does not mean these
                self._set_files("failed", offered.digest, reason=_BUG)
                raise
        if self.serving is None or self.fleet is None:
            return
        self.fleet = self._words.apply_cached(self.fleet, now_s)
        if self._signals is not None:
            self.fleet = with_traffic(self.fleet, self.proxy_counts.traffic(self._signals.traffic(now_s)))
        built = self._build(self.serving.policies, self.fleet, now_s)
        self.built = built
        self._tell_stale()
        # Opening earlier would report every engine as healthy to proxies that reconnect after a restart.
        policies, addresses = self.serving.policies, self._building.addresses
        if not self.ready.is_set() and not self._opening.due(policies, self.fleet, addresses, now_s):
            return
        self._publish(built)
        # First: an observer of rounds must not keep proxies from being served.
        self.ready.set()
        self._on_round(built, self._publishing.served)
        self.news_s = None

    def _news(self, now_s: float, *, urgent: bool = False) -> None:
        if self.news_s is None:
            self.news_s = now_s
        if urgent and self._urgent_since_s is None:
            self._urgent_since_s = now_s
        self._wake.set()

    def _call_roll(self, now_s: float, arriving: View | None = None) -> None:
        """Update the counts of connected proxies, including one about to connect."""
        if self.proxy_counts.update(now_s, arriving):
            self.worth_keeping.set()

    def _build(
        self, policies: PolicySet, fleet: Fleet, now_s: float, *, views: frozenset[View] | None = None
    ) -> BuildResult:
        """One more round, with the canary's snapshots."""
        started_s = time.perf_counter()
        memory = self.built.memory if self.built else self.restored
        built = self._with_trial(self._building.build(policies, fleet, memory, now_s, views=views), fleet)
        self._metrics.snapshot_build_seconds.observe(time.perf_counter() - started_s)
        return built

    def _with_trial(self, built: BuildResult, fleet: Fleet) -> BuildResult:
        """The build plus the canary's; a bug in the latter leaves the rest served."""
        if self.canary_build is None:
            return built
        try:
            return self.canary_build.with_canary(built, fleet, built.inputs.views)
        except Exception as error:  # noqa: BLE001 - only the canary may be hurt by what is on trial
            self._failed(error)
            self.canary_build.failure = f"building them failed: {type(error).__name__}: {error}"
            return built

    def _consider(self, offered: AcceptedPolicies) -> None:
        """Serve these policies if snapshots can be built from them and do not drop too much."""
        now_s = self.clock()
        fleet = self._words.apply(fleet_for(offered.policies, self.fleet, self.serving), now_s)
        made = self._build(offered.policies, fleet, now_s)
        if self.serving is not None and self.fleet is not None and not self._allow_shrink:
            served = self.built or self._build(self.serving.policies, self.fleet, now_s)
            reason = hold_reason(served, made, self._words, now_s)
            if reason:
                told, self._held = self._held is offered and reason == self.source_state.reason, offered
                if told:
                    return
                self._set_files("held", offered.digest, reason=reason)
                log_held(reason, self._serving_digest())
                return
        self._adopt(offered, stale=False)

    def _adopt(self, accepted: AcceptedPolicies, *, stale: bool) -> None:
        self._held = None
        if accepted.digest != (self.serving.digest if self.serving else ""):
            self.canary_build = None  # a canary is only compared with the version it started next to
        self.fleet = fleet_for(accepted.policies, self.fleet, self.serving)
        self.serving = serving_policies(accepted, stale=stale)
        if not stale:
            self._set_files("accepted", accepted.digest)
            self.worth_keeping.set()
            log_accepted(accepted, self.fleet)
        self._on_adopted(self.serving)
        self._wake.set()

    def _tell_stale(self) -> None:
        before, self._told_stale = self._told_stale, self.serving is not None and self.serving.stale
        if self._told_stale and not before:
            log_stale(self._serving_digest())
        self._metrics.policy_stale.set(self._told_stale)

    def _publish(self, built: BuildResult) -> None:
        if self._publishing.publish(built) and self._urgent_since_s is not None:
            self._metrics.report_to_push_seconds.observe(self.clock() - self._urgent_since_s)
        self._urgent_since_s = None

    def _failed(self, error: Exception) -> None:
        self._metrics.reconcile_failures.inc()
        before, self._failure = self._failure, (told := f"{type(error).__name__}: {error}")
        if told != before:
            _log.error("reconcile.failed", reason=told, serving=self._serving_digest(), exc_info=error)

    def _set_files(
        self, state: str, digest: str, *, refused: RejectedPolicies | None = None, reason: str = ""
    ) -> None:
        self.source_state = SourceState(
            state=state, digest=digest, since_s=self.clock(), refused=refused, reason=reason
        )
        count_state(self._metrics, state)

    def _serving_digest(self) -> str:
        return self.serving.digest[:12] if self.serving else ""
