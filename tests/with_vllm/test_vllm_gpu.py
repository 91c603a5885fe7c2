"""Two real vLLM engines on a real GPU: kernels that never end, and kernels that fault.

The tests are chapters: they run in this order, on the same two engines. ``make gpu`` runs them; both engines share
the first GPU.
"""

import os
import time
from pathlib import Path

import pytest

from chaos.real_vllm import kernel_faults
from chaos.real_vllm.tiny_model import ModelShape
from chaos.real_vllm.vllm_replica import ENVIRONMENT, START_LIMIT_S, wait_until_up
from tests.with_gpu.conftest import missing
from tests.with_vllm.conftest import FIRST_TOKEN_S, LIMIT_S, Site, SiteSettings, eventually
from tests.with_vllm.test_vllm_lifecycle import BOTH, whole

HANG_S = 20.0
# A step takes milliseconds, so that streams of 2 000 tokens last for seconds.
SHAPE = ModelShape(context_tokens=8192, hidden=2048, layers=24, heads=16)
SETTINGS = SiteSettings(
    shape=SHAPE,
    environment={
        "VLLM_SERVER_DEV_MODE": "1",
        "PYTHONPATH": os.pathsep.join((ENVIRONMENT["PYTHONPATH"], str(Path(kernel_faults.__file__).parent))),
    },
    engine_flags=(
        *("--worker-extension-cls", "kernel_faults.KernelFaults", "--kv-cache-memory-bytes", "4G"),
        *("--dtype", "bfloat16"),
    ),
    agent_flags=("--timeout", "1s"),
)
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.gpu,
    pytest.mark.envoy,
    pytest.mark.skipif(bool(missing()), reason=missing() or "-"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2 * START_LIMIT_S),
    pytest.mark.parametrize("site", [SETTINGS], indirect=True, scope="module", ids=["gpu"]),
]


async def test_engines_start_and_their_reports_name_the_gpu(site: Site) -> None:
    began_s = time.monotonic()
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        ready = await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
        site.note(f"GPU: {name} ready and in", ready.at_s - began_s)
        gpu = (await site.report(name))["gpu"]
        assert gpu["gpus"], gpu
        assert gpu["gpus"][0]["uuid"].startswith("GPU-"), gpu
    whole([await site.stream(16).ended()])


async def test_saturated_engines_are_not_ejected(site: Site) -> None:
    began_s = time.monotonic()
    streams = [site.stream(64) for _ in range(64)]
    whole([await one.ended() for one in streams])
    site.note("GPU: 64 streams of 64 tokens on 16 slots", time.monotonic() - began_s)
    for name in BOTH:
        assert all(one.works for one in site.watch.since(name, began_s)), site.watch.story(name)


async def test_long_prompts_are_not_a_hang(site: Site) -> None:
    began_s = time.monotonic()
    streams = [site.stream(32, prompt="x" * 8000) for _ in range(16)]
    whole([await one.ended() for one in streams])
    site.note("GPU: 16 prompts of 8 000 tokens at once", time.monotonic() - began_s)
    for name in BOTH:
        assert all(one.works for one in site.watch.since(name, began_s)), site.watch.story(name)


async def test_kernel_that_never_ends_is_a_hang(site: Site) -> None:
    under_way = await site.begun(6, 2000)
    while not (await site.in_flight("a") and await site.in_flight("b")):
        under_way += await site.begun(2, 2000)
    hung_at_s = time.monotonic()
    await site.call_worker("a", "hang_kernel", HANG_S)
    late = [site.stream(64) for _ in range(12)]
    hung = await site.watch.verdict("a", "hung", after_s=hung_at_s, limit_s=LIMIT_S)
    out = await site.watch.out("a", after_s=hung_at_s, limit_s=LIMIT_S)
    site.note("GPU: kernel never ends, under load: verdict hung", hung.at_s - hung_at_s)
    site.note("GPU: kernel never ends, under load: out of the Envoy", out.at_s - hung_at_s)
    assert hung.at_s - hung_at_s < HANG_S
    assert await site.status(f"{site.replicas['a'].url}/health") == 200, "vLLM notices nothing"
    busy = (await site.report("a"))["gpu"]["gpus"][0]
    site.note("GPU: utilisation while the kernel hangs", busy["utilisation_percent"], unit="%")
    whole([await one.ended() for one in late])
    site.note("GPU: slowest of 12 streams sent meanwhile", max(one.seconds for one in late))
    assert max(one.seconds for one in late) < FIRST_TOKEN_S
    others = site.watch.since("b", hung_at_s)
    assert all(one.works for one in others), site.watch.story("b")
    over_s = hung_at_s + HANG_S
    back = await site.watch.back("a", after_s=out.at_s, limit_s=LIMIT_S + HANG_S)
    site.note("GPU: in again, from the end of the kernel at the latest", back.at_s - over_s)
    assert not (await site.report("a"))["gpu"]["gpus"][0]["xids"], "a hung kernel gives no XID"
    ended = [await one.ended() for one in under_way]
    assert any(one.whole for one in ended), ended


async def test_kernel_that_never_ends_is_found_while_idle(site: Site) -> None:
    hung_at_s = time.monotonic()
    await site.call_worker("b", "hang_kernel", HANG_S)
    hung = await site.watch.verdict("b", "hung", after_s=hung_at_s, limit_s=LIMIT_S)
    site.note("GPU: kernel never ends, idle: verdict hung", hung.at_s - hung_at_s)
    await site.watch.out("b", after_s=hung_at_s, limit_s=LIMIT_S)
    await site.watch.back("b", after_s=hung.at_s, limit_s=LIMIT_S + HANG_S)


async def test_kernel_that_faults_kills_the_engine_and_gives_an_xid(site: Site) -> None:
    under_way = await site.begun(6, 2000)
    faulted_at_s = time.monotonic()
    await site.call_worker("b", "fault_kernel")
    dead = await site.watch.verdict("b", "dead", after_s=faulted_at_s, limit_s=LIMIT_S)
    out = await site.watch.out("b", after_s=faulted_at_s, limit_s=LIMIT_S)
    site.note("GPU: illegal access: verdict dead", dead.at_s - faulted_at_s)
    site.note("GPU: illegal access: out of the Envoy", out.at_s - faulted_at_s)

    async def xids() -> list[int]:
        """What the agent of the other engine knows: the death of its own ends what a restart fixes."""
        return list((await site.report("a"))["gpu"]["gpus"][0]["xids"])

    codes = await eventually(xids, "the agent of the engine that shares the GPU reports an XID")
    site.note("GPU: illegal access: XID", codes[0], unit="")
    site.note("GPU: illegal access: XID seen in the other engine's report", time.monotonic() - faulted_at_s)
    assert codes == [31], codes
    after = [site.stream(32) for _ in range(8)]
    whole([await one.ended() for one in after])
    for one in under_way:
        await one.ended()
    # The engine that shares the GPU keeps serving: an XID names the board, not the process.
    assert site.watch.now("a").takes_traffic, site.watch.story("a")
