"""Loads of adapters over real HTTP: simulated engines list what they loaded, and the prober reads it."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest
from aiohttp import web

from chaos.fake_engine import EngineConfig, EngineCrash, FakeEngine
from policies.model import PolicySet
from policies.pool import EnginePool, LoadedAdapter
from tests.xds_server.engine_health.running_prober import RunningProber, policies, watching
from xds_server.engine_health.adapter_loader import AdapterLoader
from xds_server.engine_health.adapter_plan import Situation


def loading(base: PolicySet, *adapters: LoadedAdapter) -> PolicySet:
    pool = base.pools["pool"]
    spec = pool.spec.model_copy(update={"adapters": adapters})
    pools: dict[str, EnginePool] = {"pool": pool.model_copy(update={"spec": spec})}
    return replace(base, pools=pools)


SQL = LoadedAdapter(name="sql", path="/adapters/sql")


@dataclass
class Loading:
    """A running loader next to a prober."""

    watched: RunningProber
    leads: bool = True
    results: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.loader = AdapterLoader(
            self._situation,
            leads=lambda: self.leads,
            count=self._count,
            api_keys=lambda: self.watched.api_keys,
            interval_s=0.02,
        )

    def _situation(self) -> Situation | None:
        decisions = self.watched.decisions
        return None if decisions is None else Situation(self.watched.policies, self.watched.fleet, decisions)

    def _count(self, result: str) -> None:
        self.results[result] += 1
        self.watched.changed.set()

    def listed(self, engine: str = "e0") -> tuple[str, ...] | None:
        said = self.watched.said(engine)
        return None if said is None else said.adapters


@contextlib.asynccontextmanager
async def loader(
    setup: PolicySet, *, leads: bool = True, api_keys: dict[str, str] | None = None
) -> AsyncIterator[Loading]:
    async with watching(setup, api_keys=api_keys) as watched:
        one = Loading(watched, leads=leads)
        task = asyncio.create_task(one.loader.run())
        try:
            yield one
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def engines(*configs: EngineConfig) -> AsyncIterator[list[FakeEngine]]:
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for config in configs:
            engine = FakeEngine(config)
            await engine.start()
            stack.push_async_callback(engine.stop)
            running.append(engine)
        yield running


@pytest.fixture(autouse=True)
def _lists_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xds_server.engine_health.engine_prober.ADAPTERS_INTERVAL_S", 0.0)


async def test_adapter_is_loaded_once_into_each_engine_and_after_a_restart_again() -> None:
    config = EngineConfig(lora_load_s=0.2)
    async with engines(config, config) as (first, second):
        setup = loading(policies({"e0": first.port, "e1": second.port}), SQL)
        async with loader(setup) as one:
            await one.watched.until(lambda: one.results["loaded"] == 2, "both")
            assert (one.listed("e0"), one.listed("e1")) == (("sql",), ("sql",))
            await one.watched.looks(8)
            assert [engine.adapter_requests for engine in (first, second)] == [1, 1], "asked once"
            await first.set_fault(EngineCrash())
            await one.watched.until_out()
            await first.heal()
            await one.watched.until(lambda: one.results["loaded"] == 3, "again, by the new process")
            assert [engine.adapter_requests for engine in (first, second)] == [2, 1]
            assert not one.loader.load_failures()


async def test_engine_that_does_not_allow_it_is_named_and_another_is_asked() -> None:
    adapter = SQL.model_copy(update={"engines": 1})
    async with engines(EngineConfig(no_runtime_lora=True), EngineConfig()) as (first, second):
        setup = loading(policies({"e0": first.port, "e1": second.port}), adapter)
        async with loader(setup, leads=False) as one:
            await one.watched.until(lambda: (one.listed("e0"), one.listed("e1")) == ((), ()), "both lists")
            one.leads = True
            await one.watched.until(lambda: one.results["loaded"] == 1, "the other one")
            assert one.results == {"refused": 1, "loaded": 1}
            [trouble] = one.loader.load_failures().values()
            assert trouble.startswith("e0: HTTP 404 from /v1/load_lora_adapter")


async def test_path_that_an_engine_cannot_read_stays_a_trouble_with_backoff() -> None:
    async with engines(EngineConfig(lora_paths="/other")) as (engine,):
        setup = loading(policies({"e0": engine.port}), SQL)
        async with loader(setup) as one:
            await one.watched.until(lambda: one.results["refused"] == 1, "refused")
            await one.watched.looks(8)
            assert engine.adapter_requests == 1, "asked again later"
            assert "No adapter found for /adapters/sql" in one.loader.load_failures()["pool", "sql"]


async def test_key_of_the_probe_opens_the_engine_and_is_not_quoted() -> None:
    async with engines(EngineConfig(api_key="s3cret")) as (engine,):
        setup = loading(policies({"e0": engine.port}, apiKeySecret="engines"), SQL)
        async with loader(setup, api_keys={"engines": "s3cret"}) as one:
            await one.watched.until(lambda: one.results["loaded"] == 1, "with the key")
            assert not one.loader.load_failures()


async def test_replica_that_does_not_lead_asks_for_nothing() -> None:
    async with engines(EngineConfig()) as (engine,):
        setup = loading(policies({"e0": engine.port}), SQL)
        async with loader(setup, leads=False) as one:
            await one.watched.until_in()
            await one.watched.looks(8)
            assert engine.adapter_requests == 0
            one.leads = True
            await one.watched.until(lambda: one.results["loaded"] == 1, "as the leader")


async def test_pools_without_adapters_are_asked_for_nothing() -> None:
    async with engines(EngineConfig()) as (engine,), loader(policies({"e0": engine.port})) as one:
        await one.watched.until_in()
        await one.watched.looks(8)
        assert engine.adapter_requests == 0


async def _endless(_routes: object, request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse()
    await answer.prepare(request)
    while True:
        await answer.write(b"x" * 65536)


async def _lying(_routes: object, _request: web.Request) -> web.Response:
    return web.Response(text="Success")


@pytest.mark.parametrize(
    ("answer", "result", "said"),
    [(_endless, "refused", "262144"), (_lying, "unlisted", "does not list it")],
)
async def test_engines_that_misbehave_cost_little_and_are_named(
    monkeypatch: pytest.MonkeyPatch, answer: object, result: str, said: str
) -> None:
    monkeypatch.setattr("xds_server.engine_health.adapter_plan.LISTED_WITHIN_S", 0.5)
    monkeypatch.setattr("chaos.fake_engine.vllm_routes._Routes.load_adapter", answer)
    async with engines(EngineConfig()) as (engine,), loader(loading(policies({"e0": engine.port}), SQL)) as one:
        await one.watched.until(lambda: one.results[result] == 1, result)
        assert said in one.loader.load_failures()["pool", "sql"]
        await one.watched.looks(4)
        assert one.results.total() == 1
