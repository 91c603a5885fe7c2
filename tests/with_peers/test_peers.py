"""Routers of other projects as the failover benchmark runs them: real processes before simulated engines.

Without their environment each test is skipped: ``make peers-env`` makes one.
"""

import json
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from benchmarks.failover.chaos_history import experiment_measures
from benchmarks.failover.contestants import CONTESTANTS
from benchmarks.failover.engine_fleet import MODEL, EngineFleet, call_records, set_fault, start_fleet
from benchmarks.failover.experiment_setting import ExperimentSetting
from benchmarks.failover.failover_experiment import ExperimentCell, run
from benchmarks.failover.failover_scenarios import SCENARIOS
from benchmarks.failover.proxy_tier import ProxyTier, peer_tier, ready
from benchmarks.failover.result import result
from benchmarks.failover.result_tables import FORWARDING, cpu_ms_per_request
from benchmarks.peers import PEERS, Peer, peer_version, peers_python
from chaos.fake_engine import EngineCrash, EngineErrorAfterWork
from chaos.fake_engine.call_log import LOAD_ID
from chaos.processes import ChildProcesses
from deploy.compatibility import locked_peer
from tests.eventually import eventually

LIMIT_S = 120.0
SETTING = ExperimentSetting(engines=2, engine_processes=1)
SHORT = ExperimentSetting(
    engines=4, engine_processes=1, load_percent=40.0, deadline_s=4.0, before_s=2.0, fault_s=2.0, after_s=2.0
)
CALM_TRIES = 3

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(peers_python() is None, reason="no environment with the peers: `make peers-env` makes one"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBench:
    """One peer before two engines."""

    session: aiohttp.ClientSession
    fleet: EngineFleet
    side: ProxyTier

    async def ask(self, request_id: str) -> int:
        """The status of the answer, whose tokens are all there where it is 200."""
        body = {"model": MODEL, "prompt": "word", "max_tokens": 2}
        url = f"{self.side.targets[0].url}/v1/completions"
        # Routers forward the second, LiteLLM both.
        headers = {LOAD_ID: request_id, "x-request-id": request_id}
        async with self.session.post(url, json=body, headers=headers) as answer:
            said = await answer.read()
            if answer.status == 200:
                assert json.loads(said)["usage"]["completion_tokens"] == 2
            return answer.status

    async def outcomes(self, engine: int) -> dict[str, str]:
        """What became of each request's last call at an engine."""
        book = (await call_records(self.session, self.fleet))[engine]
        return {call["request_id"]: call["outcome"] for call in book["calls"]}


@pytest.fixture(params=PEERS.values(), ids=lambda one: one.name)
def peer(request: pytest.FixtureRequest) -> Peer:
    found: Peer = request.param
    return found


@pytest_asyncio.fixture
async def bench(peer: Peer, tmp_path: Path) -> AsyncIterator[PeerBench]:
    async with (
        ChildProcesses() as children,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        fleet = await start_fleet(children, SETTING)
        side = await peer_tier(children, tmp_path, CONTESTANTS[peer.name], SETTING, fleet)
        await ready(session, side, SETTING, fleet)
        yield PeerBench(session=session, fleet=fleet, side=side)


def test_what_runs_is_what_the_lock_pins(peer: Peer) -> None:
    assert peer_version(peer) == locked_peer(peer.distribution)


async def test_a_request_that_fails_at_one_engine_is_served_by_the_other(bench: PeerBench) -> None:
    await set_fault(bench.session, bench.fleet, 0, EngineErrorAfterWork())

    async def tried_again() -> str:
        name = f"failed-{uuid.uuid4()}"
        served = await bench.ask(name) == 200
        return name if served and (await bench.outcomes(0)).get(name) == "failed" else ""

    name = await eventually(tried_again, "a request that failed is served", LIMIT_S)
    assert (await bench.outcomes(1))[name] == "finished"


async def test_a_crashed_engine_is_left_alone(bench: PeerBench) -> None:
    """Before it is found out, a request may spend all its tries there."""
    await set_fault(bench.session, bench.fleet, 0, EngineCrash())

    async def all_served() -> Sequence[str]:
        names = [f"crashed-{uuid.uuid4()}" for _ in range(10)]
        return names if all([await bench.ask(name) == 200 for name in names]) else []

    served = await eventually(all_served, "ten in a row are served with one of two engines gone", LIMIT_S)
    finished = await bench.outcomes(1)
    assert [finished[name] for name in served] == ["finished"] * 10


async def test_the_failover_benchmark_measures_it(peer: Peer) -> None:
    cell = ExperimentCell(scenario=SCENARIOS["S3"], contestant=CONTESTANTS[peer.name], setting=SHORT)
    # A peer that fails requests before the fault has put engines aside, and may call none later.
    for _ in range(CALM_TRIES):
        history = await run(cell)
        found = experiment_measures(history, SHORT)
        if found.before.good == found.before.requests:
            break
    assert found.before.requests > 10
    assert found.before.good > 0
    assert found.calls_per_request > 0
    assert found.tries_per_request is None
    told = json.loads(json.dumps(result(cell, history)))
    assert told["versions"][peer.distribution] == peer_version(peer)
    cost_ms = cpu_ms_per_request(told, FORWARDING)
    assert cost_ms is not None
    assert cost_ms > 0
