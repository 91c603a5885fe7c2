"""How often an engine is asked, whatever it does, and what is known of its adapters."""

import asyncio
import contextlib
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from engine.adapter_list import MODELS_PATH
from engine.agent.agent_config import AgentConfig
from engine.agent.engine_monitor import EngineMonitor
from engine.engine_http import EngineHttp, EngineTarget
from engine.engine_readings import CanaryReading, MetricsReading, ProbeFailure, ProbeFailureReason
from engine.report import Verdict
from engine.vllm_metrics import VllmCounters
from tests.eventually import eventually
from tests.hanging_engine import HangingEngine


class Closing(EngineHttp):
    """A healthy engine that counts connections and closes every idle one."""

    def __init__(self, config: AgentConfig) -> None:
        target = EngineTarget(address="127.0.0.1", port=1, model="m", probe=config.probe)
        super().__init__(None, target, time.monotonic, lambda _since_s: False)  # type: ignore[arg-type] # unused
        # Its canaries take no time, so their limit is the probe's.
        self.timeout_s = config.probe.timeout_s
        self.looks = 0
        self.answers = 0
        self.counted = asyncio.Event()

    @property
    def count_path(self) -> str:
        return "/switchgear/in_flight"

    async def read_metrics(self, *, suspect: bool = False, stalled: bool = False) -> MetricsReading:
        assert not suspect
        assert not stalled
        self.looks += 1
        counters = VllmCounters(
            generation_tokens=5.0 + self.answers, prompt_tokens=0, running=0, waiting=0, started_at_s=1.0
        )
        return MetricsReading(at_s=time.monotonic(), counters=counters, in_flight=0)

    async def send_canary(
        self, prompt: str, timeout_s: float | None = None, *, rank: int | None = None
    ) -> CanaryReading:
        assert prompt
        assert timeout_s == self.timeout_s
        assert rank is None
        self.answers += 1
        return CanaryReading(sent_at_s=time.monotonic(), at_s=time.monotonic())

    async def count(self) -> int | None:
        self.counted.set()
        return 0

    async def value(self, path: str) -> Any:
        return {"version": "1"} if path == "/version" else {"data": [{"id": "m"}]}

    async def wait_disconnected(self) -> None:
        return


async def test_an_engine_that_closes_silent_connections_is_not_asked_without_end() -> None:
    config = AgentConfig()
    engine = Closing(config)
    follower = EngineMonitor(engine, config, lambda: None, clock=time.monotonic, rng=random.Random(1))
    task = asyncio.create_task(follower.run())
    for _ in range(3):
        engine.counted.clear()
        await asyncio.wait_for(engine.counted.wait(), 60)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert follower.standing.produces
    assert engine.looks <= 6, "one at first, one for each time the wire was cut, and no more"
    assert engine.answers <= 6
    assert (follower.model, follower.revision) == ("m", "vllm 1")


class Keyed(Closing):
    """An engine that asks for a key where vLLM does: not for its counters."""

    keyed = True

    async def value(self, path: str) -> Any:
        if self.keyed and path == "/v1/models":
            return ProbeFailure(trouble=ProbeFailureReason.STATUS, status=401, detail="HTTP 401 from /v1/models")
        return await super().value(path)


async def test_engine_that_refuses_to_name_its_model_is_misconfigured() -> None:
    config = AgentConfig()
    engine = Keyed(config)
    monitor = EngineMonitor(engine, config, lambda: None, clock=time.monotonic, rng=random.Random(1))
    task = asyncio.create_task(monitor.run())
    try:
        await eventually(lambda: monitor.standing.verdict is Verdict.MISCONFIGURED, "refused", 60)
        assert "401" in monitor.standing.findings[0].sentence
        assert not engine.answers
        engine.keyed = False
        await eventually(lambda: monitor.standing.verdict is Verdict.READY, "answers", 60)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Hanging(HangingEngine, Closing):
    """One that also closes idle connections."""


async def test_canary_given_up_during_a_reading_hides_no_request() -> None:
    config = AgentConfig(model="m")
    engine = Hanging(config)
    others: list[int] = []
    monitor = EngineMonitor(
        engine,
        config,
        lambda: others.append(monitor.standing.judgement.books.others),
        clock=time.monotonic,
        rng=random.Random(1),
    )
    task = asyncio.create_task(monitor.run())
    try:
        await eventually(lambda: monitor.standing.verdict is Verdict.HUNG, "hung", 60)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert 0 not in others[others.index(1) :], "its request is in flight all the time"


class Adapting(Closing):
    """An engine with adapters, that restarts and refuses its list of models at will."""

    started_at_s = 1.0
    adapters: tuple[str, ...] = ()
    refused = False

    async def read_metrics(self, *, suspect: bool = False, stalled: bool = False) -> MetricsReading:
        look = await super().read_metrics(suspect=suspect, stalled=stalled)
        assert isinstance(look.counters, VllmCounters)
        return replace(look, counters=replace(look.counters, started_at_s=self.started_at_s))

    async def value(self, path: str) -> Any:
        if path == MODELS_PATH and self.refused:
            return ProbeFailure(trouble=ProbeFailureReason.STATUS, status=404, detail="HTTP 404 from /v1/models")
        answer = await super().value(path)
        if path == MODELS_PATH:
            answer["data"] += [{"id": name, "parent": "m"} for name in self.adapters]
        return answer


async def test_adapters_follow_the_engine_and_do_not_outlive_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.agent.engine_monitor.ADAPTERS_INTERVAL_S", 0.0)
    config = AgentConfig(model="m")
    engine = Adapting(config)
    changes: list[tuple[str, ...] | None] = []
    monitor = EngineMonitor(
        engine, config, lambda: changes.append(monitor.adapters), clock=time.monotonic, rng=random.Random(1)
    )
    task = asyncio.create_task(monitor.run())
    try:
        await eventually(lambda: monitor.adapters == (), "a list without adapters", 60)
        engine.adapters = ("sql", "chat")
        await eventually(lambda: monitor.adapters == ("chat", "sql"), "loaded", 60)
        assert changes[-1] == ("chat", "sql"), "a change is reported at once"
        engine.refused = True
        before = engine.looks
        await eventually(lambda: engine.looks >= before + 3, "three more looks", 60)
        assert monitor.adapters == ("chat", "sql"), "an engine that does not answer keeps its adapters"
        engine.started_at_s = 2.0
        await eventually(lambda: monitor.adapters is None, "another process", 60)
        engine.refused, engine.adapters = False, ("sql",)
        await eventually(lambda: monitor.adapters == ("sql",), "its adapters", 60)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
