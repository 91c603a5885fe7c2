"""A running lab: inject and heal faults, send requests, record the history.

Leaving its block, for any reason, heals all faults and ends all processes. They also end if our process is killed.
"""

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from chaos.faults.actions import ChangeLoad, FaultAction, KillProcess
from chaos.faults.fault_registry import AnyFault
from chaos.gpu_double import nvml_double
from chaos.history.history_events import FaultBegan, FaultHealed, HistoryEvent
from chaos.lab.injectors.injector_registry import INJECTORS
from chaos.lab.lab_handles import InjectionError, Injector, InjectorFactory, LabHandles
from chaos.lab.lab_requirements import all_requirements, concerns_lab, lab_requirements, outage_actions
from chaos.lab.lab_startup import StartedLab, start_lab
from chaos.lab.scratch_folder import scratch_folder
from chaos.load.running_load import RunningLoad
from chaos.processes import ChildProcesses
from chaos.scenario.experiment_plan import CONTROL_PLANE, Experiment, PlannedOutage
from chaos.scenario.placement import every_engine, selected_targets
from chaos.scenario.scenario_model import FaultSpec, FaultTarget
from chaos.testbed.blueprint import LabBlueprint, lab_blueprint
from chaos.testbed.subjects import Subject

RELEASE_LIMIT_S: Final = 90.0
"""Time limit to heal a fault; longer than an engine needs to restart."""


class BlastRadiusError(RuntimeError):
    """The fault would exceed the scenario's blast radius."""


class CurrentLoad:
    """Control of the load that is running now, if any. A later load starts with the active changes."""

    def __init__(self) -> None:
        """Start without a load."""
        self._running: RunningLoad | None = None
        self._active: list[ChangeLoad] = []

    def begin(self, running: RunningLoad) -> None:
        """From now on this load is running."""
        self._running = running
        for one in self._active:
            running.inject(one)

    def end(self) -> None:
        """The load is over."""
        self._running = None

    def inject(self, callers: ChangeLoad) -> None:
        """Apply the load change."""
        self._active.append(callers)
        if self._running is not None:
            self._running.inject(callers)

    def revert(self, callers: ChangeLoad) -> None:
        """Undo the load change."""
        self._active.remove(callers)
        if self._running is not None:
            self._running.revert(callers)


