"""Runs a canary: some proxies are served new policies and watched, then all get them or none.

The server decides alone: the caller may disconnect. Nothing is kept on disk, so a restarted server serves all
proxies the previous version.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import structlog

from policies.model import PolicySet
from xds_server.admin_api.version_types import CanaryStatus
from xds_server.model.policy_state import AcceptedPolicies
from xds_server.model.type_urls import MOVING, SHORT_NAMES
from xds_server.model.view import View
from xds_server.publish import ProxyState, Publisher
from xds_server.reconcile.reconciler import Reconciler
from xds_server.rollout.canary_analysis import (
    CanaryAnalysis,
    CanaryVerdict,
    CohortMetrics,
    analyze_canary,
    canary_proxies,
)
from xds_server.rollout.history.policy_version import Provenance
from xds_server.telemetry.objective_counts import ObjectivesCount
from xds_server.telemetry.traffic_store import TrafficStore
from xds_server.xds.messages import Sync

CHECK_EACH_S: Final = 0.25
CONFIRM_S: Final = 10.0
"""Extra time at the end for proxies that have not acknowledged (ACK) their last update."""

_OTHERS: Final = "another version is served meanwhile than the one to compare with"
_NOTHING_SAID: Final = CanaryAnalysis(verdict=CanaryVerdict.UNKNOWN, reasons=())
_log = structlog.get_logger()


class CanaryStep(StrEnum):
    """What happens to a canary next."""

    WAIT = "wait"
    ON = "on"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPlan:
    """What to try, on how many proxies, for how long."""

    accepted: AcceptedPolicies
    provenance: Provenance
    percent: float
    for_s: float
    yes_if_unknown: bool = False
    slo_percent: float | None = None


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A resource that a proxy refuses (NACK)."""

    node: str
    type_url: str
    name: str
    version: str


