"""The loop that keeps what proxies are served equal to what policies and engines say.

Inputs arrive by method calls and are only noted; one round then turns all of them into snapshots. Latest wins:
ten edits during a round are one edit afterwards. A report that can change a decision starts a round at once, and
only rounds that follow closely are spaced, by ``SPACING_S``; reports that merely confirm wait for the tick.

New policies count only when snapshots could be made of them and do not drop too much; until then, and whenever
a round fails, what is served stays as it is. This is the only place that catches ``Exception``: a bug must not
take from proxies what they have.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
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
from xds_server.model.snapshot import Snapshot, same_layers, unless_equal
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
from xds_server.reconcile.round_interval import SPACING_S, TICK_S, TRAFFIC_TICK_S
from xds_server.reconcile.snapshot_builder import SnapshotBuilder
from xds_server.reconcile.startup_gate import StartupGate


class SnapshotPublisher:
    """Gives proxies what was built, unless they have it; ``served`` is what each view has."""

    def __init__(self, proxies: PublisherPort, metrics: Metrics) -> None:
        self._proxies = proxies
        self._metrics = metrics
        self._built: BuildResult | None = None
        self.served: dict[View, Snapshot] = {}

    def publish(self, built: BuildResult) -> bool:
        """Give it to them; whether there was anything new in it."""
        # The same snapshot again would be a push that has to be compared on every stream to find nothing in it.
        fresh = {view: unless_equal(self.served.get(view), made) for view, made in built.snapshots.items()}
        same = reuse_mapping(self.served, fresh) is self.served
        if same and same_layers({} if self._built is None else self._built.own, built.own):
            return False
        self._proxies.publish(fresh, built.own)
        # After it: what could not be given to them is due again in the next round.
        self.served, self._built = fresh, built
        count_resources(self._metrics, fresh[REFERENCE_VIEW])
        return True


_BUG: Final = "a bug in Switchgear, not in the policies; see reconcile.failed in the log"

_NO_UIDS: Final[Mapping[EngineId, str]] = MappingProxyType({})

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerOptions:
    """How rounds begin, and what they adopt.

    ``allow_shrink``: adopt policies also where they drop much of what is served. ``first_reports_s``: wait so long
    at the start for the first reports of engines.
    """

    allow_shrink: bool = False
    first_reports_s: float = 0.0


_DEFAULTS: Final = ReconcilerOptions()


class Reconciler:
    """Notes what changes and makes snapshots of it; see ``run``."""

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
        """``on_adopted`` gets policies that are served from then on; ``on_round`` each round, and what proxies are
        served because of it."""
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
        self._offered: AcceptedPolicies | None = None
        self._held: AcceptedPolicies | None = None
        self._urgent_since_s: float | None = None
        self.news_s: float | None = None
        """When the oldest news came that the round in hand takes up; None: there was none."""
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
        self.restored: DecisionMemory = NO_MEMORY  # what the last run learned, for the first round
        self.ready = asyncio.Event()
        """Set once there is something to serve that engines have had their say in."""
        self.worth_keeping = asyncio.Event()
        """Set when what a restarted server should know has changed; whoever keeps it clears it."""

    # -- what is noted -------------------------------------------------------------------------------------

    def offer(self, state: PolicyState) -> None:
        """Note what the policy files say now."""
        if isinstance(state, AcceptedPolicies):
            self._offered = state
            self._wake.set()
            return
        self._offered = self._held = None
        self._set_files("refused", state.digest, refused=state)
        log_rejected(state, self._serving_digest())

    def on_source_unreachable(self, reason: str) -> None:
        """Note that who has the policies did not answer so far: what the last run served has to do meanwhile."""
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
        """Note what the last run of the server served, and whom; it is served until the files can be used."""
        self.proxy_counts.restore(proxies_by_role, proxies_by_zone or {}, self.clock())
        self._adopt(stored, stale=True)

    def on_report(self, report: EngineReport) -> None:
        """Note one report; a round follows at once if it can change a decision."""
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
        """Note all that the orchestrator says of engines now; ``uids`` tell those of one name apart."""
        self._words.update(words, self.fleet, self.clock(), uids)
        if self._held is not None and self._offered is None:
            self._offered = self._held  # that engines end may be why they are missing
        self._news(self.clock(), urgent=True)

    def resolve(self, addresses: Mapping[str, str]) -> None:
        """Note the addresses of host names."""
        self._building.addresses = addresses
        self._wake.set()

    def proxies_changed(self) -> None:
        """Note that a proxy came, went, or is of another view than before."""
        self._wake.set()

    def request_round(self) -> None:
        """Note that traffic, orders or certificates are different now."""
        self._news(self.clock())

    def begin_canary(self, accepted: AcceptedPolicies) -> str:
        """Serve these policies to views of a canary from now on; else why they cannot be."""
        if self.serving is None or self.fleet is None or self.built is None:
            return "nothing is served yet"
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
        """Serve views of a canary what all others are served."""
        self.canary_build = None

    def withdraw(self, accepted: AcceptedPolicies) -> bool:
        """Take back what was offered, or is held, and is not served; whether it was held."""
        held = self._held is accepted
        self._offered = None if self._offered is accepted else self._offered
        self._held = None if held else self._held
        return held

    def release_shrink(self) -> str:
        """Let go of policies that are held back; else why not."""
        if self._held is None:
            return "no policies are held back"
        if self.canary_build is not None:
            return "a canary is running, and is held against what is served: wait for it, or end it first"
        if self._offered is not None and self._offered is not self._held:
            return "newer policies are being looked at: ask again in a moment"
        _log.warning("policies.released", digest=self._held.digest[:12], reason=self.source_state.reason)
        self._adopt(self._held, stale=False)
        return ""

    # -- what is asked -------------------------------------------------------------------------------------

    @property
    def pending_policies(self) -> tuple[PolicySet, ...]:
        """The policies that are offered, held back or on trial, and not served to everybody."""
        waiting = (self._offered, self._held, None if self.canary_build is None else self.canary_build.accepted)
        return tuple(one.policies for one in waiting if one is not None)

    def snapshot_for(self, view: View) -> Snapshot:
        """What the first proxy of a view is served, at once; it counts among those that share limits."""
        if self.serving is None or self.fleet is None:
            return Snapshot()
        now_s = self.clock()
        self._call_roll(now_s, arriving=view)
        try:
            # Only this view: a storm of proxies, each the first of its own, must not build all views each time.
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

    # -- what is done --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Rounds, for ever."""
        while True:
            # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the end of the wait.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TRAFFIC_TICK_S if self.fleet and self.fleet.traffic else TICK_S):
                    await self._wake.wait()
            self._wake.clear()
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
            # A long round leaves as long again to the streams: proxies that wait to be heard would start the next.
            await asyncio.sleep(max(took_s, SPACING_S - took_s))

    def _round(self) -> None:
        if self.source_state.state == "unread" and self._offered is None:
            return  # what the last run served counts only where the files cannot be used
        now_s = self.clock()
        self._call_roll(now_s)
        offered, self._offered = self._offered, None
        if offered is not None:
            try:
                self._consider(offered)
            except Exception:
                self._held = None  # older than these: nobody who asks to let go of what is held means them
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
        # Opening earlier would tell proxies that come back from a restart that every engine is well.
        policies, addresses = self.serving.policies, self._building.addresses
        if not self.ready.is_set() and not self._opening.due(policies, self.fleet, addresses, now_s):
            return
        self._publish(built)
        # First: who only watches the rounds must not keep proxies from being served.
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
        """Bring the rosters up to who is connected now, and the proxy that is about to be."""
        if self.proxy_counts.update(now_s, arriving):
            self.worth_keeping.set()

    def _build(
        self, policies: PolicySet, fleet: Fleet, now_s: float, *, views: frozenset[View] | None = None
    ) -> BuildResult:
        """A round after the one before, with what the canary is served in it."""
        started_s = time.perf_counter()
        memory = self.built.memory if self.built else self.restored
        built = self._with_trial(self._building.build(policies, fleet, memory, now_s, views=views), fleet)
        self._metrics.snapshot_build_seconds.observe(time.perf_counter() - started_s)
        return built

    def _with_trial(self, built: BuildResult, fleet: Fleet) -> BuildResult:
        """What was built, with what the canary is served; a bug in that leaves the rest served."""
        if self.canary_build is None:
            return built
        try:
            return self.canary_build.with_canary(built, fleet, built.inputs.views)
        except Exception as error:  # noqa: BLE001 - only the canary may be hurt by what is on trial
            self._failed(error)
            self.canary_build.failure = f"nothing can be made of them: {type(error).__name__}: {error}"
            return built

    def _consider(self, offered: AcceptedPolicies) -> None:
        """Serve these policies if snapshots can be made of them, and they do not drop too much."""
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
            self.canary_build = None  # a canary is judged beside what the rest is served, and beside nothing else
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
