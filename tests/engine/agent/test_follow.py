"""How often an engine is asked, whatever it does."""

import asyncio
import contextlib
import random
import time
from typing import Any

from engine.agent.config import AgentConfig
from engine.agent.follow import Follower
from engine.engine_http import EngineHttp, Target
from engine.reading import Answer, Look
from engine.vllm_metrics import Counters


class Closing(EngineHttp):
    """An engine that is well, counts, and closes every connection that is silent."""

    def __init__(self, config: AgentConfig) -> None:
        target = Target(address="127.0.0.1", port=1, model="m", probe=config.probe)
        super().__init__(None, target, time.monotonic, lambda _since_s: False)  # type: ignore[arg-type] # unused
        self.looks = 0
        self.answers = 0
        self.counted = asyncio.Event()

    @property
    def count_path(self) -> str:
        return "/switchgear/in_flight"

    async def look(self, *, suspect: bool = False) -> Look:
        assert not suspect
        self.looks += 1
        counters = Counters(generation_tokens=5.0 + self.answers, prompt_tokens=0, running=0, waiting=0)
        return Look(at_s=time.monotonic(), counters=counters, in_flight=0)

    async def ask(self, prompt: str, timeout_s: float | None = None) -> Answer:
        assert prompt
        assert timeout_s is None
        self.answers += 1
        return Answer(sent_at_s=time.monotonic(), at_s=time.monotonic())

    async def count(self) -> int | None:
        self.counted.set()
        return 0

    async def value(self, path: str) -> Any:
        return {"version": "1"} if path == "/version" else {"data": [{"id": "m"}]}

    async def gone(self) -> None:
        return


async def test_an_engine_that_closes_silent_connections_is_not_asked_without_end() -> None:
    config = AgentConfig()
    engine = Closing(config)
    follower = Follower(engine, config, lambda: None, clock=time.monotonic, rng=random.Random(1))
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
