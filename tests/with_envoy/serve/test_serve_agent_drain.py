"""Agents joined to a real ``switchgear serve`` and real Envoys: their word moves traffic, their absence none."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc.aio
import pytest

from chaos.fake_engine import EngineHang, FakeEngine
from chaos.processes import free_ports
from engine.report import DrainRequest, EngineReport, Evidence, GpuSummary, GpuVitals, Verdict
from engine.watch_server import WatchServer
from tests.with_envoy.serve.conftest import LIMIT_S, Site, document, eventually

pytestmark = pytest.mark.envoy


def report(verdict: Verdict = Verdict.READY, *, drain: bool = False) -> EngineReport:
    return EngineReport(
        pool="",
        engine="",
        verdict=verdict,
        evidence=f"the agent says {verdict}",
        reasons=(Evidence(reading="test", sentence=f"the agent says {verdict}"),),
        observed_at_s=0.0,
        drain=DrainRequest(deadline_in_s=30.0) if drain else None,
        gpu=GpuSummary(action="watch", statement="1 GPU", gpus=(GpuVitals(rank=0, temperature_c=71),)),
    )


@contextlib.asynccontextmanager
async def agent(server: WatchServer, port: int = 0) -> AsyncIterator[int]:
    listening = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_to(listening)
    port = listening.add_insecure_port(f"127.0.0.1:{port}")
    await listening.start()
    try:
        yield port
    finally:
        await listening.stop(None)


def pool(site: Site, engines: list[FakeEngine], ports: dict[str, int]) -> dict[str, Any]:
    made = site.pool(engines=engines)
    for endpoint in made["spec"]["endpoints"]:
        if endpoint["name"] in ports:
            endpoint["agentPort"] = ports[endpoint["name"]]
    return made


async def engine_is(site: Site, **wanted: Any) -> None:
    """Return once the first engine shows all this."""

    async def so() -> bool:
        one = (await site.get("/v1/engines"))["engines"][0]
        return {key: one[key] for key in wanted} == wanted

    await eventually(so, f"an engine with {wanted}")


async def test_drain_completes_after_every_envoy_acked(site: Site) -> None:
    engines = await site.start_engines(2)
    server = WatchServer()
    server.publish(report())
    async with agent(server) as port:
        site.write("chat.yaml", pool(site, engines, {"e0": port}), site.route())
        await site.serve()
        await site.envoy("n1")
        await site.envoy("n2", "--listen-address", "127.0.0.2")
        await site.answered()
        await engine_is(site, source="agent", verdict="ready", health="HEALTHY")
        (engine, other) = (await site.get("/v1/engines"))["engines"]
        assert engine["gpu"]["gpus"][0]["temperature_c"] == 71
        assert (engine["agent"]["connected"], other["agent"], other["source"]) == (True, None, "probe")
        code, out, _ = await site.switchgear("status", "--admin", f"http://{site.admin}")
        assert code == 0
        assert "watch: 1, 71 °C" in out
        for _ in range(2):
            since = server.publish(report(Verdict.DRAINING, drain=True)).sequence
            await eventually(lambda since=since: server.removal(since).heard == 1, "progress reported")
            await eventually(lambda since=since: server.removal(since).complete, "all confirmed")
            removal = server.removal(since)
            assert (removal.proxies_total, removal.proxies_acknowledged) == (2, 2)
            assert await site.health(engines[0]) == "DRAINING"
            arrived = len(engines[0].book.calls)
            assert {(await site.ask())[1] for _ in range(20)} == {"e1"}
            assert len(engines[0].book.calls) == arrived
            server.publish(report())
            await site.becomes(engines[0], "HEALTHY")
        assert await site.metric("switchgear_agents") == 1
        assert await site.metric("switchgear_agent_report_errors_total") == 0


@pytest.mark.parametrize(
    ("flags", "tokens", "least_s"),
    [
        (("--drain-deadline", "200ms"), 100, 1.0),
        # Until a control plane sends one, an agent without a deadline of its own uses 30 s.
        pytest.param((), 700, 31.0, marks=pytest.mark.slow),
    ],
)
async def test_drain_waits_for_streams_until_drain_deadline_of_the_policy(
    site: Site, flags: tuple[str, ...], tokens: int, least_s: float
) -> None:
    """A real agent whose own deadline is over long before the stream ends."""
    engines = await site.start_engines(2, token_s=0.05, prefill_s=0.01)
    agent_http, agent_grpc = free_ports(2)
    words = ("--http", f"127.0.0.1:{agent_http}", "--grpc", f"127.0.0.1:{agent_grpc}", *flags)
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "engine.agent",
            "run",
            "--engine",
            engines[0].url,
            "--model",
            "fake-model",
            *words,
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), LIMIT_S)
        policy = document("ResiliencePolicy", "default", {"drain": {"deadline": "15m"}})
        site.write("chat.yaml", pool(site, engines, {"e0": agent_grpc}), site.route(), policy)
        await site.serve()
        await site.envoy("n1")
        await site.answered()
        await engine_is(site, source="agent", verdict="ready", health="HEALTHY")
        async with aiohttp.ClientSession() as http:
            body = {"model": "fake-model", "prompt": "x", "max_tokens": tokens, "stream": True}
            async with http.post(f"{engines[0].url}/v1/completions", json=body) as stream:
                assert stream.status == 200
                async with http.post(f"http://127.0.0.1:{agent_http}/drain") as drained:
                    answer = await drained.json()
                assert (answer["outcome"], answer["in_flight"]) == ("drained", 0)
                assert answer["waited_s"] > least_s
                assert (await stream.read()).endswith(b"[DONE]\n\n")
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), LIMIT_S)


async def test_prober_takes_over_from_a_lost_agent(site: Site) -> None:
    engines = await site.start_engines(2)
    server = WatchServer(boot_id="first")
    server.publish(report(Verdict.HUNG))
    async with contextlib.AsyncExitStack() as stack:
        # Not a kernel-assigned port: while it is closed, another process could get it.
        (port,) = free_ports(1)
        async with agent(server, port):
            site.write("chat.yaml", pool(site, engines, {"e0": port}), site.route())
            serve = await site.serve()
            await engine_is(site, source="agent", verdict="hung", health="UNHEALTHY")
        # The agent's last verdict is outdated: the probe shows that.
        await engine_is(site, source="probe", verdict="ready", health="HEALTHY")
        assert site.logged(serve, "agent.lost")
        await engines[0].set_fault(EngineHang(health="ok"))
        await engine_is(site, source="probe", health="UNHEALTHY")
        again = WatchServer(boot_id="second")
        again.publish(report(Verdict.READY))
        await stack.enter_async_context(agent(again, port))
        await engine_is(site, source="agent", verdict="ready", health="HEALTHY")
        (engine, _) = (await site.get("/v1/engines"))["engines"]
        assert (engine["agent"]["boot_id"], engine["reasons"][0]["reading"]) == ("second", "test")
