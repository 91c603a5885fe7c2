"""A real Envoy without a control plane: frozen, short of CPU, and cut from an engine that others still reach."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from chaos.fake_engine import FakeEngine
from chaos.faults.actions import ProcessRole
from chaos.faults.black_hole import BlackHoleFault
from chaos.faults.fault import Fault
from chaos.faults.partition import PartitionFault
from chaos.faults.proxy_frozen import ProxyFrozenFault
from chaos.faults.slow_proxy import SlowProxyFault
from chaos.lab.envoy_processes import bind_to_address, start_envoy, wait_for_healthy
from chaos.lab.lab_handles import LabHandles, ProxyHandle
from chaos.lab.process_slot import ProcessSlot
from chaos.netem.netem_control import NetemControl
from chaos.netem.netem_link import NetemLink
from chaos.netem.packet_filter import unavailable_reason
from chaos.processes import ChildProcesses, free_ports
from chaos.testbed.static_envoy import NAIVE, POOL, static_bootstrap
from tests.chaos.conftest import StartEngine
from tests.chaos.faults.small_lab import InjectedFault, engine_site, site, until

pytestmark = pytest.mark.envoy

ADDRESS = "127.0.0.2"
DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxied:
    """An Envoy in zone a, in front of a wire to an engine in zone b."""

    engine: FakeEngine
    link: NetemLink
    post: ProcessSlot
    site: LabHandles

    def struck(self, fault: Fault, target: str) -> InjectedFault:
        return InjectedFault(self.site, fault, target)

    async def status(self, url: str = "", *, patience_s: float = 60.0) -> int:
        """Status of one request, through the Envoy by default."""
        url = url or self.site.proxies["p0"].url
        limit = aiohttp.ClientTimeout(total=patience_s)
        body = {"prompt": "x", "max_tokens": 4}
        async with self.site.session.post(f"{url}/v1/completions", json=body, timeout=limit) as answer:
            await answer.read()
            return answer.status

    async def serves(self) -> bool:
        return await self.status() == 200

    def stopped(self) -> bool:
        """Whether the process stands still at this moment. Source: proc(5), the state in /proc/PID/stat."""
        assert self.post.child is not None
        text = Path(f"/proc/{self.post.child.pid}/stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()[0] == "T"


@pytest.fixture
async def proxied(start_engine: StartEngine, tmp_path: Path) -> AsyncIterator[Proxied]:
    engine = await start_engine()
    async with AsyncExitStack() as stack:
        link = NetemLink("engine:e0", ("127.0.0.1", engine.port), random.Random(1))
        await link.listen()
        stack.callback(link.close)
        wires = await stack.enter_async_context(TestServer(NetemControl({link.name: link}).app()))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        children = await stack.enter_async_context(ChildProcesses())
        listener, admin = free_ports(2)
        text = static_bootstrap(
            replace(NAIVE, route={}),
            engine_ports=[link.port],
            slots=4,
            proxies=1,
            deadline_s=DEADLINE_S,
            listener_port=listener,
            admin_port=admin,
            listen_address=ADDRESS,
        )
        post = await start_envoy(children, tmp_path, "p0", bind_to_address(text, ADDRESS))
        proxy = ProxyHandle(
            name="p0",
            zone="a",
            demand=1.0,
            url=f"http://{ADDRESS}:{listener}",
            admin=f"http://127.0.0.1:{admin}",
            address=ADDRESS,
        )
        await wait_for_healthy(session, proxy.admin, POOL, 1)
        ports: Mapping[str, int] = {link.name: link.port}
        bare = site(
            session,
            engine_site("e0", engine.port, zone="b", seen_port=link.port),
            posts={(ProcessRole.PROXY, "p0"): post},
            wires=str(wires.make_url("")).rstrip("/"),
            link_ports=ports,
        )
        yield Proxied(engine=engine, link=link, post=post, site=replace(bare, proxies={"p0": proxy}))


async def test_envoy_recovers_from_each_proxy_fault(proxied: Proxied) -> None:
    # One after another, for the sake of the Envoy's start.
    await until(proxied.serves)
    # Health checks included, it comes from nowhere else.
    assert set(proxied.link.accepted) == {ADDRESS}

    frozen = proxied.struck(ProxyFrozenFault(), "p0")
    await frozen.pull()
    with pytest.raises(TimeoutError):
        await proxied.status(patience_s=0.3)
    await frozen.release()
    await until(proxied.serves)

    slow = proxied.struck(SlowProxyFault(stopped_share=0.5, period="40ms"), "p0")
    await slow.pull()
    seen = set()
    async with asyncio.timeout(60):
        while seen != {True, False}:
            seen.add(proxied.stopped())
            await asyncio.sleep(0.005)
    await until(proxied.serves)
    await slow.release()
    assert not proxied.stopped()

    if reason := unavailable_reason():
        pytest.skip(f"freezing and slowing work; no partition here: {reason}")
    # Cut from the engine's zone: the test's own connections are not affected.
    partition = proxied.struck(PartitionFault(), "e0")
    await partition.pull()
    assert await proxied.status() in {503, 504}
    assert await proxied.status(f"http://127.0.0.1:{proxied.link.port}") == 200
    await partition.release()
    await until(proxied.serves)

    hole = proxied.struck(BlackHoleFault(), "e0")
    await hole.pull()
    assert await proxied.status() in {503, 504}
    with pytest.raises(TimeoutError):
        await proxied.status(f"http://127.0.0.1:{proxied.link.port}", patience_s=0.3)
    await hole.release()
    await until(proxied.serves)
