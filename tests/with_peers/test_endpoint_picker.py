"""The Gateway API's real endpoint picker behind a real Envoy, with the pods of an API server for engines.

Without its program the tests are skipped: ``make picker-parts`` builds it.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from benchmarks.failover.endpoint_picker import start_picker
from benchmarks.failover.picker_bootstrap import picker_bootstrap
from chaos.lab.engine_processes import EngineProfile, call_log, fake_engine_command
from chaos.lab.envoy_processes import start_envoy
from chaos.processes import ChildProcess, ChildProcesses, free_ports
from tests.cluster import Cluster
from tests.eventually import eventually
from tests.mesh_parts import ENDPOINT_PICKER, required

LIMIT_S = 120.0
MODEL = "bench"
LABELS = {"app": "engine"}
ADDRESSES = ("127.0.0.2", "127.0.0.3")
"""Of the pods: an endpoint is a pod's address with a port of the pool."""
pytestmark = [pytest.mark.envoy, pytest.mark.timeout(400)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerSite:
    """Two engines as pods ``engine-0`` and ``engine-1``, the picker, and an Envoy that asks it."""

    session: aiohttp.ClientSession
    cluster: Cluster
    engines: tuple[ChildProcess, ...]
    url: str

    async def ask(self, prompt: str) -> int:
        """The status of the answer."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 2}
        async with self.session.post(f"{self.url}/v1/completions", json=body) as answer:
            await answer.read()
            return answer.status

    async def served(self) -> list[int]:
        """How many calls each engine has finished."""
        books = [await call_log(self.session, one.ready["engines"][0]["control"]) for one in self.engines]
        return [sum(call["outcome"] == "finished" for call in book["calls"]) for book in books]


@pytest_asyncio.fixture
async def site(cluster: Cluster, tmp_path: Path) -> AsyncIterator[PickerSite]:
    required(ENDPOINT_PICKER)
    async with (
        ChildProcesses() as children,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session,
    ):
        port, listener, admin = free_ports(3)
        profile = EngineProfile(model=MODEL, slots=4, token_s=0.01)
        engines = []
        for number, address in enumerate(ADDRESSES):
            command = fake_engine_command(profile, count=1, prefix=f"e{number}-", seed=number)
            argv = [*command, "--host", address, "--port", str(port)]
            engines.append(await children.start(f"engine-{number}", argv, ready_within_s=LIMIT_S))
            await cluster.pod(f"engine-{number}", labels=LABELS, ip=address)
        labels = [f"{key}={text}" for key, text in LABELS.items()]
        _, grpc = await start_picker(children, cluster.kubeconfig, labels, port)
        bootstrap = picker_bootstrap(
            grpc,
            engine_ports=[port],
            slots=8,
            proxies=1,
            deadline_s=10.0,
            listener_port=listener,
            admin_port=admin,
        )
        await start_envoy(children, tmp_path, "0", bootstrap)
        found = PickerSite(
            session=session, cluster=cluster, engines=tuple(engines), url=f"http://127.0.0.1:{listener}"
        )

        async def answers() -> bool:
            try:
                return await found.ask("first") == 200
            except aiohttp.ClientError:
                return False

        await eventually(answers, "the picker picks an engine", LIMIT_S)
        yield found


async def test_the_real_picker_spreads_requests_over_ready_pods(site: PickerSite) -> None:
    async def both_served() -> bool:
        assert await site.ask(f"prompt of its own {await site.served()}") == 200
        return min(await site.served()) > 0

    await eventually(both_served, "both engines serve", LIMIT_S)


async def test_a_pod_that_is_not_ready_is_picked_no_more(site: PickerSite) -> None:
    await site.cluster.condition("engine-0", "Ready", held=False)

    async def left_alone() -> bool:
        before = await site.served()
        assert [await site.ask(f"{before} {number}") for number in range(10)] == [200] * 10
        after = await site.served()
        return after[0] == before[0] and after[1] == before[1] + 10

    await eventually(left_alone, "ten requests go to the ready pod", LIMIT_S)
