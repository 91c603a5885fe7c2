"""The prober against real HTTP: simulated engines with real faults."""

import aiohttp
import pytest

from chaos.fake_engine import (
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineFault,
    EngineHang,
    EngineHangMidStream,
    EngineResetMidStream,
    EngineShed,
    EngineSigterm,
    EngineSlow,
)
from engine.report import Doubt, Verdict
from tests.hanging_engine import HangingEngine
from tests.xds_server.engine_health.running_prober import (
    IN,
    LEAVING,
    OUT,
    Noted,
    engine_up,
    load,
    policies,
    probed,
    watching,
)
from xds_server.decide.decisions import Health
from xds_server.engine_health.engine_prober import ProbeKind
from xds_server.model.fleet import EngineId


async def test_idle_engine_is_ready_by_its_canaries() -> None:
    async with probed() as (_, watched):
        await watched.looks(4)
        assert watched.verdicts() == {Verdict.READY}
        assert watched.probes[ProbeKind.CANARY, "answered"] >= 2
        assert [one.sequence for one in watched.reports] == sorted({one.sequence for one in watched.reports})


async def test_saturated_engine_is_busy_and_admitted() -> None:
    async with probed() as (engine, watched), load(engine, 64):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        busy_from = len(watched.reports)
        canaries = sum(count for (kind, _), count in watched.probes.items() if kind is ProbeKind.CANARY)
        await watched.looks(8)
        assert watched.verdicts(busy_from) == {Verdict.BUSY}
        assert not watched.moves
        assert watched.reports[-1].requests_in_flight is not None
        assert watched.reports[-1].requests_in_flight >= 32
        after = sum(count for (kind, _), count in watched.probes.items() if kind is ProbeKind.CANARY)
        assert after - canaries <= 1, "canaries queue behind real work"


async def test_idle_hang_is_detected_although_health_is_200(record_property: Noted) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(EngineHang(health="ok"))
        record_property("hang_idle_out_s", await watched.until_out())
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG
        await watched.looks(5)
        assert watched.health() is OUT
        await engine.heal()
        record_property("hang_idle_in_s", await watched.until_in())


async def test_hang_under_load_is_detected_although_gauges_are_frozen(record_property: Noted) -> None:
    async with probed() as (engine, watched), load(engine, 16):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await engine.set_fault(EngineHang())
        record_property("hang_loaded_out_s", await watched.until_out())
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG
        await engine.heal()
        record_property("hang_loaded_in_s", await watched.until_in())


async def test_canary_given_up_during_a_reading_hides_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xds_server.engine_health.engine_clients.EngineHttp", HangingEngine)
    async with engine_up() as engine, watching(policies({"e0": engine.port})) as watched:
        await watched.until_out()
        assert watched.verdicts() <= {Verdict.STARTING, Verdict.BUSY, Verdict.HUNG}
        said = watched.said()
        assert said is not None
        assert said.evidence.startswith("1 requests in flight and no token for"), watched.reports


async def test_recovered_engine_with_frozen_gauges_returns() -> None:
    async with probed() as (engine, watched):
        async with load(engine, 16):
            await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
            await engine.set_fault(EngineHang())
            await watched.until_out()
        await engine.heal()
        await watched.until_in()


async def test_hung_engine_that_sheds_is_hung() -> None:
    async with probed(max_unfinished=16) as (engine, watched), load(engine, 24):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await engine.set_fault(EngineHang())
        await watched.until_out()
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.HUNG


async def test_engine_at_its_admission_limit_is_busy() -> None:
    async with probed(max_unfinished=10) as (engine, watched), load(engine, 24):
        await watched.until(lambda: watched.reports[-1].verdict is Verdict.BUSY, "busy")
        await watched.looks(8)
        assert not watched.moves
        assert not {Verdict.HUNG, Verdict.DEGRADED} & watched.verdicts()


async def test_crash_is_detected_at_once_and_recovery_soon(record_property: Noted) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(EngineCrash())
        out_s = await watched.until_out()
        record_property("crash_out_s", out_s)
        assert out_s < 20
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.DEAD
        await engine.heal()
        in_s = await watched.until_in()
        record_property("crash_in_s", in_s)
        assert in_s < 20


@pytest.mark.parametrize(
    ("fault", "health", "verdict"),
    [
        (EngineDrain(), LEAVING, Verdict.DRAINING),
        # One engine is the whole pool: the floor keeps it in rotation.
        (EngineErrorAfterWork(), IN, Verdict.DEGRADED),
        (EngineShed(), IN, Verdict.DEGRADED),
        (EngineResetMidStream(), IN, Verdict.DEGRADED),
        (EngineBadHealth(health="fail"), IN, Verdict.READY),
        (EngineBadHealth(health="slow"), IN, Verdict.READY),
        (EngineHangMidStream(), IN, Verdict.READY),
        (EngineSlow(factor=8), IN, Verdict.READY),
    ],
    ids=lambda one: getattr(one, "kind", str(one)),
)
async def test_verdict_of_each_fault(fault: EngineFault, health: Health, verdict: Verdict) -> None:
    async with probed() as (engine, watched):
        await engine.set_fault(fault)
        since = len(watched.reports)
        await watched.until(lambda: any(one.verdict is verdict for one in watched.reports[since:]), verdict)
        await watched.looks(3)
        assert watched.health() is health
        assert watched.verdicts(since) <= {verdict, Verdict.BUSY, Verdict.READY}
        await engine.heal()
        await watched.until_in()


