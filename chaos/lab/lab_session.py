"""A running lab: whoever holds one open can break and heal its parts, send requests, and keep what was seen.

Everything is undone when its block is left, however that comes about: faults are healed, and processes end. They
also end when ours is killed.
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
from chaos.scenario.placement import selected_targets
from chaos.scenario.scenario_model import FaultSpec, FaultTarget
from chaos.testbed.blueprint import LabBlueprint, lab_blueprint
from chaos.testbed.subjects import Subject

RELEASE_LIMIT_S: Final = 90.0
"""In which a fault is healed or given up: an engine that has to start anew is given less."""


class BlastRadiusError(RuntimeError):
    """More would break at once than the scenario allows."""


class CurrentLoad:
    """The callers as levers know them: those of the load that runs now, if any."""

    def __init__(self) -> None:
        """Begin without any."""
        self.running: RunningLoad | None = None

    def inject(self, callers: ChangeLoad) -> None:
        """Tell them."""
        if self.running is not None:
            self.running.inject(callers)

    def revert(self, callers: ChangeLoad) -> None:
        """Tell them that it is over."""
        if self.running is not None:
            self.running.revert(callers)


class Lab:
    """Made by ``Lab.open``. ``plan`` is what it was built for, ``site`` what stands in it.

    Whoever records sets ``say``, which gets every fault that begins and is healed, and ``now_s``, which tells the
    time.
    """

    def __init__(
        self, plan: LabBlueprint, standing: StartedLab, asked: CurrentLoad, levers: Sequence[InjectorFactory]
    ) -> None:
        self.plan = plan
        self.standing = standing
        self.asked = asked
        self.say: Callable[[HistoryEvent], None] = _nobody
        self.now_s: Callable[[], float] = time.monotonic
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
        """A lab that serves, inside the block.

        ``folder`` keeps configurations and logs; without it they are gone at the end. ``by_hand``: any fault can
        be pulled, whatever those of the experiment are; those of GPUs where there is a C compiler. Raises
        FittingError, EngineError, CompilerError, ProcessError or NotReadyError when it cannot be, and LeverError
        when a fault of the experiment cannot be pulled in it.
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
        """What stands here."""
        return self.standing.site

    def refuse(self, pulls: Sequence[FaultAction]) -> None:
        """LeverError with the reason of each of these pulls that cannot be done here."""
        reasons = {reason: None for pull in pulls if self._concerns(pull) and (reason := self._refusal(pull))}
        if reasons:
            raise InjectionError("; ".join(reasons))

    @asynccontextmanager
    async def inject(self, pull: FaultAction) -> AsyncIterator[None]:
        """The pull is done inside the block. What this lab's subject does not have at all is not pulled at."""
        async with self._pulled([pull]):
            yield

    @asynccontextmanager
    async def outage(self, outage: PlannedOutage) -> AsyncIterator[None]:
        """The fault bites inside the block; LeverError when it cannot, BlastRadiusError when it may not."""
        pulls = outage_actions(outage)
        self.refuse(pulls)
        self._stay_within_radius(outage.targets)
        said: Any = outage.fault.model_dump(mode="json", by_alias=True)
        stays = any(isinstance(one, KillProcess) and one.stays_dead for one in pulls)
        self._hit.update(outage.targets)
        # Who watches may see it before the last pull is done.
        at_s = self.now_s()
        try:
            async with self._pulled(pulls) as released:
                self.say(FaultBegan(at_s=at_s, id=outage.id, fault=said, targets=outage.targets))
                if not stays:
                    released.append(lambda at_s: self.say(FaultHealed(at_s=at_s, id=outage.id)))
                yield
        finally:
            self._hit.subtract(outage.targets)

    @asynccontextmanager
    async def strike(self, fault: AnyFault, target: FaultTarget | None = None) -> AsyncIterator[PlannedOutage]:
        """The fault bites inside the block, on everything the target means, as in a scenario; says who that is."""
        strike = FaultSpec.model_construct(fault=fault, target=target or FaultTarget())
        names = selected_targets(self.plan.experiment.spec, strike).names
        if not names:
            raise InjectionError("the target means nobody here")
        number = next(self._numbers)
        outage = PlannedOutage(id=f"by-hand-{number}", fault=fault, targets=names, start_s=self.now_s(), end_s=0.0)
        async with self.outage(outage):
            yield outage

    @asynccontextmanager
    async def _pulled(self, pulls: Sequence[FaultAction]) -> AsyncIterator[list[Callable[[float], None]]]:
        """All of these inside the block; what is put into the list is called when all are released, and told when
        the first of them was: from then on something may be well again.
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
        return f"no lever does {type(pull).__name__}" if lever is None else lever.refusal(pull)

    def _stay_within_radius(self, targets: Sequence[str]) -> None:
        radius, experiment = self.plan.experiment.spec.blast_radius, self.plan.experiment
        hit = {name for name, count in self._hit.items() if count > 0} | set(targets)
        for what, spots, percent in (
            ("engines", experiment.engines, radius.engines_percent),
            ("proxies", experiment.proxies, radius.proxies_percent),
        ):
            count = sum(one.name in hit for one in spots)
            if 100.0 * count > percent * len(spots):
                raise BlastRadiusError(
                    f"{count} of {len(spots)} {what} would be hit at once, and the scenario allows {percent:g} %"
                )
        if CONTROL_PLANE in hit and not radius.control_plane:
            raise BlastRadiusError("the control plane would be hit, and the scenario does not allow that")


async def _all(doing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Do all of it side by side, to the end of each; then raise the first thing that went wrong."""
    for one in await asyncio.gather(*doing, return_exceptions=True):
        if one is not None:
            raise one


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do all of it, also when we are told to stop meanwhile; who tells us twice means it."""
    doing = asyncio.create_task(work)
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await doing
        raise


def _nobody(_: HistoryEvent) -> None:
    """Nobody listens."""
