"""Callers against an answering machine: they try again, and do more or less on order, as long as load runs."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from chaos.faults.actions import ChangeLoad
from chaos.history.history_events import RequestRecord
from chaos.history.request_outcomes import OutcomeReason
from chaos.load.arrival_schedule import ArrivalSchedule
from chaos.load.request_sender import CallerRetries, LoadTarget, RequestTemplate
from chaos.load.running_load import RunningLoad
from chaos.scenario.arrival_trace import TraceRow
from chaos.scenario.scenario_model import LoadSpec
from tests.eventually import eventually


@dataclass
class Machine:
    """Answers everything at once with ``status``, and keeps what it was asked."""

    status: int = 200
    url: str = ""
    asked: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        headers = request.headers
        self.asked.append((headers["x-request-id"], headers.get("x-class", ""), await request.json()))
        return web.json_response({"usage": {"completion_tokens": 4}}, status=self.status)


@pytest.fixture
async def machine() -> AsyncIterator[Machine]:
    machine = Machine()
    app = web.Application()
    app.router.add_post("/v1/completions", machine.answer)
    async with TestServer(app) as server:
        machine.url = str(server.make_url("")).rstrip("/")
        yield machine


@dataclass
class Running:
    """A load with its recorded outcomes."""

    load: RunningLoad
    requests: list[RequestRecord]
    stop: asyncio.Event

    async def until(self, condition: Any, what: str) -> None:
        task = asyncio.create_task(self.load.run())
        try:
            await eventually(lambda: condition(self.requests), what, 60)
        finally:
            self.stop.set()
            await task


def running(
    machine: Machine,
    *,
    rate_per_s: float = 100.0,
    seconds: float = 600.0,
    trace: tuple[TraceRow, ...] = (),
    **expected: Any,
) -> Running:
    requests: list[RequestRecord] = []
    stop = asyncio.Event()
    schedule = ArrivalSchedule(
        load=LoadSpec.model_validate(expected),
        targets=(LoadTarget(url=machine.url, name="p0"),),
        rate_per_s=rate_per_s,
        seed=1,
        trace=trace,
    )
    asking = RequestTemplate(deadline_s=90.0, batch_headers={"x-class": "batch"})
    load = RunningLoad(schedule, asking, requests.append, began_s=time.monotonic(), seconds=seconds, stop=stop)
    return Running(load=load, requests=requests, stop=stop)


async def test_outcomes_use_the_experiment_clock(machine: Machine) -> None:
    one = running(machine, seconds=0.5, batch_percent=50, prompt_tokens={"shortest": 3, "longest": 3})
    await one.load.run()
    assert {told.reason for told in one.requests} == {OutcomeReason.OK}
    assert all(0 <= told.at_s <= 0.5 for told in one.requests)
    assert all(told.question == told.request_id and told.try_number == 1 for told in one.requests)
    batch = {told.request_id for told in one.requests if told.batch}
    assert 0 < len(batch) < len(one.requests)
    assert {request_id for request_id, kind, _ in machine.asked if kind == "batch"} == batch
    assert {body["prompt"] for _, _, body in machine.asked} == {"word word word "}


async def test_client_retries_are_separate_requests(machine: Machine) -> None:
    machine.status = 503
    one = running(machine, rate_per_s=20, client_retries={"attempts": 2, "backoff": "50ms"})
    await one.until(lambda told: any(each.try_number == 3 for each in told), "a third try")
    first = next(told for told in one.requests if told.try_number == 3).question
    tries = [told for told in one.requests if told.question == first]
    assert [told.request_id for told in tries] == [first, f"{first}.2", f"{first}.3"]
    assert all(late.at_s == pytest.approx(early.ended_at_s + 0.05) for early, late in pairwise(tries))
    assert {told.try_number for told in one.requests} == {1, 2, 3}
    assert sorted(request_id for request_id, _, _ in machine.asked) == sorted(
        told.request_id for told in one.requests
    )


async def test_client_does_not_retry_after_success_4xx_or_deadline(machine: Machine) -> None:
    for status, backoff in ((200, "1ms"), (400, "1ms"), (503, "500ms")):
        machine.status = status
        one = running(machine, seconds=0.3, client_retries={"attempts": 20, "backoff": backoff})
        await one.load.run()
        assert {told.try_number for told in one.requests} == {1}


async def test_load_changes_last_until_reverted(machine: Machine) -> None:
    one = running(machine, rate_per_s=50)
    less, more = ChangeLoad(factor=0), ChangeLoad(factor=5)
    one.load.inject(less)
    one.load.inject(more)
    task = asyncio.create_task(one.load.run())
    await asyncio.sleep(0)
    one.load.revert(less)
    await eventually(lambda: sum("more" in told.request_id for told in one.requests) > 20, "more", 60)
    one.load.revert(more)
    await eventually(lambda: sum("more" not in told.request_id for told in one.requests) > 5, "the usual", 60)
    # Sent requests are reported; at most one had not arrived.
    asked = sum("more" in request_id for request_id, _, _ in machine.asked)
    await eventually(lambda: sum("more" in told.request_id for told in one.requests) >= asked, "all of them", 60)
    settled = len([told for told in one.requests if "more" in told.request_id])
    await eventually(lambda: sum("more" not in told.request_id for told in one.requests) > 20, "the usual", 60)
    assert len([told for told in one.requests if "more" in told.request_id]) <= settled + 1
    one.stop.set()
    await task
    one.load.revert(more)


async def test_thundering_herd_ends_when_its_fault_is_released(machine: Machine) -> None:
    one = running(machine, rate_per_s=20)
    herd = ChangeLoad(at_once=30)

    def released(told: list[RequestRecord]) -> bool:
        if told:
            one.load.revert(herd)
        return sum("herd" in each.request_id for each in told) == 30

    one.load.inject(herd)
    await one.until(released, "the herd")
    assert len({told.at_s for told in one.requests if "herd" in told.request_id}) == 1


async def test_client_retry_faults_add_up_and_the_shortest_backoff_wins(machine: Machine) -> None:
    one = running(machine, client_retries={"attempts": 1, "backoff": "2s"}).load
    assert one.retries() == CallerRetries(attempts=1, backoff_s=2)
    storm, other = ChangeLoad(attempts=3, backoff_s=0.1), ChangeLoad(factor=2, backoff_s=0.01)
    one.inject(storm)
    one.inject(other)
    assert one.retries() == CallerRetries(attempts=4, backoff_s=0.1)
    one.revert(storm)
    assert one.retries() == CallerRetries(attempts=1, backoff_s=2)
    alone = running(machine).load
    alone.inject(storm)
    assert alone.retries() == CallerRetries(attempts=3, backoff_s=0.1)


async def test_load_changes_apply_after_a_trace_has_ended(machine: Machine) -> None:
    one = running(machine, trace=(TraceRow(at_s=0.01),))
    herd = ChangeLoad(at_once=5)

    def released(told: list[RequestRecord]) -> bool:
        if told:
            one.load.revert(herd)
        return len(told) == 6

    one.load.inject(herd)
    await one.until(released, "the herd")