async def test_degraded_engine_is_ejected_if_the_pool_can_spare_it() -> None:
    async with (
        engine_up() as first,
        engine_up() as second,
        watching(policies({"e0": first.port, "e1": second.port})) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        await first.set_fault(EngineErrorAfterWork())
        await watched.until_out("e0")
        await second.set_fault(EngineErrorAfterWork())
        since = len(watched.reports)
        await watched.until(lambda: Verdict.DEGRADED in watched.verdicts_of("e1", since), "both degraded")
        await watched.looks(6)
        assert watched.health("e1") is IN
        await first.heal()
        await watched.until_in("e0")


@pytest.mark.parametrize("shutdown_timeout_s", [0.0, 20.0])
async def test_sigterm_with_requests_in_flight(shutdown_timeout_s: float, record_property: Noted) -> None:
    async with probed() as (engine, watched), load(engine, 2, tokens=300):
        await watched.until(lambda: engine.calls_in_flight >= 2, "work in flight")
        await engine.set_fault(EngineSigterm(shutdown_timeout_s=shutdown_timeout_s))
        seconds = await watched.until(lambda: watched.health() is not IN, "not in")
        record_property(f"sigterm_{shutdown_timeout_s:g}_out_s", seconds)
        await watched.until_out()  # the port closes in the end
        said = watched.said()
        assert said is not None
        assert said.verdict is Verdict.DEAD
        await engine.heal()
        await watched.until_in()


async def test_wrong_model_name_is_reported_and_ejects_no_engine() -> None:
    async with engine_up() as first, engine_up() as second:
        setup = policies({"e0": first.port, "e1": second.port}, model="no-such-model")
        async with watching(setup) as watched:
            await watched.until(lambda: len({one.engine for one in watched.reports}) == 2, "both heard")
            await watched.looks(12)
            assert watched.verdicts() == {Verdict.MISCONFIGURED}
            said = watched.said()
            assert said is not None
            assert said.doubt is Doubt.REFUSED
            assert "404" in said.evidence
            assert not watched.moves
            assert watched.decisions is not None
            assert "policy" in watched.decisions.engines[EngineId("pool", "e0")].reason


async def test_chat_only_engines_can_be_probed() -> None:
    async with (
        engine_up() as engine,
        watching(policies({"e0": engine.port}, path="/v1/chat/completions")) as watched,
    ):
        await watched.until_in()


async def test_policy_edit_keeps_probes_of_unchanged_engines() -> None:
    async with (
        engine_up() as first,
        engine_up() as second,
        engine_up() as third,
        watching(policies({"e0": first.port, "e1": second.port})) as watched,
    ):
        await watched.until_in("e0")
        await watched.until_in("e1")
        watched.prober.watch(policies({"e0": first.port, "e2": third.port}))
        await watched.until(lambda: watched.said("e2") is not None, "e2 heard")
        last = watched.said("e1")
        await watched.looks(8)
        assert watched.said("e1") is last
        assert watched.health("e0") is IN
        assert not watched.moves


async def test_engine_started_with_an_api_key_leaves_its_pool_until_probes_have_it() -> None:
    keys: dict[str, str] = {}
    async with engine_up() as first, engine_up(api_key="s3cret") as second:
        setup = policies({"e0": first.port, "e1": second.port})
        async with watching(setup) as watched:
            await watched.until(lambda: watched.health("e1") is OUT, "refused, half of the pool")
            said = watched.said("e1")
            assert said is not None
            assert (said.verdict, said.doubt) == (Verdict.MISCONFIGURED, Doubt.REFUSED)
            assert watched.health("e0") is IN
        keyed = policies({"e0": first.port, "e1": second.port}, apiKeySecret="engines")
        async with watching(keyed, api_keys=keys) as watched:
            await watched.until(lambda: watched.health("e1") is OUT, "no key yet")
            keys["engines"] = "s3cret"
            await watched.until(lambda: watched.health("e1") is IN, "it has the key")
            assert not any("s3cret" in one.evidence for one in watched.reports)


async def test_prober_sees_adapters_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xds_server.engine_health.engine_prober.ADAPTERS_INTERVAL_S", 0.0)

    def known() -> tuple[str, ...] | None:
        said = watched.said()
        return None if said is None else said.adapters

    async with probed() as (engine, watched), aiohttp.ClientSession(engine.url) as http:
        await watched.until(lambda: known() == (), "no adapters")
        for verb, adapters in (("load", ("sql",)), ("unload", ())):
            async with http.post(
                f"/v1/{verb}_lora_adapter", json={"lora_name": "sql", "lora_path": "/sql"}
            ) as done:
                assert done.status == 200
            await watched.until(lambda: known() == adapters, f"{verb}ed")  # noqa: B023
        assert watched.health() is IN
        assert not watched.moves, "an adapter that is gone is not an engine that is gone"
        async with http.post("/v1/load_lora_adapter", json={"lora_name": "sql", "lora_path": "/sql"}) as done:
            assert done.status == 200
        await watched.until(lambda: known() == ("sql",), "loaded")
        await engine.set_fault(EngineCrash())
        await watched.until_out()
        await engine.heal()
        await watched.until(lambda: known() == (), "a new process has those of its start")


async def test_engine_that_refuses_its_list_has_unknown_adapters() -> None:
    async with engine_up(api_key="k") as engine, watching(policies({"e0": engine.port})) as watched:
        await watched.until(lambda: watched.said() is not None, "a report")
        await watched.looks(4)
        assert {one.adapters for one in watched.reports} == {None}
