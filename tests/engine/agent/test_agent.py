"""The agent as its own process with a faulty fake engine: reports, timing and readers."""

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chaos.fake_engine import (
    EngineBadHealth,
    EngineCrash,
    EngineDrain,
    EngineErrorAfterWork,
    EngineHang,
    EngineKvCacheFull,
    EngineShed,
)
from engine.process_metrics import program_version
from engine.proto import engine_report_pb2 as pb
from engine.watch_server import ACKNOWLEDGE, WATCH
from tests.unstarved import without_starvation

# Seconds each, and minutes where every wait takes its limit.
pytestmark = pytest.mark.timeout(400)

LIMIT_S = 60.0
CUDA = "CUDA error: an illegal memory access was encountered"


def _reading(report: dict[str, Any]) -> str:
    """The reading that decided."""
    return str(report["reasons"][0]["reading"]) if report["verdict"] else ""


# -- the verdicts -----------------------------------------------------------------------------------------------


async def test_ready_by_its_first_token(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    _, report = await agent.until("ready")
    await agent.until_probes(200, 200, 200)
    assert report["model"] == "fake-model"
    assert report["revision"].startswith("vllm ")
    assert report["slots"] == 8
    await agent.until_report(lambda one: "unavailable" in one["gpu"]["statement"] or one["gpu"]["gpus"])
    assert engine.book.totals().finished >= 1, "a token was asked for, not only metrics"


async def test_saturated_engine_is_busy_and_never_hung(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")

    async def look() -> set[object]:
        """Verdict and health statuses while each caller is answered once."""
        _, report = await agent.until("busy")
        assert report["reasons"][0]["reading"] == "queue"
        seen: set[object] = set()
        enough = engine.book.totals().finished + 64
        async with asyncio.timeout(LIMIT_S):
            while engine.book.totals().finished < enough:
                seen |= {(await agent.report())["verdict"], await agent.probes()}
        return seen

    async with under_load(engine, 64):
        # Engine and callers share this process: if it is starved, the engine correctly counts as hung.
        assert await without_starvation(look) == {"busy", (200, 200, 200)}
        await agent.until_report(lambda one: one["time_to_first_token"] and (one["requests_in_flight"] or 0) > 32)


async def test_hang_under_load_and_recovery_are_detected_quickly(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--restart-after-hung", "2s")
    async with under_load(engine, 16):
        await agent.until("busy")
        await engine.set_fault(EngineHang())
        _, report = await agent.until("hung")
        reason = report["reasons"][0]
        # On a busy machine a late look may take the last step for a chunk of a prompt.
        limit = {"tokens": "token within 1 s", "prefill": "token within 3"}
        assert limit[reason["reading"]] in reason["threshold"]
        assert reason["age_s"] >= 1
        ready, _, start = await agent.probes()
        assert (ready, start) == (503, 200)
        # A hang that lasts is worth a restart.
        assert "restart after" in await agent.until_status("/livez", 503)
        await engine.heal()
        await agent.until("busy", "ready")
        await agent.until_probes(200, 200, 200)


@pytest.mark.parametrize("gate", [True, False])
async def test_hang_of_an_idle_engine_is_detected_by_canary_tokens(
    start_agent: Any, start_engine: Any, gate: bool
) -> None:
    engine = await start_engine(first_token_gate=gate)
    agent = await start_agent(engine.url)
    await agent.until("ready")
    await engine.set_fault(EngineHang())
    _, report = await agent.until("hung")
    assert "idle" in report["evidence"]
    await engine.heal()
    await agent.until("ready")


async def test_a_crash_is_seen_at_once_and_the_next_process_is_another(
    start_agent: Any, start_engine: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    _, before = await agent.until("ready")
    await engine.set_fault(EngineCrash())
    _, dead = await agent.until("dead")
    assert dead["boot_id"] != before["boot_id"], "the next process starts a new boot"
    await agent.until_probes(503, 200, 503)
    assert "no process" in (await agent.get("/livez"))[1]
    await engine.heal()
    _, after = await agent.until("ready")
    assert after["boot"]["number"] == before["boot"]["number"] + 1
    await agent.until_probes(200, 200, 200)


async def test_a_wrong_health_answer_alone_means_nothing(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    await engine.set_fault(EngineBadHealth())

    async def look() -> set[str]:
        await agent.until("ready")
        seen = set()
        enough = engine.book.totals().finished + 3
        async with asyncio.timeout(LIMIT_S):
            while engine.book.totals().finished < enough:
                seen.add((await agent.report())["verdict"])
                await asyncio.sleep(0.05)
        return seen

    assert await without_starvation(look) == {"ready"}


# -- the classic cases ------------------------------------------------------------------------------------------


async def test_case_corrupted_cuda_context(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--restart-after-error", "500ms")
    await agent.until("ready")
    await engine.set_fault(EngineErrorAfterWork(message=CUDA))
    _, report = await agent.until("degraded")
    assert CUDA in report["evidence"]
    assert CUDA in await agent.until_status("/livez", 503)
    await agent.until_probes(503, 503, 200)
    await engine.set_fault(EngineCrash())  # the restart that was asked for
    await agent.until("dead")
    await engine.heal()
    await agent.until("ready")
    await agent.until_probes(200, 200, 200)


async def test_case_core_died_under_a_living_process(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--restart-after-error", "500ms")
    await agent.until("ready")
    await engine.set_fault(EngineErrorAfterWork(message="EngineCore encountered an issue", health="fail"))
    _, report = await agent.until("dead")
    assert report["reasons"][0]["reading"] == "health"
    await agent.until_status("/livez", 503)


async def test_case_kv_cache_temporarily_full(start_agent: Any, start_engine: Any, under_load: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    await engine.set_fault(EngineKvCacheFull())
    async with under_load(engine, 6):
        _, report = await agent.until_report(lambda one: _reading(one) == "kv_cache")
        assert report["verdict"] == "busy"
        assert report["kv_cache_usage_ratio"] == 1.0
        await agent.until_probes(200, 200, 200)
        await agent.until_report(lambda one: one["last_30_s"]["preemptions"] > 0 and one["verdict"] == "busy")
        await engine.heal()
    await agent.until("ready")


async def test_case_weights_failed_to_load_and_port_is_closed(start_agent: Any) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        # On a machine that was busy elsewhere so long, the first thing to be seen is the end.
        for start_limit in ("2s", "10s", "40s"):
            agent = await start_agent(f"http://127.0.0.1:{nobody.getsockname()[1]}", "--start-limit", start_limit)
            _, report = await agent.until("starting", "dead")
            if report["verdict"] == "starting":
                break
        assert report["verdict"] == "starting"
        assert "no engine for" in report["evidence"]
        await agent.until_probes(503, 200, 503)
        await agent.until("dead")  # by now it should have been there
        await agent.until_probes(503, 200, 503)


async def test_case_weights_failed_to_load_and_an_api_without_an_engine(
    start_agent: Any, start_engine: Any
) -> None:
    engine = await start_engine()
    await engine.set_fault(EngineShed())
    agent = await start_agent(engine.url, "--restart-after-error", "10ms")

    async def look() -> set[object]:
        await agent.until("starting")
        seen: set[object] = set()
        enough = engine.book.totals().shed + 3
        async with asyncio.timeout(LIMIT_S):
            while engine.book.totals().shed < enough:
                seen |= {(await agent.report())["verdict"], await agent.probes()}
                await asyncio.sleep(0.02)
        return seen

    assert await without_starvation(look) == {"starting", (503, 200, 503)}
    await engine.heal()
    await agent.until("ready")


async def test_case_healthy_but_rolling(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    status, answer = await agent.post("/drain?deadline=100s")
    assert (status, answer["outcome"]) == (200, "drained")
    _, report = await agent.until("draining")
    assert report["drain"] is not None
    await agent.until_probes(503, 200, 200)


# -- draining ---------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watching(port: int, name: str) -> AsyncIterator["ControlPlane"]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        watch: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(WATCH)
        stream = watch(pb.WatchRequest(watcher=name).SerializeToString())
        yield ControlPlane(channel, stream, name)
        stream.cancel()


class ControlPlane:
    """A control plane with two proxies, as the agent sees it."""

    def __init__(self, channel: grpc.aio.Channel, stream: Any, name: str) -> None:
        self._channel, self._stream, self._name = channel, stream, name

    async def until(self, holds: Callable[[pb.EngineReport], bool]) -> pb.EngineReport:
        async with asyncio.timeout(LIMIT_S):
            while not holds(report := pb.EngineReport.FromString(await self._stream.read())):
                pass
        return report

    async def acknowledge(
        self, report: pb.EngineReport, acknowledged: int, drain_deadline_s: float | None = None
    ) -> bool:
        say: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(ACKNOWLEDGE)
        progress = pb.DrainProgress(
            watcher=self._name,
            boot_id=report.boot_id,
            sequence=report.sequence,
            proxies_total=2,
            proxies_acknowledged=acknowledged,
            drain_deadline_s=drain_deadline_s,
        )
        return pb.DrainAnswer.FromString(await say(progress.SerializeToString())).waiting


async def test_a_drain_waits_for_every_proxy_and_for_the_last_request(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane:
        async with under_load(engine, 3):
            await agent.until_report(lambda one: one["requests_in_flight"])
            draining = asyncio.create_task(agent.post("/drain?deadline=60s"))
            told = await plane.until(lambda report: report.drain.requested)
            assert told.verdict == pb.DRAINING
            assert await plane.acknowledge(told, 1)
            assert not await plane.acknowledge(told, 2)
            # Every proxy has let go, and requests still run.
            for _ in range(3):
                looked = (await agent.report())["sequence"]
                await agent.until_report(lambda one, looked=looked: one["sequence"] > looked)
            assert not draining.done()
        status, answer = await asyncio.wait_for(draining, LIMIT_S)
        assert (status, answer["outcome"], answer["in_flight"]) == (200, "drained", 0)
        assert answer["removal"]["proxies_acknowledged"] == 2


async def test_drain_waits_for_every_proxy_ack_until_its_deadline(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane:
        # Long enough for the acknowledgement of one to come before it; where there is much else to do, longer.
        for deadline_s in (5.0, 20.0, 60.0):
            began_s = time.monotonic()
            draining = asyncio.create_task(agent.post(f"/drain?deadline={deadline_s:g}s"))
            told = await plane.until(lambda report: report.drain.requested)
            assert told.drain.deadline_in_s <= deadline_s
            await plane.acknowledge(told, 1)
            _, answer = await asyncio.wait_for(draining, deadline_s + LIMIT_S)
            if "1 of 2 proxies" in answer["sentence"]:
                break
            await agent.post("/undrain")
            await plane.until(lambda report: not report.HasField("drain"))
        assert answer["outcome"] == "deadline"
        assert "1 of 2 proxies" in answer["sentence"]
        assert time.monotonic() - began_s >= deadline_s
        assert (await agent.report())["verdict"] == "draining", "time that is up does not bring traffic back"


@pytest.mark.parametrize(
    ("flags", "path", "sent_s", "least_s", "most_s"),
    [
        (("--drain-deadline", "200ms"), "/drain", 2.0, 2.0, 60.0),  # the pool's is longer
        (("--drain-deadline", "2s"), "/drain", 0.2, 2.0, 60.0),  # the flag is longer
        ((), "/drain", 0.5, 0.5, 25.0),  # the pool's instead of 30 s
        (("--drain-deadline", "500ms"), "/drain", None, 0.5, 60.0),  # an older control plane
        ((), "/drain?deadline=500ms", 100.0, 0.5, 60.0),  # the caller's own limit
    ],
)
async def test_drain_lasts_until_the_deadline_of_the_pool(
    start_agent: Any,
    start_engine: Any,
    under_load: Any,
    flags: tuple[str, ...],
    path: str,
    sent_s: float | None,
    least_s: float,
    most_s: float,
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, *flags)
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane, under_load(engine, 2):
        await agent.until_report(lambda one: one["requests_in_flight"])
        draining = asyncio.create_task(agent.post(path))
        began = await plane.until(lambda report: report.drain.requested)
        await plane.acknowledge(began, 2, sent_s)
        _, answer = await asyncio.wait_for(draining, LIMIT_S)
        assert answer["outcome"] == "deadline"
        # The wait begins just after the order.
        assert 0.9 * least_s <= answer["waited_s"] < most_s


async def test_drain_deadline_of_the_pool_is_in_the_report(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane:
        async with under_load(engine, 2):
            await agent.until_report(lambda one: one["requests_in_flight"])
            draining = asyncio.create_task(agent.post("/drain"))
            began = await plane.until(lambda report: report.drain.requested)
            assert began.drain.deadline_in_s <= 30.0
            await plane.acknowledge(began, 2, 900.0)
            longer = await plane.until(lambda report: report.drain.deadline_in_s > 30.0)
            assert 800.0 < longer.drain.deadline_in_s <= 900.0
            await plane.acknowledge(longer, 2, float("nan"))
            await plane.acknowledge(longer, 2, 1e9)
            assert not draining.done()
        _, answer = await asyncio.wait_for(draining, LIMIT_S)
        assert answer["outcome"] == "drained"


async def test_sigterm_keeps_the_deadline_of_the_flag(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url, "--drain-deadline", "1s")
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane, under_load(engine, 2):
        await agent.until_report(lambda one: one["requests_in_flight"])
        agent.process.send_signal(signal.SIGTERM)
        began = await plane.until(lambda report: report.drain.requested)
        await plane.acknowledge(began, 2, 3600.0)
        assert await asyncio.wait_for(agent.process.wait(), LIMIT_S) == 0


async def test_undrain_ends_the_wait_and_the_draining(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with watching(agent.grpc_port, "plane") as plane:
        draining = asyncio.create_task(agent.post("/drain?deadline=60s"))
        await plane.until(lambda report: report.drain.requested)
        assert await agent.post("/undrain") == (200, {"was_draining": True})
        _, answer = await asyncio.wait_for(draining, LIMIT_S)
        assert answer["outcome"] == "undrained"
        await plane.until(lambda report: report.verdict == pb.READY and not report.HasField("drain"))
    assert await agent.post("/undrain") == (200, {"was_draining": False})


async def told(*words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "engine.agent", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, remarks = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode is not None
    return process.returncode, out.decode(), remarks.decode()


async def test_drain_command_exit_code_tells_the_outcome(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with under_load(engine, 2):
        await agent.until_report(lambda one: one["requests_in_flight"])
        code, out, _ = await told("drain", "--agent", agent.url, "--deadline", "500ms", "-o", "json")
        assert (code, json.loads(out)["outcome"]) == (1, "deadline")
    code, out, _ = await told("drain", "--agent", agent.url, "-o", "json")
    assert (code, json.loads(out)["outcome"]) == (0, "drained")
    code, out, _ = await told("undrain", "--agent", agent.url, "-o", "json")
    assert (code, json.loads(out)) == (0, {"was_draining": True})
    code, _, remarks = await told("drain", "--agent", "http://127.0.0.1:1")
    assert code == 2
    assert "no agent" in remarks
    assert (await told("drain", "--agent", agent.url, "--deadline", "soon"))[0] == 2


async def test_sigterm_drains_first_and_a_second_one_does_not_wait(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with under_load(engine, 2):
        agent.process.send_signal(signal.SIGTERM)
        await agent.until("draining")
        assert agent.process.returncode is None
    assert await asyncio.wait_for(agent.process.wait(), LIMIT_S) == 0
    other = await start_agent(engine.url, "--drain-deadline", "60s")
    await other.until("ready")
    async with under_load(engine, 2):
        other.process.send_signal(signal.SIGTERM)
        await other.until("draining")
        other.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(other.process.wait(), LIMIT_S) == 0


async def test_an_engine_that_says_it_is_going_is_draining(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    await engine.set_fault(EngineDrain())
    await agent.until("draining")
    await agent.until_probes(503, 200, 200)


# -- the rest ---------------------------------------------------------------------------------------------------


async def test_warm_up_prompts_come_before_ready_and_again_for_a_new_process(
    start_agent: Any, start_engine: Any
) -> None:
    engine = await start_engine(prefill_token_s=0.005)
    # 9000 words do not fit the model: it is given up, and not a reason to stay out.
    agent = await start_agent(engine.url, "--warm-up", "40,200,9000")

    async def look() -> tuple[object, ...]:
        """What it says while it warms up: the first process, and each after it."""
        _, report = await agent.until_report(lambda one: _reading(one) == "warm_up")
        probes = await agent.probes()
        await agent.until("ready")
        await agent.until_probes(200, 200, 200)
        await engine.set_fault(EngineCrash())
        await agent.until("dead")
        await engine.heal()
        return report["verdict"], probes

    # A second is not long where this process is kept from running.
    assert await without_starvation(look) == ("starting", (503, 200, 503))
    await agent.until_report(lambda one: _reading(one) == "warm_up")
    await agent.until("ready")


async def test_restarted_agent_does_not_eject_a_working_engine(
    start_agent: Any, start_engine: Any, under_load: Any
) -> None:
    engine = await start_engine()
    async with under_load(engine, 16):
        async with asyncio.timeout(LIMIT_S):
            while engine.book.totals().finished < 8:
                await asyncio.sleep(0.01)

        async def look() -> str:
            agent = await start_agent(engine.url, "--warm-up", "40")
            _, report = await agent.until_report(lambda one: one["verdict"])
            return str(report["verdict"])

        assert await without_starvation(look) in {
            "ready",
            "busy",
        }  # busy if a request waits just then; never `starting`


async def test_grpc_health_check_and_watch_report_changes(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{agent.grpc_port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readyz"))

        async def until(status: int) -> None:
            async with asyncio.timeout(LIMIT_S):
                while (await watch.read()).status != status:
                    pass

        await until(health_pb2.HealthCheckResponse.SERVING)
        await engine.set_fault(EngineCrash())
        await until(health_pb2.HealthCheckResponse.NOT_SERVING)
        live = await health.Check(health_pb2.HealthCheckRequest(service="livez"))
        assert live.status == health_pb2.HealthCheckResponse.SERVING
        await engine.heal()
        await until(health_pb2.HealthCheckResponse.SERVING)
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()


async def test_metrics_and_bad_requests(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    status, page = await agent.get("/metrics")
    assert status == 200
    assert 'switchgear_agent_verdict{verdict="ready"} 1.0' in page
    assert f'switchgear_build_info{{component="agent",version="{program_version()}"}} 1.0' in page
    for name in ("cpu_seconds_total", "resident_memory_bytes", "open_fds", "start_time_seconds"):
        assert f"\nprocess_{name} " in page
    async with agent.client.post(f"{agent.url}/drain?deadline=soon") as response:
        assert response.status == 400
        assert "unit" in await response.text()
    async with agent.client.post(f"{agent.url}/gpu-check") as response:
        assert response.status == 409
    assert (await agent.report())["verdict"] == "ready"


async def test_settings_that_cannot_work_end_it_with_their_place(tmp_path: Any) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("engine: http://127.0.0.1:8000\nstallAfter: 1\n")
    code, out, remarks = await told("run", "--config", str(file), "--slots", "-3")
    assert (code, out) == (2, "")
    assert f"{file}:2: stallAfter: '1'" in remarks
    assert "--slots: '-3'" in remarks


async def test_agent_memory_footprint_is_small(start_agent: Any, start_engine: Any) -> None:
    engine = await start_engine()
    agent = await start_agent(engine.url)
    await agent.until("ready")
    status = await asyncio.to_thread(Path(f"/proc/{agent.process.pid}/status").read_text)
    # What is its own: how much of its libraries the kernel has mapped as well is the kernel's affair.
    own_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))
    assert own_kb < 40 * 1024