class Lab:
    """Created by ``Lab.open``. ``plan`` is its blueprint, ``site`` its handles, ``active`` its faults by id.

    A recorder sets ``say``, which receives the start and end of every fault, and ``now_s``, the clock.
    """

    def __init__(
        self, plan: LabBlueprint, standing: StartedLab, asked: CurrentLoad, levers: Sequence[InjectorFactory]
    ) -> None:
        self.plan = plan
        self.standing = standing
        self.asked = asked
        self.say: Callable[[HistoryEvent], None] = _nobody
        self.now_s: Callable[[], float] = time.monotonic
        self.active: dict[str, PlannedOutage] = {}
        self._levers: dict[type, Injector] = {}
        for make in levers:
            lever = make(standing.site)
            self._levers |= dict.fromkeys(lever.handles, lever)
        self._hit: Counter[str] = Counter()
        self._numbers = itertools.count(1)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        experiment: Experiment,
        subject: Subject,
        folder: Path | None = None,
        *,
        levers: Sequence[InjectorFactory] = INJECTORS,
        by_hand: bool = False,
    ) -> "AsyncIterator[Lab]":
        """A serving lab for the block.

        ``folder`` keeps configurations and logs; without it they are deleted at the end. ``by_hand``: allow any
        fault, not only the experiment's; GPU faults need a C compiler. Raises PolicyFitError, EngineStartError,
        CompilerError, ProcessError or NotReadyError if it cannot start, and InjectionError if it cannot inject a
        planned fault.
        """
        plan = lab_blueprint(experiment, subject)
        pulls = [pull for one in plan.experiment.outages for pull in outage_actions(one)]
        if by_hand:
            wanted = all_requirements((one.name for one in plan.engines), gpus=nvml_double.compiler() is not None)
        else:
            wanted = lab_requirements(
                pulls,
                {one.name: one.zone for one in plan.engines},
                {one.name: one.zone for one in plan.experiment.proxies},
            )
        with scratch_folder() as temporary:
            place = temporary if folder is None else folder
            place.mkdir(parents=True, exist_ok=True)
            async with (
                ChildProcesses(log_dir=place / "logs") as children,
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=RELEASE_LIMIT_S)) as session,
            ):
                asked = CurrentLoad()
                standing = await start_lab(children, session, place, plan=plan, needs=wanted, load=asked)
                lab = cls(plan, standing, asked, levers)
                if not by_hand:
                    lab.refuse(pulls)
                yield lab

    @property
    def site(self) -> LabHandles:
        """Handles of the lab."""
        return self.standing.site

    def refuse(self, pulls: Sequence[FaultAction]) -> None:
        """Raise InjectionError with the reasons if the lab cannot apply some of these actions."""
        reasons = {reason: None for pull in pulls if self._concerns(pull) and (reason := self._refusal(pull))}
        if reasons:
            raise InjectionError("; ".join(reasons))

    @asynccontextmanager
    async def inject(self, pull: FaultAction) -> AsyncIterator[None]:
        """Apply the action inside the block; skip it if the lab lacks its target."""
        async with self._pulled([pull]):
            yield

    @asynccontextmanager
    async def outage(self, outage: PlannedOutage) -> AsyncIterator[None]:
        """Inject the outage inside the block; raises InjectionError, or BlastRadiusError if it exceeds the
        limits.
        """
        pulls = outage_actions(outage)
        self.refuse(pulls)
        self._stay_within_radius(outage.targets)
        said: Any = outage.fault.model_dump(mode="json", by_alias=True)
        stays = any(isinstance(one, KillProcess) and one.stays_dead for one in pulls)
        self._hit.update(outage.targets)
        # Effects may be visible before the last action is applied.
        at_s = self.now_s()
        try:
            async with self._pulled(pulls) as released:
                self.active[outage.id] = outage
                self.say(FaultBegan(at_s=at_s, id=outage.id, fault=said, targets=outage.targets))
                if not stays:
                    released.append(lambda at_s: self.say(FaultHealed(at_s=at_s, id=outage.id)))
                yield
        finally:
            self.active.pop(outage.id, None)
            self._hit.subtract(outage.targets)

    @asynccontextmanager
    async def strike(self, fault: AnyFault, target: FaultTarget | None = None) -> AsyncIterator[PlannedOutage]:
        """Inject the fault inside the block on all targets, as in a scenario; yields the outage."""
        strike = FaultSpec.model_construct(fault=fault, target=target or FaultTarget())
        names = selected_targets(self.plan.experiment.spec, strike).names
        if not names:
            raise InjectionError("the target matches nothing in this lab")
        async with self.strike_named(fault, names) as outage:
            yield outage

    @asynccontextmanager
    async def strike_named(self, fault: AnyFault, names: Sequence[str]) -> AsyncIterator[PlannedOutage]:
        """Inject the fault inside the block on the targets with these names; yields the outage."""
        outage = PlannedOutage(
            id=f"by-hand-{next(self._numbers)}",
            fault=fault,
            targets=tuple(names),
            start_s=self.now_s(),
            end_s=0.0,
        )
        async with self.outage(outage):
            yield outage

    @asynccontextmanager
    async def _pulled(self, pulls: Sequence[FaultAction]) -> AsyncIterator[list[Callable[[float], None]]]:
        """Apply all actions inside the block.

        After they are reverted, the callbacks in the yielded list get the time of the first revert: targets may be
        healthy from then on.
        """
        afterwards: list[Callable[[float], None]] = []
        mine = [(self._levers[type(pull)], pull) for pull in pulls if self._concerns(pull)]
        try:
            await _all(lever.inject(pull) for lever, pull in mine)
            yield afterwards
        finally:
            await _to_the_end(self._release(mine, afterwards))

    async def _release(
        self, mine: Sequence[tuple[Injector, FaultAction]], afterwards: Sequence[Callable[[float], None]]
    ) -> None:
        ends_s: list[float] = []

        async def released(lever: Injector, pull: FaultAction) -> None:
            try:
                async with asyncio.timeout(RELEASE_LIMIT_S):
                    await lever.revert(pull)
            except TimeoutError as problem:
                raise InjectionError(f"not healed within {RELEASE_LIMIT_S:g} s: {pull}") from problem
            ends_s.append(self.now_s())

        await _all(released(lever, pull) for lever, pull in mine)
        for one in afterwards:
            one(min(ends_s, default=self.now_s()))

    def _concerns(self, pull: FaultAction) -> bool:
        return concerns_lab(
            pull,
            control_plane=bool(self.site.control_plane),
            agents=any(one.agent_port is not None for one in self.site.engines.values()),
        )

    def _refusal(self, pull: FaultAction) -> str:
        lever = self._levers.get(type(pull))
        return f"no injector for {type(pull).__name__}" if lever is None else lever.refusal(pull)

    def _stay_within_radius(self, targets: Sequence[str]) -> None:
        radius, experiment = self.plan.experiment.spec.blast_radius, self.plan.experiment
        hit = {name for name, count in self._hit.items() if count > 0} | set(targets)
        for what, spots, percent in (
            ("engines", every_engine(experiment.spec), radius.engines_percent),
            ("proxies", experiment.proxies, radius.proxies_percent),
        ):
            count = sum(one.name in hit for one in spots)
            if 100.0 * count > percent * len(spots):
                raise BlastRadiusError(
                    f"{count} of {len(spots)} {what} would be hit at once (limit {percent:g} %, blastRadius)"
                )
        if CONTROL_PLANE in hit and not radius.control_plane:
            raise BlastRadiusError("the control plane would be hit; blastRadius.controlPlane is false")


async def _all(doing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all concurrently to their ends; then raise the first error."""
    for one in await asyncio.gather(*doing, return_exceptions=True):
        if one is not None:
            raise one


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work even if cancelled once; a second cancellation stops it."""
    doing = asyncio.create_task(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


def _nobody(_: HistoryEvent) -> None:
    """Ignore the event."""
