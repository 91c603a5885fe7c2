"""Faults of simulated engines, and restarts as by an orchestrator."""

import asyncio
from collections import defaultdict
from typing import ClassVar

import aiohttp

from chaos.fake_engine.engine_faults import EngineFault, EngineSigterm, engine_fault_object
from chaos.faults.actions import FaultAction, ProcessRole, RestartEngine, SetEngineFault
from chaos.lab.lab_handles import InjectionError, LabHandles
from chaos.lab.process_slot import ProcessSlot

_ORDER_LIMIT_S = 20.0
_LOOK_EVERY_S = 0.02


class EngineInjector:
    """An engine has one fault at a time: the newest active one."""

    handles: ClassVar[tuple[type, ...]] = (SetEngineFault, RestartEngine)

    def __init__(self, site: LabHandles) -> None:
        self._site = site
        self._held: dict[str, list[SetEngineFault | RestartEngine]] = defaultdict(list)
        self._down: set[str] = set()  # engines restarting after their drain
        self._draining: dict[str, asyncio.Task[None]] = {}

    def refusal(self, pull: FaultAction) -> str:
        assert isinstance(pull, SetEngineFault | RestartEngine)  # noqa: S101 -- what it handles
        engine = self._site.engines.get(pull.engine)
        if engine is None:
            return f"unknown engine {pull.engine}"
        if not engine.control:
            return f"{pull.engine} is a real engine; use freeze or oom_kill on its process"
        return ""

    async def inject(self, pull: FaultAction) -> None:
        assert isinstance(pull, SetEngineFault | RestartEngine)  # noqa: S101 -- what it handles
        self._held[pull.engine].append(pull)
        agent = self._agent(pull.engine)
        if isinstance(pull, SetEngineFault) or pull.drain_within_s is None or agent is None:
            if isinstance(pull, RestartEngine):
                self._down.add(pull.engine)
            await self._apply(pull.engine)
            return
        self._down.discard(pull.engine)
        drain = asyncio.create_task(self._drain(pull, _address(agent), pull.drain_within_s))
        self._draining[pull.engine] = drain
        await self._until_told(_address(agent), drain)

    async def revert(self, pull: FaultAction) -> None:
        assert isinstance(pull, SetEngineFault | RestartEngine)  # noqa: S101 -- what it handles
        if pull in self._held[pull.engine]:
            self._held[pull.engine].remove(pull)
        drained = isinstance(pull, RestartEngine) and pull.drain_within_s is not None
        draining = self._draining.pop(pull.engine, None) if drained else None
        if draining is not None:
            draining.cancel()
            await asyncio.wait([draining])
        await self._apply(pull.engine)
        agent = self._agent(pull.engine)
        if drained and agent is not None:
            await self._order("POST", f"{_address(agent)}/undrain", agent)
        if draining is not None and not draining.cancelled():
            draining.result()

    async def _drain(self, pull: RestartEngine, agent: str, within_s: float) -> None:
        """Drain the engine, and terminate it once empty or after the deadline."""
        limit = aiohttp.ClientTimeout(total=within_s + _ORDER_LIMIT_S)
        try:
            # The agent enforces the drain deadline; the injector's deadline covers an agent that does not answer.
            async with self._site.session.post(
                f"{agent}/drain", params={"deadline": f"{within_s:f}s"}, timeout=limit
            ) as answer:
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise InjectionError(f"the agent of {pull.engine} failed to drain it: {problem!r}") from problem
        finally:
            self._down.add(pull.engine)
        await self._apply(pull.engine)

    async def _until_told(self, agent: str, drain: "asyncio.Task[None]") -> None:
        """Wait until the agent reports draining, or the drain is over."""
        try:
            async with asyncio.timeout(_ORDER_LIMIT_S):
                while not drain.done():
                    async with self._site.session.get(f"{agent}/readyz") as answer:
                        if answer.status != 200:
                            return
                    await asyncio.sleep(_LOOK_EVERY_S)
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise InjectionError(f"the agent at {agent} failed to drain its engine: {problem!r}") from problem

    async def _apply(self, engine: str) -> None:
        """Set the engine's current fault."""
        fault = self._fault(engine)
        url = f"{self._site.engines[engine].control}/fault"
        post = self._site.posts.get((ProcessRole.ENGINE, engine))
        if fault is None:
            await self._order("DELETE", url, post)
        else:
            await self._order("PUT", url, post, json=engine_fault_object(fault))

    def _fault(self, engine: str) -> EngineFault | None:
        for pull in reversed(self._held[engine]):
            if isinstance(pull, SetEngineFault):
                return pull.fault
            if engine in self._down:
                return EngineSigterm(shutdown_timeout_s=pull.shutdown_timeout_s)
        return None

    async def _order(self, method: str, url: str, post: ProcessSlot | None, *, json: object = None) -> None:
        """Send a control request; skip an engine killed by another fault, since it restarts without faults."""
        if post is not None and not post.running:
            return
        try:
            async with (
                asyncio.timeout(_ORDER_LIMIT_S),
                self._site.session.request(method, url, json=json) as answer,
            ):
                answer.raise_for_status()
        except (aiohttp.ClientError, TimeoutError) as problem:
            raise InjectionError(f"{method} {url} failed: {problem!r}") from problem

    def _agent(self, engine: str) -> ProcessSlot | None:
        post = self._site.posts.get((ProcessRole.AGENT, engine))
        return post if post is not None and post.running else None


def _address(agent: ProcessSlot) -> str:
    assert agent.child is not None  # noqa: S101 -- it runs
    return str(agent.child.ready["http"])
