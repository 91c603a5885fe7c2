"""Long prompts on two real vLLM engines with a context of 16 k tokens, behind a real Envoy with default policies.

A prompt is read in chunks of 2048 tokens, each a step of seconds in which no counter moves. The tests are chapters
on the same two engines, once with the first-token gate and once without.
"""

import asyncio
import contextlib
import os
import random
import signal
import string
import time
from collections.abc import AsyncIterator

import pytest

from chaos.real_vllm.tiny_model import ModelShape
from chaos.real_vllm.vllm_replica import START_LIMIT_S, wait_until_up
from engine.probe_settings import PREFILL_STALL_S
from engine.vllm_metrics import RankCounters, vllm_counters
from tests.with_vllm.conftest import LIMIT_S, Site, SiteSettings, eventually
from tests.with_vllm.traffic import Stream

# Steps of 0.3 to 1.5 s on an idle core.
SHAPE = ModelShape(context_tokens=16384, hidden=512, layers=4)
POOL = {"serviceTime": "10s", "longestServiceTime": "120s"}
SITES = {
    "gate": SiteSettings(shape=SHAPE, gate=True, agent_flags=(), pool=POOL, resilience={}),
    "no-gate": SiteSettings(shape=SHAPE, gate=False, agent_flags=(), pool=POOL, resilience={}),
}
BOTH = ("a", "b")
LONG = (2000, 8000, 15000)
# Processes per core that want to run; the test itself has at most two.
_BUSY_LOAD = 3.0
# Longest step of each engine in these chapters: agents remember one for a while.
longest_steps_s: dict[str, float] = {}

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.envoy,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2 * START_LIMIT_S),
    pytest.mark.parametrize("site", SITES.values(), ids=SITES, indirect=True, scope="module"),
]


def prompt(tokens: int) -> str:
    """A prompt that no prefix cache knows; each byte is a token."""
    return "".join(random.choices(string.ascii_lowercase + " ", k=tokens - 1))


def note(site: Site, what: str, seconds: float) -> None:
    site.note(f"long context, {'gate' if site.settings.gate else 'no gate'}: {what}", seconds)


class StepClock:
    """The scheduler steps of an engine with requests, by its metrics page."""

    def __init__(self, site: Site, name: str) -> None:
        self.longest_s = 0.0
        self.steps = 0
        self.stepped_at_s = time.monotonic()
        self._url = f"{site.replicas[name].url}/metrics"
        self._site = site
        self._name = name

    async def run(self) -> None:
        known: tuple[RankCounters, ...] = ()
        while True:
            began_s = time.monotonic()
            async with self._site.session.get(self._url) as answer:
                counters = vllm_counters(await answer.read())
            if counters.ranks != known:
                if self.steps:
                    self.longest_s = max(self.longest_s, began_s - self.stepped_at_s)
                    longest_steps_s[self._name] = max(longest_steps_s.get(self._name, 0.0), self.longest_s)
                known, self.stepped_at_s = counters.ranks, began_s
                self.steps += 1
            if not counters.running:
                self.steps = 0
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def step_clocks(site: Site) -> AsyncIterator[dict[str, StepClock]]:
    """The clocks of both engines while the block runs.

    Skips a test that fails on a machine busy with other work: there, a step may take as long as a hang.
    """
    clocks = {name: StepClock(site, name) for name in BOTH}
    tasks = [asyncio.create_task(clock.run()) for clock in clocks.values()]
    try:
        yield clocks
    except AssertionError:
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > _BUSY_LOAD * cores:
            pytest.skip(f"machine too busy: load {load:.0f} on {cores} cores")
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def assert_worked(site: Site, names: tuple[str, ...], since_s: float) -> None:
    """Fail if an engine had any verdict but ready or busy, or left rotation."""
    for name in names:
        assert all(seen.works for seen in site.watch.since(name, since_s)), site.watch.story(name)


async def served(streams: list[Stream]) -> None:
    ended = [await one.ended() for one in streams]
    broken = [one for one in ended if not one.whole]
    assert not broken, f"{len(broken)} of {len(ended)} streams, such as {broken[:3]}"


async def test_long_context_engines_start(site: Site) -> None:
    longest_steps_s.clear()
    for name in BOTH:
        await wait_until_up(site.replicas[name])
        await site.watch.back(name, after_s=0.0, limit_s=LIMIT_S)
    # Admission, retries and limits follow what was measured: first of short requests only.
    await served([site.stream(16) for _ in range(8)])


@pytest.mark.parametrize("tokens", LONG)
async def test_long_context_prompt_alone_is_served(site: Site, tokens: int) -> None:
    began_s = time.monotonic()
    async with step_clocks(site) as clocks:
        stream = await site.stream(4, prompt=prompt(tokens)).ended()
        note(site, f"{tokens} tokens alone: first token", stream.first_token_s)
        note(site, f"{tokens} tokens alone: longest step", max(one.longest_s for one in clocks.values()))
        await served([stream])
        assert_worked(site, BOTH, began_s)


async def test_long_context_prompts_among_short_ones_are_served(site: Site) -> None:
    began_s = time.monotonic()
    shorts: list[Stream] = []
    long_done = asyncio.Event()

    async def client() -> None:
        while not long_done.is_set():
            shorts.append(await site.stream(16).ended())

    async with step_clocks(site) as clocks:
        async with asyncio.TaskGroup() as clients:
            for _ in range(4):
                clients.create_task(client())
            await eventually(lambda: len(shorts) >= 4, "short requests are answered")
            longs = [site.stream(4, prompt=prompt(tokens)) for tokens in LONG]
            for one in longs:
                await one.ended()
            long_done.set()
        for one, tokens in zip(longs, LONG, strict=True):
            note(site, f"{tokens} tokens among short ones: first token", one.first_token_s)
        note(site, "among short ones: longest step", max(one.longest_s for one in clocks.values()))
        note(site, f"{len(shorts)} short ones: slowest first token", max(one.first_token_s for one in shorts))
        await served([*longs, *shorts])
        assert_worked(site, BOTH, began_s)


async def test_long_context_engine_stopped_in_a_prefill_is_hung(site: Site) -> None:
    async with step_clocks(site) as clocks:
        stream = site.stream(4, prompt=prompt(15000))

        def reading() -> str:
            return next((name for name, clock in clocks.items() if clock.steps >= 4), "")

        name = await eventually(reading, "an engine reads the third chunk")
        clock = clocks[name]
        chunk_s = clock.longest_s
        await asyncio.sleep(clock.stepped_at_s + chunk_s / 2 - time.monotonic())
        # Steps of other chapters may have been longer; half a second is for the agent's own looks.
        limit_s = PREFILL_STALL_S + max(chunk_s, longest_steps_s[name]) + 0.5
        stopped_at_s = time.monotonic()
        site.signal_core(name, signal.SIGSTOP)
        try:
            hung = await site.watch.verdict(name, "hung", after_s=stopped_at_s, limit_s=LIMIT_S)
            found_s = hung.at_s - stopped_at_s
            note(site, f"stopped in a chunk of {chunk_s:.1f} s: verdict hung", found_s)
            await stream.ended()
        finally:
            resumed_at_s = time.monotonic()
            site.signal_core(name, signal.SIGCONT)
        await site.watch.back(name, after_s=resumed_at_s, limit_s=LIMIT_S)
        assert found_s <= limit_s
        if site.settings.gate:
            note(site, "its prompt of 15000 tokens, read elsewhere: first token", stream.first_token_s)
            await served([stream])
        # The retry does not cost a second engine.
        assert_worked(site, tuple(one for one in BOTH if one != name), stopped_at_s)