class CanaryRun:
    """One running canary: metrics of its proxies and of the others, and its next step."""

    def __init__(
        self,
        plan: CanaryPlan,
        nodes: frozenset[str],
        states: tuple[ProxyState, ...],
        now_s: float,
        moved: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """``moved``: engines, by pool and name, that the canary's proxies reach at another address."""
        self.plan = plan
        self.nodes = nodes
        self.began_at_s = now_s
        self.mine, self.others = (CohortMetrics(objectives=_objectives(plan.accepted.policies)) for _ in range(2))
        self.connected = len(nodes)
        self.analysis = _NOTHING_SAID
        self._moved = moved
        self._refused_before = frozenset(refusal for refusal, _ in _refusals(states))

    def on_call_ended(
        self,
        node: str,
        *,
        failed: bool,
        time_s: float | None,
        streaming: bool,
        weight: float,  # noqa: ARG002 - samples of both sides are compared, not estimates
    ) -> None:
        """Count a call."""
        seen = self.mine if node in self.nodes else self.others
        seen.done += 1
        seen.failed += failed
        if time_s is not None:
            (seen.first_bytes_s if streaming else seen.answers_s).append(time_s)

    def on_request_shed(self, node: str, weight: float) -> None:  # noqa: ARG002 - the same
        """Count a request that was shed."""
        (self.mine if node in self.nodes else self.others).shed += 1

    def on_request(self, node: str, route: str) -> None:
        """Count a request for the objectives of its route."""
        objectives = self._objectives(node, route)
        if objectives is not None:
            objectives.add_request(1)

    def on_answer(self, node: str, route: str, duration_s: float, first_byte_s: float) -> None:
        """Count a complete answer for the objectives of its route."""
        objectives = self._objectives(node, route)
        if objectives is not None:
            objectives.add_answer(duration_s, first_byte_s, 1)

    def _objectives(self, node: str, route: str) -> ObjectivesCount | None:
        return (self.mine if node in self.nodes else self.others).objectives.get(route)

    def is_other_engine(self, node: str, pool: str, engine: str) -> bool:
        """Whether this proxy's calls are for another engine than the one known by this name."""
        return node in self.nodes and (pool, engine) in self._moved

    def step(
        self, states: tuple[ProxyState, ...], failure: str, now_s: float
    ) -> tuple[CanaryStep, tuple[str, ...]]:
        """The next step, with reasons."""
        here = tuple(state for state in states if state.node.id in self.nodes)
        self.connected = len({state.node.id for state in here})
        self.analysis = analyze_canary(self.mine, self.others, self.plan.slo_percent)
        for refusal, reason in _refusals(here):
            if refusal not in self._refused_before:
                kind = SHORT_NAMES.get(refusal.type_url, refusal.type_url)
                return CanaryStep.BACK, (f"{refusal.node} refuses {kind} {refusal.name}: {reason}",)
        if failure:
            return CanaryStep.BACK, (failure,)
        if self.analysis.verdict is CanaryVerdict.BAD:
            return CanaryStep.BACK, self.analysis.reasons
        return (
            (CanaryStep.WAIT, ()) if now_s < self.began_at_s + self.plan.for_s else self._at_the_end(here, now_s)
        )

    def _at_the_end(self, here: tuple[ProxyState, ...], now_s: float) -> tuple[CanaryStep, tuple[str, ...]]:
        # Live limits change all the time; do not wait for their acknowledgement.
        late = sorted(
            {
                one.node.id
                for one in here
                if any(kind.state is not Sync.SYNCED for kind in one.types if kind.type_url not in MOVING)
            }
        )
        if late and now_s < self.began_at_s + self.plan.for_s + CONFIRM_S:
            return CanaryStep.WAIT, ()
        if late:
            return CanaryStep.BACK, (f"not acknowledged by {', '.join(late[:5])}",)
        if not here:
            self.analysis = CanaryAnalysis(
                verdict=CanaryVerdict.UNKNOWN, reasons=("none of the canary's proxies is connected",)
            )
        if self.analysis.verdict is CanaryVerdict.UNKNOWN and not self.plan.yes_if_unknown:
            return CanaryStep.BACK, (*self.analysis.reasons, "use --yes-if-unknown to promote it anyway")
        return CanaryStep.ON, self.analysis.reasons

    def status(self, state: str, now_s: float, reasons: tuple[str, ...] = ()) -> CanaryStatus:
        """The state of the canary."""
        return CanaryStatus(
            state=state,
            digest=self.plan.accepted.digest,
            percent=self.plan.percent,
            proxies=tuple(sorted(self.nodes)),
            connected=self.connected,
            age_s=round(now_s - self.began_at_s, 1),
            left_s=round(max(0.0, self.began_at_s + self.plan.for_s - now_s), 1),
            requests=round(self.mine.arrived),
            word=self.analysis.verdict.value,
            reasons=reasons or self.analysis.reasons,
            by=self.plan.provenance.by,
        )


class CanaryController:
    """Starts and ends canaries, one at a time."""

    def __init__(
        self,
        reconciler: Reconciler,
        publisher: Publisher,
        book: TrafficStore,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reconciler = reconciler
        self._publisher = publisher
        self._book = book
        self._clock = clock
        self._begun = asyncio.Event()
        self.running: CanaryRun | None = None
        self._last = CanaryStatus(state="none")
        self._ended_at_s = 0.0

    def has(self, node: str) -> bool:
        """Whether this proxy is in a canary."""
        return self.running is not None and node in self.running.nodes

    def status(self) -> CanaryStatus:
        """The running canary, or the last one."""
        if self.running is not None:
            return self.running.status("running", self._clock())
        if self._last.state == "none":
            return self._last
        return replace(self._last, ended_s=round(self._clock() - self._ended_at_s, 1))

    def begin(self, plan: CanaryPlan) -> str:
        """Start a canary; returns why not otherwise."""
        nodes = canary_proxies(
            {node: view.zone for node, view in self._publisher.nodes.items() if isinstance(view, View)},
            plan.percent,
        )
        if not nodes:
            return "no proxy is connected: apply without --canary, or wait for proxies"
        reason = self._reconciler.begin_canary(plan.accepted)
        if reason:
            return reason
        serving = self._reconciler.serving
        moved = frozenset() if serving is None else _moved(plan.accepted.policies, serving.policies)
        self.running = CanaryRun(plan, nodes, self._publisher.proxies(), self._clock(), moved)
        self._book.listener = self.running
        self._publisher.regroup()
        self._begun.set()
        _log.info("policies.canary", digest=plan.accepted.digest[:12], proxies=len(nodes), for_s=plan.for_s)
        return ""

    def end(self, state: str, reasons: tuple[str, ...], version: int = 0) -> None:
        """Serve its proxies the common version; ``state`` is the result."""
        run, self.running = self.running, None
        if run is None:
            return
        self._ended_at_s = self._clock()
        self._last = replace(run.status(state, self._ended_at_s, reasons), version=version, left_s=0.0)
        self._book.listener = None
        self._reconciler.end_canary()
        self._publisher.regroup()
        log = _log.info if state == "served" else _log.warning
        log("policies.canary_ended", state=state, reasons=reasons)

    async def run(self, on_end: Callable[[CanaryRun, bool, tuple[str, ...]], Awaitable[None]]) -> None:
        """Step the running canary until cancelled; ``on_end`` gets whether to promote it and why, and ends it."""
        while True:
            await self._begun.wait()
            self._begun.clear()
            while self.running is not None:
                run, trial = self.running, self._reconciler.canary_build
                failure = _OTHERS if trial is None else trial.failure
                step, reasons = run.step(self._publisher.proxies(run.nodes), failure, self._clock())
                if step is not CanaryStep.WAIT:
                    await on_end(run, step is CanaryStep.ON, reasons)
                await asyncio.sleep(CHECK_EACH_S)


def _objectives(policies: PolicySet) -> Mapping[str, ObjectivesCount]:
    """Fresh counts for the objectives of these policies, by route."""
    declared = {name: tuple(route.spec.objectives.all()) for name, route in policies.routes.items()}
    return {name: ObjectivesCount(objectives) for name, objectives in declared.items() if objectives}


def _moved(new: PolicySet, old: PolicySet) -> frozenset[tuple[str, str]]:
    """The engines, by pool and name, with another address in ``new`` than in ``old``."""
    places = {
        (pool, one.name): (one.address, one.port)
        for pool, made in old.pools.items()
        for one in made.spec.endpoints
    }
    return frozenset(
        (pool, one.name)
        for pool, made in new.pools.items()
        for one in made.spec.endpoints
        if places.get((pool, one.name)) not in {None, (one.address, one.port)}
    )


def _refusals(states: tuple[ProxyState, ...]) -> Iterator[tuple[_Refusal, str]]:
    for state in states:
        for kind in state.types:
            for name, version in kind.rejected.items():
                yield _Refusal(state.node.id, kind.type_url, name, version), kind.reason
