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

from chaos.faults.library import AnyFault
from chaos.faults.pulls import Callers, Kill, Pull
from chaos.fitting.blueprint import Blueprint, planned
from chaos.fitting.subjects import Subject
from chaos.gpu_double import double
from chaos.history.events import Event, FaultBegan, FaultHealed
from chaos.lab.levers.library import LEVERS
from chaos.lab.needs import everything, is_of, needs, pulls_of
from chaos.lab.opening import Standing, stand
from chaos.lab.scratch import scratch
from chaos.lab.site import Lever, LeverError, LeverMaker, Site
from chaos.load.callers import RunningLoad
from chaos.processes import Processes
from chaos.scenario.model import Strike, Target
from chaos.scenario.places import picked
from chaos.scenario.plan import CONTROL_PLANE, Experiment, Outage

RELEASE_LIMIT_S: Final = 90.0
"""In which a fault is healed or given up: an engine that has to start anew is given less."""


class BlastRadiusError(RuntimeError):
    """More would break at once than the scenario allows."""


class Asked:
    """The callers as levers know them: those of the load that runs now, if any."""

    def __init__(self) -> None:
        """Begin without any."""
        self.running: RunningLoad | None = None

    def pull(self, callers: Callers) -> None:
        """Tell them."""
        if self.running is not None:
            self.running.pull(callers)

    def release(self, callers: Callers) -> None:
        """Tell them that it is over."""
        if self.running is not None:
            self.running.release(callers)


class Lab:
    """Made by ``Lab.open``. ``plan`` is what it was built for, ``site`` what stands in it.

    Whoever records sets ``say``, which gets every fault that begins and is healed, and ``now_s``, which tells the
    time.
    """

    def __init__(self, plan: Blueprint, standing: Standing, asked: Asked, levers: Sequence[LeverMaker]) -> None:
        self.plan = plan
        self.standing = standing
        self.asked = asked
        self.say: Callable[[Event], None] = _nobody
        self.now_s: Callable[[], float] = time.monotonic
        self._levers: dict[type, Lever] = {}
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
        levers: Sequence[LeverMaker] = LEVERS,
        by_hand: bool = False,
    ) -> "AsyncIterator[Lab]":
        """A lab that serves, inside the block.

        ``folder`` keeps configurations and logs; without it they are gone at the end. ``by_hand``: any fault can
        be pulled, whatever those of the experiment are; those of GPUs where there is a C compiler. Raises
        FittingError, EngineError, CompilerError, ProcessError or NotReadyError when it cannot be, and LeverError
        when a fault of the experiment cannot be pulled in it.
        """
        plan = planned(experiment, subject)
        pulls = [pull for one in plan.experiment.outages for pull in pulls_of(one)]
        if by_hand:
            wanted = everything((one.name for one in plan.engines), gpus=double.compiler() is not None)
        else:
            wanted = needs(
                pulls,
                {one.name: one.zone for one in plan.engines},
                {one.name: one.zone for one in plan.experiment.proxies},
            )
        with scratch() as temporary:
            place = temporary if folder is None else folder
            place.mkdir(parents=True, exist_ok=True)
            async with (
                Processes(log_dir=place / "logs") as children,
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=RELEASE_LIMIT_S)) as session,
            ):
                asked = Asked()
                standing = await stand(children, session, place, plan=plan, needs=wanted, load=asked)
                lab = cls(plan, standing, asked, levers)
                if not by_hand:
                    lab.refuse(pulls)
                yield lab

    @property
    def site(self) -> Site:
        """What stands here."""
        return self.standing.site

    def refuse(self, pulls: Sequence[Pull]) -> None:
        """LeverError with the reason of each of these pulls that cannot be done here."""
        reasons = {reason: None for pull in pulls if self._concerns(pull) and (reason := self._refusal(pull))}
        if reasons:
            raise LeverError("; ".join(reasons))

    @asynccontextmanager
    async def pull(self, pull: Pull) -> AsyncIterator[None]:
        """The pull is done inside the block. What this lab's subject does not have at all is not pulled at."""
        async with self._pulled([pull]):
            yield

    @asynccontextmanager
    async def outage(self, outage: Outage) -> AsyncIterator[None]:
        """The fault bites inside the block; LeverError when it cannot, BlastRadiusError when it may not."""
        pulls = pulls_of(outage)
        self.refuse(pulls)
        self._stay_within_radius(outage.targets)
        said: Any = outage.fault.model_dump(mode="json", by_alias=True)
        stays = any(isinstance(one, Kill) and one.stays_dead for one in pulls)
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
    async def strike(self, fault: AnyFault, target: Target | None = None) -> AsyncIterator[Outage]:
        """The fault bites inside the block, on everything the target means, as in a scenario; says who that is."""
        strike = Strike.model_construct(fault=fault, target=target or Target())
        names = picked(self.plan.experiment.spec, strike).names
        if not names:
            raise LeverError("the target means nobody here")
        number = next(self._numbers)
        outage = Outage(id=f"by-hand-{number}", fault=fault, targets=names, start_s=self.now_s(), end_s=0.0)
        async with self.outage(outage):
            yield outage

    @asynccontextmanager
    async def _pulled(self, pulls: Sequence[Pull]) -> AsyncIterator[list[Callable[[float], None]]]:
        """All of these inside the block; what is put into the list is called when all are released, and told when
        the first of them was: from then on something may be well again.
        """
        afterwards: list[Callable[[float], None]] = []
        mine = [(self._levers[type(pull)], pull) for pull in pulls if self._concerns(pull)]
        try:
            await _all(lever.pull(pull) for lever, pull in mine)
            yield afterwards
        finally:
            await _to_the_end(self._release(mine, afterwards))

    async def _release(
        self, mine: Sequence[tuple[Lever, Pull]], afterwards: Sequence[Callable[[float], None]]
    ) -> None:
        ends_s: list[float] = []

        async def released(lever: Lever, pull: Pull) -> None:
            try:
                async with asyncio.timeout(RELEASE_LIMIT_S):
                    await lever.release(pull)
            except TimeoutError as problem:
                raise LeverError(f"not healed within {RELEASE_LIMIT_S:g} s: {pull}") from problem
            ends_s.append(self.now_s())

        await _all(released(lever, pull) for lever, pull in mine)
        for one in afterwards:
            one(min(ends_s, default=self.now_s()))

    def _concerns(self, pull: Pull) -> bool:
        return is_of(
            pull,
            control_plane=bool(self.site.control_plane),
            agents=any(one.agent_port is not None for one in self.site.engines.values()),
        )

    def _refusal(self, pull: Pull) -> str:
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


def _nobody(_: Event) -> None:
    """Nobody listens."""
