"""Regions report to each other by the agent protocol."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from chaos.fake_engine import EngineConfig, EngineCrash, FakeEngine
from engine.address import ListenAddress
from engine.proto import engine_report_pb2 as pb
from engine.report import EngineReport, Verdict
from policies.load import load_contents
from tests.eventually import eventually
from xds_server.app.region_summary import SummaryServer, region_summary
from xds_server.decide.decide import decide
from xds_server.decide.decision_memory import NO_MEMORY
from xds_server.decide.pool_inputs import ConnectedProxies
from xds_server.model.fleet import declared, with_report
from xds_server.serve_config import ConfigError, ServeConfig

HEAD = "apiVersion: switchgear.dev/v1alpha1\nkind: EnginePool\nmetadata: {name: p}\n"
POOL = f"""{HEAD}spec:
  model: fake-model
  slotsPerEngine: 4
  endpoints:
    - {{name: u1, address: 10.0.0.1, port: 1, region: us, revision: 2.1.0}}
    - {{name: u2, address: 10.0.0.2, port: 1, region: us, revision: 2.1.0}}
    - {{name: eu, address: 10.0.0.3, port: 1, region: eu, slots: 1000}}
"""


@pytest.mark.parametrize(
    ("dead", "verdict", "slots", "sentence"),
    [
        ((), Verdict.READY, 8, "level 0, 2 of 2 engines healthy"),
        (("u1",), Verdict.READY, 4, "level 0, 1 of 2 engines healthy"),
        (("u1", "u2"), Verdict.DEAD, 1, "level 0, 0 of 2 engines healthy"),
    ],
)
def test_summary_counts_the_own_region_only(
    dead: tuple[str, ...], verdict: Verdict, slots: int, sentence: str
) -> None:
    policies = load_contents({Path("p.yaml"): POOL.encode()})
    fleet = declared(policies)
    for name in dead:
        for sequence in (1, 2):
            answer_json = EngineReport(
                pool="p", engine=name, verdict=Verdict.DEAD, evidence="", observed_at_s=9.0, sequence=sequence
            )
            fleet = with_report(fleet, answer_json, 9.0)
    decided, _ = decide(policies, fleet, NO_MEMORY, proxies=ConnectedProxies(), now_s=10.0)
    report = region_summary("p", policies, fleet, decided.pools["p"], region="us", now_s=10.0)
    assert (report.verdict, report.slots, report.reasons[0].sentence) == (verdict, slots, sentence)
    assert report.revision == ("" if len(dead) == 2 else "2.1.0")


def test_summary_requires_a_region() -> None:
    with pytest.raises(ConfigError, match="--region"):
        ServeConfig(policies=(Path("p"),), summary=ServeConfig(policies=(Path("p"),)).admin)


async def test_unauthorized_watcher_is_denied_every_pool() -> None:
    asked: list[tuple[str, ...]] = []

    def permits(identities: tuple[str, ...]) -> bool:
        asked.append(identities)
        return False

    server = SummaryServer(ListenAddress("127.0.0.1", 0), "us", None, permits)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(server.run())
        await eventually(lambda: answered(server.port > 0), "it listens", 60)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            watch = channel.unary_stream(f"/{pb.DESCRIPTOR.services_by_name['EngineAgent'].full_name}/Watch")
            code = await watch(pb.WatchRequest(pool="p", watcher="w").SerializeToString()).code()
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert asked == [()]
        running.cancel()


async def answered(value: bool) -> bool:
    return value


@contextlib.asynccontextmanager
async def serving(folder: Path, *flags: str) -> AsyncIterator[tuple[str, asyncio.StreamReader]]:
    """Address of a control plane with these policies, and its JSON log."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "xds_server", "serve", "-f", str(folder),
        "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json", *flags,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.timeout(60):
            addresses = json.loads(await process.stdout.readline())
        yield addresses["admin"], process.stderr
    finally:
        process.terminate()
        await process.communicate()


async def test_region_changes_reach_the_other_region(tmp_path: Path) -> None:
    engines = [FakeEngine(EngineConfig(name=f"u{number}")) for number in range(2)]
    for one in engines:
        await one.start()
    there, here = tmp_path / "us", tmp_path / "eu"
    there.mkdir()
    here.mkdir()
    own = "".join(f"\n    - {{address: 127.0.0.1, port: {one.port}, region: us}}" for one in engines)
    (there / "p.yaml").write_text(f"{HEAD}spec:\n  model: fake-model\n  slotsPerEngine: 4\n  endpoints:{own}\n")
    async with (
        serving(there, "--summary", "127.0.0.1:0", "--region", "us") as (_, log),
        aiohttp.ClientSession() as http,
    ):
        async with asyncio.timeout(60):
            while (line := json.loads(await log.readline()))["event"] != "summary.listening":
                pass
        port = line["address"].rpartition(":")[2]
        # Here a region is an engine; its gateway would be at the first engine's address.
        (here / "p.yaml").write_text(
            f"{HEAD}spec:\n  model: fake-model\n  endpoints:\n"
            f"    - {{name: us, address: 127.0.0.1, port: {engines[0].port}, agentPort: {port}, region: us}}\n"
        )
        async with serving(here) as (admin, _):

            async def seen() -> dict[str, Any]:
                async with http.get(f"http://{admin}/v1/engines") as answer:
                    answer_json = (await answer.json())["engines"][0]
                return {key: answer_json.get(key) for key in ("verdict", "source", "evidence", "slots")}

            async def tells(words: str) -> bool:
                now = await seen()
                return now["source"] == "agent" and words in str(now["evidence"])

            await eventually(lambda: tells("2 of 2 engines healthy"), "2 of 2 engines healthy", 60)
            await engines[1].set_fault(EngineCrash())
            await eventually(lambda: tells("1 of 2 engines healthy"), "1 of 2 engines healthy", 60)
            await engines[0].set_fault(EngineCrash())
            await eventually(lambda: tells("0 of 2 engines healthy"), "0 of 2 engines healthy", 60)
            assert (await seen())["verdict"] == "dead"
    for one in engines:
        await one.stop()
