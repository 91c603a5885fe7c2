"""Callers in front of a simulated engine, made to ask again and to come back all at once, and calm afterwards."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import aiohttp
import pytest

from chaos.fake_engine import FakeEngine
from chaos.fake_engine.engine_faults import EngineShed
from chaos.faults.fault import Fault
from chaos.faults.retry_storm_fault import RetryStormFault
from chaos.faults.thundering_herd import ThunderingHerdFault
from chaos.history.history_events import RequestRecord
from chaos.load.arrival_schedule import ArrivalSchedule
from chaos.load.request_sender import LoadTarget, RequestTemplate
from chaos.load.running_load import RunningLoad
from chaos.scenario.experiment_plan import CLIENTS
from chaos.scenario.scenario_model import LoadSpec
from tests.chaos.conftest import StartEngine
from tests.chaos.faults.small_lab import InjectedFault, site
from tests.eventually import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadUnderTest:
    """A load that runs, the engine it asks, and what became of the requests so far."""

    engine: FakeEngine
    session: aiohttp.ClientSession
    load: RunningLoad
    requests: list[RequestRecord]

    def struck(self, fault: Fault) -> InjectedFault:
        return InjectedFault(replace(site(self.session), load=self.load), fault, CLIENTS)

    async def until(self, holds: Callable[[list[RequestRecord]], bool], what: str) -> None:
        """Return when it holds of what became of the requests so far."""
        await eventually(lambda: len(self.requests) >= 3 and holds(self.requests), what, 60)


@pytest.fixture
async def asked(start_engine: StartEngine) -> AsyncIterator[LoadUnderTest]:
    engine = await start_engine(slots=64)
    requests: list[RequestRecord] = []
    stop = asyncio.Event()
    load = RunningLoad(
        ArrivalSchedule(
            load=LoadSpec(), targets=(LoadTarget(url=engine.url, name="p0"),), rate_per_s=20.0, seed=1
        ),
        RequestTemplate(),
        requests.append,
        began_s=time.monotonic(),
        seconds=3600.0,
        stop=stop,
    )
    task = asyncio.create_task(load.run())
    async with aiohttp.ClientSession() as session:
        yield LoadUnderTest(engine=engine, session=session, load=load, requests=requests)
    stop.set()
    await task


async def test_retry_storm_multiplies_requests_to_a_shedding_engine(asked: LoadUnderTest) -> None:
    await asked.engine.set_fault(EngineShed())
    # How many were under way is the machine's affair.
    await asked.until(lambda told: {one.status for one in told[-5:]} == {503}, "all are refused")
    assert {one.try_number for one in asked.requests} == {1}
    storm = asked.struck(RetryStormFault(attempts=4, backoff="10ms"))

    await storm.pull()
    await asked.until(lambda told: [one.try_number for one in told].count(5) >= 5, "five tries each")
    await storm.release()

    assert max(one.try_number for one in asked.requests) == 5
    await asked.until(lambda told: {one.try_number for one in told[-20:]} == {1}, "one try each")


async def test_thundering_herd_pauses_and_then_arrives_at_once(asked: LoadUnderTest) -> None:
    await asked.until(bool, "some requests")
    herd = asked.struck(ThunderingHerdFault(at_once=40))

    await herd.pull()
    # What was under way ends; then nothing comes for as long as twenty would have taken.
    for _ in range(10):
        heard = len(asked.requests)
        await asyncio.sleep(1.0)
        if len(asked.requests) == heard:
            break
    assert len(asked.requests) == heard
    await herd.release()

    def came() -> list[RequestRecord]:
        return [one for one in asked.requests if "herd" in one.request_id]

    await eventually(lambda: len(came()) == 40, "the herd", 60)
    assert len({one.at_s for one in came()}) == 1
    await eventually(lambda: "herd" not in asked.requests[-1].request_id, "the usual requests", 60)
    assert len(came()) == 40
