"""Pulls are taken back, whatever happens: the lab itself, with levers that only remember."""

import asyncio
from typing import Any, ClassVar, cast

import pytest

from chaos.faults.actions import FaultAction, KillProcess, SetEngineFault
from chaos.faults.hang import HangFault
from chaos.faults.oom_kill import OomKillFault
from chaos.history.history_events import FaultBegan, FaultHealed, HistoryEvent
from chaos.lab.lab_handles import InjectionError, LabHandles
from chaos.lab.lab_session import BlastRadiusError, CurrentLoad, Lab
from chaos.lab.lab_startup import StartedLab
from chaos.scenario.experiment_plan import PlannedOutage
from chaos.testbed.blueprint import lab_blueprint
from chaos.testbed.subjects import subjects
from tests.chaos.lab.experiments import experiment

pytestmark = pytest.mark.timeout(60)


class Memory:
    """A lever that remembers. Releasing ``e1`` waits for ``go``; pulling ``e2`` fails."""

    handles: ClassVar[tuple[type, ...]] = (SetEngineFault, KillProcess)

    def __init__(self, _: LabHandles) -> None:
        self.held: list[str] = []
        self.releasing = asyncio.Event()
        self.go = asyncio.Event()

    def refusal(self, pull: FaultAction) -> str:
        return "not this one" if _engine(pull) == "e3" else ""

    async def inject(self, pull: FaultAction) -> None:
        if _engine(pull) == "e2":
            raise InjectionError("it does not break")
        self.held.append(_engine(pull))

    async def revert(self, pull: FaultAction) -> None:
        if _engine(pull) == "e1":
            self.releasing.set()
            await self.go.wait()
        if _engine(pull) in self.held:
            self.held.remove(_engine(pull))


def _engine(pull: FaultAction) -> str:
    assert isinstance(pull, SetEngineFault | KillProcess)
    return pull.engine if isinstance(pull, SetEngineFault) else pull.target


@pytest.fixture
def expected() -> list[HistoryEvent]:
    return []


@pytest.fixture
async def lever() -> Memory:
    return Memory(cast("LabHandles", None))


@pytest.fixture
def lab(lever: Memory, expected: list[HistoryEvent]) -> Lab:
    (subject,) = subjects(["envoy"])
    site = LabHandles(engines={}, proxies={}, posts={}, session=cast("Any", None), load=CurrentLoad())
    asked = experiment(blastRadius={"enginesPercent": 50})
    made = Lab(lab_blueprint(asked, subject), StartedLab(site=site, shared={}), CurrentLoad(), [lambda _: lever])
    made.say = expected.append
    return made


def outage(*targets: str, fault: HangFault | OomKillFault | None = None) -> PlannedOutage:
    return PlannedOutage(id="it", fault=fault or HangFault(), targets=targets, start_s=0, end_s=1)


async def test_fault_ends_at_the_first_revert(lab: Lab, lever: Memory, expected: list[HistoryEvent]) -> None:
    clock = iter(range(1, 100))
    lab.now_s = lambda: float(next(clock))
    async with lab.outage(outage("e0", "e1")):
        assert sorted(lever.held) == ["e0", "e1"]
        asyncio.get_running_loop().call_later(0.05, lever.go.set)
    assert not lever.held
    began, healed = expected
    assert isinstance(began, FaultBegan)
    assert isinstance(healed, FaultHealed)
    # 1 is before the pulls, 2 when e0 was released; e1 was released at 3.
    assert (began.at_s, healed.at_s) == (1, 2)


async def test_cancellation_does_not_interrupt_healing(
    lab: Lab, lever: Memory, expected: list[HistoryEvent]
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
    assert isinstance(expected[-1], FaultHealed)


async def test_failed_action_reverts_the_others_without_events(
    lab: Lab, lever: Memory, expected: list[HistoryEvent]
) -> None:
    with pytest.raises(InjectionError, match="does not break"):
        async with lab.outage(outage("e0", "e2")):
            pass
    assert not lever.held
    assert not expected
    # It does not count as hit any more.
    async with lab.outage(outage("e0")):
        assert lever.held == ["e0"]


async def test_refused_fault_is_not_started(lab: Lab, lever: Memory) -> None:
    with pytest.raises(InjectionError, match="not this one"):
        async with lab.outage(outage("e0", "e3")):
            pass
    async with lab.outage(outage("e0")):
        with pytest.raises(BlastRadiusError, match="3 of 4 engines"):
            async with lab.outage(outage("e0", "e1", "e2")):
                pass
        assert lever.held == ["e0"]


async def test_process_that_stays_dead_is_not_reported_healed(lab: Lab, expected: list[HistoryEvent]) -> None:
    async with lab.outage(outage("e0", fault=OomKillFault(stays_dead=True))):
        pass
    assert [one.event for one in expected] == ["fault_began"]
