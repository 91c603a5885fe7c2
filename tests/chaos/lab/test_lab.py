"""Pulls are taken back, whatever happens: the lab itself, with levers that only remember."""

import asyncio
from typing import Any, ClassVar, cast

import pytest

from chaos.faults.hang import Hang
from chaos.faults.oom_kill import OomKill
from chaos.faults.pulls import BreakEngine, Kill, Pull
from chaos.fitting.blueprint import planned
from chaos.fitting.subjects import subjects
from chaos.history.events import Event, FaultBegan, FaultHealed
from chaos.lab.lab import Asked, BlastRadiusError, Lab
from chaos.lab.opening import Standing
from chaos.lab.site import LeverError, Site
from chaos.scenario.plan import Outage
from tests.chaos.lab.experiments import experiment

pytestmark = pytest.mark.timeout(60)


class Memory:
    """A lever that remembers. Releasing ``e1`` waits for ``go``; pulling ``e2`` fails."""

    handles: ClassVar[tuple[type, ...]] = (BreakEngine, Kill)

    def __init__(self, _: Site) -> None:
        self.held: list[str] = []
        self.releasing = asyncio.Event()
        self.go = asyncio.Event()

    def refusal(self, pull: Pull) -> str:
        return "not this one" if _engine(pull) == "e3" else ""

    async def pull(self, pull: Pull) -> None:
        if _engine(pull) == "e2":
            raise LeverError("it does not break")
        self.held.append(_engine(pull))

    async def release(self, pull: Pull) -> None:
        if _engine(pull) == "e1":
            self.releasing.set()
            await self.go.wait()
        if _engine(pull) in self.held:
            self.held.remove(_engine(pull))


def _engine(pull: Pull) -> str:
    assert isinstance(pull, BreakEngine | Kill)
    return pull.engine if isinstance(pull, BreakEngine) else pull.target


@pytest.fixture
def said() -> list[Event]:
    return []


@pytest.fixture
async def lever() -> Memory:
    return Memory(cast("Site", None))


@pytest.fixture
def lab(lever: Memory, said: list[Event]) -> Lab:
    (subject,) = subjects(["envoy"])
    site = Site(engines={}, proxies={}, posts={}, session=cast("Any", None), load=Asked())
    asked = experiment(blastRadius={"enginesPercent": 50})
    made = Lab(planned(asked, subject), Standing(site=site, shared={}), Asked(), [lambda _: lever])
    made.say = said.append
    return made


def outage(*targets: str, fault: Hang | OomKill | None = None) -> Outage:
    return Outage(id="it", fault=fault or Hang(), targets=targets, start_s=0, end_s=1)


async def test_it_is_over_when_the_first_target_may_be_well(lab: Lab, lever: Memory, said: list[Event]) -> None:
    clock = iter(range(1, 100))
    lab.now_s = lambda: float(next(clock))
    async with lab.outage(outage("e0", "e1")):
        assert sorted(lever.held) == ["e0", "e1"]
        asyncio.get_running_loop().call_later(0.05, lever.go.set)
    assert not lever.held
    began, healed = said
    assert isinstance(began, FaultBegan)
    assert isinstance(healed, FaultHealed)
    # 1 is before the pulls, 2 when e0 was released; e1 was released at 3.
    assert (began.at_s, healed.at_s) == (1, 2)


async def test_who_is_told_to_stop_while_it_heals_heals_to_the_end(
    lab: Lab, lever: Memory, said: list[Event]
) -> None:
    async def strike() -> None:
        async with lab.outage(outage("e1")):
            pass

    striking = asyncio.create_task(strike())
    await lever.releasing.wait()
    striking.cancel()
    asyncio.get_running_loop().call_later(0.05, lever.go.set)
    with pytest.raises(asyncio.CancelledError):
        await striking
    assert not lever.held
    assert isinstance(said[-1], FaultHealed)


async def test_a_pull_that_fails_takes_the_others_back_and_nothing_is_said(
    lab: Lab, lever: Memory, said: list[Event]
) -> None:
    with pytest.raises(LeverError, match="does not break"):
        async with lab.outage(outage("e0", "e2")):
            pass
    assert not lever.held
    assert not said
    # It does not count as hit any more.
    async with lab.outage(outage("e0")):
        assert lever.held == ["e0"]


async def test_what_cannot_or_may_not_be_done_is_not_begun(lab: Lab, lever: Memory) -> None:
    with pytest.raises(LeverError, match="not this one"):
        async with lab.outage(outage("e0", "e3")):
            pass
    async with lab.outage(outage("e0")):
        with pytest.raises(BlastRadiusError, match="3 of 4 engines"):
            async with lab.outage(outage("e0", "e1", "e2")):
                pass
        assert lever.held == ["e0"]


async def test_what_stays_dead_is_not_said_to_be_healed(lab: Lab, said: list[Event]) -> None:
    async with lab.outage(outage("e0", fault=OomKill(stays_dead=True))):
        pass
    assert [one.event for one in said] == ["fault_began"]
